"""Asking a running job for something, and waiting for its answer: for the command line and the pages.

A request goes through the storage to the supervisor that holds the job now; who comes after it never
sees it. Nobody is waited for who can't answer: a supervisor that ends meanwhile is noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.clock import Clock
from weir.errors import NoAnswerError, NoSupervisorError, NotDoneError
from weir.ids import job_name
from weir.storage import open_store
from weir.supervisor.requests import Requests
from weir.supervisor.view import LOST, Alive, Standing, look
from weir.words import when

_LOOK = 0.1
_SILENCE = 60.0
"""Without a limit: how long a supervisor that can't be seen from here may take to answer."""


@dataclass(frozen=True)
class Wish:
    """What is asked of a job, and how it is spoken of."""

    verb: str
    due: str
    """What the job has not done when it takes too long: "ended", "completed a checkpoint"."""
    slow: str
    """Why it may take so long."""


CANCEL = Wish("cancel", "ended", "its running batches take longer; it goes on ending")
STOP = Wish("stop", "ended", "its running batches or the savepoint take longer; it goes on ending")
CHECKPOINT = Wish("checkpoint", "completed a checkpoint", "the checkpoint takes longer; it goes on")
SAVEPOINT = Wish("savepoint", "taken a savepoint", "the savepoint takes longer; it goes on")
RESTORE = Wish("restore", "been restored", "its running batches or the restore take longer; it goes on")
PLAN = Wish("plan", "made a plan", "Spark's planner takes longer; it goes on")
CONFIGURE = Wish("configure", "changed its settings", "it takes the change when its driver is ready")


def refuse_without_supervisor(job: Standing, verb: str, shown: str) -> None:
    """Raise when nobody is there who could do this to the job; `shown` says where to look instead."""
    if job.over:
        since = f"it is {job.state} since {when(job.since, Clock().now())}"
        lost = f"to resume it: weir run {job.file or 'FILE'}"
        todo = lost if job.state == LOST else shown
        raise NoSupervisorError(job=job.name, verb=verb, reason=since, todo=todo)
    if not job.supervised:
        raise NoSupervisorError(
            job=job.name,
            verb=verb,
            reason=f"it runs in a session of process {job.pid} on {job.host}, by job.start()",
            todo="leave its 'with' block there",
        )


def nothing(_request: str) -> None:
    """What is done while one waits, when nothing is."""


def ask(
    dir: str,
    job: Standing,
    wish: Wish,
    arguments: Mapping[str, Any],
    timeout: float | None,
    shown: str,
    meanwhile: Callable[[str], None] = nothing,
) -> dict[str, Any]:
    """Ask, and wait for the answer, whatever it is; raises when there will be none, or none in time.

    `meanwhile` is called at each look, with the request.
    """
    clock = Clock()
    requests = Requests(open_store(dir), job_name(job.name))
    identity = requests.ask(wish.verb, job.session, arguments)
    asked_at = clock.monotonic()
    limit = _SILENCE if timeout is None and job.alive is Alive.UNKNOWN else timeout
    rest = threading.Event()
    while True:
        ended = _ended(dir, job, clock)  # looked at before the answer, which is written before the end
        answer = requests.answer_to(identity)
        if answer is not None and not answer.get("gone"):
            return answer
        if ended or answer is not None:
            requests.withdraw(identity)
            reason = f"process {job.pid} on {job.host} ended before it could answer"
            raise NoSupervisorError(job=job.name, verb=wish.verb, reason=reason, todo=shown)
        if limit is not None and clock.monotonic() - asked_at >= limit:
            raise _late(job, wish, limit, shown)
        meanwhile(identity)
        rest.wait(_LOOK)


def not_done(job: Standing, wish: Wish, answer: Mapping[str, Any], shown: str) -> NotDoneError:
    """The answer of a job that could not do it, as an error."""
    return NotDoneError(
        what=answer.get("what") or f"job {job.name!r} has not {wish.due}",
        why=answer.get("why") or answer.get("reason") or "",
        hint=answer.get("hint") or shown,
    )


def _ended(dir: str, job: Standing, clock: Clock) -> bool:
    now = look(dir, job.name, clock)
    return now.over or now.session != job.session


def _late(job: Standing, wish: Wish, seconds: float, shown: str) -> NoAnswerError:
    reason = wish.slow
    if job.alive is Alive.UNKNOWN:
        reason = f"process {job.pid} on {job.host} has not answered yet; the request stands"
    return NoAnswerError(job=job.name, due=wish.due, seconds=seconds, reason=reason, todo=shown)
