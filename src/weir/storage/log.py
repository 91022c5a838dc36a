"""A dense, ordered log of small entries in a store: `<prefix>/<number>.json`, from 0.

Appending is create-if-absent at the next number; who loses the race takes the next one, after it
has seen what won. So any number of writers agree on one order, and a writer learns of a fence that was
written before its entry. Readers probe number + 1 and never list. Each entry has a checksum (`sums.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from weir.errors import LostLedgerError, OutcomeUnknownError
from weir.storage import sums
from weir.storage.store import Created, Store

Entry = dict[str, Any]
_ENTRY = re.compile(r"(\d+)\.json", re.ASCII)


class DenseLog:
    """One log. Not for use from several threads at once; from several processes, yes.

    `first` is where it begins to read, for a log whose head may be deleted.
    """

    def __init__(self, store: Store, prefix: str, first: int = 0) -> None:
        self._store = store
        self._prefix = prefix
        self._next = first

    @property
    def next_number(self) -> int:
        """The number after the last entry that was read or written through this object."""
        return self._next

    def read_new(self) -> Iterator[Entry]:
        """The entries after the last one seen, in order, up to the present end."""
        while (data := self._store.get(key := self.key(self._next))) is not None:
            entry = self._parse(key, data)
            self._next += 1
            yield entry

    def append(self, entry: Entry, seen: Callable[[Entry], bool]) -> bool:
        """Append the entry after all others; True when it is in the log.

        `seen` is called with each entry of others that is found on the way; when it answers False
        the entry is no longer wanted and is not written. An entry equal to ours is our own, from a write
        whose answer was lost: so a repeated append never writes twice.
        """
        data = sums.add(json.dumps(entry, separators=(",", ":"), sort_keys=True).encode())
        while True:
            for other in self.read_new():
                if other == entry:
                    return True
                if not seen(other):
                    return False
            try:
                if self._store.create(self.key(self._next), data) is Created.NOW:
                    self._next += 1
                    return True
            except OutcomeUnknownError:
                if self._store.get(self.key(self._next)) is None:
                    raise

    def check_end(self) -> bool:
        """Whether what was read is all there is; raises `LostLedgerError` when entries come after a hole.

        False when the next entry has come meanwhile. Lists the log: for a start and a reader, not for every
        batch.
        """
        if newest_number(self._store, self._prefix) < self._next:
            return True
        if self._store.exists(self.key(self._next)):
            return False
        raise lost(self._store, self.key(self._next), "is gone, and later entries are there")

    def _parse(self, key: str, data: bytes) -> Entry:
        """The entry in these bytes; a log of another form has its own."""
        return parse(self._store, key, data)

    def key(self, number: int) -> str:
        """Where the entry of this number is."""
        return numbered(self._prefix, number)


def numbered(prefix: str, number: int) -> str:
    """The key of an entry, or of a snapshot, below its folder."""
    return f"{prefix}/{number:09d}.json"


def numbers(store: Store, folder: str) -> list[int]:
    """The numbers of the entries, or snapshots, in a folder, in no order.

    A file that an editor, a backup or a sync tool has left beside them is no entry: it is passed over.
    """
    matches = (_ENTRY.fullmatch(key.removeprefix(f"{folder}/")) for key in store.list(folder))
    return [int(one[1]) for one in matches if one]


def newest_number(store: Store, prefix: str) -> int:
    """The number of the newest entry of a log; -1 when it has none. Lists the log."""
    return max(numbers(store, prefix), default=-1)


def parse(store: Store, key: str, data: bytes) -> Entry:
    """The entry in these bytes; raises `LostLedgerError` when they are damaged."""
    try:
        entry = json.loads(sums.strip(data))
    except ValueError as error:
        raise lost(store, key, sums.wrong(error)) from error
    if not isinstance(entry, dict):
        raise lost(store, key, "can't be read")
    return entry


def lost(store: Store, key: str, wrong: str) -> LostLedgerError:
    """The error for an entry that is gone or damaged."""
    return LostLedgerError(file=f"{store.url}/{key}", wrong=wrong)
