"""The ledger of a files sink: what counts, for its threads; and for readers, who only look.

    <path>/_weir/log/<number>.json         entries: who opened it, fences, batches, rewinds, merges
    <path>/_weir/snapshots/<number>.json   what the entries below this number say together

The log stays short: `storage/bounded.py` says how, `protocol/contents.py` what the entries mean.
"""

from __future__ import annotations

import threading
from typing import Any

from weir.errors import FencedError
from weir.ids import Attempt, Run, Token
from weir.protocol.contents import Contents
from weir.protocol.ledger import Ledger
from weir.storage import BoundedLog, Store

EVERY = 100
"""So many entries get a snapshot."""
_SHARE = 100
"""So many files of a snapshot are worth one entry more: a long list is not written too often."""


def log_of(store: Store) -> BoundedLog[Contents]:
    """The ledger in a folder."""
    return BoundedLog(store, "_weir/log", "_weir/snapshots", Contents, Contents.decode)


class FilesLedger:
    """The ledger, held with a token. For any thread."""

    def __init__(self, store: Store) -> None:
        self.token = Token(Attempt(0), Run(0))
        self._log = log_of(store)
        self._lock = threading.Lock()

    def read(self) -> Ledger:
        """The ledger as it stands; raises `FencedError` when a higher token was announced."""
        with self._lock:
            return self._checked(self._log.catch_up()).ledger

    def contents(self) -> Contents:
        """All that counts now; raises `FencedError` when a higher token was announced."""
        with self._lock:
            return self._checked(self._log.catch_up()).copy()

    def append(self, entry: dict[str, Any]) -> Ledger:
        """Append an entry; raises `FencedError`, and nothing counts, when a higher token was announced."""
        with self._lock:
            if not self._log.append(entry, lambda now: now.ledger.fence <= self.token):
                raise self._fenced(self._log.state)
            return self._log.state.ledger

    @property
    def is_long(self) -> bool:
        """Whether it is time for a snapshot."""
        with self._lock:
            return self._log.unkept >= max(EVERY, len(self._log.state.files) // _SHARE)

    def keep(self) -> None:
        """Write a snapshot and delete entries that are too old. Safe to repeat, and to be killed in."""
        with self._lock:
            now, number = self._checked(self._log.catch_up()).copy(), self._log.number
        self._log.keep(number, now.encode())

    def _checked(self, now: Contents) -> Contents:
        if now.ledger.fence > self.token:
            raise self._fenced(now)
        return now

    def _fenced(self, now: Contents) -> FencedError:
        fence = now.ledger.fence
        return FencedError(who=f"attempt {self.token}", by=f"attempt {fence}", attempt=fence.attempt)
