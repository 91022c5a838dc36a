"""The messages between supervisor and driver, one JSON line each.

Requests are imperatives, reports are past participles; all are frozen. The supervisor is the left
end of the pipe, the driver the right one. `encode` and `decode` are inverse to each other; a line
that is none of these messages raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from weir.errors import Domain
from weir.protocol.states import QueryState

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True)
class Failure:
    """A failure as it travels and is kept: from the error's type, never from parsing its text."""

    what: str
    why: str = ""
    hint: str = ""
    domain: Domain = Domain.INTERNAL
    retry: bool = True
    error: str = ""
    """The type's name, by which failures are grouped."""
    stack: str = ""
    """The stack with the author's own frames, as text."""
    exit_code: int = 4
    redeploy: bool = False
    """The driver itself must be started again; one query's restart would not do."""

    @property
    def key(self) -> tuple[str, str]:
        """Two failures with one key have the same cause."""
        return (self.domain.value, self.error)


# driver -> supervisor


@dataclass(frozen=True)
class JobDescribed:
    """The job file was run: this is the job, and these are the options that its author gave."""

    job: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Ping:
    """The driver lives, and so does its JVM. Asks for the lease to be renewed from now on."""

    number: int


@dataclass(frozen=True)
class StepDone:
    """One step of a start is over; the parts of a recovery are made of these."""

    step: str
    seconds: float
    query: str = ""


@dataclass(frozen=True)
class SparkUi:
    """Spark serves its own pages here; not sent when they are off."""

    url: str


@dataclass(frozen=True)
class QueryMoved:
    """A query waits for its streams to end, or is about to start; other moves have messages of their own."""

    query: str
    run: int
    state: QueryState


@dataclass(frozen=True)
class QueryStarted:
    query: str
    run: int
    last_committed: int
    last_planned: int = -1
    """Above the last committed: this batch was begun by an earlier run, and runs again."""


@dataclass(frozen=True)
class GraphLearnt:
    """The graph that the job's file describes."""

    queries: list[dict[str, Any]]
    """Each: name, inputs (the streams whose channels it reads), sources (the names of receiving ones),
    channel (whether it writes one), sink (kind, description, rewindable), output_mode."""


@dataclass(frozen=True)
class BatchCommitted:
    """Spark committed a batch: its progress."""

    query: str
    run: int
    batch: int
    rows: int
    seconds: float
    durations: dict[str, int] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    state_load_ms: int = 0
    watermark: str = ""
    at: str = ""
    lag: dict[str, int] = field(default_factory=dict)
    """Records of Kafka's that were there and are not read yet, by topic and partition."""
    sources: list[dict[str, str | int | None]] = field(default_factory=list)
    """Each: name, rows, behind (what it held beyond this batch, None when unknown) and its unit."""
    operators: list[dict[str, str | int]] = field(default_factory=list)
    """Those that keep state, each: name, rows, bytes."""


@dataclass(frozen=True)
class QueryIdle:
    """A query has nothing to read and waits."""

    query: str


@dataclass(frozen=True)
class QueryFailed:
    query: str
    run: int
    batch: int
    """The one whose output can't be delivered; else the first that Spark has not committed."""
    failure: Failure
    started: bool = True
    """False: its Spark query did not run; its sink could not be opened, or Spark refused to start it."""


@dataclass(frozen=True)
class QueryEnded:
    """A query ended by itself or as asked, with everything committed."""

    query: str
    run: int
    last_committed: int


@dataclass(frozen=True)
class CutOff:
    """The time for a clean end was over: the running batch of this query, or its delivery, is abandoned."""

    query: str
    seconds: float
    undelivered: int = 0
    """How many batches Spark has committed and the sink has not."""

    @property
    def text(self) -> str:
        """The message for people."""
        left = (
            f"{self.undelivered} of its committed batches are not delivered yet; the next start delivers them"
        )
        again = "its batch will run again"
        return (
            f"query {self.query} was cut off after {self.seconds:g} s; {left if self.undelivered else again}"
        )


@dataclass(frozen=True)
class CheckpointBegun:
    """A checkpoint was triggered and is pending."""

    id: int
    alignment: str
    trigger: str
    """What asked for it: interval, records, request, savepoint, stop."""
    full: bool = False
    queries: list[str] = field(default_factory=list)
    """Those whose acks it waits for, in the order of the graph."""


@dataclass(frozen=True)
class CheckpointsAcked:
    """Queries have acked checkpoints that are still pending."""

    acked: dict[int, dict[str, float]]
    """For each pending checkpoint with an ack: the queries, and how many seconds after the trigger."""


@dataclass(frozen=True)
class CheckpointCompleted:
    """The manifest is written. Times are seconds, sizes bytes."""

    id: int
    alignment: str
    trigger: str
    full: bool
    seconds: float
    new_bytes: int
    full_bytes: int
    phases: dict[str, float] = field(default_factory=dict)
    """Of the checkpoint: trigger, barrier, ack, complete, notify."""
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each query: batch, unaligned, new_bytes, full_bytes, phases (barrier, alignment, commit,
    listing, pinning, copying)."""
    subsumed: list[int] = field(default_factory=list)
    """The ids that are no longer retained from now on."""
    copied_to: str = ""
    """The copy-dir in which it has a copy; "" without one."""
    in_flight: dict[str, int] = field(default_factory=dict)
    """What it holds in channels for their readers: rows, bytes."""


@dataclass(frozen=True)
class CheckpointAborted:
    id: int
    alignment: str
    trigger: str
    seconds: float
    reason: str
    """The text of an `AbortReason`."""
    detail: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each, as far as it had come."""
    acked: dict[str, float] | None = None
    """The queries that had acked it, and how many seconds after the trigger; None when that is not known."""


@dataclass(frozen=True)
class SavepointProgress:
    """A savepoint is under way; of a long one there are many."""

    request: str
    """Who asked for it; "" for the schedule."""
    phase: str
    """drain, end, checkpoint, copy."""
    done_bytes: int = 0
    full_bytes: int = 0
    """Both only while it is copied."""


@dataclass(frozen=True)
class SavepointTaken:
    """A savepoint is complete, at its place."""

    id: int
    path: str
    trigger: str
    """request, stop, schedule, application."""
    by: str
    seconds: float
    bytes: int
    job_version: str = ""


@dataclass(frozen=True)
class SavepointFailed:
    """A savepoint was not taken; nothing of it is left."""

    path: str
    """The folder in which it would be."""
    trigger: str
    by: str
    seconds: float
    reason: str


@dataclass(frozen=True)
class SavepointsDeleted:
    """Savepoints of the schedule made room for newer ones."""

    paths: list[str]


@dataclass(frozen=True)
class Restored:
    """A new generation went live: the job resumes from a checkpoint."""

    checkpoint: int
    generation: int
    why: str
    """Who asked, or what was wrong with the live files."""
    seconds: float


@dataclass(frozen=True)
class RestorePlanned:
    """What becomes of every piece of state in a restore that is about to be done."""

    text: str
    """For people."""
    plan: dict[str, Any]


@dataclass(frozen=True)
class Noted:
    """Something worth a line for people."""

    text: str


@dataclass(frozen=True)
class Answered:
    """What became of a request: `done`, and what to show."""

    request: str
    done: bool
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """All queries have ended; the driver will exit."""

    cancelled: bool


@dataclass(frozen=True)
class DriverFailed:
    """The driver can't continue; it will exit."""

    failure: Failure


# supervisor -> driver


@dataclass(frozen=True)
class Prepare:
    """Start the Spark session with these settings; write nothing yet."""

    config: dict[str, Any]


@dataclass(frozen=True)
class StartAttempt:
    """Take this attempt and run the job."""

    attempt: int
    wanted: dict[str, Any] = field(default_factory=dict)
    """The checkpoint or savepoint to resume from, and how; nothing: from the live files."""
    again: bool = False
    """The job has run under this supervisor before: no query is worth the end of the others."""
    session: str = ""
    """The attempt's, as its record has it."""


@dataclass(frozen=True)
class Pong:
    """The beat was written after this ping: the lease runs from the moment the ping was sent."""

    number: int


@dataclass(frozen=True)
class RestartQuery:
    query: str


@dataclass(frozen=True)
class GiveUpQuery:
    """A failed query is not started again by this driver; the others continue."""

    query: str
    reason: str


@dataclass(frozen=True)
class StopQueries:
    """Let the running batches finish and commit, start no other, then end."""

    seconds: float
    cancelled: bool = True
    """The user ends the job with it; False when it failed, or when another driver continues."""


@dataclass(frozen=True)
class Ask:
    """A request of a user, for the driver.

    `checkpoint` {full}, `configure` {settings by key}, `savepoint` {path, by}, `stop` {savepoint, path,
    drain, by, seconds}.
    """

    request: str
    verb: str
    arguments: dict[str, Any] = field(default_factory=dict)


Message = (
    JobDescribed
    | Ping
    | StepDone
    | QueryMoved
    | QueryStarted
    | GraphLearnt
    | BatchCommitted
    | QueryIdle
    | QueryFailed
    | QueryEnded
    | CutOff
    | SparkUi
    | CheckpointBegun
    | CheckpointsAcked
    | CheckpointCompleted
    | CheckpointAborted
    | SavepointProgress
    | SavepointTaken
    | SavepointFailed
    | SavepointsDeleted
    | Restored
    | Noted
    | RestorePlanned
    | Answered
    | Ended
    | DriverFailed
    | Prepare
    | StartAttempt
    | Pong
    | RestartQuery
    | GiveUpQuery
    | StopQueries
    | Ask
)

_NAMES: Mapping[type, str] = {
    JobDescribed: "Described",
    RestorePlanned: "Planned",
    DriverFailed: "Failed",
    StartAttempt: "Start",
    StopQueries: "Stop",
}
"""What a kind is called on the pipe, where its class has another name.

These names never change: a supervisor outlives an upgrade of weir, and starts its next driver from what is
installed then.
"""


def _name(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__)


_KINDS: Mapping[str, type] = {_name(kind): kind for kind in get_args(Message)}


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """What checks a message; made when the first of its kind comes, because that takes milliseconds."""
    from pydantic import TypeAdapter  # noqa: PLC0415  many import this module who decode nothing

    return TypeAdapter(_KINDS[kind])


def encode(message: Message) -> bytes:
    """One line, with its newline."""
    return json.dumps([_name(type(message)), asdict(message)], default=str).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line."""
    kind, fields = json.loads(line)
    message: Message = _adapter(kind).validate_python(fields)
    return message
