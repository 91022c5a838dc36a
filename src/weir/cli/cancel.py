"""`weir cancel`: end a job, with every running batch finished and committed."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory
from weir.clock import Clock
from weir.errors import NoAnswerError, NoSupervisorError
from weir.ids import job_name
from weir.protocol.states import JobState
from weir.storage import open_store
from weir.supervisor.requests import Requests
from weir.supervisor.view import LOST, Alive, Standing, look

_LOOK = 0.1
_SILENCE = 60.0
"""Without a limit: how long a supervisor that can't be seen from here may take to answer."""

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0, help="Stop waiting after so long; the job goes on ending."
    ),
]


def cancel(
    job: JobOf,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """End a job cleanly.

    The running batches finish and commit, and no other is started. Waits until the job has ended.
    A batch that takes longer than task.cancellation.timeout is cut off, which is said, and runs
    again at the next start.

    \b
    Example: weir cancel wordcount
    """
    place = directory(dir, config, define)
    clock = Clock()
    standing = look(place, job, clock)
    _refuse(standing, place)
    with say.waiting(f"waiting for {job} to finish its running batches"):
        answer = _Request(place, standing, clock).wait(timeout)
    state = str(answer.get("state", ""))
    if json:
        say.say_json({"job": job, "state": state, "attempt": look(place, job, clock).attempt})
    else:
        say.say(f"{job} is {state}")
    if state == JobState.FAILED.value:
        raise typer.Exit(1)


def _refuse(job: Standing, dir: str) -> None:
    """Raise when nobody is there who could end the job."""
    if job.over:
        lost = job.state == LOST
        raise NoSupervisorError(
            job=job.name,
            verb="cancel",
            reason=job.advice if lost else f"it is {job.state} since {say.when(job.since, Clock().now())}",
            todo="nothing runs that could be ended" if lost else _shown_by(job.name, dir),
        )
    if not job.supervised:
        raise NoSupervisorError(
            job=job.name,
            verb="cancel",
            reason=f"it runs in a session of process {job.pid} on {job.host}, by job.start()",
            todo="leave its 'with' block there",
        )


class _Request:
    """A request to end a job, and the wait for its answer."""

    def __init__(self, dir: str, standing: Standing, clock: Clock) -> None:
        self._dir, self._standing, self._clock = dir, standing, clock
        self._requests = Requests(open_store(dir), job_name(standing.name))

    def wait(self, timeout: float | None) -> dict[str, Any]:
        """Ask, and wait for the answer; raises when there will be none, or none in time."""
        identity = self._requests.ask("cancel", self._standing.session)
        asked_at = self._clock.monotonic()
        unseen = self._standing.alive is Alive.UNKNOWN
        limit = _SILENCE if timeout is None and unseen else timeout
        rest = threading.Event()
        while True:
            ended = self._ended()  # looked at before the answer, which is written before the end
            answer = self._requests.answer_to(identity)
            if answer is not None and answer["done"]:
                return answer
            if ended or answer is not None:
                self._requests.withdraw(identity)
                raise self._gone()
            waited = self._clock.monotonic() - asked_at
            if limit is not None and waited >= limit:
                raise self._late(limit)
            rest.wait(_LOOK)

    def _ended(self) -> bool:
        now = look(self._dir, self._standing.name, self._clock)
        return now.over or now.session != self._standing.session

    def _gone(self) -> NoSupervisorError:
        job = self._standing
        return NoSupervisorError(
            job=job.name,
            verb="cancel",
            reason=f"process {job.pid} on {job.host} ended before it could answer",
            todo=_shown_by(job.name, self._dir),
        )

    def _late(self, seconds: float) -> NoAnswerError:
        job = self._standing
        reason = "its running batches take longer; it goes on ending"
        if job.alive is Alive.UNKNOWN:
            reason = f"process {job.pid} on {job.host} has not answered yet; the request stands"
        todo = _shown_by(job.name, self._dir)
        return NoAnswerError(job=job.name, seconds=seconds, reason=reason, todo=todo)


def _shown_by(job: str, dir: str) -> str:
    return f"'{command('status', job, dir)}' shows how it stands"
