"""The files of a job: repair those that are lost or damaged, and delete what nothing needs.

A repair looks first (`examine`), then records what the job's next start uses (`carry_out`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from weir.client.ask import Caller
from weir.client.idle import Idle
from weir.clock import Clock
from weir.config import Settings
from weir.ids import job_name
from weir.monitor.savepoints import known
from weir.restore import repair as repairs
from weir.restore.repair import Repair
from weir.storage import generation as generations
from weir.storage import open_store
from weir.storage.generation import read_origin
from weir.supervisor import leftovers
from weir.supervisor.leftovers import JobLeftover


@dataclass(frozen=True)
class Examined:
    """A job that nobody runs, and what its live files need."""

    idle: Idle
    file: str
    opening: str = ""
    """The point that its next start resumes from already; then nothing was looked at."""
    repair: Repair | None = None
    """None when nothing is damaged."""

    def form(self, generation: int | None = None) -> dict[str, Any]:
        """`generation` is the new one, when the repair was carried out."""
        if self.repair is None:
            return {"job": self.idle.job, "damage": [], "from": None, "queries": [], "generation": None}
        return {
            "job": self.idle.job,
            "damage": [one.text for one in self.repair.damage],
            "from": self.repair.source,
            "passed_over": list(self.repair.passed_over),
            "queries": [
                {
                    "query": one.query,
                    "back_to": one.back_to,
                    "newest": one.newest,
                    "offsets": list(one.offsets),
                }
                for one in self.repair.replays
            ],
            "generation": generation,
        }


def examine(
    caller: Caller,
    *,
    savepoint_dir: str | None,
    checking: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Examined:
    """Find what is damaged and the way to continue that loses least; writes nothing.

    Raises `JobRunningError` when somebody runs the job, `DamagedError` when no point is intact.
    """
    seen = caller.look()
    idle = Idle.of(caller.dir, caller.job, seen)
    store, name = open_store(caller.dir), job_name(caller.job)
    if (opening := generations.opening(store, name)) is not None:
        origin = read_origin(store, name, opening)
        assert origin is not None, "an opening generation has its origin"
        return Examined(idle, seen.file, opening=origin.restored_from)
    savepoints = known(caller.dir, caller.job, savepoint_dir)
    unread = [one.place for one in savepoints if one.savepoint is None]  # first, so that they are reported
    places = [one.place for one in reversed(savepoints) if one.savepoint and not one.savepoint.derived]
    with checking():
        return Examined(idle, seen.file, repair=repairs.plan(store, name, unread + places))


def carry_out(examined: Examined, *, accept_duplicates: bool) -> int:
    """Record the repair for the next start; returns the generation that this start makes.

    The damaged files stay. Raises `JobRunningError` or `NotDoneError` when the job was run meanwhile.
    """
    assert examined.repair is not None, "there is something to repair"
    idle = examined.idle
    return repairs.carry_out(
        open_store(idle.dir),
        job_name(idle.job),
        examined.repair,
        accept_duplicates=accept_duplicates,
        clock=Clock(),
        still=idle.check,
    )


@dataclass(frozen=True)
class Cleaned:
    """What was left; `deleted` when it no longer is."""

    job: str
    deleted: bool
    leftovers: tuple[JobLeftover, ...]

    def form(self) -> dict[str, Any]:
        return {"job": self.job, "deleted": self.deleted, "leftovers": list(map(asdict, self.leftovers))}


def clean(caller: Caller, settings: Settings, *, delete: bool) -> Cleaned:
    """What `settings` do not keep of a job; deleted only with `delete`. Raises `NoSuchJobError`."""
    caller.look()
    rest = leftovers.leftovers(caller.dir, job_name(caller.job), settings, Clock())
    if delete:
        leftovers.delete(caller.dir, rest)
    return Cleaned(caller.job, delete, tuple(rest))
