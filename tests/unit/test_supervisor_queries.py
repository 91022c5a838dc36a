"""Queries that fail beside others: the real supervisor, and drivers that play along."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.played_driver import Client, Driver, Run
from weir.errors import Domain
from weir.protocol import messages as m
from weir.protocol.states import JobState, QueryState

REFUSED = m.Failure("the table does not take a row", domain=Domain.USER, error="RefusedRowError", exit_code=2)
OUTAGE = m.Failure("the database is away", domain=Domain.EXTERNAL, error="DatabaseError", exit_code=3)
DEAD = m.Failure("the JVM died", domain=Domain.EXTERNAL, error="JvmDiedError", exit_code=3, redeploy=True)
INSIDE = m.Failure("JSONDecodeError inside weir", "Expecting value: line 1", error="JSONDecodeError")
SOON = {
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
    "restart-strategy.exponential-delay.max-backoff": "10 ms",
}


def learnt(*names: str) -> m.GraphLearnt:
    return m.GraphLearnt([{"name": name} for name in names])


def starts(driver: Driver, *names: str) -> None:
    driver.heard(learnt(*names))
    for name in names:
        driver.heard(m.QueryMoved(name, 1, QueryState.STARTING))
        driver.heard(m.QueryStarted(name, 1, -1))


def refuses(driver: Driver, message: m.Message) -> None:
    """Query rows fails at batch 37, and at each restart again, before it runs; counts is fine."""
    if isinstance(message, m.StartAttempt):
        starts(driver, "counts", "rows")
        driver.heard(m.QueryFailed("rows", 1, 37, REFUSED))
    elif isinstance(message, m.RestartQuery):
        driver.heard(m.QueryFailed(message.query, 2, 37, REFUSED, started=False))


@pytest.fixture
def soon(drivers: list[Driver], tmp_path: Path) -> Run:
    return Run(tmp_path, SOON)


def standing(run: Run) -> dict[str, dict[str, str]]:
    return dict(run.events("queries")[-1])


def test_a_row_that_is_refused_again_ends_its_query_and_the_others_run(
    soon: Run, drivers: list[Driver]
) -> None:
    Driver.scripts = [refuses]

    def steps(client: Client) -> None:
        client.wait_for(lambda: "DEGRADED 1" in soon.told.states)
        client.wait_for(lambda: drivers[0].heard_of(m.GiveUpQuery))
        found = standing(soon)
        assert (found["counts"]["state"], found["rows"]["state"]) == ("RUNNING", "FAILED")
        assert "2 times at batch 37" in found["rows"]["reason"] and found["rows"]["what"] == REFUSED.what

    assert soon(steps) is JobState.CANCELED
    assert len(drivers) == 1 and drivers[0].heard_of(m.GiveUpQuery)[0].query == "rows"
    assert any("query rows is FAILED" in note and "continue" in note for note in soon.told.notes)
    assert [one["batch"] for one in soon.events("failure")] == [37, 37]


def test_when_the_rest_has_ended_a_job_with_a_failed_query_is_failed(soon: Run) -> None:
    def script(driver: Driver, message: m.Message) -> None:
        refuses(driver, message)
        if isinstance(message, m.GiveUpQuery):
            driver.heard(m.QueryEnded("counts", 1, 5))
            driver.heard(m.Ended(False))
            driver.heard(None)

    Driver.scripts = [script]
    state, failure = soon.alone()
    assert state is JobState.FAILED and failure is not None
    assert (failure.what, failure.exit_code) == (REFUSED.what, 2)
    assert soon.told.states[-3:] == ["DEGRADED 1", "FAILING 1", "FAILED 1"]


def test_the_only_query_that_is_left_ends_the_job_with_it(soon: Run) -> None:
    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "rows")
            driver.heard(m.QueryFailed("rows", 1, 37, REFUSED))
        elif isinstance(message, m.RestartQuery):
            driver.heard(m.QueryFailed("rows", 2, 37, REFUSED))

    Driver.scripts = [script]
    assert soon.alone()[0] is JobState.FAILED


def test_with_output_that_is_shown_together_one_failed_query_ends_the_job(
    drivers: list[Driver], tmp_path: Path
) -> None:
    Driver.scripts = [refuses]
    assert Run(tmp_path, {**SOON, "sink.commit": "checkpoint"}).alone()[0] is JobState.FAILED


def test_a_job_is_running_only_when_all_its_queries_are(soon: Run, drivers: list[Driver]) -> None:
    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(learnt("counts", "rows"))
            driver.heard(m.QueryMoved("counts", 1, QueryState.STARTING))
            driver.heard(m.QueryStarted("counts", 1, -1))
            driver.heard(m.QueryFailed("rows", 1, 0, OUTAGE, started=False))
            driver.heard(m.Noted("one of two runs"))
        elif isinstance(message, m.RestartQuery):
            assert "RUNNING 1" not in soon.told.states
            driver.heard(m.QueryStarted("rows", 2, -1))

    Driver.scripts = [script]

    def steps(client: Client) -> None:
        client.wait_for(lambda: drivers[0].heard_of(m.RestartQuery))

    assert soon(steps) is JobState.CANCELED
    assert soon.told.states[:3] == ["STARTING 1", "RESTARTING 1", "RUNNING 1"]
    assert len(drivers) == 1, "the outage of one sink is no failure of the driver"


def test_a_bounded_query_that_waits_for_its_streams_does_not_keep_a_job_from_running(soon: Run) -> None:
    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(learnt("stream", "sums"))
            driver.heard(m.QueryStarted("stream", 1, -1))
            driver.heard(m.QueryMoved("sums", 1, QueryState.WAITING))
            driver.heard(m.QueryStarted("stream", 1, -1))

    Driver.scripts = [script]
    assert soon(lambda client: None) is JobState.CANCELED


def test_one_death_of_the_jvm_is_one_failure_however_many_queries_notice_it(
    soon: Run, drivers: list[Driver]
) -> None:
    names = ["a", "b", "c", "d", "e"]

    def dies(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, *names)
            for name in names:
                driver.heard(m.QueryFailed(name, 1, 3, DEAD))

    def lives(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, *names)

    Driver.scripts = [dies, lives]
    assert soon(lambda client: client.wait_for(lambda: "RUNNING 2" in soon.told.states)) is JobState.CANCELED
    assert len(soon.events("failure")) == len(soon.events("restart")) == 1
    assert drivers[1].heard_of(m.StartAttempt)[0].again, "the job has run before"


def test_one_cause_in_several_queries_delays_each_by_its_own_back_off(
    drivers: list[Driver], tmp_path: Path
) -> None:
    names = [f"q{number}" for number in range(8)]

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, *names)
            for name in names:
                driver.heard(m.QueryFailed(name, 1, 3, OUTAGE))
        elif isinstance(message, m.RestartQuery):
            driver.heard(m.QueryStarted(message.query, 2, 2))

    Driver.scripts = [script]
    run = Run(tmp_path, {"restart-strategy.exponential-delay.initial-backoff": "200 ms"})
    run(lambda client: client.wait_for(lambda: run.told.states.count("RUNNING 1") == 2))
    waits = [float(one["delay"]) for one in run.events("restart")]
    assert len(waits) == 8 and max(waits) <= 0.2 * 1.1, "nobody waits for the failures of the others"
    assert [one["same_cause"] for one in run.events("restart")] == [False, *[True] * 7]


def test_an_error_that_comes_back_at_every_start_ends_the_job_with_the_way_out(
    drivers: list[Driver], tmp_path: Path
) -> None:
    def first(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts")
            driver.heard(None)

    def fails(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(m.DriverFailed(INSIDE))
            driver.heard(None)

    Driver.scripts = [first, fails]
    run = Run(tmp_path, {**SOON, "restart-strategy.crash-loop.attempts": "4"})
    state, failure = run.alone()
    assert state is JobState.FAILED and len(drivers) == 5, "a death of the driver is an outage"
    assert failure is not None and "weir restore wordcount latest" in failure.hint
    assert any("inside weir, because Expecting value" in note for note in run.told.notes), "with its reason"


def test_a_committed_batch_ends_a_crash_loop(drivers: list[Driver], tmp_path: Path) -> None:
    def goes_on(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts")
            driver.heard(m.BatchCommitted("counts", 1, len(drivers), 1, 0.1))
            driver.heard(m.DriverFailed(INSIDE))
            driver.heard(None)

    def ends(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(m.Ended(False))
            driver.heard(None)

    Driver.scripts = [*[goes_on] * 6, ends]
    run = Run(tmp_path, {**SOON, "restart-strategy.crash-loop.attempts": "2"})
    assert run.alone()[0] is JobState.FINISHED and len(drivers) == 7


BUG = m.Failure("the author's code failed", domain=Domain.USER, error="ValueError", exit_code=2)


@pytest.mark.parametrize("failure", [INSIDE, BUG])
@pytest.mark.parametrize("idle", [True, False])
def test_failures_that_a_quiet_time_separates_are_no_crash_loop(
    drivers: list[Driver], tmp_path: Path, failure: m.Failure, idle: bool
) -> None:
    """A query that waits for input commits nothing: its batch stays the same, however well it runs."""
    runs = iter(range(6))

    def fails_later(driver: Driver) -> None:
        threading.Event().wait(0.1)
        driver.heard(m.QueryFailed("counts", 1, 7, failure))

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts")
        elif isinstance(message, m.RestartQuery):
            driver.heard(m.QueryStarted("counts", 1, 6))
        if isinstance(message, m.StartAttempt | m.RestartQuery) and next(runs, None) is None:
            driver.heard(m.QueryEnded("counts", 1, 7))
            driver.heard(m.Ended(False))
            driver.heard(None)
        elif isinstance(message, m.StartAttempt | m.RestartQuery):
            if idle:
                driver.heard(m.QueryIdle("counts"))
            threading.Thread(target=fails_later, args=(driver,)).start()

    Driver.scripts = [script]
    quiet = {"restart-strategy.exponential-delay.reset-backoff-threshold": "50 ms"}
    run = Run(tmp_path, {**SOON, **quiet, "restart-strategy.crash-loop.attempts": "2"})
    assert run.alone()[0] is (JobState.FINISHED if idle else JobState.FAILED)
    assert len(run.events("failure")) == (6 if idle else 2)


def test_what_fails_at_the_first_start_of_a_new_job_is_not_tried_again(
    soon: Run, drivers: list[Driver]
) -> None:
    def fails(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(m.DriverFailed(INSIDE))
            driver.heard(None)

    Driver.scripts = [fails]
    assert soon.alone()[0] is JobState.FAILED and len(drivers) == 1


def test_a_query_that_spark_refuses_ends_a_new_job_and_no_running_one(
    soon: Run, drivers: list[Driver]
) -> None:
    refused = m.Failure("code of the job raised AnalysisException", domain=Domain.USER, retry=False)

    def at_first(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(learnt("counts", "rows"))
            driver.heard(m.QueryStarted("counts", 1, -1))
            driver.heard(m.QueryFailed("rows", 1, 0, refused, started=False))

    Driver.scripts = [at_first]
    assert soon.alone()[0] is JobState.FAILED


def test_a_query_that_can_not_be_fixed_by_a_retry_fails_alone_when_the_job_has_run(
    soon: Run, drivers: list[Driver]
) -> None:
    gone = m.Failure("the table lacks a column", domain=Domain.USER, error="SinkMismatchError", retry=False)

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts", "rows")
            driver.heard(m.QueryFailed("rows", 1, 4, gone))

    Driver.scripts = [script]
    assert soon(lambda client: client.wait_for(lambda: "DEGRADED 1" in soon.told.states)) is JobState.CANCELED
    assert drivers[0].heard_of(m.RestartQuery) == []


def test_a_new_driver_tries_a_failed_query_once_more(soon: Run, drivers: list[Driver]) -> None:
    def dies(driver: Driver, message: m.Message) -> None:
        refuses(driver, message)
        if isinstance(message, m.GiveUpQuery):
            driver.heard(None)

    Driver.scripts = [dies, refuses]
    assert soon(lambda client: client.wait_for(lambda: "DEGRADED 2" in soon.told.states)) is JobState.CANCELED
    assert drivers[1].heard_of(m.RestartQuery) == [], "it is the same batch again"


def test_without_restarts_the_first_failure_of_a_query_ends_the_job(
    drivers: list[Driver], tmp_path: Path
) -> None:
    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts", "rows")
            driver.heard(m.QueryFailed("rows", 1, 4, OUTAGE))

    Driver.scripts = [script]
    state, failure = Run(tmp_path, {"restart-strategy.type": "none"}).alone()
    assert state is JobState.FAILED and failure == OUTAGE


def test_a_query_that_has_used_up_its_restarts_fails_alone(drivers: list[Driver], tmp_path: Path) -> None:
    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts", "rows")
            driver.heard(m.QueryFailed("rows", 1, 4, OUTAGE))
        elif isinstance(message, m.RestartQuery):
            driver.heard(m.QueryFailed("rows", 2, 4, OUTAGE, started=False))

    Driver.scripts = [script]
    settings = {"type": "fixed-delay", "fixed-delay.attempts": "2", "fixed-delay.delay": "10 ms"}
    run = Run(tmp_path, {f"restart-strategy.{key}": value for key, value in settings.items()})
    assert run(lambda client: client.wait_for(lambda: "DEGRADED 1" in run.told.states)) is JobState.CANCELED
    assert len(drivers[0].heard_of(m.RestartQuery)) == 2
