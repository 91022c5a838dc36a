"""The present code of a job, seen from outside: what its last start told, and whether its file is as it was.

Nothing here writes, and nothing asks Spark.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from weir.checkpoint.restore import is_left_behind
from weir.clock import Clock
from weir.errors import NoSuchJobError
from weir.ids import JobName, job_name
from weir.savepoint import shapes
from weir.savepoint.catalogue import Entry
from weir.savepoint.manifest import Savepoint
from weir.savepoint.restorable import Answer, Present, Restorable, judge
from weir.savepoint.restoring import facts
from weir.spark.layout import QueryFiles
from weir.storage import Store, generations, open_store, paths
from weir.storage.generations import known_origin
from weir.supervisor.view import look


class Judges:
    """Tells of savepoints whether the present code takes them; looks at each job once."""

    def __init__(self, dir: str) -> None:
        self._dir = dir
        self._store = open_store(dir)
        self._known: dict[JobName, Present | None] = {}

    def judge(self, entry: Entry) -> Restorable | None:
        """None for what can't be read."""
        saved = entry.savepoint
        if saved is None:
            return None
        if entry.verified is not None and not entry.verified.whole:
            return Restorable(Answer.NO, f"it is damaged: {entry.verified.damage[0]}")
        job = job_name(saved.job)
        if job not in self._known:
            self._known[job] = present(self._dir, self._store, job)
        code = self._known[job]
        if code is None:
            return Restorable(Answer.UNKNOWN, f"no job {job!r} has ever run here")
        return self._behind(job, saved) or judge(saved, code)

    def _behind(self, job: JobName, saved: Savepoint) -> Restorable | None:
        if not is_left_behind(self._store, job, facts(saved)):
            return None
        why = "the job was rewound past it, and what it had delivered by then is gone"
        return Restorable(Answer.NO, why)


def present(dir: str, store: Store, job: JobName) -> Present | None:
    """The code that the job would be started with; None for a job that has never run."""
    try:
        standing = look(dir, job, Clock())
    except NoSuchJobError:
        return None
    generation = generations.live(store, job)
    attempt, told = shapes.last(store, job, generation)
    origin = known_origin(store, job, generation)
    files = {name: QueryFiles(store, paths.query(job, generation, name)) for name in told}
    return Present(
        attempt,
        {str(name): shape for name, shape in told.items()},
        {str(name): conf for name, one in files.items() if (conf := one.conf())},
        parallelism=origin.parallelism if origin else None,
        backend=origin.backend if origin else None,
        doubt=_doubt(standing.file, {shape.job for shape in told.values()}),
    )


def _doubt(file: str, versions: set[str]) -> str:
    """Why the last start may not have been of the present code; "" when its job file is as it was."""
    if not versions:
        return "no start has told so far what its queries are"
    try:
        now = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        now = ""
    if not now or "" in versions:
        return "its job file can't be read here"
    if not all(now.startswith(version) for version in versions):
        return "its job file has changed since it was last started"
    return ""
