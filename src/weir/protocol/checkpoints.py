"""Checkpoints: their states, and every decision on their path (design section 5).

May it trigger, has it all its acks, is it over, what is subsumed: facts in, decision out. The
coordinator reads the facts from storage, asks here, and acts. A pending checkpoint is a value;
taking an ack gives a new one and says what the ack was.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName


class CheckpointState(str, Enum):
    """The states of a checkpoint, as they are shown."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"
    SUBSUMED = "subsumed"


class CheckpointEvent(str, Enum):
    """What moves a checkpoint."""

    COMPLETE = "all queries acked"
    ABORT = "abort"
    SUBSUME = "newer ones are enough"


CHECKPOINT: Mapping[CheckpointState, Mapping[CheckpointEvent, CheckpointState]] = {
    CheckpointState.PENDING: {
        CheckpointEvent.COMPLETE: CheckpointState.COMPLETED,
        CheckpointEvent.ABORT: CheckpointState.ABORTED,
    },
    CheckpointState.COMPLETED: {CheckpointEvent.SUBSUME: CheckpointState.SUBSUMED},
    CheckpointState.ABORTED: {},
    CheckpointState.SUBSUMED: {},
}


class Alignment(str, Enum):
    """How the cut of a checkpoint is found."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    AT_LEAST_ONCE = "at-least-once"


class AbortReason(str, Enum):
    """Why a checkpoint did not complete; the words that are shown."""

    EXPIRED = "it took longer than execution.checkpointing.timeout"
    DECLINED = "a query declined it"
    RESTARTED = "the job was started again before it completed"
    QUERY_RESTARTED = "a query failed and was started again"
    STOPPING = "the job was ended"
    STORAGE = "its files could not be kept"
    DELETED = "it was deleted when the job was cancelled"


COUNTED = frozenset({AbortReason.EXPIRED, AbortReason.DECLINED, AbortReason.STORAGE})
"""Aborts that count against `tolerable-failed-checkpoints`; the others are no failure of checkpoints."""


class AckOutcome(str, Enum):
    """What an ack was worth; only a success changes anything."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    UNKNOWN = "of an unknown checkpoint or query"
    LATE = "too late"


@dataclass(frozen=True)
class Cut:
    """Where one query stands in a checkpoint."""

    query: QueryName
    batch: BatchId
    unaligned: bool = False


@dataclass(frozen=True)
class Pending:
    """A checkpoint that has begun."""

    id: CheckpointId
    alignment: Alignment
    begun_at: float
    queries: frozenset[QueryName]
    cuts: Mapping[QueryName, Cut] = field(default_factory=dict)
    """The cuts of the queries that have acked."""

    @property
    def missing(self) -> frozenset[QueryName]:
        return self.queries - self.cuts.keys()

    @property
    def complete(self) -> bool:
        return not self.missing


def take_ack(
    pending: Mapping[CheckpointId, Pending], finished: Iterable[CheckpointId], id: CheckpointId, cut: Cut
) -> tuple[Mapping[CheckpointId, Pending], AckOutcome]:
    """Take one ack; everything but a success leaves the pending checkpoints as they were."""
    if id in finished:
        return pending, AckOutcome.LATE
    one = pending.get(id)
    if one is None or cut.query not in one.queries:
        return pending, AckOutcome.UNKNOWN
    if cut.query in one.cuts:
        return pending, AckOutcome.DUPLICATE
    return {**pending, id: replace(one, cuts={**one.cuts, cut.query: cut})}, AckOutcome.SUCCESS


def aligned_cut(joint: Mapping[BatchId, CheckpointId], id: CheckpointId) -> BatchId | None:
    """The cut of a query with channel inputs: the first batch that reached the barrier on all of them.

    `joint` has, for each planned batch, the lowest barrier among the query's channels.
    """
    return min((batch for batch, barrier in joint.items() if barrier >= id), default=None)


_REMEMBERED = 1000
"""So many batches behind the newest a cut is still known."""


@dataclass(frozen=True)
class Track:
    """What is known of the batches of a query that reads channels and writes none: its cut is among them.

    Spark purges old batches, so each is looked at once and in order, from the first that may be a cut
    of a pending checkpoint. Nothing is looked at while every pending checkpoint has found its cut.
    """

    examined: BatchId = NO_BATCH
    joint: Mapping[BatchId, CheckpointId] = field(default_factory=dict)
    """The lowest barrier among the query's channels, behind each batch that was looked at."""

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
        return aligned_cut(self.joint, id)


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


class Refusal(str, Enum):
    """Why a trigger is refused; the words that are shown."""

    NOT_RUNNING = "a query of the job is down"
    STOPPING = "the job is ending"
    TOO_MANY = "execution.checkpointing.max-concurrent-checkpoints are under way"
    MIN_PAUSE = "the last one ended less than execution.checkpointing.min-pause ago"


def may_trigger(facts: TriggerFacts) -> Refusal | None:
    """None when it may begin; unaligned checkpoints are alone, a pause implies one at a time."""
    if facts.stopping:
        return Refusal.STOPPING
    if not facts.running:
        return Refusal.NOT_RUNNING
    alone = facts.min_pause > 0 or facts.alignment is Alignment.UNALIGNED or facts.unaligned_pending
    if facts.pending >= (1 if alone else facts.max_concurrent):
        return Refusal.TOO_MANY
    if facts.last_ended_at is not None and facts.now - facts.last_ended_at < facts.min_pause:
        return Refusal.MIN_PAUSE
    return None


def subsumed(completed: Iterable[CheckpointId], retained: int) -> list[CheckpointId]:
    """The completed checkpoints that newer ones make superfluous, oldest first."""
    return sorted(completed)[: -max(1, retained)]


def unreferenced(kept: Iterable[str], needed: Iterable[Iterable[str]]) -> list[str]:
    """What is kept and no retained or pending checkpoint needs any more."""
    return sorted(set(kept) - {file for files in needed for file in files})
