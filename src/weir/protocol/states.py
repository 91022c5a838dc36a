"""Everything about states and their moves lives in this file.

One table per machine: for each state, the events that it takes and where they lead. `move` applies
them; an event that a state does not know raises and moves nothing. The diagrams in
`docs/reference/states.md` are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from weir.errors import IllegalMoveError


class JobState(str, Enum):
    """The states of a job, as they are shown."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    FAILING = "FAILING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"

    @property
    def final(self) -> bool:
        return self in (JobState.CANCELED, JobState.FINISHED, JobState.FAILED)


class JobEvent(str, Enum):
    """What moves a job."""

    DEPLOY = "deploy"
    ALL_RUNNING = "all queries running"
    RESTART = "restart"
    RESTORE = "restore"
    CANCEL = "cancel"
    ENDED = "all queries ended"
    GIVE_UP = "give up"


class QueryState(str, Enum):
    """The states of a query within a driver."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    STOPPING = "STOPPING"
    ENDED = "ENDED"


class QueryEvent(str, Enum):
    """What moves a query."""

    START = "start"
    FAIL = "fail"
    STOP = "stop"
    END = "end"


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
        JobEvent.ALL_RUNNING: JobState.RUNNING,
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.FINISHED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.RUNNING: {
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.FINISHED,
        JobEvent.GIVE_UP: JobState.FAILING,
    },
    JobState.RESTARTING: {
        JobEvent.DEPLOY: JobState.STARTING,
        JobEvent.ALL_RUNNING: JobState.RUNNING,
        JobEvent.RESTART: JobState.RESTARTING,
        JobEvent.RESTORE: JobState.RESTARTING,
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.ENDED: JobState.FINISHED,
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
    QueryState.CREATED: {QueryEvent.START: QueryState.RUNNING, QueryEvent.STOP: QueryState.ENDED},
    QueryState.RUNNING: {
        QueryEvent.FAIL: QueryState.FAILED,
        QueryEvent.STOP: QueryState.STOPPING,
        QueryEvent.END: QueryState.ENDED,
    },
    QueryState.FAILED: {QueryEvent.START: QueryState.RUNNING, QueryEvent.STOP: QueryState.ENDED},
    QueryState.STOPPING: {QueryEvent.FAIL: QueryState.ENDED, QueryEvent.END: QueryState.ENDED},
    QueryState.ENDED: {},
}


def move(machine: str, table: Table[State, Event], state: State, event: Event) -> State:
    """The state behind the event; raises `IllegalMoveError` for an event that the state lacks."""
    try:
        return table[state][event]
    except KeyError:
        raise IllegalMoveError(machine=machine, state=state.value, event=event.value) from None
