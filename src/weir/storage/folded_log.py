"""A dense log that stays short: its head is replaced by snapshots of what it says.

    <prefix>/<number>.json       the entries
    <snapshots>/<number>.json    what all entries below this number say together, created if absent

Two snapshots are kept. The number of the older one is the **line**: entries below it may be deleted, those
from it on are all there. A number below the line can be created once more, by a writer that slept; so
nothing that was read or written from position p on is believed before the line was seen at p or below it,
afterwards. The line only grows, because no snapshot of the newest two is ever deleted; and an entry is only
deleted when the line is above it. So a reader in the middle begins again, and a writer that woke up too
late finds its entry void. A log without snapshots, or of before there were any, is read from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from weir import faults
from weir.errors import LostLedgerError
from weir.storage.log import DenseLog, Entry, lost
from weir.storage.store import Store


class Folded(Protocol):
    """What entries say together; a function of them alone, whoever folds them."""

    def apply(self, entry: Entry) -> None:
        """Take in the next entry."""

    def encode(self) -> dict[str, Any]:
        """As a snapshot."""


State = TypeVar("State", bound=Folded)
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What JSON raises that is none, or not that of an entry or a snapshot."""


class BoundedLog(Generic[State]):
    """One log and what it says. Not for use from several threads at once; from several processes, yes."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        snapshots: str,
        empty: Callable[[], State],
        decode: Callable[[Mapping[str, Any]], State],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._snapshots = snapshots
        self._empty = empty
        self._decode = decode
        self._begun = self._checked = False
        self._newest = 0
        """The number of the newest snapshot, as it was seen last."""
        self._restart(0, empty())

    @property
    def number(self) -> int:
        """The number behind the last entry that was taken in."""
        return self._log.next_number

    @property
    def unkept(self) -> int:
        """So many entries stand behind the newest snapshot that was seen."""
        return self.number - self._newest

    def catch_up(self) -> State:
        """What the log says now; raises `LostLedgerError` for a damaged entry, and for a hole."""
        if not self._begun:
            self._reload()
            self._begun = True
        while True:
            for entry in self._log.read_new():
                self._apply(entry)
            if not self._believe() or self._is_cut_off():
                self._reload()
            elif self._checked or self._is_all():
                self._checked = True
                return self.state

    def append(self, entry: Entry, wanted: Callable[[State], bool]) -> bool:
        """Append the entry behind everything that is there; True when it counts.

        It is no longer wanted when what it would stand behind says so; then it is not written, or, for
        a writer that slept in between, written where nobody reads.
        """

        def seen(other: Entry) -> bool:
            self._apply(other)
            return wanted(self.state)

        while True:
            if not wanted(self.catch_up()):
                return False
            there = self._log.append(entry, seen)
            if there:
                self.state.apply(entry)
            if self._believe():
                return there
            self._reload()

    def keep(self, number: int, body: Mapping[str, Any]) -> None:
        """Keep what the entries below a number say, which `catch_up` has returned, and delete the oldest.

        Reads nothing of this object, so it may be called beside the other verbs. Safe to repeat, and to
        be killed in; whoever is next deletes the rest.
        """
        self._store.create(self._key(number), json.dumps(body, separators=(",", ":")).encode())
        faults.point("ledger.snapshot")
        line = self._line(self._kept())
        for folder in (self._snapshots, self._prefix):
            for key in list(self._store.list(folder)):
                if _number(key) < line:
                    self._store.delete(key)

    def _restart(self, number: int, state: State) -> None:
        self._log = DenseLog(self._store, self._prefix, first=number)
        self.state = state
        self._first = self._believed = number

    def _believe(self) -> bool:
        """Whether everything that was taken in is true; then it stays so."""
        kept = self._kept()
        if self._line(kept) > self._believed:
            return False
        self._newest = max(kept, default=0)
        self._believed = self._log.next_number
        return True

    def _is_cut_off(self) -> bool:
        """Whether the newest entry that was taken in is gone: the whole log was put back to an older state.

        Then what is left of it is the truth. An entry after a gap would be read by nobody.
        """
        newest = self._log.next_number - 1
        return newest >= self._first and not self._store.exists(f"{self._prefix}/{newest:09d}.json")

    def _reload(self) -> None:
        """Begin at the newest snapshot; if it is damaged, at the older one, whose entries are all there."""
        self._checked = False
        while kept := self._kept():
            for number in kept[:-3:-1]:
                data = self._store.get(self._key(number))
                if data is None:  # two newer ones have come
                    break
                try:
                    self._restart(number, self._decode(json.loads(data)))
                    return
                except _MALFORMED:
                    continue
            else:
                raise lost(self._store, self._key(kept[-1]), "can't be read")
        self._restart(0, self._empty())

    def _is_all(self) -> bool:
        """Whether nothing stands after what was read, once for each beginning; a hole is an error."""
        try:
            return self._log.check_end()
        except LostLedgerError:
            if self._believe():
                raise
        self._reload()  # the head was deleted meanwhile, and no entry is lost
        return False

    def _apply(self, entry: Entry) -> None:
        try:
            self.state.apply(entry)
        except _MALFORMED as error:
            last = f"{self._prefix}/{self._log.next_number - 1:09d}.json"
            raise lost(self._store, last, "can't be read") from error

    def _kept(self) -> list[int]:
        return sorted(_number(key) for key in self._store.list(self._snapshots))

    def _line(self, kept: list[int]) -> int:
        return kept[-2] if len(kept) > 1 else 0

    def _key(self, number: int) -> str:
        return f"{self._snapshots}/{number:09d}.json"


def _number(key: str) -> int:
    return int(key.rsplit("/", 1)[1].removesuffix(".json"))
