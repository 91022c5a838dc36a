"""The savepoints of a job, seen from outside: those in the savepoint-dir, and those that its journal names.

Whether one can be restored by the present code is known from what the job's last start recorded, as long
as its file is as it was then. Nothing here writes, and nothing asks Spark.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from weir.checkpoint.records import is_left_behind
from weir.clock import Clock
from weir.errors import NoSuchJobError
from weir.ids import JobName, job_name
from weir.monitor.job import job_names, look
from weir.savepoint import about
from weir.savepoint.catalogue import CatalogueEntry, entries, recorded
from weir.savepoint.manifest import MANIFEST, facts
from weir.savepoint.restorable import Present, Restorability, Restorable, judge
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store, open_store, paths
from weir.storage import generation as generations
from weir.storage.generation import known_origin
from weir.storage.open import is_local, local_path
from weir.supervisor.history import history_of

TAKEN = "savepoint taken"


def known(dir: str, job: str | None, savepoint_dir: str | None) -> list[CatalogueEntry]:
    """The savepoints that can be found, oldest first; of one job, or of all below the directory."""
    jobs = [job_name(job)] if job else job_names(dir)
    store = open_store(dir)
    named = [path for one in jobs for path in (*recorded(store, one), *_named(dir, one))]
    found = entries([savepoint_dir] if savepoint_dir else [], named)
    judges = Judges(dir)
    mine = (one for one in found if job is None or _of(one, job))
    return [replace(one, restorable=judges.judge(one)) for one in mine]


def places(dir: str, job: JobName | None = None) -> list[str]:
    """Where the savepoints of a job, or of all, were written, the newest of a job first; none is opened.

    Those that have gone from this machine are left out.
    """
    store = open_store(dir)
    found = [
        path
        for one in ([job] if job else job_names(dir))
        for path in (*recorded(store, one), *reversed([*_named(dir, one)]))
    ]
    return [path for path in dict.fromkeys(found) if not (is_local(path) and _is_empty(path))]


def _is_empty(path: str) -> bool:
    return not os.path.exists(os.path.join(local_path(path), MANIFEST))


def progress_of(dir: str, job: str, request: str) -> dict[str, Any] | None:
    """How far the savepoint is that was asked for with this request; None when nothing is known."""
    with history_of(dir, job_name(job)) as history:
        event = history.last("savepoint progress") if history else None
    return event.body if event is not None and event.body["request"] == request else None


def _named(dir: str, job: JobName) -> Iterable[str]:
    with history_of(dir, job) as history:
        return [str(event.body["path"]) for event in history.events(TAKEN)] if history else []


def _of(entry: CatalogueEntry, job: str) -> bool:
    if entry.savepoint is None:  # by its name, which is all that is known
        return entry.place.rstrip("/").rpartition("/")[2].startswith(f"{job}-")
    return entry.savepoint.job == job


class Judges:
    """Decides of savepoints whether the present code takes them; looks at each job once."""

    def __init__(self, dir: str) -> None:
        self._dir = dir
        self._store = open_store(dir)
        self._known: dict[JobName, Present | None] = {}

    def judge(self, entry: CatalogueEntry) -> Restorable | None:
        """None for what can't be read."""
        saved = entry.savepoint
        if saved is None:
            return None
        if entry.verified is not None and not entry.verified.whole:
            return Restorable(Restorability.NO, f"it is damaged: {entry.verified.damage[0]}")
        job = job_name(saved.job)
        if job not in self._known:
            self._known[job] = present(self._dir, self._store, job)
        code = self._known[job]
        if code is None:
            return Restorable(Restorability.UNKNOWN, f"no job {job!r} has ever run here")
        if is_left_behind(self._store, job, facts(saved)):
            why = "the job was rewound past it, and what it had delivered by then is gone"
            return Restorable(Restorability.NO, why)
        return judge(saved, code)


def present(dir: str, store: Store, job: JobName) -> Present | None:
    """The code that the job would be started with; None for a job that has never run."""
    try:
        standing = look(dir, job, Clock())
    except NoSuchJobError:
        return None
    generation = generations.live(store, job)
    attempt, recorded_shapes = about.last(store, job, generation)
    origin = known_origin(store, job, generation)
    files = {name: QueryFiles(store, paths.query(job, generation, name)) for name in recorded_shapes}
    confs = {str(name): _conf(one) for name, one in files.items()}
    damaged = [f"the newest offsets of query {name!r} can't be read" for name in confs if confs[name] is None]
    return Present(
        attempt,
        {str(name): shape for name, shape in recorded_shapes.items()},
        {name: conf for name, conf in confs.items() if conf},
        parallelism=origin.parallelism if origin else None,
        backend=origin.backend if origin else None,
        doubt="; ".join(damaged) or _doubt(standing.file, {shape.job for shape in recorded_shapes.values()}),
    )


def _conf(files: QueryFiles) -> dict[str, str] | None:
    """What Spark fixed for the query; None when the file is damaged."""
    try:
        return files.conf()
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _doubt(file: str, versions: set[str]) -> str:
    """Why the last start may not have been of the present code; "" when its job file is as it was."""
    if not versions:
        return "no start has recorded yet what its queries are"
    try:
        now = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        now = ""
    if not now or "" in versions:
        return "its job file can't be read here"
    if not all(now.startswith(version) for version in versions):
        return "its job file has changed since it was last started"
    return ""
