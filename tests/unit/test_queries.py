"""How the queries of an attempt stand: who begins when, who holds whom up, when it is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weir.driver.queries import Queries
from weir.errors import IllegalMoveError
from weir.ids import QueryName
from weir.protocol.states import QueryState

FIRST, SECOND, THIRD, LIVE = (QueryName(name) for name in ("first", "second", "third", "live"))
INPUTS = {FIRST: (), SECOND: (FIRST,), THIRD: (SECOND,), LIVE: (FIRST,)}


def run(name: QueryName) -> Any:
    return SimpleNamespace(name=name, spec=SimpleNamespace(bounded=name != LIVE))


@pytest.fixture
def queries() -> Queries:
    """Two bounded stages behind a bounded one, and a query that follows it for ever."""
    found = Queries()
    for one in found.begin([run(name) for name in INPUTS], INPUTS):
        assert found.starts(one)
    return found


def names(runs: list[Any]) -> list[QueryName]:
    return [one.name for one in runs]


def test_a_bounded_query_begins_when_its_streams_have_ended_and_once(queries: Queries) -> None:
    assert names(queries.runs()) == [FIRST, LIVE]
    assert queries.ready() == []
    assert queries.ended(FIRST, failed=False) is QueryState.ENDED
    (second,) = queries.ready()
    assert second.name == SECOND and queries.ready() == []
    assert queries.starts(second)
    queries.ended(SECOND, failed=False)
    assert names(queries.ready()) == [THIRD]


def test_who_waits_for_the_end_of_a_stream_does_not_hold_it_up(queries: Queries) -> None:
    assert queries.follow(FIRST) == [LIVE]
    assert queries.follow(SECOND) == []


def test_those_that_reach_no_barrier_stand_and_are_not_down(queries: Queries) -> None:
    assert queries.standing() == {SECOND, THIRD} and queries.none_down()
    queries.ended(FIRST, failed=False)
    assert queries.standing() == {FIRST, SECOND, THIRD} and queries.none_down()
    queries.ended(LIVE, failed=True)
    assert not queries.none_down() and queries.any_failed


def test_a_stop_ends_what_waits_and_asks_what_runs(queries: Queries) -> None:
    assert names(queries.to_end()) == [FIRST, LIVE]
    queries.ended(FIRST, failed=False)
    assert queries.ready() == [], "nothing begins any more"
    assert not queries.all_ended
    queries.ended(LIVE, failed=False)
    assert queries.all_ended and not queries.starts(run(SECOND))


def test_a_failure_is_for_what_runs_and_a_new_run_counts(queries: Queries) -> None:
    queries.ended(FIRST, failed=True)
    assert names(queries.to_fail()) == [LIVE]
    again = run(FIRST)
    assert queries.starts(again) and queries.run(FIRST) is again and queries.is_running(FIRST)
    with pytest.raises(IllegalMoveError):
        queries.starts(run(FIRST))
