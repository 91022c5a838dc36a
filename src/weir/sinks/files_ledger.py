"""The ledger of a files sink: what counts, for its threads; and for readers, who only look.

    <path>/_weir/log/<number>.json         entries: who opened it, fences, batches, rewinds, merges
    <path>/_weir/snapshots/<number>.json   what the entries below this number say together

The log stays short: `storage/folded_log.py` says how, `protocol/contents.py` what the entries mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from weir.ids import BatchId, Token
from weir.protocol.contents import Contents
from weir.protocol.ledger import Ledger, fence, opened, rewound
from weir.sinks.fence import CheckOwner, FencedLog, Knows, SinkFence
from weir.storage import BoundedLog, Store, sums
from weir.storage.log import Entry, parse

ABOUT = "_weir/about.json"
EVERY = 100
"""After how many entries a snapshot is written."""
_SHARE = 100
"""For how many files of a snapshot it waits one entry longer: a long list is not written too often."""


def described(store: Store, data: bytes) -> dict[str, Any]:
    """What `about.json` says of the files; raises `LostLedgerError` when it is damaged."""
    return parse(store, ABOUT, data)


def describe(about: dict[str, Any]) -> bytes:
    """The content of `about.json`."""
    return sums.add(json.dumps(about).encode())


def log_of(store: Store) -> BoundedLog[Contents]:
    """The ledger in a folder."""
    return BoundedLog(store, "_weir/log", "_weir/snapshots", Contents, Contents.decode)


class FilesLedger:
    """The ledger, held with a fence. For any thread."""

    def __init__(self, store: Store, describe: Callable[[], str] = str) -> None:
        self._log = log_of(store)
        self._held = FencedLog(self._log, SinkFence(describe), lambda now: now.ledger)

    @property
    def token(self) -> Token:
        return self._held.fence.token

    def look(self, owner: str, token: Token, knows: Knows, check: CheckOwner) -> Ledger:
        """What `open` would find; raises as it does. Nothing is written."""
        return self._held.look(owner, token, knows, check)

    def open(self, owner: str, lineage: str, token: Token, knows: Knows, check: CheckOwner) -> Ledger:
        """Announce a token; raises, and nothing is announced, when `check` does or it may not be."""

        def owned(now: Contents) -> Entry | None:
            return None if now.ledger.owner else opened(owner, lineage)

        return self._held.open(owner, token, knows, check, owned, lambda _: fence(token))

    def read(self) -> Ledger:
        """The ledger as it stands; raises as `StagingSink.record` does."""
        with self._held.lock:
            return self._held.read().ledger

    def contents(self) -> Contents:
        """All that counts now; raises as `read` does."""
        with self._held.lock:
            return self._held.read().copy()

    def append(self, entry: Entry) -> Ledger:
        """Append an entry; raises as `read` does, and then nothing counts."""
        with self._held.lock:
            self._held.append(lambda _: entry)
            return self._held.ledger

    def rewind(self, to: BatchId) -> None:
        """Enter that the batches above this one count no longer; raises as `read` does."""
        self._held.fence.rewinds(to)
        self.append(rewound(to, self.token))

    @property
    def is_long(self) -> bool:
        """Whether it is time for a snapshot."""
        with self._held.lock:
            return self._log.unkept >= max(EVERY, len(self._log.state.files) // _SHARE)

    def keep(self) -> None:
        """Write a snapshot and delete entries that are too old. Safe to repeat, and to be killed in."""
        with self._held.lock:
            now, number = self._held.read().copy(), self._log.number
        self._log.keep(number, now.encode())
