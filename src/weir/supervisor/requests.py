"""What a request leads to: refused, done here, or handed over to the driver, which answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weir.config import changed
from weir.errors import WeirError, error_form
from weir.protocol import messages as m
from weir.protocol.decide import refusal
from weir.supervisor.inbox import Request
from weir.supervisor.process import ask_child
from weir.supervisor.restore import RestoreHandler
from weir.supervisor.running_driver import RunningDriver
from weir.supervisor.stop import begin_stop, cancel, take_stop_answer
from weir.supervisor.supervised_job import Inputs, SupervisedJob

PLANNING = "weir.driver.preview"


@dataclass(frozen=True)
class PlanAnswer:
    """A plan was made, or could not be: what to answer."""

    request: str
    done: bool
    body: dict[str, Any]


def make_plan(request: Request, inputs: Inputs, done: Callable[[PlanAnswer], None]) -> None:
    """The plan for resuming from a point with the job's own file and settings.

    A process with Spark makes it, which holds no attempt. Returns at once, and calls `done` once, from
    another thread.
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
        answer = {key: error[key] for key in ("what", "why", "hint")} if error else body
        done(PlanAnswer(request.id, error is None, answer))

    threading.Thread(target=work, name="weir-plan", daemon=True).start()


class RequestHandler:
    """The requests of one job, from its desk to their answers."""

    def __init__(
        self, job: SupervisedJob, restores: RestoreHandler, later: Callable[[PlanAnswer], None]
    ) -> None:
        """`later` is called from another thread, with a plan that is then answered in the loop's."""
        self._job = job
        self._restores = restores
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
                self._restores.ask(request)
            elif request.verb == "plan":
                make_plan(request, job.inputs, self._later)
            elif job.driver is not None:
                self._hand_over(job.driver, request)

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
        if reason := refusal(request.verb, ending=ending, restoring=self._restores.asked, driver=driver):
            return {"reason": reason}
        if request.verb == "configure":
            try:
                changed(job.settings, request.arguments["settings"])
            except WeirError as error:
                return error_form(error)
        return {}
