"""A restore of the running job, from the request to its answer: what the supervisor does around `restore.py`.

One that can't be done is abandoned: another driver continues where the job was, with the settings from
before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from weir.protocol import messages as m
from weir.protocol.decide import FailedAt
from weir.protocol.restart import Restarts
from weir.protocol.states import JobEvent
from weir.supervisor.inbox import Request
from weir.supervisor.restore import Intended, Restore, Underway, words, write_intention
from weir.supervisor.running_driver import failure_body
from weir.supervisor.supervised_job import SupervisedJob


class GoBack:
    """At most one at a time."""

    def __init__(self, job: SupervisedJob, restarts: Restarts, later: Callable[[Intended], None]) -> None:
        """`later` is called from another thread, with what `go_back` is then called with in the loop's."""
        self._job = job
        self._restarts = restarts
        self._later = later
        self._asked: Restore | None = None
        """One that has no answer yet."""
        self._underway: Underway | None = None
        """One that is written down, and not known to be live."""
        self.went_back = False
        """The job is past the point that its first start was to resume from."""

    @property
    def asked(self) -> bool:
        """Whether a restore waits for its answer."""
        return self._asked is not None

    def ask(self, request: Request) -> None:
        """Step 1: the point is checked and the intention written, beside the loop."""
        job = self._job
        self._asked = Restore(request)
        write_intention(job.held, self._asked, job.settings, job.clock, self._later)

    def go_back(self, intended: Intended) -> None:
        """Where to resume is written down, or refused: let the driver end, and start another one at once."""
        job = self._job
        if isinstance(intended.outcome, BaseException):
            self._answer(False, **words(intended.outcome))
            return
        intended.restore.intended = True
        if job.state.ending:
            return
        point, settings = intended.restore.wanted.point, intended.restore.settings
        before = self._underway.before if self._underway else job.inputs
        self._underway = Underway(intended.outcome, before)
        job.inputs = replace(job.inputs, overrides={**job.inputs.overrides, **settings}, wanted=None)
        job.event("restore", {"point": point})
        job.note(f"restore: the running batches finish and commit, then the job goes on from {point}")
        self._restarts.clear()
        job.recoveries.clear()
        job.schedule.forget_queries()
        job.move(JobEvent.RESTORE)
        job.schedule.grant_at = now = job.clock.monotonic()
        if job.driver is not None and not job.driver.granted and settings:  # it was made ready without them
            job.kill_driver()
        if job.driver is None:
            job.schedule.deploy(now)
        elif job.driver.granted:
            job.driver.leaving = True
            job.stop_driver(job.driver, cancelled=False)

    def restored(self, message: m.Restored, *, leaving: bool) -> None:
        """A driver has restored the point; one that is `leaving` was not asked for this restore."""
        self.went_back = True
        if not leaving:
            self._underway = None
            self._answer(True, **asdict(message))

    def runs(self) -> None:
        """A query runs: then the point is live, whether that was heard or not."""
        self._underway = None

    def fail(self, failure: m.Failure) -> None:
        """The driver that was to restore the point has failed: who asked is told."""
        if self._asked is not None and self._asked.intended:
            self._answer(False, what=failure.what, why=failure.why, hint=failure.hint)

    def stays(self, where: FailedAt) -> bool:
        """After a driver failed: whether the restore is abandoned, and another driver is due at once."""
        job, underway = self._job, self._underway
        if underway is None or job.home is None or not underway.given_up(job.home, where.failure):
            return False
        job.event("failure", failure_body(where))
        job.note(f"{where.failure.what}; the job goes on where it was")
        job.inputs, self._underway = underway.before, None
        job.move(JobEvent.RESTART)
        job.schedule.deploy(job.clock.monotonic())
        return True

    def job_ended(self) -> None:
        if self._asked is not None and self._asked.intended:
            self._answer(False, reason="the job ended; the next 'weir run' goes on from there")

    def _answer(self, done: bool, **body: object) -> None:
        restore, self._asked = self._asked, None
        if restore is not None and self._job.home is not None:
            self._job.home.desk.answer(restore.request.id, done, **body)
