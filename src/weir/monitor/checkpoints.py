"""The checkpoints of a job, seen from outside: what its journal says, checked against the storage.

The journal has the history: times, sizes, reasons. The storage decides: a checkpoint is completed
as long as its manifest is there, and one that the journal has not seen to its end (its driver was
killed, or ran in a notebook) is what the storage says. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from weir.checkpoint import manifest as mf
from weir.clock import Clock
from weir.errors import NotListedError
from weir.ids import CheckpointId, JobName, job_name
from weir.protocol.checkpoints import CheckpointState
from weir.storage import Store, open_store, paths
from weir.supervisor.journal import Event
from weir.supervisor.view import history_of, look

WHOLE = ("trigger", "barrier", "ack", "complete", "notify")
_MOMENTS = ("trigger", "barrier", "ack")
"""Of the whole, those that are seconds after the trigger began; the others are lengths."""
PHASES = ("barrier", "alignment", "commit", "listing", "pinning", "copying", "ack")
"""Of the whole and of a query, in the order in which they pass."""
_UNFINISHED = "its driver ended before it completed"


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint as it stands. What is not known is empty or None."""

    id: int
    status: CheckpointState
    attempt: int
    alignment: str = ""
    full: bool = False
    trigger: str = ""
    begun_at: str = ""
    ended_at: str = ""
    seconds: float | None = None
    """From the trigger to the last ack, as the driver measured it; `complete` and `notify` come after."""
    new_bytes: int | None = None
    full_bytes: int | None = None
    reason: str = ""
    """Why it was aborted."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Of the whole, in seconds: `barrier` and `ack` after the trigger began, the others by themselves."""
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each query: batch, unaligned, new_bytes, full_bytes, phases."""


def newest(dir: str, name: str, clock: Clock, limit: int, before: int | None = None) -> list[Checkpoint]:
    """The newest checkpoints of the job (with ids below `before`), oldest first; raises `NoSuchJobError`."""
    standing = look(dir, name, clock)
    store, job = open_store(dir), job_name(name)
    with history_of(dir, job) as history:
        told = folded(history.checkpoints(limit, before) if history else [])
    live = None if standing.over else standing.attempt
    return _settled(store, job, told, live, before)[-limit:]


def one(dir: str, name: str, clock: Clock, id: int) -> Checkpoint:
    """One checkpoint; raises `NotListedError`."""
    found = newest(dir, name, clock, 1, id + 1)
    if not found or found[-1].id != id:
        reason = "neither its journal nor its storage has such a checkpoint"
        raise NotListedError(job=name, id=id, reason=reason)
    return found[-1]


def lengths(phases: Mapping[str, float]) -> list[tuple[str, float]]:
    """The phases of the whole one after the other, each with what it took by itself."""
    found, reached = [], 0.0
    for phase in WHOLE:
        if phase in phases:
            length = phases[phase] - reached if phase in _MOMENTS else phases[phase]
            reached = max(reached, phases[phase]) if phase in _MOMENTS else reached
            found.append((phase, max(0.0, length)))
    return found


def folded(events: Iterable[Event]) -> dict[int, Checkpoint]:
    """What the journal says of each checkpoint; the events come oldest first."""
    found: dict[int, Checkpoint] = {}
    for event in events:
        id = int(event.body["id"])
        found[id] = _after(found.get(id), id, event)
        for gone in event.body.get("subsumed", ()):
            if gone in found:
                found[gone] = replace(found[gone], status=CheckpointState.SUBSUMED)
    return found


def _after(before: Checkpoint | None, id: int, event: Event) -> Checkpoint:
    body = event.body
    one = before or Checkpoint(id, CheckpointState.PENDING, event.attempt)
    if event.kind == "checkpoint begun":
        return replace(
            one,
            alignment=body["alignment"],
            trigger=body["trigger"],
            full=body["full"],
            begun_at=event.at,
        )
    ended = replace(
        one,
        alignment=body["alignment"] or one.alignment,
        trigger=body["trigger"] or one.trigger,
        ended_at=event.at,
        seconds=body["seconds"],
    )
    if event.kind == "checkpoint aborted":
        reason = f"{body['reason']}: {body['detail']}" if body["detail"] else body["reason"]
        return replace(ended, status=CheckpointState.ABORTED, reason=reason, phases=body.get("phases", {}))
    return replace(
        ended,
        status=CheckpointState.COMPLETED,
        full=body["full"],
        new_bytes=body["new_bytes"],
        full_bytes=body["full_bytes"],
        phases=body["phases"],
        queries=body["queries"],
    )


def _settled(
    store: Store, job: JobName, told: dict[int, Checkpoint], live: int | None, before: int | None
) -> list[Checkpoint]:
    """What the journal says, corrected by what is stored; `live` is the attempt that still works."""
    kept = {id for id in mf.completed(store, job) if before is None or id < before}
    found = dict(told)
    for id, one in told.items():
        if one.status is CheckpointState.COMPLETED and id not in kept:
            found[id] = replace(one, status=CheckpointState.SUBSUMED)
        elif one.status is CheckpointState.PENDING and one.attempt != live and id not in kept:
            found[id] = replace(one, status=CheckpointState.ABORTED, reason=_abort_reason(store, job, id))
    for id in kept:
        if id not in told or told[id].status is CheckpointState.PENDING:
            with suppress(ValueError):  # a damaged manifest is no checkpoint
                stored = mf.read(store, job, id)
                found |= {int(id): _of(stored)} if stored else {}
    return [found[id] for id in sorted(found)]


def _abort_reason(store: Store, job: JobName, id: int) -> str:
    data = store.get(paths.aborted(job, CheckpointId(id)))
    with suppress(ValueError, KeyError):
        return str(json.loads(data)["reason"]) if data else _UNFINISHED
    return _UNFINISHED


def _of(stored: mf.Manifest) -> Checkpoint:
    return Checkpoint(
        id=stored.id,
        status=CheckpointState.COMPLETED,
        attempt=stored.attempt,
        alignment=stored.alignment.value,
        full=stored.full,
        trigger=stored.trigger,
        begun_at=stored.begun_at,
        ended_at=stored.completed_at,
        seconds=stored.seconds,
        new_bytes=stored.new_bytes,
        full_bytes=stored.full_bytes,
        queries={
            name: {
                "batch": cut.batch,
                "unaligned": cut.unaligned,
                "new_bytes": cut.new_bytes,
                "full_bytes": cut.full_bytes,
                "phases": cut.phases,
            }
            for name, cut in stored.queries.items()
        },
    )
