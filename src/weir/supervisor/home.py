"""What a supervisor holds of its job: the attempt, the journal, the requests and the output files.

It comes into being when the attempt is granted, and nothing of a job is written before that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress

from weir.clock import Clock
from weir.config import Config, DirAccess
from weir.errors import ExternalError, StorageError
from weir.ids import Attempt, JobName
from weir.restore.point import attempt_of_latest
from weir.restore.request import LATEST
from weir.storage import generation, open_store, paths
from weir.storage.attempts import AttemptLock, AttemptRecord
from weir.storage.open import beside, close_to_others
from weir.supervisor import leftovers
from weir.supervisor.inbox import Desk, Requests
from weir.supervisor.journal import JobJournal
from weir.supervisor.process import OutputFile


class Home:
    """One job, held by one supervisor."""

    def __init__(
        self,
        job: JobName,
        config: Config,
        session: str,
        clock: Clock,
        waiting: Callable[[AttemptRecord, float], None],
        above: int = 0,
        point: str = "",
    ) -> None:
        """`point` is what the job resumes from; "" for its live files."""
        self.job = job
        self.session = session
        self._dir = config.settings.execution_checkpointing_dir
        self.store = open_store(self._dir)
        self.notes: list[str] = []
        """What there is to report of its directory."""
        if config.settings.execution_checkpointing_dir_access is DirAccess.OWNER:
            self.notes += filter(None, [close_to_others(self._dir, job)])
        self.lock = AttemptLock(self.store, job, clock)
        if point == LATEST:
            saved_to = config.settings.execution_checkpointing_savepoint_dir or ""
            above = max(above, attempt_of_latest(self.store, job, saved_to))
        above = max(above, generation.awaited_attempt(self.store, job))
        self.lock.acquire(session, config.settings.heartbeat_timeout.total_seconds(), waiting, above)
        self.desk = Desk(Requests(self.store, job), session)
        path = beside(self._dir, paths.journal(job))
        try:
            self.journal = JobJournal(path, clock)
        except BaseException as error:
            self._release()
            if isinstance(error, (OSError, sqlite3.Error)):
                raise StorageError(verb="open", path=path, reason=str(error), root=self._dir) from error
            raise
        leftovers.delete_beside(self._dir, job, config.settings, clock)
        if self.journal.moved_to is not None:
            text = (
                "the history of the job could not be read and begins again; the old one is "
                f"{self.journal.moved_to}"
            )
            self.journal.event(self.attempt, "note", {"text": text})

    @property
    def attempt(self) -> Attempt:
        return self.lock.held

    def advance(self, timeout: float) -> None:
        """Open the next attempt; above that of a point which a restore was asked for."""
        self.lock.advance(self.session, timeout, generation.awaited_attempt(self.store, self.job))

    def output(self) -> OutputFile:
        """Where this attempt's driver prints to."""
        return OutputFile(beside(self._dir, f"{paths.logs(self.job)}/driver-{self.attempt:06d}.log"))

    def close(self) -> None:
        """Release the job: the next taker need not wait."""
        self._release()
        self.journal.close()

    def _release(self) -> None:
        with suppress(ExternalError):  # then the next taker waits, or sees that nobody is left
            self.lock.release()
