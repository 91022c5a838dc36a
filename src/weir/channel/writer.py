"""The writing end of a channel: a sink that keeps the contract of `StagingSink`.

Spark writes Parquet inside the batch; the segment is entered in the log only when Spark's
`commits/<n>` is there, so a batch that ran twice appears once, with the output of the run that
committed. Barriers go into the same log: directly behind the segment of the batch with which the
writing query reached them on all its channels, or, told by the coordinator, behind the newest one.
One object serves the batch, the committer and the coordinator from their own threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.channel.event_time import carried_watermark
from weir.channel.log import (
    Barrier,
    ChannelLog,
    Entry,
    Fence,
    Segment,
    SegmentFile,
    Tail,
    apply,
    beginning,
    counts,
    decode,
    encode,
    need_entry,
    segments,
)
from weir.channel.position import joint_barrier, positions_in
from weir.errors import (
    FencedError,
    IllegalMoveError,
    OutcomeUnknownError,
    SinkMismatchError,
)
from weir.ids import NO_BATCH, BatchId, CheckpointId, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.contract import Outcome
from weir.sinks.fence import FencedLog, Knows, SinkFence, anyone
from weir.sinks.staging import StagedFiles, folder_of
from weir.spark.logs import OffsetEntry
from weir.spark.planned_source import news
from weir.storage import Store, open_store
from weir.storage.folded_log import FoldedLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STAGED = "staged"
_OPTIONS = {"compression": "snappy"}
_CUTS = 1000
"""So many barriers are remembered; older checkpoints have long ended."""


@dataclass(frozen=True)
class Cut:
    """A place in the log, and the last batch in front of it."""

    entry: int
    """The number of the barrier; of a cut without one, the number that the next entry will get."""
    batch: BatchId


class ChannelWriter:
    """The channel at `location`, written by the query whose checkpointLocation is `query`."""

    def __init__(self, name: str, location: str, query: str, store: Store | None = None) -> None:
        self.name = name
        self._location = location
        self._query = open_store(query)
        self._store = store or open_store(location)
        self._staging = StagedFiles(self._store, _STAGED)
        self._lock = threading.RLock()
        self._held: FencedLog[Tail] | None = None
        self._cuts: dict[CheckpointId, Cut] = {}
        self._joints: dict[BatchId, CheckpointId | None] = {}
        """The joint barriers of the batches that are staged and not yet entered."""
        self._fence = SinkFence(self.describe)

    def describe(self) -> str:
        return f"channel {self.name} in {self._location}"

    @property
    def end(self) -> int:
        """The number that the next entry will get, as far as this object has read or written."""
        return self._held.log.number if self._held is not None else 0

    @property
    def _tail(self) -> Tail:
        return self._held.state if self._held is not None else Tail()

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        found = self._log().look(owner, token, knows, partial(self._check_owner, owner, lineage))
        return replace(found, owner=owner, lineage=lineage)

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        def announced(tail: Tail) -> dict[str, Any]:
            return encode(Fence(token, tail.last, owner, lineage, tail.barrier))

        check = partial(self._check_owner, owner, lineage)
        return self._log().open(owner, token, knows, check, announced)

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        if not self._passes_barriers_only(batch):
            self._staging.write(frame, "parquet", _OPTIONS, batch, token)

    def record(self, staged: Staged) -> None:
        self._catch_up()
        self._staging.sync(staged)  # its entry in the log will be durable, so its rows must be
        files = self._written(staged)
        self._joints[staged.batch] = self._joint(staged.batch)
        self._staging.record(staged, [vars(file) for file in files if file.rows])

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        """Enter the segment, and directly behind it the barrier that its batch has reached.

        Also where the segment is there already, so that a commit that was cut short is completed.
        Batches are dense: raises `FencedError` when one before it is missing, which a zombie has
        decided between this run's `open` and its start.
        """
        with self._lock:
            try:
                self._catch_up()
                outcome = self._enter_segment(staged)
                self._enter_reached_barrier(staged.batch)
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
        self._staging.forget(staged)
        self._joints.pop(staged.batch, None)
        return outcome

    def append_barrier(self, checkpoint: CheckpointId) -> Cut:
        """Append the barrier of a checkpoint behind the newest segment; safe to repeat.

        A barrier that is there already, by whoever, is not appended again: the cut is where it
        stands, or the one that stands for it. Raises `FencedError` when a higher token was announced, and
        `IllegalMoveError` when it was passed by a barrier that is trimmed by now.
        """
        with self._lock:
            self._catch_up()
            if checkpoint > self._tail.barrier:
                self._enter_barrier(checkpoint)
            cut = self.cut(checkpoint)
            if cut is None:
                raise IllegalMoveError(
                    machine=self.describe(),
                    event=f"barrier {checkpoint}",
                    state=f"barrier {self._tail.barrier}",
                )
            return cut

    def catch_up(self) -> None:
        """Read what others have appended since the last look."""
        self._catch_up()

    def cut(self, checkpoint: CheckpointId) -> Cut | None:
        """Where the barrier of a checkpoint stands in the log, whoever appended it; None if it does not.

        One that is not there itself is where the next higher one is. As far as this object has read
        (`look`) or written.
        """
        with self._lock:
            found = None
            for barrier in reversed(self._cuts):
                if barrier < checkpoint:
                    break
                found = self._cuts[barrier]
            return found

    def here(self) -> Cut:
        """The end of the log as it is now."""
        with self._lock:
            self._catch_up()
            return Cut(self.end, self._tail.last)

    def newest_barrier(self) -> CheckpointId:
        """The highest barrier in the log as it is now."""
        self._catch_up()
        return self._tail.barrier

    def beginning(self) -> int:
        """Where a reader begins that has no position yet."""
        return beginning(self._store)

    @property
    def last_batch(self) -> BatchId:
        """The newest batch in the channel, as far as this object has read."""
        return self._tail.last

    def batch_before(self, entry: int) -> BatchId:
        """The newest batch in front of an entry, where a reader stands."""
        return need_entry(self._store, entry - 1).batch if entry else NO_BATCH

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        entries = (decode(stored) for stored in ChannelLog(self._store).read_new())
        named = {segment.folder for segment in segments(Tail(), entries)}
        kept = named | {folder_of(one.batch, one.token) for one in keep}
        self._staging.discard(upto, self._fence.token, kept)

    def rewind(self, to: BatchId) -> Outcome:
        """Nothing can be rewound for readers: a rollback restores the log in a new generation.

        A channel that is new, of a query that resumes after a batch, begins after that batch.
        """
        self._catch_up()
        if self._tail.last == NO_BATCH < to:
            tail = self._tail
            self._append(lambda: Fence(self._fence.token, to, tail.owner, tail.lineage, self._tail.barrier))
        if self._tail.last <= to:
            return Outcome.ALREADY_DONE
        raise IllegalMoveError(machine=self.describe(), event=f"rewind to {to}", state=str(self._tail.last))

    def _passes_barriers_only(self, batch: BatchId) -> bool:
        """Whether a query without state has read no segment in this batch: there is nothing to evaluate.

        A barrier makes each idle query of a graph run such a batch.
        """
        before, after = (self._query.get(f"offsets/{number}") for number in (batch - 1, batch))
        if not before or not after:
            return False
        reached = positions_in(after.decode())
        if sum(map(len, reached.values())) < len(OffsetEntry.parse(after).lines):
            return False  # it has another source as well
        began, channels = positions_in(before.decode()), self._location.rstrip("/").rpartition("/")[0]
        for channel, ends in reached.items():
            starts, store = began.get(channel, []), open_store(f"{channels}/{channel}")
            if len(starts) != len(ends):
                return False
            numbers = {n for one, two in zip(starts, ends, strict=True) for n in range(one.entry, two.entry)}
            if any(isinstance(need_entry(store, number), Segment) for number in numbers):
                return False
        return next(iter(self._query.list("state")), None) is None

    def _written(self, staged: Staged) -> list[SegmentFile]:
        from weir.channel.parquet import describe  # noqa: PLC0415  loads pyarrow

        keys = self._staging.written(staged)
        return [describe(f"{self._store.url}/{key}", key.rsplit("/", 1)[1]) for key in keys]

    def _enter_segment(self, staged: Staged) -> Outcome:
        if self._tail.last >= staged.batch:
            return Outcome.ALREADY_DONE
        if self._tail.last < staged.batch - 1:  # the next start finds its staging and enters it
            missing = f"another run (it decided batch {self._tail.last + 1} after this run began)"
            raise FencedError(who=f"run {self._fence.token}", by=missing)
        segment = self._segment(staged)

        def make() -> Segment | None:
            return replace(segment, barrier=self._tail.barrier) if self._tail.last < segment.batch else None

        outcome = Outcome.DONE_NOW if self._append(make) else Outcome.ALREADY_DONE
        faults.point("sink.committed")
        return outcome

    def _segment(self, staged: Staged) -> Segment:
        recorded = self._staging.files_of(staged, self._tail.owner, self.describe())
        files = tuple(SegmentFile(**file) for file in recorded)
        watermark = carried_watermark(self._query, staged.batch)
        return Segment(
            staged.batch, self._fence.token, folder_of(staged.batch, staged.token), files, watermark
        )

    def _enter_reached_barrier(self, batch: BatchId) -> None:
        if self._tail.last != batch:
            return  # its barrier is in front of what came behind it
        reached = self._joints[batch] if batch in self._joints else self._joint(batch)
        if reached is not None and reached > self._tail.barrier:
            self._enter_barrier(reached)

    def _joint(self, batch: BatchId) -> CheckpointId | None:
        """The barrier that the writing query has reached on all its channels with this batch."""
        data = self._query.get(f"offsets/{batch}")
        return joint_barrier(data.decode()) if data else None

    def _enter_barrier(self, checkpoint: CheckpointId) -> None:
        faults.point("barrier.appending")
        if self._append(lambda: self._barrier(checkpoint)):
            faults.point("barrier.appended")

    def _barrier(self, checkpoint: CheckpointId) -> Barrier | None:
        if checkpoint <= self._tail.barrier:
            return None
        return Barrier(checkpoint, self._tail.last, self._fence.token)

    def _log(self) -> FencedLog[Tail]:
        """The log; it is listed when it is used first."""
        with self._lock:
            if self._held is None:
                log = FoldedLog(ChannelLog(self._store), Tail(), self._take)
                self._held = FencedLog(log, self._fence, _ledger, self._lock)
            return self._held

    def _catch_up(self) -> None:
        self._log().read()

    def _append(self, make: Callable[[], Entry | None]) -> bool:
        """Append what `make` makes of the tail that it will stand behind; False when that is nothing."""

        def made(_: Tail) -> dict[str, Any] | None:
            entry = make()
            return None if entry is None else encode(entry)

        appended = self._log().append(made)
        if appended:
            news.ring()
        return appended

    def _take(self, tail: Tail, stored: Mapping[str, Any]) -> Tail:
        entry = decode(stored)
        if isinstance(entry, Barrier) and counts(tail, entry):
            self._cuts[entry.checkpoint] = Cut(self.end - 1, entry.batch)
            if len(self._cuts) > _CUTS:
                del self._cuts[next(iter(self._cuts))]
        return apply(tail, entry)

    def _check_owner(self, owner: str, lineage: str, now: Ledger) -> None:
        self._fence.check(now)  # of two reasons the fence is the more urgent one
        if (now.owner, now.lineage) == (owner, lineage):
            return
        raise SinkMismatchError(
            query=owner.split("/", 1)[1],
            path=self._location,
            reason=f"the channel was written by {now.owner!r} with other live files",
            todo="restore the complete job directory, or give the stream a new name",
        )


def _ledger(tail: Tail) -> Ledger:
    return Ledger(tail.owner, tail.lineage, tail.fence, tail.last)
