"""The end of a job that somebody asked for: a cancel, or a stop with a savepoint.

A stop: 1 the driver works off what the sources hold, if that was asked for; a query that fails
meanwhile is started again -> 2 it ends its queries, and none is started any more -> 3 it takes the
savepoint and answers -> 4 it ends, the job is FINISHED, and that is the answer to who asked. When the
savepoint fails after step 2, another driver continues the job. A driver that dies after step 3 ends the
job all the same: what ran on would be missing in the savepoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.protocol.messages import Answered
from weir.protocol.states import JobEvent
from weir.supervisor.inbox import Request
from weir.supervisor.supervised_job import Stopping, SupervisedJob


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
        job.note("the job was not stopped: another driver continues it")
        job.driver.leaving = True
        job.move(JobEvent.RESTART)


def fail_stop(job: SupervisedJob, stopping: Stopping, body: Mapping[str, object]) -> None:
    """The stop has failed: that is the answer to who asked, and the job takes requests again."""
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
