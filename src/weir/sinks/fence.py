"""The fence of one run in the ledger of its sink: whether it may be announced, and whether it still stands.

`FencedLog` is such a ledger in a log of weir's own: that of the files sink, of the function sink, and a
channel. Others differ in kind, and share only what a token means. Kafka's is a topic, which the broker fences
by the producer's id; PostgreSQL's is a row, which a transaction locks. The journal of a source belongs to no
query, so it has neither owner nor batches; its one receiver writes under the lease of the driver.

What a fence is to a run is decided in `protocol/ledger.py`; here that becomes an error with words. Every
sink, channel and journal asks this one object, so that all of them mean the same by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from weir.errors import FencedError, InternalError, LedgerWentBackError, SinkMismatchError, SinkTakenError
from weir.ids import NO_BATCH, NOBODY, BatchId, Token
from weir.protocol.ledger import Ledger, Standing, by, standing, token_of
from weir.storage.folded_log import FoldedLog, Make
from weir.storage.log import Entry

S = TypeVar("S")
CheckOwner = Callable[[Ledger], None]
"""Raises when the ledger is not of the output of one's own live files."""
Knows = Callable[[Token], bool]
"""Whether a fence is of an attempt that the job's directory knows."""


def anyone(_fence: Token) -> bool:
    """Where nothing is known of attempts, only their numbers count."""
    return True


def check_owner(
    there: Ledger,
    owner: str,
    lineage: str,
    *,
    path: str,
    place: str,
    holds: str = "it holds the output of",
    how: str = "",
) -> None:
    """Raise `SinkMismatchError` unless a ledger is of this owner, and of live files of this lineage.

    The message says what the sink `holds`, and which `place` the query may be given instead, and `how`.
    """
    if there.owner != owner:
        reason = f"{holds} {there.owner!r}"
        todo = f"give this query a {place} of its own{how}"
    elif there.lineage != lineage:
        reason = "it was written by live files that are gone; a fresh start would skip or repeat batches"
        todo = f"restore the job's directory, or give this query a new {place}{how}"
    else:
        return
    raise SinkMismatchError(query=owner.split("/", 1)[1], path=path, reason=reason, todo=todo)


def encode_ledger(ledger: Ledger) -> dict[str, Any]:
    """A ledger whose newest entry has all of it, as that entry."""
    return {"owner": ledger.owner, "lineage": ledger.lineage, **by(ledger.fence), "last": ledger.last}


def decode_ledger(entry: Mapping[str, Any]) -> Ledger:
    """What `encode_ledger` wrote; raises `KeyError` or `TypeError` for anything else."""
    return Ledger(entry["owner"], entry["lineage"], token_of(entry), BatchId(entry["last"]))


class SinkFence:
    """One run's fence. The sink calls `begin`, `check` until it may announce, then `announced`."""

    def __init__(self, describe: Callable[[], str]) -> None:
        self.token = NOBODY
        self._describe = describe
        self._owner = ""
        self._knows: Knows = anyone
        self._stands = False
        self._last = NO_BATCH
        """The newest batch that this run knows to be in the ledger."""

    def begin(self, owner: str, token: Token, knows: Knows) -> None:
        """A run is about to announce itself."""
        self.token, self._owner, self._knows = token, owner, knows
        self._stands, self._last = False, NO_BATCH

    def announced(self, last: BatchId) -> None:
        """The fence is in the ledger, after this batch."""
        self._stands, self._last = True, last

    def entered(self, last: BatchId) -> None:
        """This run has entered a batch."""
        self._last = last

    def rewinds(self, to: BatchId) -> None:
        """This run is about to rewind the sink; whether that has happened it may never hear."""
        self._last = min(self._last, to)

    def check(self, ledger: Ledger) -> None:
        """Raise unless this run may write after what the ledger says.

        Before the announcement: `FencedError` for a newer attempt of this directory, `SinkTakenError` for
        any attempt of another one. After it the fence must be this run's own, and no batch may be missing:
        `LedgerWentBackError`.
        """
        self.check_fence(ledger.fence)
        if self._stands and (ledger.fence < self.token or ledger.last < self._last):
            raise LedgerWentBackError(
                path=self._describe(), last=ledger.last, known=self._last, fence=ledger.fence, own=self.token
            )

    def check_fence(self, fence: Token) -> None:
        """`check`, where what was read of the ledger may not be its end: only for who else is there."""
        known = self._stands or self._knows(fence)
        verdict = standing(fence, self.token, known=known)
        if verdict is Standing.FOREIGN and not self._stands:
            query = self._owner.partition("/")[2] or self._owner
            raise SinkTakenError(
                query=query, path=self._describe(), attempt=fence.attempt, own=self.token.attempt
            )
        if verdict in (Standing.NEWER, Standing.FOREIGN):
            raise FencedError(who=f"attempt {self.token}", by=f"attempt {fence}", attempt=fence.attempt)

    def is_free(self, ledger: Ledger) -> bool:
        """Whether `check` passes."""
        try:
            self.check(ledger)
        except (FencedError, SinkTakenError, LedgerWentBackError):
            return False
        return True


class FencedLog(Generic[S]):
    """A ledger in a log, held by one run with its fence. For any thread.

    Nothing is entered after an entry that the fence does not allow: each verb raises as
    `SinkFence.check` does.
    """

    def __init__(
        self,
        log: FoldedLog[S],
        fence: SinkFence,
        ledger: Callable[[S], Ledger],
        lock: threading.RLock | None = None,
    ) -> None:
        self.log = log
        self.fence = fence
        self.lock = lock or threading.RLock()
        """Held while the log is read or written; whoever holds it sees one state."""
        self._ledger_of = ledger

    @property
    def state(self) -> S:
        """The state of the log when it was read last."""
        return self.log.state

    @property
    def ledger(self) -> Ledger:
        return self._ledger_of(self.log.state)

    def look(self, owner: str, token: Token, knows: Knows, check: CheckOwner) -> Ledger:
        """What `open` would find; raises as it does. Nothing is written."""
        with self.lock:
            self.fence.begin(owner, token, knows)
            self.log.catch_up()
            if self.ledger.owner:
                check(self.ledger)
            self.fence.check(self.ledger)
            return self.ledger

    def open(self, owner: str, token: Token, knows: Knows, check: CheckOwner, *announce: Make[S]) -> Ledger:
        """Append what announces a token; the last of `announce` must be appended.

        Raises, and nothing is announced, when `check` does or the fence may not be announced.
        """
        with self.lock:
            self.look(owner, token, knows, check)
            entered = [self._append(make, check) for make in announce]
            if not entered[-1]:
                raise InternalError(what="a fence was refused, and then was not")
            self.fence.announced(self.ledger.last)
            return self.ledger

    def read(self) -> S:
        """The state as it is."""
        with self.lock:
            self.log.catch_up()
            self.fence.check(self.ledger)
            return self.log.state

    def append(self, make: Make[S]) -> bool:
        """Append what `make` makes of the state that it will follow; False when that is nothing."""
        with self.lock:
            return self._append(make, lambda _: None)

    def _append(self, make: Make[S], check: CheckOwner) -> bool:
        def allowed(state: S) -> Entry | None:
            now = self._ledger_of(state)
            if now.owner:
                check(now)
            return make(state) if self.fence.is_free(now) else None

        if not self.log.append(allowed):
            self.fence.check(self.ledger)
            return False
        self.fence.entered(self.ledger.last)
        return True
