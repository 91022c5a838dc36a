"""The attempt of a job that runs without a supervisor: taken, kept by beats, released at the end."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict

from weir.clock import Clock
from weir.config import Settings
from weir.errors import FencedError, JobRunningError, WeirError
from weir.ids import JobName
from weir.restore.point import attempt_of, attempt_of_latest
from weir.restore.request import LATEST, RestoreRequest
from weir.storage import Store
from weir.storage.attempts import AttemptLock, AttemptRecord, Lease
from weir.storage.generation import awaited_attempt


class OwnAttempt:
    """Held from the moment that it is made. When it is lost, `lost` is called, from a thread."""

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
                self.lease.end(error)
                self._lost(error)
                return
            except WeirError:
                pass  # it is tried again, until the lease is over
            self._released.wait(self._interval)

    def _watch(self) -> None:
        """Report when the lease is over, whatever holds the beat up: a successor may have begun."""
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
