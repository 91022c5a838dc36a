"""The checkpoints of a job, seen from outside: what its journal has, checked against the storage.

The journal has the history: times, sizes, reasons. The storage decides: a checkpoint is completed
as long as its manifest is there, and one that the journal has not seen to its end (its driver was
killed, or ran in a notebook) stands as the storage has it. Nothing here writes.

Orphans are what the next sweep would delete. While the job runs only its own driver knows which files a
checkpoint under way is just keeping. So from here no file that is kept is called an orphan while one is
under way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weir.checkpoint import manifest as mf
from weir.checkpoint.retention import sweep
from weir.clock import Clock
from weir.errors import NotListedError
from weir.ids import CheckpointId, JobName, job_name
from weir.monitor.job import look
from weir.protocol.states import CheckpointState
from weir.storage import Store, files, open_store, paths
from weir.storage.open import is_local, local_path
from weir.supervisor.history import Event, history_of

WHOLE = ("trigger", "barrier", "ack", "complete", "notify")
_MOMENTS = ("trigger", "barrier", "ack")
"""Of those of the checkpoint, the ones that are seconds after the trigger began; the others are lengths."""
PHASES = ("barrier", "alignment", "commit", "listing", "pinning", "copying", "ack")
"""Of the checkpoint and of a query, in the order in which they pass."""
MEANINGS = {
    "pending": "a checkpoint that has begun and has not ended yet",
    "completed": "a checkpoint whose manifest is written: the job can be restored from it",
    "aborted": "a checkpoint that was begun and can't be restored; the reason is recorded",
    "subsumed": "a completed checkpoint that newer ones have replaced",
    "aligned": "a cut for which a reader waited until it had the barrier of each of its channels",
    "unaligned": "a cut for which no reader waited: rows in flight are part of the checkpoint",
    "turned": "a checkpoint that began aligned and was cut unaligned, because alignment took too long",
    "trigger": "what began a checkpoint: a request, or the interval",
    "barrier": "the entry in a channel that belongs to a checkpoint: what is before it is in the "
    "checkpoint, what is after is not",
    "cut": "where one query stands in a checkpoint: the batch it had committed at the barrier",
    "alignment": "a reader that has reached the barrier waits for the other channels of its query",
    "commit": "as a phase of a checkpoint: the query commits the batch of its cut",
    "listing": "as a phase of a checkpoint: the files that the cut of a query needs are looked up",
    "pinning": "as a phase of a checkpoint: those files are linked, so that Spark's purge does not "
    "delete them",
    "copying": "as a phase of a checkpoint: files are copied to copy-dir, where one is set, or for a "
    "full checkpoint",
    "ack": "a query's cut is committed and its files are safe",
    "complete": "as a phase of a checkpoint: the manifest is written",
    "notify": "as a phase of a checkpoint: listeners are notified, and what newer checkpoints subsume is "
    "deleted",
}
"""What the words of tables of checkpoints mean, as the glossary has them."""

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
    """In seconds, of the checkpoint: `barrier` and `ack` after the trigger began, the others alone."""
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each query: batch, unaligned, new_bytes, full_bytes, phases."""
    acked: Sequence[str] | None = None
    """The queries that have acked it; None when that is not known, as of one of an earlier weir."""
    missing: Sequence[str] | None = None
    """Those that have not, in the order of the graph."""
    in_flight_rows: int | None = None
    """What it holds in channels for their readers; nothing when all its cuts are aligned."""
    in_flight_bytes: int | None = None
    path: str = ""
    """Of its manifest, which `weir run -s` takes; "" for one that can't be restored."""
    copy: str = ""
    """Of the manifest beside its copies; "" when it was not copied."""

    @property
    def acks(self) -> str:
        """How many queries have acked it and which have not, for people; "" when that is not known."""
        if self.acked is None or self.missing is None:
            return ""
        left = f"; missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{len(self.acked)} of {len(self.acked) + len(self.missing)} queries have acknowledged{left}"


def newest(dir: str, name: str, clock: Clock, limit: int, before: int | None = None) -> list[Checkpoint]:
    """The newest checkpoints of the job (with ids below `before`), oldest first; raises `NoSuchJobError`."""
    standing = look(dir, name, clock)
    store, job = open_store(dir), job_name(name)
    with history_of(dir, job) as history:
        recorded = folded(history.checkpoints(limit, before) if history else [])
        if history is not None:
            recorded = _with_acks(recorded, history.last("checkpoints acked"))
    live = None if standing.over else standing.attempt
    return _settled(store, job, recorded, live, before)[-limit:]


def one(dir: str, name: str, clock: Clock, id: int) -> Checkpoint:
    """One checkpoint; raises `NotListedError`."""
    found = newest(dir, name, clock, 1, id + 1)
    if not found or found[-1].id != id:
        reason = "neither its journal nor its storage has such a checkpoint"
        raise NotListedError(job=name, id=id, reason=reason)
    if found[-1].status is CheckpointState.COMPLETED and found[-1].in_flight_bytes is None:
        return _completed_by_earlier(open_store(dir), job_name(name), found[-1])
    return found[-1]


def _completed_by_earlier(store: Store, job: JobName, one: Checkpoint) -> Checkpoint:
    """With what an earlier weir did not write into the journal, from the manifest."""
    with suppress(ValueError):  # a damaged one has nothing to add
        stored = mf.read(store, job, CheckpointId(one.id))
        if stored is not None:
            there = replace(one, copy=stored.copied_to, in_flight_bytes=stored.in_flight_bytes)
            return _placed(store, job, there)
    return one


def stored(dir: str, name: str) -> set[CheckpointId]:
    """The checkpoints of a job that its storage has a record of, whatever became of them."""
    return set().union(*mf.ids(open_store(dir), job_name(name)).values())


def lengths(phases: Mapping[str, float]) -> list[tuple[str, float]]:
    """The phases of the checkpoint one after the other, each with what it took by itself."""
    found, reached = [], 0.0
    for phase in WHOLE:
        if phase in phases:
            length = phases[phase] - reached if phase in _MOMENTS else phases[phase]
            reached = max(reached, phases[phase]) if phase in _MOMENTS else reached
            found.append((phase, max(0.0, length)))
    return found


def folded(events: Iterable[Event]) -> dict[int, Checkpoint]:
    """What the journal has of each checkpoint; the events come oldest first."""
    found: dict[int, Checkpoint] = {}
    for event in events:
        id = int(event.body["id"])
        found[id] = _after(found.get(id), id, event)
        for gone in event.body.get("subsumed", ()):
            if gone in found:
                found[gone] = replace(found[gone], status=CheckpointState.SUBSUMED)
    return found


def _with_acks(found: dict[int, Checkpoint], event: Event | None) -> dict[int, Checkpoint]:
    """The same, with the acks that the driver has reported of those that it had pending."""
    acked = {int(id): names for id, names in event.body["acked"].items()} if event is not None else {}
    pending = {id: one for id, one in found.items() if one.status is CheckpointState.PENDING}
    return found | {id: _acked(one, acked[id]) for id, one in pending.items() if id in acked}


def _acked(one: Checkpoint, acked: Iterable[str]) -> Checkpoint:
    """With these acks, if it is known who was asked."""
    if one.acked is None or one.missing is None:
        return one
    names, known = [*one.acked, *one.missing], set(acked)
    return replace(
        one,
        acked=[name for name in names if name in known],
        missing=[name for name in names if name not in known],
    )


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
            acked=[] if body.get("queries") else None,
            missing=body.get("queries") or None,
        )
    ended = replace(
        one,
        alignment=body["alignment"] or one.alignment,
        trigger=body["trigger"] or one.trigger,
        ended_at=event.at,
        seconds=body["seconds"],
    )
    if event.kind == "checkpoint aborted":
        known = body.get("acked")
        ended = replace(ended, acked=None, missing=None) if known is None else _acked(ended, known)
        why, phases = abort_reason(body), body.get("phases", {})
        return replace(ended, status=CheckpointState.ABORTED, reason=why, phases=phases)
    return replace(
        ended,
        status=CheckpointState.COMPLETED,
        full=body["full"],
        new_bytes=body["new_bytes"],
        full_bytes=body["full_bytes"],
        phases=body["phases"],
        queries=body["queries"],
        acked=[*body["queries"]],
        missing=[],
        in_flight_rows=body.get("in_flight", {}).get("rows"),
        in_flight_bytes=body.get("in_flight", {}).get("bytes"),
        copy=body.get("copied_to", ""),
    )


def abort_reason(body: Mapping[str, Any]) -> str:
    """Why a checkpoint was aborted, as its event has it."""
    return f"{body['reason']}: {body['detail']}" if body.get("detail") else str(body["reason"])


def _settled(
    store: Store, job: JobName, recorded: dict[int, Checkpoint], live: int | None, before: int | None
) -> list[Checkpoint]:
    """What the journal has, corrected by what is stored; `live` is the attempt that still works."""
    kept = {id for id in mf.completed(store, job) if before is None or id < before}
    found = dict(recorded)
    for id, one in recorded.items():
        if one.status is CheckpointState.COMPLETED and id not in kept:
            found[id] = replace(one, status=CheckpointState.SUBSUMED)
        elif one.status is CheckpointState.PENDING and one.attempt != live and id not in kept:
            found[id] = replace(one, status=CheckpointState.ABORTED, reason=_abort_reason(store, job, id))
    for id in kept:
        if id not in recorded or recorded[id].status is CheckpointState.PENDING:
            with suppress(ValueError):  # a damaged manifest is no checkpoint
                stored = mf.read(store, job, id)
                found |= {int(id): _of(stored)} if stored else {}
    return [_placed(store, job, found[id]) for id in sorted(found)]


def _placed(store: Store, job: JobName, one: Checkpoint) -> Checkpoint:
    """With the paths of its manifests, as long as it can be restored."""
    if one.status is not CheckpointState.COMPLETED:
        return replace(one, copy="")
    key = paths.completed(job, CheckpointId(one.id))
    return replace(one, path=f"{store.url}/{key}", copy=f"{one.copy}/{key}" if one.copy else "")


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
        acked=[*stored.queries],
        missing=[],
        in_flight_bytes=stored.in_flight_bytes,
        copy=stored.copied_to,
    )


@dataclass(frozen=True)
class Orphan:
    """A file that would go."""

    key: str
    """Below the storage; of a copy its full path or URL."""
    bytes: int | None
    """None where its size can't be asked for: among copies in an object store."""


@dataclass(frozen=True)
class Orphans:
    """What would go."""

    found: list[Orphan]
    under_way: list[CheckpointId]
    """Checkpoints that are being taken just now: pins and copies are left out."""

    @property
    def bytes(self) -> int:
        return sum(one.bytes or 0 for one in self.found)


def orphans(dir: str, name: str, clock: Clock) -> Orphans:
    """What the next sweep would delete as things stand; raises `NoSuchJobError`.

    Of a job that nobody runs: at its next start, which aborts what was begun first. Copies are
    looked at where a retained checkpoint has some.
    """
    store, job = open_store(dir), job_name(name)
    over = look(dir, name, clock).over
    before = mf.ids(store, job)
    unfinished = before["begun"] - before["chk"] - before["aborted"]
    keys = sweep(store, job, (), void=unfinished if over else (), dry_run=True)
    after = mf.ids(store, job)
    moved = {id for kind in before for id in before[kind] ^ after[kind]}  # begun, ended or gone meanwhile
    under_way = set() if over else unfinished | moved
    if under_way:
        keys = [key for key in keys if "/pins/" not in key]
    top = files.folder_of(store)
    found = [_orphan(top, key) for key in keys]
    return Orphans([one for one in found if one is not None], sorted(under_way))


def _orphan(top: Path, key: str) -> Orphan | None:
    """With its size; None when it has gone in the meantime."""
    if not is_local(key):
        return Orphan(key, None)
    with suppress(FileNotFoundError):
        return Orphan(key, (top / local_path(key)).stat().st_size)
    return None
