"""The channel log: what its entries say, and which of them count.

    <channel>/schema.json               the frame's schema, written once
    <channel>/log/<entry>.json          segments, barriers and fences, in one dense order
    <channel>/data/<batch>-<attempt>-<run>/part-*   the rows of segments, written once, never moved

Every entry carries the batch and the token of its appender, so that one entry tells the state of
the channel behind it: a reader may start anywhere, and the head of the log may be deleted. An entry
behind a fence that is higher than its token does not count, wherever it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.storage import DenseLog, Store

NO_CHECKPOINT = CheckpointId(0)
"""What "the last barrier" is before there is one; ids start at 1."""

LOG = "log"
_NO_TOKEN = Token(Attempt(0), Run(0))


@dataclass(frozen=True)
class SegmentFile:
    """One Parquet file of a segment, by its name in the segment's folder."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Segment:
    """The output of one batch."""

    batch: BatchId
    token: Token
    folder: str
    files: tuple[SegmentFile, ...] = ()
    watermark_ms: int | None = None
    """How far event time had come in the writing query, for what follows this segment."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Barrier:
    """The cut of a checkpoint: it contains the segments up to `batch`."""

    checkpoint: CheckpointId
    batch: BatchId
    token: Token


@dataclass(frozen=True)
class Fence:
    """A run of the writing query announces itself; lower tokens behind it don't count."""

    token: Token
    batch: BatchId
    owner: str
    lineage: str


Entry = Segment | Barrier | Fence


@dataclass(frozen=True)
class Tail:
    """The state of a channel behind one of its entries."""

    fence: Token = _NO_TOKEN
    last: BatchId = NO_BATCH
    """The newest batch that counts."""
    barrier: CheckpointId = NO_CHECKPOINT
    """The highest barrier."""
    owner: str = ""
    lineage: str = ""


def encode(entry: Entry) -> dict[str, Any]:
    """The entry as it is stored."""
    token = {"attempt": entry.token.attempt, "run": entry.token.run}
    if isinstance(entry, Segment):
        files = [{"name": file.name, "rows": file.rows, "bytes": file.bytes} for file in entry.files]
        body = {"folder": entry.folder, "files": files, "watermark_ms": entry.watermark_ms}
        return {"kind": "segment", "batch": entry.batch, "rows": entry.rows, **token, **body}
    if isinstance(entry, Barrier):
        return {"kind": "barrier", "checkpoint": entry.checkpoint, "batch": entry.batch, **token}
    return {"kind": "fence", "batch": entry.batch, "owner": entry.owner, "lineage": entry.lineage, **token}


def decode(stored: Mapping[str, Any]) -> Entry:
    """The entry that is stored like this."""
    kind, batch = stored["kind"], BatchId(stored["batch"])
    token = Token(Attempt(stored["attempt"]), Run(stored["run"]))
    if kind == "segment":
        files = tuple(SegmentFile(one["name"], one["rows"], one["bytes"]) for one in stored["files"])
        return Segment(batch, token, stored["folder"], files, stored["watermark_ms"])
    if kind == "barrier":
        return Barrier(CheckpointId(stored["checkpoint"]), batch, token)
    if kind == "fence":
        return Fence(token, batch, stored["owner"], stored["lineage"])
    raise ValueError(f"a channel has no entries of kind {kind!r}; a newer weir wrote it")


def counts(tail: Tail, entry: Entry) -> bool:
    """Whether the entry means anything behind this tail."""
    if entry.token < tail.fence:
        return False
    if isinstance(entry, Segment):
        return entry.batch > tail.last
    return isinstance(entry, Fence) or entry.checkpoint > tail.barrier


def apply(tail: Tail, entry: Entry) -> Tail:
    """The tail behind one more entry; an entry that does not count changes nothing."""
    if not counts(tail, entry):
        return tail
    if isinstance(entry, Segment):
        return replace(tail, last=entry.batch)
    if isinstance(entry, Barrier):
        return replace(tail, barrier=entry.checkpoint)
    return replace(tail, fence=entry.token, owner=entry.owner, lineage=entry.lineage)


def tail_behind(entry: Entry | None, barrier: CheckpointId = NO_CHECKPOINT) -> Tail:
    """The tail as one entry that counts tells it; None stands for the beginning."""
    return Tail(fence=entry.token, last=entry.batch, barrier=barrier) if entry else Tail(barrier=barrier)


def segments(tail: Tail, entries: Iterable[Entry]) -> list[Segment]:
    """The segments that count among the entries that follow the tail."""
    found = []
    for entry in entries:
        if isinstance(entry, Segment) and counts(tail, entry):
            found.append(entry)
        tail = apply(tail, entry)
    return found


def read_entry(store: Store, number: int) -> Entry | None:
    """One entry of the channel at the store's root, or None while it is not there."""
    data = store.get(f"{LOG}/{number:09d}.json")
    return None if data is None else decode(json.loads(data))


def first_number(store: Store) -> int:
    """The first entry that is still there; 0 in a new channel."""
    if store.exists(f"{LOG}/{0:09d}.json"):
        return 0
    return min(_numbers(store), default=0)


def end_number(store: Store) -> int:
    """The number behind the last entry. Lists the log: for a start, not for every batch."""
    return max(_numbers(store), default=-1) + 1


def _numbers(store: Store) -> list[int]:
    return [int(key.rsplit("/", 1)[1].removesuffix(".json")) for key in store.list(LOG)]


class ChannelLog(DenseLog):
    """The log as its writers use it, from the first entry that is still there."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, LOG)
        self._next = first_number(store)
