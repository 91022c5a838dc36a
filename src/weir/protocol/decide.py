"""Facts in, decision out: who may take an attempt, what follows a failure or a driver's end, what is refused.

Every decision is a small variant that says what the caller must do next. The restart strategies
are in `restart.py`; the moves of a job in `states.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from weir.errors import Domain
from weir.ids import NO_BATCH, BatchId, QueryName
from weir.protocol.states import JobState

if TYPE_CHECKING:
    from weir.protocol.messages import Failure


@dataclass(frozen=True)
class AttemptHolder:
    """What a taker sees of the newest attempt."""

    beat: int
    unchanged_for: float
    """Seconds on the taker's own monotonic clock since it first saw this beat."""
    released: bool
    """The holder ended and recorded it."""


@dataclass(frozen=True)
class Take:
    """Nobody holds the job: open the next attempt."""


@dataclass(frozen=True)
class Wait:
    """The holder may be dead: look again until this much time without a beat has passed."""

    seconds: float


def may_take(holder: AttemptHolder | None, timeout: float) -> Take | Wait:
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
    started: bool = True
    """It had begun to run; what fails before that has read no data yet."""


@dataclass(frozen=True)
class GiveUp:
    """End the query as FAILED, or the job where the failure is of no single query."""

    reason: str
    todo: str = ""
    """The way out, where it is not that of the failure itself."""
    repeated: bool = False
    """It was tried again before, and came back."""
    whole: bool = False
    """The job ends, though only one query failed."""


@dataclass(frozen=True)
class Retry:
    """Ask the restart strategy for a delay, then start again."""


@dataclass(frozen=True)
class Limits:
    """How often a failure may come back; the settings of these names."""

    poison_batch: int
    """restart-strategy.poison-batch.attempts"""
    crash_loop: int | None
    """restart-strategy.crash-loop.attempts; None for ever."""
    machine: float | None = None
    """restart-strategy.machine-failures.timeout in seconds; None for ever."""


def after_failure(
    now: FailedAt, before: list[FailedAt], limits: Limits, *, in_a_row: int = 1, first: bool = False
) -> GiveUp | Retry:
    """Whether a failure is worth another try at all.

    - An error that a retry can't fix: no.
    - `first`: the job has never committed a batch, and its user has only just started it. What fails
      then before a query runs, and is no outage, would fail again.
    - A poison batch: an error of the author's code, or a refused row, that comes back at one and the same
      batch of one query.
    - A crash loop: this failure came back `in_a_row` times without progress in between (`restart.py`).
      An outage is none: what is away may come back at any time. Nor is a failure of the machine.
    """
    failure = now.failure
    if not failure.retry:
        return GiveUp("a retry can't fix it")
    if failure.domain in (Domain.EXTERNAL, Domain.MACHINE):
        return Retry()
    if first and not now.started and not failure.redeploy:
        return GiveUp("it failed before anything ran, and would fail again")
    known = now.query is not None and now.batch is not None and now.batch > NO_BATCH
    if failure.domain == Domain.USER and known:
        same = [f for f in before if (f.query, f.batch, f.failure.key) == (now.query, now.batch, failure.key)]
        if len(same) + 1 >= limits.poison_batch:
            times = f"it happened {len(same) + 1} times at batch {now.batch} of query {now.query!r}"
            return GiveUp(times, repeated=True)
    if limits.crash_loop is not None and in_a_row >= limits.crash_loop:
        return GiveUp(
            f"it happened {in_a_row} times without a committed batch in between "
            "(restart-strategy.crash-loop.attempts)",
            "'weir verify JOB' looks for damage; 'weir restore JOB latest' returns to the newest checkpoint",
            repeated=True,
        )
    return Retry()


def ends_the_job(decision: GiveUp, *, whole: bool, ran: bool, together: bool, others_over: bool) -> bool:
    """Whether a failure that is given up ends the job, and not its query alone while the others run.

    - `whole`: the failure is of the driver, and of no single query.
    - Not `ran`: the queries have not all run yet. Who has just started the job is there to fix it.
    - `together` (`sink.commit: checkpoint`): all output is shown together or not at all.
    - `others_over`: nothing would be left of the job.
    """
    early = not ran and not decision.repeated
    return whole or decision.whole or early or together or others_over


@dataclass(frozen=True)
class DriverEnd:
    """A driver that is gone, and the job that it leaves."""

    state: JobState
    ended: bool
    """It reported that all its queries have ended."""
    leaving: bool
    """It was asked to end so that another driver continues."""
    held: bool
    """The job was held, by this driver or an earlier one of the same supervisor."""
    stopping: bool
    """A stop with a savepoint is under way."""


class AfterDriver(Enum):
    """What follows the end of a driver."""

    REDEPLOY = auto()
    """Another one at once, as it was meant to be."""
    END = auto()
    """The job is over."""
    END_AFTER_FAILURE = auto()
    """The job is over all the same; the failure is recorded."""
    NEVER_STARTED = auto()
    """The job fails, and nothing of it was ever held."""
    FAILURE = auto()
    """What a failure of the driver itself leads to."""


def after_driver(end: DriverEnd) -> AfterDriver:
    """What follows. After its savepoint nothing of a job may run any more, or that is not exact."""
    if end.leaving and end.state is JobState.RESTARTING:
        return AfterDriver.REDEPLOY
    if end.ended:
        return AfterDriver.END
    if not end.held:
        return AfterDriver.NEVER_STARTED
    if end.stopping or end.state.ending:
        return AfterDriver.END_AFTER_FAILURE
    return AfterDriver.FAILURE


OF_THE_DRIVER = ("checkpoint", "configure", "savepoint")
"""Requests for what a driver does while the job runs."""
OF_THE_SUPERVISOR = ("restore", "plan")
"""Requests for what needs no driver."""


def refusal(verb: str, *, ending: bool, restoring: bool, driver: bool) -> str:
    """Why a request can't be granted, or not now; "" when it can. `driver`: one runs, with an attempt."""
    if verb not in (*OF_THE_DRIVER, *OF_THE_SUPERVISOR, "stop"):
        return f"it does not know how to {verb}"
    if ending:
        return "it is ending"
    if restoring:
        return "it is being restored"
    if verb not in OF_THE_SUPERVISOR and not driver:
        return "its driver is down: a new one is about to start"
    return ""
