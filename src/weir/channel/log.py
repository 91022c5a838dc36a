"""The channel log: what its entries say, and which of them count.

    <channel>/schema.json               the frame's schema, written once
    <channel>/log/<entry>.json          segments, barriers and fences, in one dense order
    <channel>/data/<batch>-<attempt>-<run>-<session>/part-*   the rows of segments, written once, never moved

Every entry carries the token of its appender, the newest batch and the highest barrier, so that one
entry that counts tells the state of the channel behind it: a reader may start anywhere, and the head
of the log may be deleted (`trim`). An entry after a fence that is higher than its token, or of another
session, does not count, wherever it comes from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weir.errors import LostSegmentError
from weir.ids import NO_BATCH, NOBODY, BatchId, CheckpointId, Token
from weir.protocol.ledger import by, token_of
from weir.storage import DenseLog, Store, sums
from weir.storage.log import numbers
from weir.storage.open import is_local, local_path

NO_CHECKPOINT = CheckpointId(0)
"""What "the last barrier" is before there is one; ids start at 1."""

TORN = "can't be read"
"""What is said of a file that is there and not whole."""

LOG = "log"
SCHEMA = "schema.json"
_KINDS = ("segment", "barrier", "fence")


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
    barrier: CheckpointId = NO_CHECKPOINT
    """The highest barrier in front of it."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Barrier:
    """The cut of a checkpoint: it contains the segments up to `batch`.

    And that of each with a lower number whose barrier is not in front of it: checkpoints that are cut in
    the same place share a barrier.
    """

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
    barrier: CheckpointId = NO_CHECKPOINT
    """The highest barrier in front of it."""


Entry = Segment | Barrier | Fence


@dataclass(frozen=True)
class Tail:
    """The state of a channel behind one of its entries."""

    fence: Token = NOBODY
    last: BatchId = NO_BATCH
    """The newest batch that counts."""
    barrier: CheckpointId = NO_CHECKPOINT
    """The highest barrier."""
    owner: str = ""
    lineage: str = ""


def encode(entry: Entry) -> dict[str, Any]:
    """The entry as it is stored."""
    said = {"batch": entry.batch, **by(entry.token)}
    if isinstance(entry, Barrier):
        return {"kind": "barrier", "checkpoint": entry.checkpoint, **said}
    said["barrier"] = entry.barrier
    if isinstance(entry, Fence):
        return {"kind": "fence", "owner": entry.owner, "lineage": entry.lineage, **said}
    files = [{"name": file.name, "rows": file.rows, "bytes": file.bytes} for file in entry.files]
    body = {"folder": entry.folder, "files": files, "watermark_ms": entry.watermark_ms}
    return {"kind": "segment", "rows": entry.rows, **said, **body}


def decode(stored: Mapping[str, Any]) -> Entry:
    """The entry that is stored like this; a `ValueError` says that a newer weir wrote it."""
    kind = stored["kind"]
    if kind not in _KINDS:
        raise ValueError(f"a channel has no entries of kind {kind!r}; a newer weir wrote it")
    batch, token = BatchId(stored["batch"]), token_of(stored)
    if kind == "barrier":
        return Barrier(CheckpointId(stored["checkpoint"]), batch, token)
    if kind == "fence":
        barrier = CheckpointId(stored["barrier"])
        return Fence(token, batch, stored["owner"], stored["lineage"], barrier)
    files = tuple(SegmentFile(one["name"], one["rows"], one["bytes"]) for one in stored["files"])
    barrier = CheckpointId(stored["barrier"])
    return Segment(batch, token, stored["folder"], files, stored["watermark_ms"], barrier)


def counts(tail: Tail, entry: Entry) -> bool:
    """Whether the entry means anything behind this tail."""
    if not entry.token.counts_after(tail.fence):
        return False
    if isinstance(entry, Segment):
        return entry.batch > tail.last
    return isinstance(entry, Fence) or entry.checkpoint > tail.barrier


def apply(tail: Tail, entry: Entry) -> Tail:
    """The tail behind one more entry; an entry that does not count changes nothing."""
    if not counts(tail, entry):
        return tail
    # Every entry repeats what stands before it, which counts where that was trimmed.
    tail = replace(
        tail,
        fence=entry.token,
        last=BatchId(max(tail.last, entry.batch)),
        barrier=max(tail.barrier, _barrier(entry)),
    )
    return replace(tail, owner=entry.owner, lineage=entry.lineage) if isinstance(entry, Fence) else tail


def tail_behind(entry: Entry | None, barrier: CheckpointId | None = None) -> Tail:
    """The tail as one entry that counts tells it; None stands for the beginning.

    `barrier`, if given, is the last one that the asker has reached.
    """
    if entry is None:
        return Tail(barrier=barrier or NO_CHECKPOINT)
    return Tail(entry.token, entry.batch, _barrier(entry) if barrier is None else barrier)


def _barrier(entry: Entry) -> CheckpointId:
    return entry.checkpoint if isinstance(entry, Barrier) else entry.barrier


def segments(tail: Tail, entries: Iterable[Entry]) -> list[Segment]:
    """The segments that count among the entries that follow the tail."""
    found = []
    for entry in entries:
        if isinstance(entry, Segment) and counts(tail, entry):
            found.append(entry)
        tail = apply(tail, entry)
    return found


def lost(file: str, wrong: str = "is gone") -> LostSegmentError:
    """The error for a file of a channel, by its full path, in which the job's name is."""
    job, generations, _ = file.partition("/generations/")
    return LostSegmentError(file=file, wrong=wrong, job=job.rpartition("/")[2] if generations else "JOB")


def entry_key(number: int) -> str:
    """Where an entry is, below the channel's folder."""
    return f"{LOG}/{number:09d}.json"


def read_entry(store: Store, number: int) -> Entry | None:
    """One entry of the channel at the store's root, or None while it is not there.

    Raises `LostSegmentError` when it is torn: entries are created whole, so a half one was lost later.
    """
    key = entry_key(number)
    data = store.get(key)
    return None if data is None else decode(_stored(data, f"{store.url}/{key}"))


def _stored(data: bytes, file: str) -> dict[str, Any]:
    """What the bytes of an entry say, with all that an entry of its kind has; or it is torn.

    An unknown kind is a newer weir's where the checksum is right; without one nobody can tell.
    """
    try:
        stored: dict[str, Any] = json.loads(sums.strip(data))
    except ValueError as error:
        raise lost(file, sums.wrong(error)) from error
    try:
        decode(stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise lost(file, TORN) from error
    except ValueError as error:
        if sums.has(data):
            raise
        raise lost(file, TORN) from error
    return stored


def need_entry(store: Store, number: int) -> Entry:
    """One entry that must be there; raises `LostSegmentError` when it is not, or is torn."""
    entry = read_entry(store, number)
    if entry is None:
        raise lost(f"{store.url}/{entry_key(number)}")
    return entry


def first_number(store: Store) -> int:
    """The first entry that is left; 0 in a new channel. Lists the log.

    The log is what hangs together with its last entry: a writer that slept while the head was
    deleted may have left an entry in front of it, which is none. Where the very first entry is
    there no head was deleted: then a gap is a hole, and `LostSegmentError` is raised.
    """
    while True:
        there = set(_numbers(store))
        first = max(there, default=0)
        while first - 1 in there:
            first -= 1
        if not first or not store.exists(entry_key(first - 1)):  # else it came while we listed
            break
    if first and 0 in there:
        raise lost(f"{store.url}/{entry_key(first - 1)}")
    return first


def beginning(store: Store) -> int:
    """Where a reader begins that has no position yet: after the first entry that is left.

    Rows of that one may be gone already, unless it is the very first of the channel.
    """
    first = first_number(store)
    return first + 1 if first else 0


def end_number(store: Store) -> int:
    """The number behind the last entry. Lists the log: for a start, not for every batch."""
    return max(_numbers(store), default=-1) + 1


def _numbers(store: Store) -> list[int]:
    return numbers(store, LOG)


class ChannelLog(DenseLog):
    """The log as its writers use it, from the first entry that is left."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, LOG, first_number(store))
        self._first = self._next

    def read_new(self) -> Iterator[dict[str, Any]]:
        """As in any log. The end is the end only if the entry before it is there.

        If it is not, the head was deleted past this object, which slept or was slow: it goes on at
        the first entry that is left, and so learns who has taken over. Raises `LostSegmentError` at an
        entry that is torn, and where the end was lost: a number that was given out once is not given out
        again.
        """
        yield from super().read_new()
        while self._overtaken():
            first = first_number(self._store)
            if first < self._next:  # a head is deleted from the lowest number up, and leaves none below
                raise lost(f"{self._store.url}/{self.key(self._next - 1)}")
            self._next = self._first = first
            yield from super().read_new()

    def _parse(self, key: str, data: bytes) -> dict[str, Any]:
        return _stored(data, f"{self._store.url}/{key}")

    def _overtaken(self) -> bool:
        if self._next > self._first:
            return not self._store.exists(self.key(self._next - 1))
        return first_number(self._store) != self._next


def first_kept(positions: Iterable[int], behind: int) -> int:
    """The first entry that readers at these positions need: the one in front of the slowest.

    It tells the slowest reader the state of the channel. `behind` is the number behind the last
    entry in question; a reader beyond it is set back to it.
    """
    return max(0, min([*positions, behind]) - 1)


@dataclass(frozen=True)
class CutFiles:
    """What of a channel belongs to a checkpoint."""

    names: list[str]
    """Below the channel's folder."""
    rows: int
    """In the segments, all together."""


def cut_files(store: Store, first: int, behind: int) -> list[str]:
    """What of a channel belongs to a checkpoint, as names below the channel's folder."""
    return cut_of(store, first, behind).names


def cut_of(store: Store, first: int, behind: int) -> CutFiles:
    """What of a channel belongs to a checkpoint, and the rows in it.

    The schema, the entries from `first` (see `first_kept`) up to the one before `behind`, and the
    files of the segments that count among them. Every reader has passed the entry at `first`, unless
    it is the very first of the channel: so its files are left out. Raises `LostSegmentError` when an
    entry is gone or torn.
    """
    entries = [need_entry(store, number) for number in range(first, behind)]
    found = segments(Tail(), entries) if first == 0 else segments(tail_behind(entries[0]), entries[1:])
    names = [SCHEMA] if store.exists(SCHEMA) else []
    names += [entry_key(number) for number in range(first, behind)]
    names += [f"{segment.folder}/{file.name}" for segment in found for file in segment.files]
    return CutFiles(names, sum(segment.rows for segment in found))


def trim(store: Store, low: int) -> None:
    """Delete what every reader has passed: the entries in front of `low - 1`, and their rows.

    `low` is the position of the slowest reader; the entry in front of it stays. From the lowest
    number up, rows before their entry: safe to repeat, and to be killed in. Stagings that no entry
    names are left alone, and so are rows that an entry from `low - 1` on names too. A torn entry goes
    like the others; its rows stay until the next start of the writer, which finds them without a name.
    """
    front = _whole_entry(store, low - 1) if low > 1 else None
    if front is None:
        return
    kept = front.folder if isinstance(front, Segment) else ""
    for number in sorted(number for number in _numbers(store) if number < low - 1):
        entry = _whole_entry(store, number)
        if isinstance(entry, Segment) and entry.batch <= front.batch and entry.folder != kept:
            _delete_folder(store, entry.folder)
        store.delete(entry_key(number))


def _whole_entry(store: Store, number: int) -> Entry | None:
    """One entry, or None when it is not there or torn."""
    try:
        return read_entry(store, number)
    except LostSegmentError:
        return None


def _delete_folder(store: Store, folder: str) -> None:
    if is_local(store.url):  # with Spark's checksums, which no store lists, and the folder itself
        shutil.rmtree(Path(local_path(store.url)) / folder, ignore_errors=True)
    for key in list(store.list(folder)):
        store.delete(key)
