"""Every cell of every table."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from weir.errors import IllegalMoveError
from weir.protocol.states import (
    CHECKPOINT,
    JOB,
    QUERY,
    CheckpointEvent,
    CheckpointState,
    JobEvent,
    JobState,
    QueryEvent,
    QueryState,
    Table,
    move,
)

MACHINES = [
    ("job", JOB, JobState, JobEvent),
    ("query", QUERY, QueryState, QueryEvent),
    ("checkpoint", CHECKPOINT, CheckpointState, CheckpointEvent),
]


@pytest.mark.parametrize(("name", "table", "states", "events"), MACHINES)
def test_every_state_has_a_row_and_every_event_is_known_or_refused(
    name: str, table: Table[Any, Any], states: type[Enum], events: type[Enum]
) -> None:
    assert set(table) == set(states)
    for state in states:
        for event in events:
            if event in table[state]:
                assert move(name, table, state, event) is table[state][event]
            else:
                with pytest.raises(IllegalMoveError) as caught:
                    move(name, table, state, event)
                assert state.value in caught.value.what and event.value in caught.value.what


@pytest.mark.parametrize(("name", "table", "states", "events"), MACHINES)
def test_every_state_can_be_reached(
    name: str, table: Table[Any, Any], states: type[Enum], events: type[Enum]
) -> None:
    reached = {next(iter(states))}
    for _ in states:
        reached |= {after for state in reached for after in table[state].values()}
    assert reached == set(states)


def test_nothing_leaves_a_final_state() -> None:
    assert all(not JOB[state] for state in JobState if state.final)
    assert all(JOB[state] for state in JobState if not state.final)
