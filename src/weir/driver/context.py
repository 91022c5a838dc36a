"""What the objects of one attempt share: the job, its session, the attempt, and where they report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.channel.position import Mode
from weir.clock import Clock
from weir.config import CheckpointingMode, Config, Settings
from weir.driver.queries import Queries
from weir.errors import InternalError, WeirError
from weir.ids import JobName
from weir.protocol import messages as m
from weir.storage import Store
from weir.storage.attempts import Lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job


Report = Callable[[m.Message], None]


class Timed:
    """One step of a start: report how long it took, when it went well."""

    def __init__(self, report: Report, clock: Clock, step: str, query: str) -> None:
        self._report, self._clock, self._step, self._query = report, clock, step, query

    def __enter__(self) -> None:
        self._since = self._clock.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: object, stack: object) -> None:
        if kind is None:
            self._report(m.StepDone(self._step, self._clock.monotonic() - self._since, self._query))


class JobEnd:
    """Whether a job is over, and why it can't continue. For any thread."""

    def __init__(self, gave_up: Callable[[WeirError], None] = lambda _error: None) -> None:
        """`gave_up` is called, besides `failed`, when the driver can't continue; from any thread."""
        self.failed: WeirError | None = None
        """Why the driver can't continue; None while it can."""
        self.over = threading.Event()
        """Set when every query has ended."""
        self._gave_up = gave_up

    def give_up(self, error: WeirError) -> None:
        """The driver can't continue."""
        self.failed = error
        self._gave_up(error)


def as_weir(error: Exception) -> WeirError:
    """The error itself, or that weir has broken down."""
    return error if isinstance(error, WeirError) else InternalError(what=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class JobContext:
    """One attempt of one job, before and while its queries run."""

    job: Job
    spark: SparkSession
    config: Config
    store: Store
    lease: Lease
    clock: Clock
    report: Report
    queries: Queries
    end: JobEnd
    supervised: bool = False
    """Somebody starts a failed query again; else what fails at the start is raised."""

    @property
    def name(self) -> JobName:
        return self.job.name

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def mode(self) -> Mode:
        """What the readers of channels do at a barrier."""
        settings = self.settings
        if settings.execution_checkpointing_mode is CheckpointingMode.AT_LEAST_ONCE:
            return Mode.AT_LEAST_ONCE
        first_aligned = bool(settings.execution_checkpointing_aligned_checkpoint_timeout)
        unaligned = settings.execution_checkpointing_unaligned_enabled and not first_aligned
        return Mode.UNALIGNED if unaligned else Mode.ALIGNED

    def note(self, text: str) -> None:
        self.report(m.Noted(text))

    def timed(self, step: str, query: str = "") -> Timed:
        """Report how long a step of a start took."""
        return Timed(self.report, self.clock, step, query)

    def listener_failed(self, name: str, error: BaseException) -> None:
        self.note(f"listener {name} raised {type(error).__name__}: {error}; the job continues")
