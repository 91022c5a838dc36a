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
        started(found, one)
    return found


def started(queries: Queries, one: Any) -> None:
    assert queries.starts(one.name) and queries.take(one)
    queries.running(one)


def names(runs: list[Any]) -> list[QueryName]:
    return [one.name for one in runs]


def test_a_bounded_query_begins_when_its_streams_have_ended_and_once(queries: Queries) -> None:
    assert names(queries.runs()) == [FIRST, LIVE]
    assert queries.ready() == []
    assert queries.ended(FIRST, failed=False) is QueryState.ENDED
    (second,) = queries.ready()
    assert second.name == SECOND and queries.ready() == []
    started(queries, second)
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
    assert not queries.none_down() and queries.any_restarts


def test_a_stop_ends_what_waits_and_asks_what_runs(queries: Queries) -> None:
    assert names(queries.to_end()) == [FIRST, LIVE]
    queries.ended(FIRST, failed=False)
    assert queries.ready() == [], "nothing begins any more"
    assert not queries.all_over
    queries.ended(LIVE, failed=False)
    assert queries.all_over and not queries.starts(SECOND)


def test_a_failure_is_for_what_runs_and_a_new_run_counts(queries: Queries) -> None:
    queries.ended(FIRST, failed=True)
    assert names(queries.to_fail()) == [LIVE]
    again = run(FIRST)
    started(queries, again)
    assert queries.run(FIRST) is again and queries.state(FIRST) is QueryState.RUNNING
    assert not queries.starts(FIRST), "it runs"
    with pytest.raises(IllegalMoveError):
        queries.not_started(again)
        queries.not_started(again)


def test_a_query_that_failed_for_good_holds_up_neither_the_others_nor_the_end(queries: Queries) -> None:
    queries.ended(LIVE, failed=True)
    assert "query live is down and starts again" in queries.down()
    assert queries.give_up(LIVE, "a row is refused") and queries.failed() == [LIVE]
    assert queries.down().startswith("query live has FAILED (a row is refused)")
    assert not queries.none_down(), "no checkpoint can be taken"
    assert not queries.give_up(FIRST, "it runs"), "only what has failed is given up"
    assert queries.follow(FIRST) == [LIVE], "its channel holds the writer up as before"
    for name in (FIRST, SECOND, THIRD):
        assert not queries.all_over
        queries.ended(name, failed=False)
        for one in queries.ready():
            started(queries, one)
    assert queries.all_over and queries.state(LIVE) is QueryState.FAILED


def test_what_waits_for_the_end_of_a_failed_stream_does_not_hold_up_the_end(queries: Queries) -> None:
    queries.ended(FIRST, failed=True)
    queries.give_up(FIRST, "it failed")
    assert not queries.all_over and queries.ready() == []
    queries.ended(LIVE, failed=False)
    assert queries.all_over, "the second never begins, nor does the third, which waits for that"


def test_a_query_that_could_not_start_is_started_again(queries: Queries) -> None:
    waiting = run(SECOND)
    assert queries.not_started(waiting) is QueryState.RESTARTING and queries.any_restarts
    assert queries.ready() == [] and queries.run(SECOND) is waiting
    started(queries, run(SECOND))


def test_a_run_that_was_told_to_end_before_it_was_made_does_not_start(queries: Queries) -> None:
    queries.ended(LIVE, failed=True)
    assert queries.starts(LIVE)
    queries.to_end()
    assert not queries.take(run(LIVE)) and queries.state(LIVE) is QueryState.ENDED
