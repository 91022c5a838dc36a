"""The savepoints of a job, seen from outside: those in the savepoint-dir, and where its journal says.

Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from weir.ids import JobName, job_name
from weir.savepoint.catalogue import Entry, entries
from weir.savepoint.records import recorded
from weir.storage import open_store
from weir.supervisor.present import Judges
from weir.supervisor.view import history_of, job_names

TAKEN = "savepoint taken"


def known(dir: str, job: str | None, savepoint_dir: str | None) -> list[Entry]:
    """The savepoints that can be found, oldest first; of one job, or of all below the directory."""
    jobs = [job_name(job)] if job else job_names(dir)
    store = open_store(dir)
    named = [path for one in jobs for path in (*recorded(store, one), *_named(dir, one))]
    found = entries([savepoint_dir] if savepoint_dir else [], named)
    judges = Judges(dir)
    mine = (one for one in found if job is None or _of(one, job))
    return [replace(one, restorable=judges.judge(one)) for one in mine]


def progress_of(dir: str, job: str, request: str) -> dict[str, Any] | None:
    """How far the savepoint is that was asked for with this request; None when nothing is known."""
    with history_of(dir, job_name(job)) as history:
        event = history.last("savepoint progress") if history else None
    return event.body if event is not None and event.body["request"] == request else None


def _named(dir: str, job: JobName) -> Iterable[str]:
    with history_of(dir, job) as history:
        return [str(event.body["path"]) for event in history.events(TAKEN)] if history else []


def _of(entry: Entry, job: str) -> bool:
    if entry.savepoint is None:  # by its name, which is all that is known
        return entry.place.rstrip("/").rpartition("/")[2].startswith(f"{job}-")
    return entry.savepoint.job == job
