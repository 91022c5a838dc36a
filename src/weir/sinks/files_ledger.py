"""The ledger of a files sink: what counts, for its threads; and for readers, who only look.

    <path>/_weir/log/<number>.json         entries: who opened it, fences, batches, rewinds, merges
    <path>/_weir/snapshots/<number>.json   what the entries below this number say together

The log stays short: `storage/bounded.py` says how, `protocol/contents.py` what the entries mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weir.errors import InternalError
from weir.ids import BatchId, Token
from weir.job.sinks.fence import Knows, SinkFence
from weir.protocol.contents import Contents
from weir.protocol.ledger import Ledger, fence, opened, rewound
from weir.storage import BoundedLog, Store

EVERY = 100
"""So many entries get a snapshot."""
_SHARE = 100
"""So many files of a snapshot are worth one entry more: a long list is not written too often."""


CheckOwner = Callable[[Ledger], None]
"""Raises when the ledger is not of the output of one's own live files."""


def log_of(store: Store) -> BoundedLog[Contents]:
    """The ledger in a folder."""
    return BoundedLog(store, "_weir/log", "_weir/snapshots", Contents, Contents.decode)


class FilesLedger:
    """The ledger, held with a fence. For any thread."""

    def __init__(self, store: Store, describe: Callable[[], str] = str) -> None:
        self._fence = SinkFence(describe)
        self._log = log_of(store)
        self._lock = threading.Lock()

    @property
    def token(self) -> Token:
        return self._fence.token

    def open(self, owner: str, lineage: str, token: Token, knows: Knows, check: CheckOwner) -> Ledger:
        """Announce a token; raises, and nothing is announced, when `check` does or it may not be."""
        with self._lock:
            self._fence.begin(owner, token, knows)
            if not self._log.catch_up().ledger.owner:
                self._log.append(opened(owner, lineage), lambda now: not now.ledger.owner)

            def free(now: Contents) -> bool:
                check(now.ledger)
                return self._fence.is_free(now.ledger)

            if not self._log.append(fence(token), free):
                self._fence.check(self._log.state.ledger)
                raise InternalError(what="a fence was refused, and then was not")
            self._fence.announced(self._log.state.ledger.last)
            return self._log.state.ledger

    def read(self) -> Ledger:
        """The ledger as it stands; raises as `StagingSink.record` does."""
        with self._lock:
            return self._checked(self._log.catch_up()).ledger

    def contents(self) -> Contents:
        """All that counts now; raises as `read` does."""
        with self._lock:
            return self._checked(self._log.catch_up()).copy()

    def append(self, entry: dict[str, Any]) -> Ledger:
        """Append an entry; raises as `read` does, and then nothing counts."""
        with self._lock:
            if not self._log.append(entry, lambda now: self._fence.is_free(now.ledger)):
                self._checked(self._log.state)
            self._fence.entered(self._log.state.ledger.last)
            return self._log.state.ledger

    def rewind(self, to: BatchId) -> None:
        """Enter that the batches above this one count no longer; raises as `read` does."""
        self._fence.rewinds(to)
        self.append(rewound(to, self.token))

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
        self._fence.check(now.ledger)
        return now
