"""Generations: which incarnation of the live files a job works on.

A job's first start opens generation 1. Its origin is written once and says what was decided there
and must not change by itself: the lineage that ties sinks to these files, and the parallelism of
keyed state, which Spark fixes at the first batch.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from weir.clock import Clock
from weir.ids import Generation, JobName
from weir.storage import paths
from weir.storage.store import Store

FIRST = Generation(1)


@dataclass(frozen=True)
class Origin:
    """How a generation began."""

    lineage: str
    backend: str
    parallelism: int
    spark: str
    created_at: str


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
    store.create(paths.origin(job, generation), json.dumps(asdict(new)).encode())
    origin = read_origin(store, job, generation)
    assert origin is not None, "an origin that was created can be read"
    return origin
