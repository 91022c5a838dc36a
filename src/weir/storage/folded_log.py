"""Dense logs that are folded into a state: the sum of their entries. A writer appends what follows from it.

`FoldedLog` has the one loop in which a writer appends: the entry must still follow from the state when it is
written. Its kinds differ in how a log stays short:

- `FoldedLog`: the log is read from where it begins; a subclass of `DenseLog` may know where that is.
- `NewestLog`: each entry has the complete state, so only the newest is read and any older one may be deleted.
- `BoundedLog`: the head is replaced by snapshots.

    <prefix>/<number>.json       the entries
    <snapshots>/<number>.json    of a `BoundedLog`: the state after all entries below this number

Who may write is not decided here: `sinks/fence.py` holds such a log with a fence.

Of a bounded log two snapshots are kept. The number of the older one is the **line**: entries below it may
be deleted, those from it on all exist. A number below the line can be created once more, by a writer that
slept; so what was read or written from position p on counts only once the line was seen at p or below it,
afterwards. The line only grows, because no snapshot of the newest two is ever deleted; and an entry is only
deleted when the line is above it. So a reader in the middle starts again, and a writer that woke up too
late finds its entry void. A log without snapshots is read from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from weir import faults
from weir.errors import LostLedgerError
from weir.storage import sums
from weir.storage.log import DenseLog, Entry, lost, newest_number, numbered, numbers
from weir.storage.store import Store


class Folded(Protocol):
    """The state after some entries; a function of them alone, whoever folds them."""

    def apply(self, entry: Entry) -> None:
        """Apply the next entry."""

    def encode(self) -> dict[str, Any]:
        """As a snapshot."""


S = TypeVar("S")
State = TypeVar("State", bound=Folded)
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Raised for JSON that can't be parsed, or is not that of an entry or a snapshot."""


Make = Callable[[S], Entry | None]
"""The entry that follows from the state; None for nothing. Called again when others were quicker."""


class FoldedLog(Generic[S]):
    """One log and its state. Not for use from several threads at once; from several processes, yes."""

    def __init__(self, log: DenseLog, state: S, take: Callable[[S, Entry], S]) -> None:
        self._log = log
        self._fold = take
        self.state = state

    @property
    def number(self) -> int:
        """The number after the last entry that was applied."""
        return self._log.next_number

    def catch_up(self) -> S:
        """The state after all entries."""
        for entry in self._log.read_new():
            self._take(entry)
        return self.state

    def append(self, make: Make[S]) -> bool:
        """Append what follows from the state at that position; False when that is nothing.

        The caller has caught up. An entry of another writer that comes in between may change what is to be
        appended, or whether anything is; so `make` is called again before anything is written.
        """
        while (entry := make(self.state)) is not None:

            def still_follows(other: Entry, entry: Entry = entry) -> bool:
                self._take(other)
                return make(self.state) == entry

            appended = self._log.append(entry, still_follows)
            if appended:
                self._take(entry)
            if self._is_void():
                self.catch_up()
            elif appended:
                return True
        return False

    def _take(self, entry: Entry) -> None:
        self.state = self._fold(self.state, entry)

    def _is_void(self) -> bool:
        """Whether what was read or written since the last look may not count, so that it is read again."""
        return False


class NewestLog(FoldedLog[S]):
    """A log whose newest entry has the complete state, so that any older one may be deleted."""

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

        def decoded(_: S, entry: Entry) -> S:
            try:
                return decode(entry)
            except _MALFORMED as error:
                raise lost(store, self._log.key(self._log.next_number - 1), "can't be read") from error

        super().__init__(DenseLog(store, prefix), empty(), decoded)

    def catch_up(self) -> S:
        """The newest state; raises `LostLedgerError` for a damaged entry."""
        while self._is_void():
            super().catch_up()
        return self.state

    def expire(self, kept: int) -> None:
        """Delete the entries that are too old, from the newest of them down to one that is gone."""
        number = self.number - kept - 1
        while number >= 0 and self._store.exists(self._log.key(number)):
            self._store.delete(self._log.key(number))
            number -= 1

    def _is_void(self) -> bool:
        """Whether there are entries that were not read; then the newest is read next, which has the state.

        Reading one by one would not do: the entries after the last one that was read may be deleted by now. A
        writer that slept, or was slow, may have taken a number that was free again: that entry is void.
        """
        newest = newest_number(self._store, self._prefix)
        if newest == self._log.next_number - 1:
            return False
        if newest < self._log.next_number:  # an older copy of the log took its place
            self.state = self._empty()
        self._log = DenseLog(self._store, self._prefix, first=max(newest, 0))
        return True


class BoundedLog(FoldedLog[State]):
    """A log with snapshots of its state."""

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
        """How many entries come after the newest snapshot that was seen."""
        return self.number - self._newest

    def catch_up(self) -> State:
        """The state after all entries; raises `LostLedgerError` for a damaged entry, and for a hole."""
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
        """As in any log, after catching up. What a writer wrote that slept in between is read by nobody."""
        self.catch_up()
        return super().append(make)

    def keep(self, number: int, body: Mapping[str, Any]) -> None:
        """Write the state after the entries below a number as a snapshot, and delete the oldest entries.

        `body` is that state, as `catch_up` returned it. Reads nothing of this object, so it may be called
        beside the other verbs. Safe to repeat, and to be killed in: the next call deletes the rest.
        """
        data = sums.add(json.dumps(body, separators=(",", ":")).encode())
        self._store.create(numbered(self._snapshots, number), data)
        faults.point("ledger.snapshot")
        line = self._line(self._kept())
        for folder in (self._snapshots, self._prefix):
            for old in sorted(one for one in numbers(self._store, folder) if one < line):
                self._store.delete(numbered(folder, old))

    def _restart(self, number: int, state: State) -> None:
        self._log = DenseLog(self._store, self._prefix, first=number)
        self.state = state
        self._first = self._believed = number

    def _believe(self) -> bool:
        """Whether everything that was applied counts; then it always will."""
        kept = self._kept()
        if self._line(kept) > self._believed:
            return False
        self._newest = max(kept, default=0)
        self._believed = self._log.next_number
        return True

    def _is_cut_off(self) -> bool:
        """Whether the newest entry that was applied is gone: an older copy of the log took its place.

        Then what is left of it is the truth. An entry after a gap would be read by nobody.
        """
        newest = self._log.next_number - 1
        return newest >= self._first and not self._store.exists(self._log.key(newest))

    def _reload(self) -> None:
        """Start from the newest snapshot; if it is damaged, from the older one, whose entries all exist.

        Where there is no older one, no entry was deleted yet.
        """
        self._checked = False
        while kept := self._kept():
            for number in kept[:-3:-1]:
                data = self._store.get(numbered(self._snapshots, number))
                if data is None:  # two newer ones were written
                    break
                try:
                    self._restart(number, self._decode(json.loads(sums.strip(data))))
                    return
                except _MALFORMED:
                    continue
            else:
                if len(kept) == 1:
                    break
                raise lost(self._store, numbered(self._snapshots, kept[-1]), "can't be read")
        self._restart(0, self._empty())

    def _is_all(self) -> bool:
        """Whether nothing comes after what was read, once for each start; a hole is an error."""
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
            raise lost(self._store, self._log.key(self._log.next_number - 1), "can't be read") from error

    def _kept(self) -> list[int]:
        return sorted(numbers(self._store, self._snapshots))

    def _line(self, kept: list[int]) -> int:
        return kept[-2] if len(kept) > 1 else 0
