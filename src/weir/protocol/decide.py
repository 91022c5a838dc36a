"""Facts in, decision out: may this attempt be taken, and what follows a failure.

Every decision is a small variant that says what the caller must do next. The restart strategies
are in `restart.py`; the moves of a job in `states.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.ids import NO_BATCH, BatchId, QueryName

if TYPE_CHECKING:
    from weir.protocol.messages import Failure


@dataclass(frozen=True)
class Holder:
    """What a taker sees of the newest attempt."""

    beat: int
    unchanged_for: float
    """Seconds on the taker's own monotonic clock since it first saw this beat."""
    released: bool
    """The holder ended and said so."""


@dataclass(frozen=True)
class Take:
    """Nobody holds the job: open the next attempt."""


@dataclass(frozen=True)
class Wait:
    """The holder may be dead: look again until this much time without a beat has passed."""

    seconds: float


def may_take(holder: Holder | None, timeout: float) -> Take | Wait:
    """Whether the job may be taken over; a holder that beats is never taken from."""
    if holder is None or holder.released or holder.unchanged_for >= timeout:
        return Take()
    return Wait(timeout - holder.unchanged_for)


@dataclass(frozen=True)
class FailedAt:
    """One failure and where it happened."""

    query: QueryName | None
    batch: BatchId | None
    failure: Failure


@dataclass(frozen=True)
class GiveUp:
    """End the job as FAILED."""

    reason: str


@dataclass(frozen=True)
class Retry:
    """Ask the restart strategy for a delay, then start again."""


def after_failure(now: FailedAt, before: list[FailedAt], poison_attempts: int) -> GiveUp | Retry:
    """Whether a failure is worth another try at all.

    An error that a retry can't mend ends the job at once. An error of the author's code that comes
    back at one and the same batch of one query ends it after `poison_attempts` times; where no batch
    is known, nothing can be said to come back.
    """
    if not now.failure.retry:
        return GiveUp("a retry can't mend it")
    known = now.query is not None and now.batch is not None and now.batch > NO_BATCH
    if now.failure.domain == "user" and known:
        same = [
            f for f in before if (f.query, f.batch, f.failure.key) == (now.query, now.batch, now.failure.key)
        ]
        if len(same) + 1 >= poison_attempts:
            return GiveUp(f"it came back {len(same) + 1} times at batch {now.batch} of query {now.query!r}")
    return Retry()
