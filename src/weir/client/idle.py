"""A job that nobody runs, while something is found out of it that is then written for its next start.

To verify files takes its time, and so does an answer at a prompt: somebody may start the job meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.clock import Clock
from weir.errors import JobRunningError, NoSuchJobError, NotDoneError
from weir.ids import Attempt, Generation, job_name
from weir.monitor.job import JobView, look
from weir.storage import generation as generations
from weir.storage import open_store, paths


@dataclass(frozen=True)
class Idle:
    """A job that nobody ran when it was looked at."""

    dir: str
    job: str
    attempt: int
    """Its newest one; 0 for a job that has had none here."""
    generation: Generation
    """Its live one."""

    @classmethod
    def of(cls, dir: str, job: str, seen: JobView | None) -> Idle:
        """The job as it stands; None for one that has never run here. Raises `JobRunningError`."""
        if seen is not None and not seen.owner.session:
            raise _nobody_knows(dir, job, seen)
        if seen is not None and not seen.over:
            raise JobRunningError(
                job=seen.name,
                attempt=seen.attempt,
                pid=seen.owner.pid,
                host=seen.owner.host,
                since=seen.started_at,
            )
        live = generations.live(open_store(dir), job_name(job))
        return cls(dir, job, seen.attempt if seen else 0, live)

    def check(self) -> None:
        """Right before anything is written: raise unless all is as it was when it was looked at.

        Raises `JobRunningError` for a job that runs by now, `NotDoneError` for one that has run since.
        """
        try:
            seen = look(self.dir, self.job, Clock())
        except NoSuchJobError:
            seen = None
        now = Idle.of(self.dir, self.job, seen)
        if now != self:
            raise NotDoneError(
                what=f"nothing was recorded for job {self.job!r}",
                why=f"it has run since it was checked: its newest attempt was {self.attempt} and is"
                f" {now.attempt}, its live generation was {self.generation} and is {now.generation}",
                hint=f"'weir status {self.job}' shows its state; then try again",
            )


def _nobody_knows(dir: str, job: str, seen: JobView) -> NotDoneError:
    """The record of its newest attempt is damaged, so that only silence could tell that nobody runs it."""
    record = paths.attempt(job_name(job), Attempt(seen.attempt))
    return NotDoneError(
        what=f"nothing was recorded for job {job!r}",
        why=f"the record of attempt {seen.attempt}, {dir}/{record}, can't be read, so weir can't "
        "tell whether the job runs",
        hint="start the job: 'weir run FILE' waits until the job is certain to be silent, takes over, "
        "and, if files are damaged, resumes from the newest intact checkpoint",
    )
