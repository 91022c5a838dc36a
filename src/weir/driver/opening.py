"""Which generation a start goes on with: the live one, one that was asked for, or a repaired one.

A restore that was asked for, and was killed on its way, is taken up again. Live files that are lost
or torn are left as they are, and the job goes on from the newest checkpoint that is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir import faults
from weir.checkpoint import damage, restore
from weir.checkpoint.manifest import Manifest
from weir.clock import Clock
from weir.errors import DamagedError
from weir.ids import Generation, JobName
from weir.job.live import Live
from weir.storage import Store, generations


@dataclass(frozen=True)
class Opened:
    """The generation that this start works on; with the checkpoint it must be rewound to, if any."""

    live: Live
    manifest: Manifest | None = None
    why: str = ""
    accept_duplicates: bool = False


@dataclass(frozen=True)
class From:
    """A checkpoint or savepoint that a start was told to go on from."""

    point: str
    accept_duplicates: bool = False


def open_generation(
    store: Store, job: JobName, clock: Clock, note: Callable[[str], None], wanted: From | None = None
) -> Opened:
    """Decide and make the files of the generation; nothing is live yet when a manifest is returned."""
    if wanted is not None:
        restore.intend(
            store,
            job,
            wanted.point,
            accept_duplicates=wanted.accept_duplicates,
            clock=clock,
            why=f"started from {wanted.point}",
        )
    opening = generations.opening(store, job)
    if opening is None:
        live = Live(store, job, generations.live(store, job))
        torn = damage.look(store, job, live.generation)
        if not torn:
            return Opened(live)
        opening = repair(store, job, torn, clock, note)
    faults.point("restore.intended")
    manifest = restore.open_generation(store, job, opening)
    faults.point("restore.copied")
    origin = generations.read_origin(store, job, opening)
    assert origin is not None, "an opening generation has its origin"
    return Opened(Live(store, job, opening), manifest, origin.why, origin.accept_duplicates)


def repair(
    store: Store, job: JobName, torn: list[damage.Damage], clock: Clock, note: Callable[[str], None]
) -> Generation:
    """Write down that the job goes on from its newest checkpoint that is whole; the generation to be."""
    words = "; ".join(one.text for one in torn)
    why = f"live files are damaged: {words}"
    for id in restore.candidates(store, job):
        problems = restore.verify_id(store, job, id)
        if problems:
            note(f"checkpoint {id} is damaged ({problems[0]}): the one before it is tried")
            continue
        note(f"live files are damaged ({words}): the job goes on from checkpoint {id}")
        return restore.intend(store, job, f"chk-{id}", accept_duplicates=False, clock=clock, why=why)
    raise DamagedError(job=job, damage=words)
