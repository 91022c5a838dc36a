"""A point that a job can go on from, as a restore plan looks at it: each query, its shape and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from weir.checkpoint import restore
from weir.checkpoint.kept import KeptFiles
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

_ENTRY = re.compile(r"channels/(?P<channel>[^/]+)/log/(?P<entry>\d+)\.json")


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
    kept = KeptFiles(store, found.manifest)
    files = {file.path: partial(kept.content, file) for file in found.manifest.files()}
    queries = {name: shapes.before(query) for name, query in saved.items()}
    return Point(found.point, found.manifest, _readers(queries, found.manifest, files))


def of_savepoint(place: str) -> Point:
    where = Place(place)
    savepoint = where.read()
    queries = {name: shapes.before(query) for name, query in savepoint.queries.items()}
    files = {file.path: partial(where.content, file) for file in savepoint.files}
    manifest = restoring.facts(savepoint)
    return Point(place, manifest, _readers(queries, manifest, files))


def _readers(
    queries: Mapping[str, Before], manifest: Manifest, files: Mapping[str, Callable[[], bytes]]
) -> dict[str, Before]:
    """The same queries, which know what they have not read of their channels."""
    return {
        name: replace(query, unread=partial(_unread, manifest, files, name))
        for name, query in queries.items()
    }


def _unread(manifest: Manifest, files: Mapping[str, Callable[[], bytes]], reader: str, channel: str) -> int:
    """How many batches of rows the point has in a channel that a reader has not read."""
    at, _ = manifest.queries[reader].positions.get(channel, (0, 0))
    found = ((_ENTRY.fullmatch(path), content) for path, content in files.items())
    entries = (
        json.loads(content())
        for entry, content in found
        if entry is not None and entry["channel"] == channel and int(entry["entry"]) >= at
    )
    return sum(entry["kind"] == "segment" and bool(entry["rows"]) for entry in entries)


def of_live_files(root: Path, batch: BatchId, shape: Shape) -> Before:
    """A query as its live files have it behind a committed batch."""
    _, _, *ends = (root / f"offsets/{batch}").read_text().split("\n")
    return Before(shape.with_files(operators(root, batch)), cut.conf_of(root, batch), tuple(ends))
