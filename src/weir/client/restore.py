"""Take a job back to a checkpoint or savepoint, running or not, and withdraw such a restore.

A job that nobody runs is only prepared: what it resumes from is recorded for its next start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from weir.client import running_job
from weir.client.ask import Caller
from weir.client.idle import Idle
from weir.clock import Clock
from weir.errors import NoSuchJobError, NotDoneError
from weir.ids import job_name
from weir.monitor.job import JobView
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.storage import generation as generations
from weir.storage import open_store
from weir.storage.generation import read_origin
from weir.supervisor.restore import WHY

Checking = Callable[[], AbstractContextManager[object]]
"""Entered while files are checked, which takes its time."""


@dataclass(frozen=True)
class JobRestored:
    """A restore that is done (`live`), or that the job's next start does."""

    job: str
    point: str
    checkpoint: int | None
    generation: int | None
    seconds: float | None
    live: bool
    file: str = ""
    """The job file whose next start does it, where that is known."""
    savepoint: str = ""
    """The savepoint that it is restored from; "" for a checkpoint, and for a restore that is done."""

    def form(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("file", "savepoint")}


@dataclass(frozen=True)
class Withdrawn:
    """A restore that the next start of a job no longer does."""

    job: str
    withdrawn: str
    """The point that it was to be restored from."""
    generation: int
    begun: str
    """The restore that had begun before, which the next start finishes; "" when there is none."""
    file: str

    def form(self) -> dict[str, Any]:
        return {"job": self.job, "withdrawn": self.withdrawn, "generation": self.generation}


def restore(
    caller: Caller, wanted: RestoreRequest, *, savepoint_dir: str, checking: Checking = nullcontext
) -> JobRestored:
    """Take the job back to a point: one that runs now, one that nobody runs at its next start.

    A job whose directory is lost comes back from a place outside of it. Raises what `restore/` raises for
    a point that can't be restored; `JobRunningError` when somebody starts the job meanwhile.
    """
    seen = _seen(caller, wanted.point)
    if seen is not None and not seen.over:
        answer = running_job.rewind(caller, wanted)
        return JobRestored(
            caller.job,
            wanted.point,
            answer.get("checkpoint"),
            answer.get("generation"),
            answer.get("seconds"),
            live=True,
        )
    idle = Idle.of(caller.dir, caller.job, seen)
    store, name = open_store(caller.dir), job_name(caller.job)
    with checking():
        generation = intend(
            store,
            name,
            wanted,
            clock=Clock(),
            why=WHY,
            savepoint_dir=savepoint_dir,
            still=idle.check,
        )
    origin = read_origin(store, name, generation)
    return JobRestored(
        caller.job,
        wanted.point,
        origin.checkpoint if origin else None,
        generation,
        None,
        live=False,
        file=seen.file if seen else "",
        savepoint=origin.restored_from if origin and origin.saved else "",
    )


def withdraw(caller: Caller) -> Withdrawn:
    """Delete the restore that is recorded for the job's next start.

    Raises `JobRunningError` when somebody runs the job, and `NotDoneError` when none is recorded or its
    sinks are being rewound already.
    """
    seen = caller.look()
    idle = Idle.of(caller.dir, caller.job, seen)
    store, name = open_store(caller.dir), job_name(caller.job)
    opening = generations.opening(store, name)
    origin = read_origin(store, name, opening) if opening else None
    what = f"no restore of job {caller.job!r} was cancelled"
    if opening is None or origin is None:
        shown = f"'weir status {caller.job}' shows its state"
        raise NotDoneError(what=what, why="none is recorded", hint=shown)
    idle.check()
    run = f"weir run {seen.file or 'FILE'}"
    if not generations.drop(store, name, opening, "cancelled by the user"):
        why = f"sinks are being rewound to {origin.restored_from}, so the live files are ahead of them"
        raise NotDoneError(what=what, why=why, hint=f"'{run}' resumes it")
    begun = generations.awaited(store, name) or ""
    return Withdrawn(caller.job, origin.restored_from, opening, str(begun), seen.file)


def _seen(caller: Caller, point: str) -> JobView | None:
    """How the job stands; None for one whose directory is lost, and that comes back from its copies."""
    try:
        return caller.look()
    except NoSuchJobError:
        if "/" in point:
            return None
        raise
