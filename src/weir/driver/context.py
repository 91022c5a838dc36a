"""What the parts of one attempt share: the job, its session, the attempt that it holds, and who is told."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from weir.channel.position import Mode
from weir.clock import Clock
from weir.config import CheckpointingMode, Config, Settings
from weir.driver.progress import Timed
from weir.driver.queries import Queries
from weir.errors import FencedError, InternalError, JobRunningError, WeirError
from weir.ids import JobName
from weir.protocol import messages as m
from weir.restore.point import attempt_of, attempt_of_latest
from weir.restore.request import LATEST, RestoreRequest
from weir.storage import Store
from weir.storage.attempts import AttemptLock, AttemptRecord, Lease
from weir.storage.generation import awaited_attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job


Report = Callable[[m.Message], None]


class JobEnd:
    """Whether a job is over, and why it can't continue. For any thread."""

    def __init__(self, gave_up: Callable[[WeirError], None] = lambda _error: None) -> None:
        """`gave_up` is told, besides `failed`, that the driver can't continue; from any thread."""
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


# The attempt of a job that runs without a supervisor: taken, kept by beats, released at the end.


class OwnAttempt:
    """Held from the moment that it is made. When it is lost, `lost` is told, from a thread."""

    def __init__(
        self,
        store: Store,
        job: JobName,
        settings: Settings,
        above: int,
        clock: Clock,
        lost: Callable[[WeirError], None],
    ) -> None:
        self._job = job
        self._clock = clock
        self._interval = settings.heartbeat_interval.total_seconds()
        self._lost = lost
        self._released = threading.Event()
        self._lock = AttemptLock(store, job, clock)
        timeout, session = settings.heartbeat_timeout.total_seconds(), uuid.uuid4().hex
        attempt = self._lock.acquire(session, timeout, self._waiting, above)
        self.lease = Lease(attempt, timeout, clock, session)
        self._beating = threading.Thread(target=self._heart, name="weir-heart", daemon=True)

    @property
    def released(self) -> bool:
        return self._released.is_set()

    def keep(self) -> None:
        """Beat from now on, and watch the lease."""
        self._beating.start()
        threading.Thread(target=self._watch, name="weir-lease", daemon=True).start()

    def release(self, *, failed: bool) -> None:
        self._released.set()
        self._beating.join()  # a beat after the release would hold the attempt again
        self._lock.release(failed=failed)

    def _heart(self) -> None:
        while not self._released.is_set():
            asked_at = self._clock.monotonic()
            try:
                self._lock.beat()
                self.lease.renewed(asked_at)
            except FencedError as error:
                self.lease.end()
                self._lost(error)
                return
            except WeirError:
                pass  # it is tried again, until the lease is over
            self._released.wait(self._interval)

    def _watch(self) -> None:
        """Tell when the lease is over, whatever holds the beat up: a successor may be there."""
        while (left := self.lease.left) > 0:
            # A wait does not count the time for which the machine was suspended: none is long.
            if self._released.wait(min(left, 1.0)):
                return
        try:
            self.lease.check()
        except FencedError as error:
            self._lost(error)

    def _waiting(self, holder: AttemptRecord, seconds: float) -> None:
        if holder.pid == os.getpid():
            raise JobRunningError(job=self._job, **asdict(holder))
        self._clock.wait(threading.Event(), min(seconds, 0.2))


def attempt_before(wanted: RestoreRequest | None, store: Store, job: JobName, settings: Settings) -> int:
    """The attempt that the next one must be above."""
    awaited = awaited_attempt(store, job)
    if wanted is None:
        return awaited
    if wanted.point == LATEST:
        saved_to = settings.execution_checkpointing_savepoint_dir or ""
        return max(awaited, attempt_of_latest(store, job, saved_to))
    return max(awaited, attempt_of(wanted.point))
