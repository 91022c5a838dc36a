"""The documented forms of what there is to see: one for `--json`, REST and the pages.

Keys may be added; none goes or changes its meaning. Facts in, plain values out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weir.monitor.job import Alive, JobView
from weir.monitor.report import JobReport
from weir.supervisor.history import Event
from weir.text import seconds_since

_LOGS = re.compile(r"('weir logs [\w.-]+)'")
"""The advice to look into the output of a job, as a failure has it."""

if TYPE_CHECKING:
    from weir.monitor.checkpoints import Checkpoint
    from weir.savepoint.catalogue import CatalogueEntry
    from weir.savepoint.verify import Verified


def job(job: JobView, now: datetime) -> dict[str, Any]:
    """A job in a list."""
    known = {Alive.YES: True, Alive.NO: False, Alive.UNKNOWN: None}
    return {
        "name": job.name,
        "state": job.state,
        "alive": known[job.alive],
        "attempt": job.attempt,
        "since": job.since,
        "started_at": job.started_at,
        "uptime_seconds": None if job.over else round(seconds_since(job.started_at, now), 1),
        "batch": job.batch,
        "query_states": dict(Counter(one.state for one in job.queries.values())),
        "supervised": job.supervised,
        "pid": job.owner.pid,
        "host": job.owner.host,
        "user": job.owner.user,
        "driver": job.owner.driver or None,
        "file": job.file or None,
        "advice": job.advice,
    }


def report(dir: str, seen: JobReport, now: datetime) -> dict[str, Any]:
    """A job with its queries and its troubles."""
    return {
        "dir": dir,
        **job(seen.job, now),
        "restarts": seen.restarts,
        "machine_restarts": seen.machine_restarts,
        "queries": seen.queries,
        "failure": failure(seen.failure) if seen.failure else None,
        "gave_up": seen.gave_up or None,
        "recoveries": [happened(one) for one in seen.recoveries],
        "checkpoint": _checkpoint(seen.checkpoint, now) if seen.checkpoint else None,
        "restored": happened(seen.restored) if seen.restored else None,
        "ended_at": seen.ended_at or None,
        "state_seconds": {state: round(seconds, 1) for state, seconds in seen.state_seconds.items()},
    }


def happened(event: Event) -> dict[str, Any]:
    """An event whose body has all there is to show."""
    return {"at": event.at, "attempt": event.attempt, **event.body}


def failure(event: Event) -> dict[str, Any]:
    """A failure; its hint names the attempt whose output has it, which is rarely the newest."""
    kept = ("what", "why", "hint", "domain", "error", "batch", "stack")
    where = {"at": event.at, "attempt": event.attempt, "query": event.query or None}
    hint = _LOGS.sub(rf"\1 --attempt {event.attempt}'", str(event.body.get("hint") or ""))
    return where | {key: event.body.get(key) for key in kept} | {"hint": hint}


def checkpoint(one: Checkpoint) -> dict[str, Any]:
    """A checkpoint, with its phases and those of each query."""
    return asdict(one)


def savepoint(entry: CatalogueEntry) -> dict[str, Any]:
    """A savepoint in the catalogue."""
    keys = ("job", "id", "taken_at", "taken_by", "trigger", "job_file", "job_version", "bytes")
    saved, restorable = entry.savepoint, entry.restorable
    return {
        "path": entry.place,
        "trouble": entry.trouble or None,
        **{key: getattr(saved, key) if saved else None for key in keys},
        "queries": list(saved.queries) if saved else [],
        "verified": verified(entry.verified),
        "restorable": {"answer": restorable.answer.value, "why": restorable.why} if restorable else None,
    }


def verified(found: Verified | None) -> dict[str, Any] | None:
    return asdict(found) if found else None


def _checkpoint(event: Event, now: datetime) -> dict[str, Any]:
    kept = ("id", "alignment", "trigger", "full", "seconds", "new_bytes", "full_bytes")
    age = round(seconds_since(event.at, now), 1)
    return {"at": event.at, "age_seconds": age, "attempt": event.attempt} | {
        key: event.body[key] for key in kept
    }
