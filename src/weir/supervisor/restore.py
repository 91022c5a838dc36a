"""A restore of the running job, from the request to its answer, as its supervisor does it.

1 the point is checked and the intention written, in a thread of its own: that may read every file of
the checkpoint, and the driver's lease must be renewed meanwhile -> 2 the driver finishes its batches
and ends -> 3 another one is started, which finds the intention and walks the rest (`restore/walk.py`)
-> 4 its report is the answer. Killed anywhere after step 1, the job is restored at its next start. One
that can't be done is abandoned: yet another driver resumes where the job was, with the settings from before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from weir.clock import Clock
from weir.config import Settings
from weir.errors import ExternalError, error_form
from weir.ids import Generation
from weir.protocol import messages as m
from weir.protocol.decide import FailedAt
from weir.protocol.restart import Restarts
from weir.protocol.states import JobEvent
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.storage import generation as generations
from weir.supervisor.home import Home
from weir.supervisor.inbox import Request
from weir.supervisor.running_driver import failure_body
from weir.supervisor.supervised_job import Inputs, SupervisedJob

WHY = "asked for with 'weir restore'"


@dataclass
class Restore:
    """A restore that has no answer yet."""

    request: Request
    intended: bool = False
    """Step 1 is over: it will happen, with this supervisor or the next one."""

    @property
    def wanted(self) -> RestoreRequest:
        return RestoreRequest.from_wire(self.request.arguments)


@dataclass(frozen=True)
class Intended:
    """Step 1 is over."""

    restore: Restore
    outcome: Generation | BaseException
    """The generation that it will be, or why it was refused."""


@dataclass(frozen=True)
class RestoreUnderway:
    """A restore that is written down, and not known to be live yet."""

    generation: Generation
    before: Inputs
    """What the job resumes with when it can't be done."""

    def abandoned(self, home: Home, failure: m.Failure) -> bool:
        """After a driver that failed: whether the job resumes where it was; else as this restore wants it.

        What a driver can't do it drops itself; what no retry can fix is dropped here. Nothing is dropped
        that is live by now, or for which sinks are being rewound already.
        """
        try:
            if generations.live(home.store, home.job) >= self.generation:
                return False
            opening = generations.opening(home.store, home.job)
            if opening is None:
                return True
            return not failure.retry and generations.drop(home.store, home.job, opening, failure.what)
        except ExternalError:  # whoever starts next finds what is written down
            return False


def write_intention(
    home: Home, restore: Restore, settings: Settings, clock: Clock, done: Callable[[Intended], None]
) -> None:
    """Step 1; returns at once, and calls `done` once, from another thread, whatever happens there."""

    wanted = restore.wanted

    def work() -> None:
        try:
            generation = intend(
                home.store,
                home.job,
                # as a start with -s has it: state gets the shape that the job's settings ask for
                wanted.shaped(
                    wanted.parallelism or settings.parallelism_default,
                    wanted.backend or settings.state_backend_type.value,
                ),
                clock=clock,
                why=WHY,
                savepoint_dir=settings.execution_checkpointing_savepoint_dir or "",
            )
        except BaseException as error:  # not even SystemExit of somebody's code may leave it unanswered
            done(Intended(restore, error))
        else:
            done(Intended(restore, generation))

    threading.Thread(target=work, name="weir-restore", daemon=True).start()


class RestoreHandler:
    """The restores of the running job, from the request to its answer. At most one at a time."""

    def __init__(self, job: SupervisedJob, restarts: Restarts, later: Callable[[Intended], None]) -> None:
        """`later` is called from another thread, with what `resume` is then called with in the loop's."""
        self._job = job
        self._restarts = restarts
        self._later = later
        self._asked: Restore | None = None
        """One that has no answer yet."""
        self._underway: RestoreUnderway | None = None
        """One that is written down, and not known to be live."""
        self.restored_once = False
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

    def resume(self, intended: Intended) -> None:
        """Where to resume is written down, or refused: let the driver end, and start another one at once."""
        job = self._job
        if isinstance(intended.outcome, BaseException):
            self._answer(False, **error_form(intended.outcome))
            return
        intended.restore.intended = True
        if job.state.ending:
            return
        wanted = intended.restore.wanted
        point, settings = wanted.point, wanted.settings  # those that state of the new shape needs
        before = self._underway.before if self._underway else job.inputs
        self._underway = RestoreUnderway(intended.outcome, before)
        job.inputs = replace(job.inputs, overrides={**job.inputs.overrides, **settings}, wanted=None)
        job.event("restore", {"point": point})
        job.note(f"restore: the running batches finish and commit, then the job resumes from {point}")
        self._restarts.clear()
        job.recoveries.clear()
        job.schedule.restarts.clear()
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
        self.restored_once = True
        if not leaving:
            self._underway = None
            self._answer(True, **asdict(message))

    def runs(self) -> None:
        """A query runs: then the point is live, whether that was heard or not."""
        self._underway = None

    def fail(self, failure: m.Failure) -> None:
        """The driver that was to restore the point has failed: that is the answer to who asked."""
        if self._asked is not None and self._asked.intended:
            self._answer(False, what=failure.what, why=failure.why, hint=failure.hint)

    def stays(self, where: FailedAt) -> bool:
        """After a driver failed: whether the restore is abandoned, and another driver is due at once."""
        job, underway = self._job, self._underway
        if underway is None or job.home is None or not underway.abandoned(job.home, where.failure):
            return False
        job.event("failure", failure_body(where))
        job.note(f"{where.failure.what}; the job continues where it was")
        job.inputs, self._underway = underway.before, None
        job.move(JobEvent.RESTART)
        job.schedule.deploy(job.clock.monotonic())
        return True

    def job_ended(self) -> None:
        if self._asked is not None and self._asked.intended:
            self._answer(False, reason="the job ended; the next 'weir run' resumes from there")

    def _answer(self, done: bool, **body: object) -> None:
        restore, self._asked = self._asked, None
        if restore is not None and self._job.home is not None:
            self._job.home.desk.answer(restore.request.id, done, **body)
