"""The driver that runs now, and what the supervisor knows and records of it."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass

from weir.errors import Domain, WeirError
from weir.protocol import messages as m
from weir.protocol.decide import FailedAt
from weir.supervisor.process import DriverProcess

STARTING = 120.0
"""How long a driver that has no attempt yet may be silent, in seconds: it loads Python and pyspark."""


@dataclass(frozen=True)
class Heard:
    """From the driver with this serial number: a message, or None when its link is closed."""

    serial: int
    message: m.Message | None


@dataclass
class RunningDriver:
    """The driver that runs now, and what is known of it."""

    serial: int
    process: DriverProcess
    spawned_at: float
    heard_at: float
    described: m.JobDescribed | None = None
    granted: bool = False
    failure: m.Failure | None = None
    """What the driver itself, or the supervisor, reported of its end."""
    failed_at: FailedAt | None = None
    """The query and the batch at which it failed, when the driver reported them."""
    started: bool = False
    """A query of it has run."""
    hung: bool = False
    ended: m.Ended | None = None
    kill_at: float | None = None
    leaving: bool = False
    """It was asked to end so that another driver resumes from a checkpoint."""

    def where(self, failure: m.Failure) -> FailedAt:
        """Where the failure happened that ended it. Which query notices an outage first means nothing."""
        at = self.failed_at
        outage = failure.domain in (Domain.EXTERNAL, Domain.MACHINE)
        if at is None or failure is not at.failure or outage:
            return FailedAt(None, None, failure, self.started)
        return FailedAt(at.query, at.batch, failure, self.started)

    def patience(self, timeout: float) -> float:
        """For how many seconds it may be silent; a start may be slow before its first sign of life."""
        return timeout if self.granted else max(timeout, STARTING)


def failure_of(error: WeirError) -> m.Failure:
    """An error of weir's own, as the journal takes it."""
    return m.Failure(
        error.what,
        error.why,
        error.hint,
        error.domain,
        error.retry,
        type(error).__name__,
        "",
        error.exit_code,
    )


def failure_body(where: FailedAt) -> dict[str, object]:
    """A failure, and where it happened, as the journal keeps it."""
    return {**asdict(where.failure), "batch": where.batch}


def exit_words(code: int) -> str:
    """How a process ended."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
