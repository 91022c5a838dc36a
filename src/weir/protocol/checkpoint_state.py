"""What the coordination of checkpoints knows: its state, as plain data that nothing changes in place.

`coordination.py` makes a new state of an old one and a fact. Times are on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol.checkpoint import Alignment, Found, Pending
from weir.protocol.states import CheckpointState

ReaderPlace = tuple[int, CheckpointId]
"""Where a reader stands in a channel: how many entries it has used up, the last barrier that it reached."""


@dataclass(frozen=True)
class Flow:
    """The graph of a job, as its checkpoints see it."""

    inputs: Mapping[QueryName, Sequence[QueryName]]
    """For each query, those whose channels it reads; a stream comes before its readers."""
    writers: frozenset[QueryName]
    """Those that write a channel."""

    @property
    def order(self) -> tuple[QueryName, ...]:
        return tuple(self.inputs)

    def readers(self, channel: QueryName) -> list[QueryName]:
        return [name for name, inputs in self.inputs.items() if channel in inputs]


@dataclass(frozen=True)
class Rules:
    """What the settings say of checkpoints. Seconds; None is "never"."""

    interval: float | None = None
    interval_records: int | None = None
    min_pause: float = 0.0
    max_concurrent: int = 1
    timeout: float = 600.0
    turns_after: float | None = None
    """After how many seconds an aligned checkpoint turns unaligned."""
    alignment: Alignment = Alignment.ALIGNED
    """How a checkpoint begins; an aligned one may turn unaligned later."""
    full: bool = False
    """Whether a checkpoint that is due shares no files with earlier ones."""
    retained: int = 1
    tolerable: int | None = None
    """How many may fail in a row."""


@dataclass(frozen=True)
class Triggers:
    """What has come since the last trigger."""

    triggered_at: float
    """The last trigger; at first the beginning."""
    records: int = 0
    """How many came from outside since then."""

    def triggered(self, now: float) -> Triggers:
        """The next one counts from now."""
        return Triggers(now)

    def plus(self, records: int) -> Triggers:
        return replace(self, records=self.records + records)

    def due(self, rules: Rules, now: float) -> Literal["interval", "records"] | None:
        """What makes a checkpoint due, if anything does."""
        if rules.interval is not None and now - self.triggered_at >= rules.interval:
            return "interval"
        limit = rules.interval_records
        return "records" if limit is not None and self.records >= limit else None

    def left(self, rules: Rules, now: float) -> float | None:
        """Seconds until the interval is over; None when there is none."""
        return None if rules.interval is None else self.triggered_at + rules.interval - now


@dataclass(frozen=True)
class CheckpointWish:
    """A checkpoint that was asked for."""

    request: str = ""
    """The request that is answered; "" when somebody holds it."""
    full: bool = False
    trigger: str = "request"
    holder: int | None = None
    """Who wants it and releases it later, by number; without one the answer goes to the request."""
    final: bool = False
    """Every query has ended: the cut is what each has committed."""
    asked_at: float = 0.0


@dataclass(frozen=True)
class Underway:
    """A pending checkpoint, with what is known of it so far."""

    state: Pending
    trigger: str
    full: bool
    begun_at: str
    """Wall time, for people."""
    wish: CheckpointWish | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    awaited: Mapping[QueryName, BatchId] = field(default_factory=dict)
    """Roots whose barrier follows the segment of the batch that they were in."""
    here: tuple[QueryName, ...] = ()
    """Queries that are being cut where they stand, in this order."""
    found: Mapping[QueryName, Found] = field(default_factory=dict)
    positions: Mapping[QueryName, Mapping[QueryName, ReaderPlace]] = field(default_factory=dict)
    """Where each query stood in its channels at its cut; read at once, before Spark purges it."""
    barriers: Mapping[QueryName, float] = field(default_factory=dict)
    """When each query's cut was found, in seconds after the trigger."""
    acked: Mapping[QueryName, float] = field(default_factory=dict)
    """When each query's ack was taken, in seconds after the trigger."""
    channels: Mapping[QueryName, bool] = field(default_factory=dict)
    """The channels whose entries are being kept, once every cut is found; true when they are."""
    seconds: float | None = None
    """When its manifest was assembled, in seconds after the trigger."""
    turned: bool = False
    """It began as aligned, and took too long."""

    @property
    def id(self) -> CheckpointId:
        return self.state.id

    @property
    def alignment(self) -> Alignment:
        """How the cut was found in the end."""
        return Alignment.UNALIGNED if self.turned else self.state.alignment

    def since(self, now: float) -> float:
        return now - self.state.begun_at

    def resumes(self, reader: QueryName, channel: QueryName) -> ReaderPlace:
        """Where a reader resumes in a channel after a restore of this checkpoint.

        An at-least-once reader that has crossed the barrier is reset to it.
        """
        place, limit = self.positions[reader][channel], self.limit(channel)
        return place if limit is None or place[0] <= limit[0] else limit

    def limit(self, channel: QueryName) -> ReaderPlace | None:
        """The barrier that no reader of a channel is past after a restore; None where none can be past it.

        The position of a query that reads a channel twice is that of its slower reader, which says nothing
        of the faster one. So a limit is there whether the position is past it or not.
        """
        end = self.found[channel].end
        if self.state.alignment is not Alignment.AT_LEAST_ONCE or end is None:
            return None
        return (end, self.id)

    def phases_so_far(self) -> dict[str, float]:
        """Seconds of each phase of the checkpoint, as far as it has come."""
        barrier = {"barrier": max(self.barriers.values())} if self.barriers else {}
        return {**self.phases, **barrier}


@dataclass(frozen=True)
class Outlived:
    """A checkpoint that expired while snapshots of these queries were being taken: they ack too late."""

    begun_at: float
    queries: frozenset[QueryName]


@dataclass(frozen=True)
class CoordinationState:
    """All that is known of the checkpoints of one attempt."""

    flow: Flow
    rules: Rules
    triggers: Triggers
    pending: Mapping[CheckpointId, Underway] = field(default_factory=dict)
    """Oldest first."""
    ended: Mapping[CheckpointId, CheckpointState] = field(default_factory=dict)
    """How the newest of the others ended."""
    outlived: Mapping[CheckpointId, Outlived] = field(default_factory=dict)
    wishes: tuple[CheckpointWish, ...] = ()
    ended_at: float | None = None
    """When the last one completed or was aborted."""
    swept_at: float | None = None
    failures: int = 0
    """How many failed since the last one that completed."""
    acks_reported: Mapping[CheckpointId, int] = field(default_factory=dict)
    """How many acks of each pending checkpoint were in the last report of them."""
    wait_noted: bool = False
    """It was reported that no checkpoint is taken though one is due."""
    resting: bool = False
    """Nothing is triggered any more, except the final cut."""
    stopping: bool = False

    def waiting(self, query: QueryName) -> list[Underway]:
        """The pending checkpoints that have not found the cut of a query."""
        return [one for one in self.pending.values() if query not in one.found]

    def with_pending(self, one: Underway) -> CoordinationState:
        return replace(self, pending={**self.pending, one.id: one})
