"""Which points the live files descend from: a point that the job was rewound past is on another timeline."""

from __future__ import annotations

from weir.checkpoint.manifest import Manifest
from weir.errors import LeftBehindError
from weir.ids import CheckpointId, Generation, JobName
from weir.storage import Store
from weir.storage import generation as generations
from weir.storage.generation import known_origin

Timeline = dict[Generation, CheckpointId | None]


def timeline(store: Store, job: JobName) -> Timeline | None:
    """The timeline that the live files are on; None when there are none, and so any will do."""
    live = generations.live(store, job)
    return generations.timeline(store, job) if generations.is_live(store, job, live) else None


def is_on(line: Timeline | None, manifest: Manifest) -> bool:
    last = line.get(Generation(manifest.generation), CheckpointId(0)) if line is not None else None
    return last is None or manifest.id <= last


def is_of(store: Store, job: JobName, manifest: Manifest) -> bool:
    """Whether it was taken in this life of the job; a savepoint may come from another one.

    A fork keeps the lineage, but its generations are its own.
    """
    live = known_origin(store, job, generations.live(store, job))
    return live is None or (job, live.lineage) == (manifest.job, manifest.lineage)


def is_left_behind(store: Store, job: JobName, manifest: Manifest) -> bool:
    """Whether the job was rewound past this point of its own, so that it can't resume from it."""
    return is_of(store, job, manifest) and not is_on(timeline(store, job), manifest)


def check_timeline(store: Store, job: JobName, point: str, manifest: Manifest) -> None:
    """Raise `LeftBehindError` for a point that the job was rewound past."""
    if is_left_behind(store, job, manifest):
        raise LeftBehindError(job=job, point=point)
