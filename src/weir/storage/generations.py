"""Generations: which incarnation of the live files a job works on.

A job's first start opens generation 1. Its origin is written once and says what was decided there
and must not change by itself: the lineage that ties sinks to these files, and the parallelism of
keyed state, which Spark fixes at the first batch.

A restore opens another one. Its origin is the durable intention; `copied.json` follows when its
files are in place, `live.json` when the sinks are rewound to it. The highest generation that is live
is the one that the job works on; those below it are never touched again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from weir.clock import Clock
from weir.ids import CheckpointId, Generation, JobName
from weir.storage import paths
from weir.storage.open import is_local, local_path
from weir.storage.store import Created, Store

FIRST = Generation(1)


@dataclass(frozen=True)
class Origin:
    """How a generation began."""

    lineage: str
    backend: str
    parallelism: int
    spark: str
    created_at: str
    restored_from: str = ""
    """What it was opened from: "chk-41", or the place of a savepoint; "" for a start with nothing."""
    parent: int = 0
    """The generation that this checkpoint was taken of."""
    accept_duplicates: bool = False
    """Whether output that can't be taken back may be delivered again."""
    why: str = ""
    saved: int = 0
    """The checkpoint that the savepoint is a copy of, when it was opened from one."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The id of the checkpoint that it was opened from, itself or as a savepoint."""
        if self.saved:
            return CheckpointId(self.saved)
        return CheckpointId(int(self.restored_from.removeprefix("chk-"))) if self.restored_from else None


def read_origin(store: Store, job: JobName, generation: Generation) -> Origin | None:
    data = store.get(paths.origin(job, generation))
    return Origin(**json.loads(data)) if data else None


def open_origin(
    store: Store,
    job: JobName,
    generation: Generation,
    *,
    backend: str,
    parallelism: int,
    spark: str,
    clock: Clock,
) -> Origin:
    """The origin of the generation; written now when this is its first start. Safe to repeat."""
    new = Origin(str(uuid.uuid4()), backend, parallelism, spark, clock.now().isoformat())
    create_origin(store, job, generation, new)
    origin = read_origin(store, job, generation)
    assert origin is not None, "an origin that was created can be read"
    return origin


def create_origin(store: Store, job: JobName, generation: Generation, origin: Origin) -> bool:
    """Write the origin of a new generation; False when it has one already."""
    data = json.dumps(asdict(origin)).encode()
    return store.create(paths.origin(job, generation), data) is Created.NOW


def numbers(store: Store, job: JobName) -> list[Generation]:
    """The generations that have an origin, in order."""
    found = {int(name) for name in _folders(store, paths.generations(job)) if name.isdigit()}
    return [Generation(n) for n in sorted(found) if store.exists(paths.origin(job, Generation(n)))]


def is_live(store: Store, job: JobName, generation: Generation) -> bool:
    """Whether the job has ever worked on it."""
    origin = read_origin(store, job, generation)
    if origin is None:
        return False
    return not origin.restored_from or store.exists(paths.live(job, generation))


def live(store: Store, job: JobName) -> Generation:
    """The generation that the job works on: the highest that is live; the first when none is."""
    return _highest_live(store, job) or FIRST


def opening(store: Store, job: JobName) -> Generation | None:
    """A restore that was asked for and is not live yet; of several the last one that was asked for."""
    newest = max(numbers(store, job), default=Generation(0))
    return newest if newest > (_highest_live(store, job) or 0) else None


def mark_live(store: Store, job: JobName, generation: Generation) -> None:
    """From now on the job works on this generation. Safe to repeat."""
    store.create(paths.live(job, generation), b"{}")


def timeline(store: Store, job: JobName) -> dict[Generation, CheckpointId | None]:
    """The generations that the live one descends from, each with its last checkpoint that counts.

    None: all of them count. A checkpoint that was taken behind the point of a later rollback is of
    another timeline: no job goes back to it.
    """
    at = live(store, job)
    found: dict[Generation, CheckpointId | None] = {at: None}
    while (origin := read_origin(store, job, at)) is not None and origin.restored_from:
        at = Generation(origin.parent)
        found[at] = origin.checkpoint
    return found


def _highest_live(store: Store, job: JobName) -> Generation | None:
    return next((n for n in reversed(numbers(store, job)) if is_live(store, job, n)), None)


def _folders(store: Store, prefix: str) -> Iterator[str]:
    """The folders directly below a folder; without walking through all of it where that is possible."""
    if is_local(store.url):
        top = Path(local_path(store.url)) / prefix
        return iter(os.listdir(top) if top.is_dir() else [])
    return (key.removeprefix(f"{prefix}/").split("/")[0] for key in store.list(prefix))
