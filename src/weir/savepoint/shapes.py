"""The shapes of a job's queries, kept beside its live files: one for each start and query.

    generations/<n>/shapes/<attempt>/<query>.json

Checkpoints name their generation and attempt, so each finds the shape that its state belongs to; a
savepoint carries it. Without one, as of a job that an older weir ran, the files tell what they can.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from weir.ids import Attempt, Generation, JobName, QueryName
from weir.protocol.shape import PlannedSource, Shape
from weir.savepoint.manifest import SavedQuery, SavedSource
from weir.savepoint.verdicts import Before
from weir.storage import Store, paths


def keep(
    store: Store, job: JobName, generation: Generation, attempt: Attempt, query: QueryName, shape: Shape
) -> None:
    """Write down what a query is at this start. Safe to repeat."""
    store.put(_key(job, generation, attempt, query), shape.model_dump_json().encode())


def kept(
    store: Store, job: JobName, generation: Generation, attempt: Attempt, query: QueryName
) -> Shape | None:
    """What a query was at that start; None when nobody wrote it down, or it can't be read."""
    data = store.get(_key(job, generation, attempt, query))
    try:
        return Shape.model_validate_json(data) if data else None
    except ValidationError:
        return None


def last(store: Store, job: JobName, generation: Generation) -> tuple[Attempt, dict[QueryName, Shape]]:
    """What all queries were at the last start in this generation, and which that was; none before one."""
    keys = [key.split("/") for key in store.list(f"{paths.generation(job, generation)}/shapes")]
    newest = Attempt(max((int(key[-2]) for key in keys), default=0))
    names = [QueryName(key[-1].removesuffix(".json")) for key in keys if int(key[-2]) == newest]
    found = {name: kept(store, job, generation, newest, name) for name in names}
    return newest, {name: shape for name, shape in found.items() if shape is not None}


def queries(store: Store, job: JobName, generation: Generation) -> set[QueryName]:
    """The queries of the last start in this generation, by the names alone; none before one."""
    keys = [key.split("/") for key in store.list(f"{paths.generation(job, generation)}/shapes")]
    newest = max((int(key[-2]) for key in keys), default=0)
    return {QueryName(key[-1].removesuffix(".json")) for key in keys if int(key[-2]) == newest}


def newest(store: Store, job: JobName, generation: Generation, query: QueryName) -> Shape | None:
    """What a query was at its last start in this generation; None when nobody wrote it down."""
    prefix = f"{paths.generation(job, generation)}/shapes"
    attempts = [int(key.split("/")[-2]) for key in store.list(prefix) if key.endswith(f"/{query}.json")]
    return kept(store, job, generation, Attempt(max(attempts)), query) if attempts else None


def before(query: SavedQuery) -> Before:
    """A query of a savepoint, as a restore plan takes it."""
    shape = query.shape or Shape(sources=tuple(PlannedSource(name=_name(one)) for one in query.sources))
    if not shape.sink and query.sink is not None:
        shape = shape.model_copy(update={"sink": query.sink.description})
    return Before(shape.with_files(query.operators), query.conf, query.offsets)


def _name(source: SavedSource) -> str:
    """What the offset log alone tells of a source: those of weir's name themselves there."""
    if source.channel:
        return f"channel {source.channel}"
    if not source.name.isdigit():
        return f"named {source.name}"
    try:
        offset = json.loads(source.offset)
    except ValueError:
        return ""
    own = isinstance(offset, dict) and offset.keys() == {"entry", "source"}
    return f"source {offset['source']}" if own else ""


def _key(job: JobName, generation: Generation, attempt: Attempt, query: QueryName) -> str:
    return f"{paths.generation(job, generation)}/shapes/{attempt:06d}/{query}.json"
