"""The two vocabularies of `coordination.py`: facts that it takes in, and actions that it asks for.

A fact is something that has been observed or done; an action is something to do, and its outcome is a
fact again. Both are plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weir.errors import WeirError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol.checkpoint import AbortReason, Alignment, Found
from weir.protocol.checkpoint_state import CheckpointWish, ReaderPlace, Rules, Underway
from weir.protocol.messages import Message


@dataclass(frozen=True)
class Fact:
    """Something that has been observed or done."""


@dataclass(frozen=True)
class Action:
    """Something to do; where it has an outcome, that is the fact named with it."""


# actions


@dataclass(frozen=True)
class WriteBegun(Action):
    """1 trigger: take the next number (`BegunWritten`, `BegunRefused`)."""

    alignment: Alignment
    trigger: str
    full: bool
    wish: CheckpointWish | None = None


@dataclass(frozen=True)
class SkipCommitted(Action):
    """2 barrier: what is committed before a checkpoint begins can only be a cut of an older one.

    `found` has, for each of the others that are pending, the queries whose cuts it has found.
    """

    found: Sequence[frozenset[QueryName]]


@dataclass(frozen=True)
class PlanBarrier(Action):
    """See which batch a root is in (`BatchPlanned`), and how far its channel is (`SegmentEntered`)."""

    id: CheckpointId
    query: QueryName


@dataclass(frozen=True)
class SendBarrier(Action):
    """Append a barrier to the channel of a query: the cut of each of these checkpoints (`CutFound`)."""

    query: QueryName
    ids: tuple[CheckpointId, ...]
    """Oldest first; the barrier gets the number of the newest."""
    unaligned: bool = False


@dataclass(frozen=True)
class CutHere(Action):
    """Take the last batch that a query has committed (`CutFound`, `Declined`)."""

    id: CheckpointId
    query: QueryName
    unaligned: bool


@dataclass(frozen=True)
class CutAtBarrierOrHere(Action):
    """The same of a query that may have reached the barrier: then it is cut there, never after it."""

    id: CheckpointId
    query: QueryName


@dataclass(frozen=True)
class Look(Action):
    """3 align: learn what a query has committed and appended (`CutFound`, `SegmentEntered`, `Lost`)."""

    query: QueryName


@dataclass(frozen=True)
class TakeSnapshot(Action):
    """4 snapshot: keep what a query needs to resume (later `SnapshotTaken`, `KeepFailed`)."""

    id: CheckpointId
    query: QueryName
    found: Found
    full: bool


@dataclass(frozen=True)
class KeepChannel(Action):
    """Keep what the readers of a channel still have to read (later `ChannelKept`, `KeepFailed`)."""

    id: CheckpointId
    channel: QueryName
    found: Found
    readers: tuple[int, ...]
    """The entries at which its readers resume."""
    full: bool


@dataclass(frozen=True)
class CollectSnapshots(Action):
    """5 ack: see which snapshots have been taken."""


@dataclass(frozen=True)
class Assemble(Action):
    """6 complete: make the manifest (`Assembled`)."""

    one: Underway


@dataclass(frozen=True)
class Export(Action):
    """Write the manifest next to the copies, if there are any (`Exported`, `KeepFailed`)."""

    id: CheckpointId


@dataclass(frozen=True)
class WriteManifest(Action):
    """Write the record that completes it (`ManifestWritten`, `ManifestRefused`)."""

    id: CheckpointId


@dataclass(frozen=True)
class Retain(Action):
    """7 notify: it is among the retained ones; a held one stays until it is released."""

    id: CheckpointId
    held: bool


@dataclass(frozen=True)
class Subsume(Action):
    """Delete the checkpoints beyond the number to retain, and trim the channels (`Subsumed`)."""

    one: Underway
    retained: int
    trim: Mapping[QueryName, int]
    """For each channel to trim, the entry at which its slowest reader resumes."""


@dataclass(frozen=True)
class ReportCompleted(Action):
    """Report it to the supervisor."""

    one: Underway
    subsumed: Sequence[CheckpointId]


@dataclass(frozen=True)
class IssuePermit(Action):
    """Notify sinks and listeners that it is complete."""

    id: CheckpointId


@dataclass(frozen=True)
class WriteAborted(Action):
    """Write the record of an abort, now or as soon as that is possible."""

    id: CheckpointId
    reason: AbortReason
    detail: str


@dataclass(frozen=True)
class NotifyAborted(Action):
    """Notify sinks and listeners that it was aborted."""

    id: CheckpointId
    why: str


@dataclass(frozen=True)
class Release(Action):
    """It has ended: from now on only its manifest, if there is one, needs its files."""

    id: CheckpointId


@dataclass(frozen=True)
class Discard(Action):
    """Nobody waits for its snapshots any more."""

    id: CheckpointId


@dataclass(frozen=True)
class AnswerWish(Action):
    """Answer who asked for a checkpoint: with the one that completed, or why there is none."""

    wish: CheckpointWish
    id: CheckpointId | None = None
    reason: str = ""
    """"" when it completed."""


@dataclass(frozen=True)
class RetryAborts(Action):
    """Write the aborts that could not be written before."""


@dataclass(frozen=True)
class StartSweep(Action):
    """Delete what killed and aborted checkpoints have left."""


@dataclass(frozen=True)
class Observe(Action):
    """See how the queries are (`Observed`)."""

    may_begin: bool
    """Whether a checkpoint is due or was asked for."""


@dataclass(frozen=True)
class Report(Action):
    """Send a message to the supervisor."""

    message: Message


@dataclass(frozen=True)
class PassPoint(Action):
    """A test may stop or fail the driver here."""

    point: str


@dataclass(frozen=True)
class Fail(Action):
    """Too many checkpoints failed: the job must be started again."""

    error: WeirError


# facts


@dataclass(frozen=True)
class Learned(Fact):
    """These are completed and retained, at the start."""

    completed: Sequence[CheckpointId]


@dataclass(frozen=True)
class Ticked(Fact):
    """It is time to look."""


@dataclass(frozen=True)
class Observed(Fact):
    """How the queries are, at the end of a look."""

    standing: frozenset[QueryName] = frozenset()
    """Those that will reach no barrier."""
    may_begin: bool = False
    """Whether a checkpoint may begin now; only then the rest is known."""
    running: bool = True
    """No query is down, and some run."""
    without_position: Sequence[QueryName] = ()
    """Those that have committed nothing yet (`has_position`)."""
    down: str = ""
    """Which query is down, for people; "" when that is not known."""


@dataclass(frozen=True)
class RowsCommitted(Fact):
    """Records have come from outside."""

    rows: int


@dataclass(frozen=True)
class SettingsChanged(Fact):
    rules: Rules


@dataclass(frozen=True)
class Asked(Fact):
    """Somebody wants a checkpoint as soon as one may begin."""

    wish: CheckpointWish


@dataclass(frozen=True)
class Rested(Fact):
    """The job is ending: nothing is triggered any more but the final cut."""


@dataclass(frozen=True)
class Stopped(Fact):
    """The driver is ending."""


@dataclass(frozen=True)
class QueryDown(Fact):
    """A query is down: nothing that is pending can complete."""

    query: QueryName


@dataclass(frozen=True)
class CoordinationFailed(Fact):
    """Something went wrong that nobody expected."""

    why: str


@dataclass(frozen=True)
class BegunWritten(Fact):
    by: WriteBegun
    id: CheckpointId
    at: str
    """Wall time, for people."""


@dataclass(frozen=True)
class BegunRefused(Fact):
    """The storage has refused the record, or not answered: it may be there."""

    by: WriteBegun
    id: CheckpointId
    at: str
    why: str


@dataclass(frozen=True)
class BatchPlanned(Fact):
    """The newest batch that a root has planned."""

    id: CheckpointId
    query: QueryName
    batch: BatchId


@dataclass(frozen=True)
class SegmentEntered(Fact):
    """The newest batch whose segment is in the channel of a root."""

    query: QueryName
    batch: BatchId


@dataclass(frozen=True)
class CutFound(Fact):
    """Where a query was cut, for each of these checkpoints."""

    ids: tuple[CheckpointId, ...]
    query: QueryName
    found: Found
    positions: Mapping[QueryName, ReaderPlace] = field(default_factory=dict)
    """Where it stood in its channels."""


@dataclass(frozen=True)
class Declined(Fact):
    """A query can't be cut for these checkpoints."""

    ids: tuple[CheckpointId, ...]
    why: str


@dataclass(frozen=True)
class Lost(Fact):
    """Spark has purged a batch of a query that nobody had looked at: it may be any checkpoint's cut."""

    query: QueryName
    why: str


@dataclass(frozen=True)
class SnapshotTaken(Fact):
    id: CheckpointId
    query: QueryName
    found: Found


@dataclass(frozen=True)
class ChannelKept(Fact):
    id: CheckpointId
    channel: QueryName


@dataclass(frozen=True)
class KeepFailed(Fact):
    """Something of a checkpoint could not be kept."""

    id: CheckpointId
    why: str
    query: QueryName | None = None
    """Whose snapshot it was, if it was one."""


@dataclass(frozen=True)
class Assembled(Fact):
    id: CheckpointId
    seconds: float
    inconsistencies: Sequence[str] = ()
    """Why its cuts do not belong together."""


@dataclass(frozen=True)
class Exported(Fact):
    id: CheckpointId


@dataclass(frozen=True)
class ManifestWritten(Fact):
    id: CheckpointId


@dataclass(frozen=True)
class ManifestRefused(Fact):
    id: CheckpointId
    why: str


@dataclass(frozen=True)
class Subsumed(Fact):
    """What could be deleted was; the rest is tried again after the next one."""

    by: Subsume
    ids: Sequence[CheckpointId]
    seconds: float
