"""What a request leads to: refused, done here, or handed over to the driver, which answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.config import changed
from weir.errors import WeirError
from weir.protocol import messages as m
from weir.protocol.decide import refusal
from weir.protocol.messages import Answered
from weir.protocol.states import JobEvent
from weir.supervisor.go_back import GoBack
from weir.supervisor.inbox import Request
from weir.supervisor.process import ask_child
from weir.supervisor.restore import words
from weir.supervisor.running_driver import RunningDriver
from weir.supervisor.supervised_job import Stopping, SupervisedJob

if TYPE_CHECKING:
    from weir.supervisor.home import Inputs


# The end of a job that somebody asked for: a cancel, or a stop with a savepoint.
#
# A stop: 1 the driver works off what the sources hold, if that was asked for; a query that fails
# meanwhile is started again -> 2 it ends its queries, and none is started any more -> 3 it takes the
# savepoint and answers -> 4 it ends, the job is FINISHED, and that is the answer to who asked. When the
# savepoint fails after step 2, another driver continues the job. A driver that dies after step 3 ends the
# job all the same: what ran on would be missing in the savepoint.


class CancelledEarlyError(Exception):
    """Cancelled while nothing of the job was held yet."""


def cancel(job: SupervisedJob, by: str, *, at_once: bool = False) -> None:
    """Let the running batches finish, then end the job; asked `at_once` for the second time, cut them off."""
    if job.home is None:
        raise CancelledEarlyError
    if job.state.ending:
        if job.driver is not None and at_once:
            job.note(f"{by} again: the running batches are cut off")
            job.driver.kill_at = job.clock.monotonic()
        return
    job.note(f"{by}: the running batches finish and commit, then the job ends")
    job.event("cancel", {"by": by})
    job.move(JobEvent.CANCEL)
    job.end_driver(cancelled=True)


def begin_stop(job: SupervisedJob, request: Request) -> dict[str, Any]:
    """A stop is handed over to the driver; what that must know besides the request's arguments."""
    job.stopping = Stopping(request)
    job.event("stop", request.arguments)
    job.note("stop: the running batches finish and commit, then the job ends")
    return {"seconds": job.settings.task_cancellation_timeout.total_seconds()}


def take_stop_answer(job: SupervisedJob, stopping: Stopping, message: Answered) -> None:
    """The driver has ended its queries as it was asked to, or could not; it ends by itself now."""
    if message.done:
        stopping.saved = message.body
        return
    fail_stop(job, stopping, message.body)
    if message.body.get("ended") and job.driver is not None and not job.ending:
        job.note("the job was not stopped: another driver goes on with it")
        job.driver.leaving = True
        job.move(JobEvent.RESTART)


def fail_stop(job: SupervisedJob, stopping: Stopping, body: Mapping[str, object]) -> None:
    """The stop has failed: who asked is told, and the job takes requests again."""
    job.stopping = None
    if job.held.desk.answer(stopping.request.id, False, **body) is None:  # nobody waits for it
        job.note(f"the job was not stopped: {body.get('what') or body.get('reason')}")


def answer_stopped(job: SupervisedJob) -> None:
    """The job is over: that is the answer to who asked for the end."""
    desk = job.held.desk
    for request in desk.open("cancel"):
        desk.answer(request.id, True, state=job.state.value)
    if job.stopping is not None and job.stopping.saved is not None:
        body = {**job.stopping.saved, "state": job.state.value}
        desk.answer(job.stopping.request.id, True, **body)


# The restore plan of a running job: a process with Spark makes it, which holds no attempt.


PLANNING = "weir.driver.preview"


@dataclass(frozen=True)
class Made:
    """A plan was made, or could not be: what to answer."""

    request: str
    done: bool
    body: dict[str, Any]


def make_plan(request: Request, inputs: Inputs, done: Callable[[Made], None]) -> None:
    """The plan for going on from a point with the job's own file and settings.

    Returns at once, and calls `done` once, from another thread.
    """
    wanted = {
        "point": str(request.arguments.get("point", "latest")),
        "maps": list(request.arguments.get("maps", ())),
        "allow_dropped": bool(request.arguments.get("allow_dropped", False)),
        "offsets": {},
        "name": inputs.name,
        "settings": dict(inputs.overrides),
        "config": str(inputs.settings_file) if inputs.settings_file else "",
    }

    def work() -> None:
        try:
            body, _ = ask_child(PLANNING, wanted, str(inputs.file), *inputs.arguments)
        except Exception as refused:  # whatever it is, who asked gets an answer
            what = f"no plan could be made: {getattr(refused, 'strerror', None) or refused}"
            body = {"error": {"what": what, "why": "", "hint": "it is safe to try again"}}
        error = body.get("error")
        words = {key: error[key] for key in ("what", "why", "hint")} if error else body
        done(Made(request.id, error is None, words))

    threading.Thread(target=work, name="weir-plan", daemon=True).start()


class RequestHandler:
    """The requests of one job, from its desk to their answers."""

    def __init__(self, job: SupervisedJob, go_back: GoBack, later: Callable[[Made], None]) -> None:
        """`later` is called from another thread, with a plan that `planned` is then called with."""
        self._job = job
        self._go_back = go_back
        self._later = later

    def take(self) -> None:
        """See to those that came since the last look."""
        job = self._job
        for request in job.held.desk.arrived():
            if request.verb == "cancel":
                cancel(job, "cancel request")
            elif refused := self._refusal(request):
                job.held.desk.answer(request.id, False, **refused)
            elif request.verb == "restore":
                self._go_back.ask(request)
            elif request.verb == "plan":
                make_plan(request, job.inputs, self._later)
            elif job.driver is not None:
                self._hand_over(job.driver, request)

    def planned(self, made: Made) -> None:
        self._job.held.desk.answer(made.request, made.done, **made.body)

    def answered(self, message: m.Answered) -> None:
        """The driver has done what it was asked, or could not."""
        job = self._job
        if job.stopping is not None and message.request == job.stopping.request.id:
            take_stop_answer(job, job.stopping, message)
            return
        request = job.held.desk.answer(message.request, message.done, **message.body)
        if request is not None and request.verb == "configure" and message.done:
            self._configured(request.arguments["settings"])

    def _configured(self, fresh: dict[str, str]) -> None:
        job = self._job
        assert job.config is not None
        job.changes |= fresh
        config = job.config = job.config.changed(job.changes)
        job.event("configured", fresh)
        job.reports.settings(config)
        job.note(", ".join(f"{key} = {config.text(key)}" for key in fresh))

    def _hand_over(self, driver: RunningDriver, request: Request) -> None:
        """Let the driver do it; who does not wait for it has the answer now."""
        arguments = dict(request.arguments)
        if request.verb == "stop":
            arguments |= begin_stop(self._job, request)
        if arguments.get("detached"):
            self._job.held.desk.answer(request.id, True, detached=True)
        driver.process.send(m.Ask(request.id, request.verb, arguments))

    def _refusal(self, request: Request) -> dict[str, str]:
        """Why it can't be done, or not now; empty when it can."""
        job = self._job
        ending = job.ending or job.stopping is not None or job.state.final
        driver = job.driver is not None and job.driver.granted
        if reason := refusal(request.verb, ending=ending, restoring=self._go_back.asked, driver=driver):
            return {"reason": reason}
        if request.verb == "configure":
            try:
                changed(job.settings, request.arguments["settings"])
            except WeirError as error:
                return words(error)
        return {}
