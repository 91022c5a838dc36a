"""Where a job's savepoints are: one small record each beside its checkpoints, by whoever took it.

    <dir>/<job>/savepoints/<id>.json

The journal of a supervisor tells it too, but stays on its machine, and a notebook keeps none. A record
only says where to look: the savepoint is its owner's, who may have moved or deleted it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from weir.ids import CheckpointId, JobName
from weir.savepoint.take import Taken
from weir.storage import Store, paths, sums


def record(store: Store, taken: Taken) -> None:
    """Write down where a savepoint is. Safe to repeat."""
    saved = taken.savepoint
    key = paths.saved(JobName(saved.job), CheckpointId(saved.id))
    body = {"path": taken.place, "taken_at": saved.taken_at}
    store.put(key, sums.add(json.dumps(body).encode()))


def recorded(store: Store, job: JobName) -> list[str]:
    """The places of the savepoints that were taken, there or not, the newest first.

    A damaged record is passed over: see `damaged`.
    """
    return [place for _, place in _records(store, job) if place is not None]


def damaged(store: Store, job: JobName) -> list[str]:
    """The keys of the records that can't be read, the newest first."""
    return [key for key, place in _records(store, job) if place is None]


def _records(store: Store, job: JobName) -> Iterator[tuple[str, str | None]]:
    """The key of each record and the place that it names; None where it is damaged."""
    keys = [key for key in store.list(paths.savepoints(job)) if key.endswith(".json")]
    for key in sorted(keys, key=_id, reverse=True):
        if (data := store.get(key)) is None:
            continue
        place = None
        with suppress(ValueError, KeyError, TypeError):
            place = json.loads(sums.strip(data))["path"]
        yield key, place if isinstance(place, str) else None


def _id(key: str) -> int:
    return int(key.rsplit("/", 1)[1].removesuffix(".json"))
