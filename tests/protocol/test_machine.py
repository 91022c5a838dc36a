"""Failures of the machine: how they are tried again, and what a restart waits for."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from weir.protocol.machine import (
    FRESH,
    IN_TIME,
    SPARKS_LIMIT,
    Gate,
    MachineFailures,
    Probe,
    QueryTurn,
    Turns,
    gate,
)

HOUR = 3600.0
LONGEST = 300.0


def delays(failures: MachineFailures, *times: float, chance: float = 0.0) -> list[float | None]:
    return [failures.delay("q", now, chance, HOUR) for now in times]


def test_the_wait_grows_to_a_minute() -> None:
    assert delays(MachineFailures(), *range(7)) == [5, 10, 20, 40, 60, 60, 60]


def test_the_wait_stays_within_its_jitter() -> None:
    assert delays(MachineFailures(), 0, chance=1.0) == [6.0]
    assert delays(MachineFailures(), 0, chance=-1.0) == [4.0]


@pytest.mark.parametrize(("tries", "late"), list(product((9, 10, 11), (False, True))))
def test_it_is_given_up_when_it_has_failed_for_long_and_often(tries: int, late: bool) -> None:
    failures = MachineFailures()
    for _ in range(tries):
        failures.delay("q", 0.0, 0.0, HOUR)
    found = failures.delay("q", HOUR if late else HOUR - 1, 0.0, HOUR)
    assert (found is None) == (late and tries >= 10)


def test_without_a_limit_it_is_never_given_up() -> None:
    failures = MachineFailures()
    assert all(failures.delay("q", day * 24 * HOUR, 0.0, None) for day in range(50))


def test_progress_of_a_query_is_its_own_and_the_drivers() -> None:
    failures = MachineFailures()
    for query in ("", "q", "r"):
        failures.delay(query, 0.0, 0.0, HOUR)
    failures.progressed("q")
    assert [failures.times(query) for query in ("", "q", "r")] == [0, 0, 1]
    failures.clear()
    assert failures.times("r") == 0


NOW = 1000.0
FAST = Probe(1.0, NOW - 1)
OLD = Probe(1.0, NOW - FRESH - 1)
SLOW = Probe(8.0, NOW - 1)
SLOW_LONG_AGO = Probe(8.0, NOW - 17)
LATE = Probe(SPARKS_LIMIT, NOW - 1, came_up=False)
NONE_LEFT = Probe(0.0, NOW - 1, came_up=False)
NONE_LEFT_LONG_AGO = Probe(0.0, NOW - 6, came_up=False)


@pytest.mark.parametrize(
    ("newest", "found"),
    [
        (None, Gate.PROBE),
        (FAST, Gate.OPEN),
        (OLD, Gate.PROBE),
        (SLOW, Gate.SHUT),
        (SLOW_LONG_AGO, Gate.PROBE),
        (LATE, Gate.SHUT),
        (NONE_LEFT, Gate.SHUT),
        (NONE_LEFT_LONG_AGO, Gate.PROBE),
    ],
)
@pytest.mark.parametrize(("probing", "waited"), list(product((False, True), (0.0, LONGEST))))
def test_what_may_start_now(newest: Probe | None, found: Gate, probing: bool, waited: float) -> None:
    wanted = found
    if newest is not FAST:
        wanted = Gate.FORCED if waited >= LONGEST else Gate.SHUT if probing else found
    assert gate(waited, newest, probing=probing, now=NOW, longest=LONGEST) is wanted


def test_a_process_is_in_time_when_one_beside_a_query_would_be() -> None:
    assert Probe(IN_TIME, 0.0).in_time and not Probe(IN_TIME + 0.1, 0.0).in_time
    assert not Probe(0.1, 0.0, came_up=False).in_time


@pytest.mark.parametrize("seconds", [0.0, 6.0, SPARKS_LIMIT])
def test_looking_at_a_slow_machine_takes_a_third_of_its_time_at_most(seconds: float) -> None:
    now, newest, began = 0.0, Probe(seconds, 0.0, came_up=False), []
    while now < 200:
        if gate(now, newest, probing=False, now=now, longest=LONGEST) is Gate.PROBE:
            began.append(now)
            now += seconds
            newest = Probe(seconds, now, came_up=False)
        now += 0.1
    assert all(after - before >= max(5.0, 3 * seconds) for before, after in pairwise(began))


def test_queries_start_again_one_after_the_other_in_the_order_in_which_they_are_due() -> None:
    turns = Turns()
    for query, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        turns.add(query, at)
    assert turns.take(0.5, able=True) is None, "none is due"
    assert turns.take(10.0, able=True) == QueryTurn("a", 9.0)
    assert turns.take(11.0, able=True) is None, "another one starts"
    turns.over("a")
    assert turns.take(12.0, able=True) == QueryTurn("b", 10.0)
    turns.over("b")
    assert turns.take(13.0, able=True) == QueryTurn("c", 10.0)
    turns.over("c")
    assert turns.take(14.0, able=True) is None, "each is given out once"


def test_a_start_that_is_never_heard_of_holds_up_the_next_for_a_minute() -> None:
    turns = Turns()
    turns.add("a", 0.0)
    turns.add("b", 0.0)
    assert turns.take(0.0, able=True) == QueryTurn("a", 0.0)
    assert turns.take(Turns.PATIENCE - 1, able=True) is None
    assert turns.take(Turns.PATIENCE, able=True) == QueryTurn("b", Turns.PATIENCE)


def test_a_query_that_fails_while_it_starts_waits_again_and_lets_the_next_one_start() -> None:
    turns = Turns()
    turns.add("a", 0.0)
    turns.add("b", 1.0)
    turns.take(2.0, able=True)
    turns.add("a", 5.0)
    assert turns.take(2.0, able=True) == QueryTurn("b", 1.0)


@pytest.mark.parametrize(("when_able", "able", "due"), list(product((False, True), repeat=3)))
def test_only_what_waits_for_the_machine_waits_for_it(when_able: bool, able: bool, due: bool) -> None:
    turns = Turns()
    turns.add("q", 10.0, when_able=when_able)
    now = 12.0 if due else 9.0
    assert turns.waiting(now) == ({"q": 2.0} if when_able and due else {})
    assert turns.take(now, able=able) == (QueryTurn("q", 2.0) if due and (able or not when_able) else None)


def test_the_machine_holds_up_no_query_that_does_not_need_it() -> None:
    turns = Turns()
    turns.add("machine", 0.0, when_able=True)
    turns.add("own", 1.0)
    assert turns.take(5.0, able=False) == QueryTurn("own", 4.0)
    turns.clear()
    assert turns.take(5.0, able=True) is None and turns.waiting(5.0) == {}
