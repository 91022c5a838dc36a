"""Checkpoints: every decision on their path (docs/design.md, section 5).

May it trigger, has it all its acks, is it over, what is subsumed: facts in, decision out.
`coordination.py` strings these decisions together. A pending checkpoint is a value; taking an ack gives
a new one and says what the ack was.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, QueryName


class Alignment(str, Enum):
    """How the cut of a checkpoint is found."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    AT_LEAST_ONCE = "at-least-once"


class AbortReason(str, Enum):
    """Why a checkpoint did not complete; the text that is shown."""

    EXPIRED = "it took longer than execution.checkpointing.timeout"
    DECLINED = "a query declined it"
    RESTARTED = "the job was started again before it completed"
    QUERY_RESTARTED = "a query failed and was started again"
    STOPPING = "the job was ended"
    STORAGE = "its files could not be kept"
    INCONSISTENT = "it is not a consistent cut"
    DELETED = "it was deleted when the job was cancelled"


COUNTED = frozenset(
    {AbortReason.EXPIRED, AbortReason.DECLINED, AbortReason.STORAGE, AbortReason.INCONSISTENT}
)
"""Aborts that count against `tolerable-failed-checkpoints`; the others are no failure of checkpoints."""


class AckOutcome(str, Enum):
    """What an ack was worth; only a success changes anything."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    UNKNOWN = "of an unknown checkpoint or query"
    LATE = "too late"


@dataclass(frozen=True)
class Ack:
    """One query has kept all of its cut: this is where it stands."""

    query: QueryName
    batch: BatchId
    unaligned: bool = False


@dataclass(frozen=True)
class Found:
    """Where a query was cut."""

    batch: BatchId
    unaligned: bool = False
    end: int | None = None
    """The number after the last entry of its channel that belongs to the checkpoint."""


@dataclass(frozen=True)
class Pending:
    """A checkpoint that has begun."""

    id: CheckpointId
    alignment: Alignment
    begun_at: float
    queries: frozenset[QueryName]
    acks: Mapping[QueryName, Ack] = field(default_factory=dict)

    @property
    def missing(self) -> frozenset[QueryName]:
        return self.queries - self.acks.keys()

    @property
    def complete(self) -> bool:
        return not self.missing


def take_ack(
    pending: Mapping[CheckpointId, Pending], finished: Iterable[CheckpointId], id: CheckpointId, ack: Ack
) -> tuple[Mapping[CheckpointId, Pending], AckOutcome]:
    """Take one ack; everything but a success leaves the pending checkpoints as they were."""
    if id in finished:
        return pending, AckOutcome.LATE
    one = pending.get(id)
    if one is None or ack.query not in one.queries:
        return pending, AckOutcome.UNKNOWN
    if ack.query in one.acks:
        return pending, AckOutcome.DUPLICATE
    return {**pending, id: replace(one, acks={**one.acks, ack.query: ack})}, AckOutcome.SUCCESS


def last_id(
    recorded: Iterable[CheckpointId],
    restored: CheckpointId | None,
    barriers: Iterable[CheckpointId],
) -> CheckpointId:
    """The number that every further checkpoint must be above.

    `recorded` are the numbers in the job's folder, `restored` is the checkpoint that the live files were
    restored from, and `barriers` are those in its channels and in its readers' offsets. The barriers count
    because one barrier may serve several checkpoints: it has the highest of their numbers. Where one of the
    others was restored, nothing else knows that number. Given out again, it would find that barrier, with
    rows after it, and take it for its own.
    """
    return max([restored or CheckpointId(0), *recorded, *barriers])


def is_abandoned(begun_by: Attempt | None, own: Attempt) -> bool:
    """Whether a checkpoint that has begun, and that another driver holds the number of, must be aborted.

    It was begun by a driver that has been replaced, after its successor had looked for such checkpoints: it
    will never end, and readers would wait for it. One of a higher attempt is left alone: then this driver is
    the replaced one. So is one that does not name its attempt, as those of earlier versions.
    """
    return begun_by is not None and begun_by < own


def is_successors(begun_by: Attempt | None, own: Attempt) -> bool:
    """Whether a checkpoint was begun by a later driver: then this one is replaced, and must not abort it."""
    return begun_by is not None and begun_by > own


@dataclass(frozen=True)
class Reading:
    """Where a reader resumes in a channel after a restore of a checkpoint: at this entry."""

    reader: str
    channel: str
    entry: int


@dataclass(frozen=True)
class Written:
    """What a checkpoint has of a channel: the entries from `first` up to, and without, `end`."""

    first: int
    end: int


def inconsistencies(readings: Iterable[Reading], channels: Mapping[str, Written]) -> list[str]:
    """Why these cuts are not a consistent one, for people; nothing when they are.

    No reader may be past its writer's cut: after a restore the writer writes again what the reader has
    already read, and the reader skips it, or finds nothing where it resumes. Nor may a reader need what the
    checkpoint does not have. The entry in front of a reader belongs to what it needs.
    """
    wrong = []
    for one in readings:
        channel = channels.get(one.channel)
        if channel is None:
            continue
        where = f"query {one.reader} resumes at entry {one.entry} of channel {one.channel}"
        if one.entry > channel.end:
            wrong.append(f"{where}, which is cut at entry {channel.end}")
        elif channel.first and one.entry <= channel.first:
            wrong.append(f"{where}, of which entry {channel.first} is the first that was kept")
    return wrong


def has_position(*, committed: BatchId, planned: BatchId, stands: bool, fixed: bool) -> bool:
    """Whether a restore leads a query back to where it is now.

    One that has committed nothing begins again, and where that is depends on its sources: `fixed` says that
    all of them begin in the same place whenever they begin. Others may not (Kafka's `latest`), or lose what
    is in front of the first checkpoint that has a position. A query that has not planned anything and
    `stands` (it waits for its streams to end, or has ended) has never begun: it begins anyway.
    """
    return committed != NO_BATCH or fixed or (stands and planned == NO_BATCH)


_REMEMBERED = 1000
"""For how many batches before the newest a cut is still known."""


@dataclass(frozen=True)
class Track:
    """What is known of the batches of a query that reads channels and writes none: its cut is among them.

    Spark purges old batches, so each is looked at once and in order, from the first that may be a cut
    of a pending checkpoint. Nothing is looked at while every pending checkpoint has found its cut.
    """

    examined: BatchId = NO_BATCH
    joint: Mapping[BatchId, CheckpointId] = field(default_factory=dict)
    """The lowest barrier among the query's channels, after each batch that was looked at."""

    def skip(self, query: QueryName, newest: BatchId, found: Iterable[Container[QueryName]]) -> Track:
        """A checkpoint begins: what is committed before its barriers can only be a cut of an older one.

        `found` has, for each of those that are pending, the queries whose cuts it has found. If one has
        not found this query's, nothing may be passed over; if all have, Spark may have purged what
        follows the last batch that was looked at.
        """
        if all(query in one for one in found):
            return replace(self, examined=max(self.examined, newest))
        return self

    def follow(self, newest: BatchId, barrier: Callable[[BatchId], CheckpointId]) -> Track:
        """Look at every batch up to the newest committed one; raises what `barrier` raises for a lost one."""
        if newest <= self.examined:
            return self
        seen = {BatchId(batch): barrier(BatchId(batch)) for batch in range(self.examined + 1, newest + 1)}
        known = {batch: k for batch, k in self.joint.items() if batch > newest - _REMEMBERED}
        return Track(newest, {**known, **seen})

    def cut(self, id: CheckpointId) -> BatchId | None:
        """The first batch that reached the barrier on all channels of the query."""
        return min((batch for batch, barrier in self.joint.items() if barrier >= id), default=None)


@dataclass(frozen=True)
class TriggerFacts:
    """All that decides whether a checkpoint may begin now."""

    now: float
    running: bool
    stopping: bool
    pending: int
    unaligned_pending: bool
    last_ended_at: float | None
    """When the last one completed or was aborted."""
    alignment: Alignment
    max_concurrent: int
    min_pause: float
    begun: bool = True
    """Whether every query has a position (`has_position`)."""


class TriggerRefusal(str, Enum):
    """Why a trigger is refused; the text that is shown."""

    NOT_RUNNING = "a query of the job is down"
    STOPPING = "the job is ending"
    TOO_MANY = "execution.checkpointing.max-concurrent-checkpoints are pending"
    MIN_PAUSE = "the last one ended less than execution.checkpointing.min-pause ago"
    NOT_BEGUN = "a query of the job has not committed its first batch yet"


def may_trigger(facts: TriggerFacts) -> TriggerRefusal | None:
    """None when it may begin; unaligned checkpoints are alone, a pause implies one at a time."""
    if facts.stopping:
        return TriggerRefusal.STOPPING
    if not facts.running:
        return TriggerRefusal.NOT_RUNNING
    if not facts.begun:
        return TriggerRefusal.NOT_BEGUN
    alone = facts.min_pause > 0 or facts.alignment is Alignment.UNALIGNED or facts.unaligned_pending
    if facts.pending >= (1 if alone else facts.max_concurrent):
        return TriggerRefusal.TOO_MANY
    if facts.last_ended_at is not None and facts.now - facts.last_ended_at < facts.min_pause:
        return TriggerRefusal.MIN_PAUSE
    return None


def subsumed(
    completed: Iterable[CheckpointId], retained: int, useless: Container[CheckpointId] = ()
) -> list[CheckpointId]:
    """The completed checkpoints that newer ones make superfluous, oldest first.

    `useless` are those that the job can never be restored from, as the ones that it was rolled back past.
    They do not count among the retained, and go as soon as there is one that does.
    """
    there = sorted(completed)
    usable = [id for id in there if id not in useless]
    if not usable:
        return there[: -max(1, retained)]
    kept = set(usable[-max(1, retained) :])
    return [id for id in there if id not in kept]


def unreferenced(kept: Iterable[str], needed: Iterable[Iterable[str]]) -> list[str]:
    """What is kept and no retained or pending checkpoint needs any more."""
    return sorted(set(kept) - {file for files in needed for file in files})
