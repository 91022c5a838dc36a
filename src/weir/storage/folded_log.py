"""Dense logs with what their entries say together. Their writers append what they make of that.

`FoldedLog` has the one loop in which a writer appends: what it makes of the state must still be what it would
make when the entry lands. Its kinds differ in how a log stays short:

- `FoldedLog`: the log is read from where it begins; a subclass of `DenseLog` may know where that is.
- `NewestLog`: each entry tells the whole state, so only the newest is read and any older one may be deleted.
- `BoundedLog`: the head is replaced by snapshots.

    <prefix>/<number>.json       the entries
    <snapshots>/<number>.json    of a `BoundedLog`: what all entries below this number say together

Who may write is not decided here: `sinks/fence.py` holds such a log with a fence.

Of a bounded log two snapshots are kept. The number of the older one is the **line**: entries below it may be
deleted, those from it on are all there. A number below the line can be created once more, by a writer that
slept; so nothing that was read or written from position p on is believed before the line was seen at p or
below it, afterwards. The line only grows, because no snapshot of the newest two is ever deleted; and an entry
is only deleted when the line is above it. So a reader in the middle begins again, and a writer that woke up
too late finds its entry void. A log without snapshots, or of before there were any, is read from its
beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from weir import faults
from weir.errors import LostLedgerError
from weir.storage import sums
from weir.storage.log import DenseLog, Entry, lost
from weir.storage.store import Store


class Folded(Protocol):
    """What entries say together; a function of them alone, whoever folds them."""

    def apply(self, entry: Entry) -> None:
        """Take in the next entry."""

    def encode(self) -> dict[str, Any]:
        """As a snapshot."""


S = TypeVar("S")
State = TypeVar("State", bound=Folded)
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What JSON raises that is none, or not that of an entry or a snapshot."""


Make = Callable[[S], Entry | None]
"""What a writer appends where this is the state; None for nothing. Asked again when others were quicker."""


class FoldedLog(Generic[S]):
    """One log and what it says. Not for use from several threads at once; from several processes, yes."""

    def __init__(self, log: DenseLog, state: S, take: Callable[[S, Entry], S]) -> None:
        self._log = log
        self._fold = take
        self.state = state

    @property
    def number(self) -> int:
        """The number behind the last entry that was taken in."""
        return self._log.next_number

    def catch_up(self) -> S:
        """What the log says now."""
        for entry in self._log.read_new():
            self._take(entry)
        return self.state

    def append(self, make: Make[S]) -> bool:
        """Append what `make` makes of what it will stand behind; False when that is nothing.

        The caller has caught up. An entry that comes in between may change what is to be appended, or that
        anything is; nothing is written before that is asked.
        """
        while (entry := make(self.state)) is not None:
            there = self._log.append(entry, partial(self._leaves, make, entry))
            if there:
                self._take(entry)
            if self._is_void():
                self.catch_up()
            elif there:
                return True
        return False

    def _leaves(self, make: Make[S], entry: Entry, other: Entry) -> bool:
        """Take in an entry of another; whether ours is to be appended all the same."""
        self._take(other)
        return make(self.state) == entry

    def _take(self, entry: Entry) -> None:
        self.state = self._fold(self.state, entry)

    def _is_void(self) -> bool:
        """Whether what was read or written since the last look may not count, so that it is read again."""
        return False


class NewestLog(FoldedLog[S]):
    """A log whose newest entry tells all, so that any older one may be deleted."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        empty: Callable[[], S],
        decode: Callable[[Entry], S],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._empty = empty
        self._decode = decode
        super().__init__(DenseLog(store, prefix), empty(), self._decoded)

    def catch_up(self) -> S:
        """What the log says now; raises `LostLedgerError` for a damaged entry."""
        while self._is_void():
            super().catch_up()
        return self.state

    def expire(self, kept: int) -> None:
        """Delete the entries that are too old, from the newest of them down to one that is gone."""
        number = self.number - kept - 1
        while number >= 0 and self._store.exists(self._key(number)):
            self._store.delete(self._key(number))
            number -= 1

    def _is_void(self) -> bool:
        """Whether entries are there that were not read; then the newest is read next, which tells all.

        One by one would not do: the entries behind the last one that was read may be deleted by now. A writer
        that slept, or was slow, may have taken a number that was free again: that entry is void.
        """
        newest = newest_number(self._store, self._prefix)
        if newest == self._log.next_number - 1:
            return False
        if newest < self._log.next_number:  # it was put back to an older state
            self.state = self._empty()
        self._log = DenseLog(self._store, self._prefix, first=max(newest, 0))
        return True

    def _decoded(self, _: S, entry: Entry) -> S:
        try:
            return self._decode(entry)
        except _MALFORMED as error:
            raise lost(self._store, self._key(self._log.next_number - 1), "can't be read") from error

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:09d}.json"


def newest_number(store: Store, prefix: str) -> int:
    """The number of the newest entry of a log; -1 when it has none. Lists the log."""
    return max((_number(key) for key in store.list(prefix)), default=-1)


class BoundedLog(FoldedLog[State]):
    """A log with snapshots, of a state that takes its entries in."""

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
                self._take(entry)
            if not self._believe() or self._is_cut_off():
                self._reload()
            elif self._checked or self._is_all():
                self._checked = True
                return self.state

    def append(self, make: Make[State]) -> bool:
        """As in any log, after catching up. What a writer that slept in between has written, nobody reads."""
        self.catch_up()
        return super().append(make)

    def keep(self, number: int, body: Mapping[str, Any]) -> None:
        """Keep what the entries below a number say, which `catch_up` has returned, and delete the oldest.

        Reads nothing of this object, so it may be called beside the other verbs. Safe to repeat, and to
        be killed in; whoever is next deletes the rest.
        """
        data = sums.add(json.dumps(body, separators=(",", ":")).encode())
        self._store.create(self._key(number), data)
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
        """Begin at the newest snapshot; if it is damaged, at the older one, whose entries are all there.

        Where there is no older one, no entry was deleted yet.
        """
        self._checked = False
        while kept := self._kept():
            for number in kept[:-3:-1]:
                data = self._store.get(self._key(number))
                if data is None:  # two newer ones have come
                    break
                try:
                    self._restart(number, self._decode(json.loads(sums.strip(data))))
                    return
                except _MALFORMED:
                    continue
            else:
                if len(kept) == 1:
                    break
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

    def _is_void(self) -> bool:
        if self._believe():
            return False
        self._reload()
        return True

    def _take(self, entry: Entry) -> None:
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
