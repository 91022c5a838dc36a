"""A dense, ordered log of small entries in a store: `<prefix>/<number>.json`, from 0.

Appending is create-if-absent at the next number; who loses the race takes the next one, after it
has seen what won. So any number of writers agree on one order, and a writer learns of a fence that
was written before its entry. Readers probe number + 1 and never list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from weir.errors import OutcomeUnknownError
from weir.storage.store import Created, Store

Entry = dict[str, Any]


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
        """The number behind the last entry that was read or written through this object."""
        return self._next

    def read_new(self) -> Iterator[Entry]:
        """The entries behind the last one seen, in order, up to the present end."""
        while (data := self._store.get(key := self._key(self._next))) is not None:
            entry = self._parse(key, data)
            self._next += 1
            yield entry

    def append(self, entry: Entry, seen: Callable[[Entry], bool]) -> bool:
        """Append the entry behind everything that is there; True when it is in the log.

        `seen` is called with each entry of others that is found on the way; when it answers False
        the entry is no longer wanted and is not written. An entry equal to ours that we find is our
        own, from a write whose answer was lost: so a repeated append never writes twice.
        """
        data = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()
        while True:
            for other in self.read_new():
                if other == entry:
                    return True
                if not seen(other):
                    return False
            try:
                if self._store.create(self._key(self._next), data) is Created.NOW:
                    self._next += 1
                    return True
            except OutcomeUnknownError:
                if self._store.get(self._key(self._next)) is None:
                    raise

    def _parse(self, key: str, data: bytes) -> Entry:
        entry: Entry = json.loads(data)
        return entry

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:09d}.json"
