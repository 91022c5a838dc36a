"""A point that a job can go on from, as a restore plan looks at it: each query, its shape and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.checkpoint import restore
from weir.checkpoint.manifest import Manifest
from weir.checkpoint.restore import Found
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

    name: str
    """Which one: "chk-41", or the place of a savepoint."""
    manifest: Manifest
    queries: Mapping[str, Before]


def find(
    store: Store,
    job: JobName,
    point: str,
    forked_from: str = "",
    savepoint_dir: str = "",
    passed_over: Callable[[str, str], None] = lambda _point, _damage: None,
) -> Point:
    """The point that a user means, when every file of it is whole; raises as `restore.find` does."""
    found = restore.find(store, job, point, passed_over, forked_from, savepoint_dir)
    return of_savepoint(found.point) if restore.is_place(found.point) else of_checkpoint(store, found)


def intended(store: Store, job: JobName, origin: Origin) -> Point:
    """The point that a generation is opened from; its files were verified when that was decided."""
    if origin.saved:
        return of_savepoint(origin.restored_from)
    name = origin.restored_from
    return of_checkpoint(store, Found(name, restore.named(store, job, name)))


def of_checkpoint(store: Store, found: Found) -> Point:
    saved = saved_queries(store, found.manifest, {})
    return Point(found.point, found.manifest, {name: shapes.before(query) for name, query in saved.items()})


def of_savepoint(place: str) -> Point:
    savepoint = Place(place).read()
    queries = {name: shapes.before(query) for name, query in savepoint.queries.items()}
    return Point(place, restoring.facts(savepoint), queries)


def of_live_files(root: Path, batch: BatchId, shape: Shape) -> Before:
    """A query as its live files have it behind a committed batch."""
    _, _, *ends = (root / f"offsets/{batch}").read_text().split("\n")
    return Before(shape.with_files(operators(root, batch)), cut.conf_of(root, batch), tuple(ends))
