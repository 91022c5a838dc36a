"""Where a job's savepoints are: one small record each beside its checkpoints, by whoever took it.

    <dir>/<job>/savepoints/<id>.json

The journal of a supervisor tells it too, but stays on its machine, and a notebook keeps none. A record
only says where to look: the savepoint is its owner's, who may have moved or deleted it.
"""

from __future__ import annotations

import json

from weir.ids import CheckpointId, JobName
from weir.savepoint.take import Taken
from weir.storage import Store, paths


def record(store: Store, taken: Taken) -> None:
    """Write down where a savepoint is. Safe to repeat."""
    saved = taken.savepoint
    key = paths.saved(JobName(saved.job), CheckpointId(saved.id))
    store.put(key, json.dumps({"path": taken.place, "taken_at": saved.taken_at}).encode())


def recorded(store: Store, job: JobName) -> list[str]:
    """The places of the savepoints that were taken, there or not, the newest first."""
    keys = [key for key in store.list(paths.savepoints(job)) if key.endswith(".json")]
    newest_first = sorted(keys, key=_id, reverse=True)
    return [json.loads(data)["path"] for key in newest_first if (data := store.get(key)) is not None]


def _id(key: str) -> int:
    return int(key.rsplit("/", 1)[1].removesuffix(".json"))
