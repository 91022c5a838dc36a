"""One request to a running job, from asking to its answer: what every verb of `client/running_job.py` does.

A request goes through the storage to the supervisor that holds the job now; a supervisor that comes
after it never sees it. Nobody waits for an answer that can't come: a supervisor that ends meanwhile is
noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from weir.clock import Clock
from weir.errors import NoAnswerError, NoSupervisorError, NotDoneError
from weir.ids import job_name
from weir.monitor.job import LOST, Alive, JobView, look
from weir.monitor.savepoints import progress_of
from weir.storage import open_store
from weir.supervisor.inbox import Requests
from weir.text import when

_LOOK = 0.1
_SILENCE = 60.0
"""Without a limit: how long a supervisor that can't be seen from here may take to answer."""

Progress = Callable[[Mapping[str, Any]], None]
"""Called with `phase`, `done_bytes` and `full_bytes` of what was asked for, when they are known."""


@dataclass(frozen=True)
class Caller:
    """The job that is asked, and how whoever asks waits for the answer."""

    dir: str
    job: str
    timeout: float | None = None
    """Seconds to wait; the request stands when they have passed."""
    waiting: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    """Entered while there is something to wait for; what it gives is called with the progress."""
    hint: str = ""
    """What to do when there is no answer; by default, the command that shows the job."""

    @property
    def todo(self) -> str:
        return self.hint or f"'weir status {self.job}' shows its state"

    def look(self) -> JobView:
        """The job as it stands; raises `NoSuchJobError`."""
        return look(self.dir, self.job, Clock())


@dataclass(frozen=True)
class JobVerb:
    """What can be asked of a job, and how messages describe it."""

    name: str
    due: str
    """What the job has not done when it takes too long: "ended", "completed a checkpoint"."""
    slow: str
    """Why it may take that long."""


def refuse_without_supervisor(caller: Caller, job: JobView, verb: str) -> None:
    """Raise `NoSupervisorError` when nobody is there who could do this to the job."""
    if job.over:
        since = f"it is {job.state} since {when(job.since, Clock().now())}"
        lost = f"to resume it: weir run {job.file or 'FILE'}"
        todo = lost if job.state == LOST else caller.todo
        raise NoSupervisorError(job=job.name, verb=verb, reason=since, todo=todo)
    if not job.supervised:
        raise NoSupervisorError(
            job=job.name,
            verb=verb,
            reason=f"it runs in a session of process {job.owner.pid} on {job.owner.host}, by job.start()",
            todo="leave its 'with' block there",
        )


def ask(caller: Caller, verb: JobVerb, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Ask, wait, and return what the job answered when it had done it.

    Raises `NoSupervisorError` when nobody can answer, `NoAnswerError` when the answer takes too long,
    and `NotDoneError` when the job could not do it; its field `id` is then that of a checkpoint that
    was begun.
    """
    job = caller.look()
    refuse_without_supervisor(caller, job, verb.name)
    with caller.waiting() as progress:
        answer = _answer(caller, job, verb, arguments, progress)
    if not answer["done"]:
        raise _not_done(caller, verb, answer)
    return answer


def _answer(
    caller: Caller, job: JobView, verb: JobVerb, arguments: Mapping[str, Any], progress: Progress | None
) -> dict[str, Any]:
    """The answer, whatever it is."""
    clock = Clock()
    requests = Requests(open_store(caller.dir), job_name(job.name))
    identity = requests.ask(verb.name, job.owner.session, arguments)
    asked_at = clock.monotonic()
    limit = _SILENCE if caller.timeout is None and job.alive is Alive.UNKNOWN else caller.timeout
    rest = threading.Event()
    while True:
        now = caller.look()  # before the answer is looked for, which is written before the end
        ended = now.over or now.owner.session != job.owner.session
        answer = requests.answer_to(identity)
        if answer is not None and not answer.get("gone"):
            return answer
        if ended or answer is not None:
            requests.withdraw(identity)
            reason = f"process {job.owner.pid} on {job.owner.host} ended before it could answer"
            raise NoSupervisorError(job=job.name, verb=verb.name, reason=reason, todo=caller.todo)
        if limit is not None and clock.monotonic() - asked_at >= limit:
            raise _late(caller, job, verb, limit)
        if progress is not None and (reached := progress_of(caller.dir, job.name, identity)) is not None:
            progress(reached)
        rest.wait(_LOOK)


def _late(caller: Caller, job: JobView, verb: JobVerb, seconds: float) -> NoAnswerError:
    reason = verb.slow
    if job.alive is Alive.UNKNOWN:
        reason = f"process {job.owner.pid} on {job.owner.host} has not answered yet; the request stands"
    return NoAnswerError(job=job.name, due=verb.due, seconds=seconds, reason=reason, todo=caller.todo)


def _not_done(caller: Caller, verb: JobVerb, answer: Mapping[str, Any]) -> NotDoneError:
    """The answer of a job that could not do it, as an error."""
    begun = f"checkpoint {answer['id']} of {caller.job} was aborted" if answer.get("id") else ""
    return NotDoneError(
        what=answer.get("what") or begun or f"job {caller.job!r} has not {verb.due}",
        why=answer.get("why") or answer.get("reason") or "",
        hint=answer.get("hint") or caller.todo,
        id=answer.get("id"),
    )
