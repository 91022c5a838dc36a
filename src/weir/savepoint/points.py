"""A point that a job can go on from, as a restore plan looks at it: each query, its shape and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.checkpoint import restore
from weir.checkpoint.manifest import Manifest
from weir.ids import BatchId, JobName
from weir.protocol.shapes import Shape
from weir.savepoint import restoring, shapes
from weir.savepoint.operators import operators
from weir.savepoint.place import Place
from weir.savepoint.planning import Before
from weir.savepoint.take import saved_queries
from weir.spark import cut
from weir.storage import Store
from weir.storage.generations import Origin


@dataclass(frozen=True)
class Point:
    """A checkpoint or a savepoint."""

    manifest: Manifest
    queries: Mapping[str, Before]


def find(store: Store, job: JobName, point: str, forked_from: str = "") -> Point:
    """The point that a user means, when every file of it is whole; raises as `restore.find` does."""
    manifest = restore.find(store, job, point, forked_from=forked_from)
    return of_savepoint(point) if restore.is_place(point) else of_checkpoint(store, manifest)


def intended(store: Store, job: JobName, origin: Origin) -> Point:
    """The point that a generation is opened from; its files were verified when that was decided."""
    if origin.saved:
        return of_savepoint(origin.restored_from)
    return of_checkpoint(store, restore.named(store, job, origin.restored_from))


def of_checkpoint(store: Store, manifest: Manifest) -> Point:
    saved = saved_queries(store, manifest, {})
    return Point(manifest, {name: shapes.before(query) for name, query in saved.items()})


def of_savepoint(place: str) -> Point:
    savepoint = Place(place).read()
    saved = savepoint.queries
    return Point(restoring.facts(savepoint), {name: shapes.before(query) for name, query in saved.items()})


def of_live_files(root: Path, batch: BatchId, shape: Shape) -> Before:
    """A query as its live files have it behind a committed batch."""
    _, _, *ends = (root / f"offsets/{batch}").read_text().split("\n")
    return Before(shape.with_files(operators(root, batch)), cut.conf_of(root, batch), tuple(ends))
