"""Everything about states and their moves lives in this file.

One table per machine: for each state, the events that it takes and where they lead. `move` applies
them; an event that a state does not know raises and moves nothing. The diagrams in
`docs/reference/states.md` are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TypeVar

from weir.errors import IllegalMoveError


class JobState(str, Enum):
    """The states of a job, as they are shown."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    DEGRADED = "DEGRADED"
    """A query has failed for good, and the others run."""
    CANCELLING = "CANCELLING"
    FAILING = "FAILING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"

    @property
    def final(self) -> bool:
        return self in (JobState.CANCELED, JobState.FINISHED, JobState.FAILED)

    @property
    def ending(self) -> bool:
        """No query is started any more; the running ones finish their batches."""
        return self in (JobState.CANCELLING, JobState.FAILING)


class JobEvent(str, Enum):
    """What moves a job."""

    DEPLOY = "deploy"
    ALL_RUNNING = "all queries running"
    RESTART = "restart"
    DEGRADE = "a query failed for good"
    RESTORE = "restore"
    CANCEL = "cancel"
    ENDED = "all queries ended"
    GIVE_UP = "give up"


class QueryState(str, Enum):
    """The states of a query, as they are shown; its driver and the supervisor keep them alike."""

    CREATED = "CREATED"
    WAITING = "WAITING"
    """It is bounded, and begins when the streams that it reads have ended."""
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    """It has failed, and waits for its next start."""
    FAILED = "FAILED"
    """It has failed for good; only a new driver tries it again."""
    STOPPING = "STOPPING"
    ENDED = "ENDED"


class QueryEvent(str, Enum):
    """What moves a query."""

    WAIT = "wait for its streams"
    START = "start"
    RUN = "its Spark query runs"
    FAIL = "fail"
    GIVE_UP = "give up"
    STOP = "stop"
    END = "end"


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


State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Table = Mapping[State, Mapping[Event, State]]

JOB: Table[JobState, JobEvent] = {
    JobState.CREATED: {
        JobEvent.DEPLOY: JobState.STARTING,
        JobEvent.CANCEL: JobState.CANCELED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.STARTING: {
        JobEvent.DEGRADE: JobState.DEGRADED,
        JobEvent.ALL_RUNNING: JobState.RUNNING,
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.FINISHED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.RUNNING: {
        JobEvent.DEGRADE: JobState.DEGRADED,
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.FINISHED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.RESTARTING: {
        JobEvent.DEGRADE: JobState.DEGRADED,
        JobEvent.DEPLOY: JobState.STARTING,
        JobEvent.ALL_RUNNING: JobState.RUNNING,
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.FINISHED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.DEGRADED: {
        JobEvent.DEGRADE: JobState.DEGRADED,
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.CANCELLING: {
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.CANCELED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.FAILING: {
        JobEvent.CANCEL: JobState.FAILING,
        JobEvent.ENDED: JobState.FAILED,
    },
    JobState.CANCELED: {},
    JobState.FINISHED: {},
    JobState.FAILED: {},
}

QUERY: Table[QueryState, QueryEvent] = {
    QueryState.CREATED: {
        QueryEvent.WAIT: QueryState.WAITING,
        QueryEvent.START: QueryState.STARTING,
        QueryEvent.FAIL: QueryState.RESTARTING,
        QueryEvent.STOP: QueryState.ENDED,
    },
    QueryState.WAITING: {
        QueryEvent.START: QueryState.STARTING,
        QueryEvent.FAIL: QueryState.RESTARTING,
        QueryEvent.STOP: QueryState.ENDED,
    },
    QueryState.STARTING: {
        QueryEvent.RUN: QueryState.RUNNING,
        QueryEvent.FAIL: QueryState.RESTARTING,
        QueryEvent.STOP: QueryState.STOPPING,
        QueryEvent.END: QueryState.ENDED,
    },
    QueryState.RUNNING: {
        QueryEvent.FAIL: QueryState.RESTARTING,
        QueryEvent.STOP: QueryState.STOPPING,
        QueryEvent.END: QueryState.ENDED,
    },
    QueryState.RESTARTING: {
        QueryEvent.START: QueryState.STARTING,
        QueryEvent.GIVE_UP: QueryState.FAILED,
        QueryEvent.STOP: QueryState.ENDED,
    },
    QueryState.FAILED: {},
    QueryState.STOPPING: {QueryEvent.FAIL: QueryState.ENDED, QueryEvent.END: QueryState.ENDED},
    QueryState.ENDED: {},
}

CHECKPOINT: Table[CheckpointState, CheckpointEvent] = {
    CheckpointState.PENDING: {
        CheckpointEvent.COMPLETE: CheckpointState.COMPLETED,
        CheckpointEvent.ABORT: CheckpointState.ABORTED,
    },
    CheckpointState.COMPLETED: {CheckpointEvent.SUBSUME: CheckpointState.SUBSUMED},
    CheckpointState.ABORTED: {},
    CheckpointState.SUBSUMED: {},
}

_ON_THE_WAY = {QueryState.CREATED, QueryState.STARTING}


def job_event(queries: Collection[QueryState]) -> JobEvent | None:
    """What the states of its queries say of a job; None while they are on their way.

    RUNNING is a job only when all its queries run, have ended, or wait for streams to end.
    """
    states = set(queries)
    if QueryState.RESTARTING in states:
        return JobEvent.RESTART
    if not states or states & _ON_THE_WAY:
        return None
    return JobEvent.DEGRADE if QueryState.FAILED in states else JobEvent.ALL_RUNNING


def move(machine: str, table: Table[State, Event], state: State, event: Event) -> State:
    """The state after the event; raises `IllegalMoveError` for an event that the state lacks."""
    try:
        return table[state][event]
    except KeyError:
        raise IllegalMoveError(machine=machine, state=state.value, event=event.value) from None
