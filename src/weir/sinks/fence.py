"""The fence of one run in the ledger of its sink: whether it may be announced, and whether it still stands.

What a fence is to a run is decided in `protocol/ledger.py`; here that becomes an error with words. Every
sink, channel and journal asks this one object, so that all of them mean the same by it.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.errors import FencedError, LedgerWentBackError, SinkTakenError
from weir.ids import NO_BATCH, NOBODY, BatchId, Token
from weir.protocol.ledger import Ledger, Standing, standing

Knows = Callable[[Token], bool]
"""Whether a fence is of an attempt that the job's directory knows."""


def anyone(_fence: Token) -> bool:
    """Where nothing is known of attempts, only their numbers count."""
    return True


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
        found = standing(fence, self.token, known=known)
        if found is Standing.FOREIGN and not self._stands:
            query = self._owner.partition("/")[2] or self._owner
            raise SinkTakenError(
                query=query, path=self._describe(), attempt=fence.attempt, own=self.token.attempt
            )
        if found in (Standing.NEWER, Standing.FOREIGN):
            raise FencedError(who=f"attempt {self.token}", by=f"attempt {fence}", attempt=fence.attempt)

    def is_free(self, ledger: Ledger) -> bool:
        """Whether `check` passes."""
        try:
            self.check(ledger)
        except (FencedError, SinkTakenError, LedgerWentBackError):
            return False
        return True
