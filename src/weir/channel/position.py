"""How far a reader of a channel may go: facts in, offset out (docs/design.md, section 5, step 3).

A batch never reads across the barrier of a checkpoint that may still complete, and in aligned mode
a reader that is ahead waits for the other channels of its query as long as the checkpoint is pending,
and no longer: so every channel drains after any crash, abort or timeout. `facts.py` collects the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.channel.log import NO_CHECKPOINT, Barrier, Entry, Segment, Tail, apply, counts
from weir.ids import CheckpointId
from weir.spark.logs import OffsetEntry


class Mode(str, Enum):
    """What a reader does at a barrier."""

    ALIGNED = "aligned"
    """End the batch there, and wait for the other channels."""
    AT_LEAST_ONCE = "at-least-once"
    """End the batch there, and wait for nobody."""
    UNALIGNED = "unaligned"
    """Read on."""


class Status(Enum):
    """What the checkpoints folder says of a checkpoint."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Never begun, or its files are gone: it holds nobody."""


@dataclass(frozen=True)
class Position:
    """The offset of a reader: so many entries are used up, the last barrier reached."""

    entry: int = 0
    barrier: CheckpointId = NO_CHECKPOINT

    def offset(self, channel: str) -> dict[str, int | str]:
        """As Spark stores it; the order of the keys is part of its identity for Spark."""
        return {"entry": self.entry, "barrier": self.barrier, "channel": channel}

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Position:
        return cls(offset["entry"], CheckpointId(offset["barrier"]))


@dataclass(frozen=True)
class Taken:
    """What a batch has taken so far."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0

    def plus(self, segment: Segment) -> Taken:
        return Taken(self.segments + 1, self.rows + segment.rows, self.bytes + segment.bytes)


@dataclass(frozen=True)
class Bound:
    """How much one batch may take; None is no bound. At least one segment always passes."""

    segments: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def admits(self, taken: Taken) -> bool:
        return taken.segments <= 1 or (
            (self.segments is None or taken.segments <= self.segments)
            and (self.rows is None or taken.rows <= self.rows)
            and (self.bytes is None or taken.bytes <= self.bytes)
        )


@dataclass(frozen=True)
class Facts:
    """All that the decision depends on."""

    start: Position
    tail: Tail
    """The state of the channel at the start."""
    ahead: Iterable[Entry]
    """The entries from the start on; only as many are taken as are needed."""
    status: Callable[[CheckpointId], Status]
    joint: CheckpointId | None
    """The lowest barrier among the channels of the reading query, as its own offset log has it."""
    mode: Mode = Mode.ALIGNED
    bound: Bound = Bound()
    until: int | None = None
    """Where an AvailableNow run ends: a number of entries."""


def waited_for(status: Callable[[CheckpointId], Status], above: CheckpointId, upto: CheckpointId) -> bool:
    """Whether a checkpoint with a number among these may still need its cut at this barrier.

    A barrier stands for each lower number that no barrier before it has had. A checkpoint that is
    complete has been passed by every query, and so have all before it.
    """
    for number in range(upto, above, -1):
        found = status(CheckpointId(number))
        if found is Status.PENDING:
            return True
        if found is Status.COMPLETED:
            return False
    return False


def held_back(facts: Facts) -> bool:
    """Whether the reader waits: it is at a pending barrier, and another channel is not."""
    if facts.mode is not Mode.ALIGNED or facts.joint is None:
        return False
    return waited_for(facts.status, facts.joint, facts.start.barrier)


def next_position(facts: Facts) -> Position:
    """The end of the next batch; the start itself when there is nothing to read.

    What carries neither rows nor a barrier to be reached (fences, barriers of checkpoints that have
    ended) is passed over together with what follows, and never makes a batch by itself: a reader that
    was left behind does not pay for every barrier that it missed.
    """
    reached = facts.start
    if held_back(facts):
        return reached
    tail, taken = facts.tail, Taken()
    for number, entry in enumerate(facts.ahead, reached.entry):
        if facts.until is not None and number >= facts.until:
            break
        if isinstance(entry, Segment) and counts(tail, entry):
            taken = taken.plus(entry)
            if not facts.bound.admits(taken):
                break
            reached = Position(number + 1, reached.barrier)
        elif isinstance(entry, Barrier) and counts(tail, entry):
            if facts.mode is Mode.UNALIGNED:
                reached = Position(number + 1, entry.checkpoint)
            elif waited_for(facts.status, tail.barrier, entry.checkpoint):
                return Position(number + 1, entry.checkpoint)
        tail = apply(tail, entry)
    return reached


def positions_of(offsets: Iterable[object]) -> dict[str, list[Position]]:
    """The positions among offsets of any sources, by channel: one for each reader of the channel."""
    found: dict[str, list[Position]] = {}
    for offset in offsets:
        if isinstance(offset, dict) and offset.keys() == {"entry", "barrier", "channel"}:
            found.setdefault(offset["channel"], []).append(Position.parse(offset))
    return found


def positions_in(offset_log_entry: str) -> dict[str, list[Position]]:
    """The positions in an `offsets/<n>` of Spark, formats 1 and 2, by channel."""
    return positions_of(OffsetEntry.parse(offset_log_entry).offsets())


def joint_barrier(offset_log_entry: str) -> CheckpointId | None:
    """The barrier that all channels of a query have reached in one batch; None when it has none."""
    readers = (one for several in positions_in(offset_log_entry).values() for one in several)
    return min((position.barrier for position in readers), default=None)
