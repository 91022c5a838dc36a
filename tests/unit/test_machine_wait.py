"""Restarts that wait for the machine: the real supervisor over played drivers, and the real probe."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from tests.fake_job import FakeJob, Weir
from tests.played_driver import Client, Driver, PlayedProbe, Run
from weir.clock import Clock
from weir.errors import Domain
from weir.monitor.figures import figures
from weir.monitor.report import report
from weir.protocol import messages as m
from weir.protocol.machine import SPARKS_LIMIT, Gate
from weir.protocol.states import JobState
from weir.supervisor.machine import MachineProbe

LATE = m.Failure(
    "a Python process that Spark started did not answer within 10 s",
    domain=Domain.MACHINE,
    error="LateProcessError",
    exit_code=3,
)
OUTAGE = m.Failure("the database is away", domain=Domain.EXTERNAL, error="DatabaseError", exit_code=3)
ONCE = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "10 ms",
}


def starts(driver: Driver, *names: str) -> None:
    driver.heard(m.GraphLearnt([{"name": name} for name in names]))
    for name in names:
        driver.heard(m.QueryStarted(name, 1, -1))


def fails(times: int, failure: m.Failure = LATE, *names: str) -> object:
    """Every query fails that often, and runs then."""
    queries = names or ("counts",)
    left = dict.fromkeys(queries, times)

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, *queries)
            due = list(queries)
        elif isinstance(message, m.RestartQuery):
            driver.heard(m.QueryStarted(message.query, 2, -1))
            due = [message.query]
        else:
            return
        for query in due:
            left[query] -= 1
            if left[query] >= 0:
                driver.heard(m.QueryFailed(query, 1, 0, failure))

    return script


def runs_again(run: Run, times: int) -> object:
    return lambda client: client.wait_for(lambda: run.told.states.count("RUNNING 1") > times)


def test_a_query_starts_again_when_the_machine_can_start_a_process_in_time(
    drivers: list[Driver], tmp_path: Path
) -> None:
    Driver.scripts = [fails(3)]  # type: ignore[list-item]
    PlayedProbe.takes = [SPARKS_LIMIT, 7.0]
    run = Run(tmp_path, ONCE)

    def steps(client: Client) -> None:
        client.wait_for(lambda: run.events("queries")[-1]["counts"]["waits_for"] == "machine")
        assert run.told.states[-1] == "RESTARTING 1"
        PlayedProbe.takes = [1.0]
        client.wait_for(lambda: run.told.states.count("RUNNING 1") > 3)
        assert run.events("queries")[-1]["counts"]["waits_for"] == ""

    assert run(steps) is JobState.CANCELED, "the one restart of its own does not count"
    assert len(drivers[0].heard_of(m.RestartQuery)) == 3
    assert [one["machine"] for one in run.events("restart")] == [True] * 3
    assert [note for note in run.told.notes if "the machine can't start a Python process within 5 s" in note]
    assert [note for note in run.told.notes if "at the soonest, when the machine can start" in note]
    clock = Clock()
    counted = {one.name: one.value for one in figures(str(tmp_path), "wordcount", clock)}
    assert counted["weir_machine_failures_total"] == counted["weir_failures_total"] == 3
    assert report(str(tmp_path), "wordcount", clock).machine_restarts == 3


def test_an_outage_waits_for_no_machine(drivers: list[Driver], tmp_path: Path) -> None:
    Driver.scripts = [fails(1, OUTAGE)]  # type: ignore[list-item]
    PlayedProbe.takes = [SPARKS_LIMIT]
    run = Run(tmp_path, ONCE)
    assert run(runs_again(run, 1)) is JobState.CANCELED  # type: ignore[arg-type]
    assert PlayedProbe.started == 0
    counted = {one.name: one.value for one in figures(str(tmp_path), "wordcount", Clock())}
    assert (counted["weir_machine_failures_total"], counted["weir_failures_total"]) == (0, 1)


def test_a_machine_that_stays_slow_is_tried_all_the_same_after_a_while(
    drivers: list[Driver], tmp_path: Path
) -> None:
    Driver.scripts = [fails(1)]  # type: ignore[list-item]
    PlayedProbe.takes = [SPARKS_LIMIT]
    run = Run(tmp_path, {"restart-strategy.machine-failures.max-wait": "300 ms"})
    assert run(runs_again(run, 1)) is JobState.CANCELED  # type: ignore[arg-type]
    assert [note for note in run.told.notes if "is tried all the same" in note]


def test_a_job_that_the_machine_can_not_run_ends_with_what_to_do(
    drivers: list[Driver], tmp_path: Path
) -> None:
    Driver.scripts = [fails(100)]  # type: ignore[list-item]
    run = Run(tmp_path, {**ONCE, "restart-strategy.machine-failures.timeout": "1 ms"})
    state, failure = run.alone()
    assert state is JobState.FAILED and failure is not None
    assert (failure.what, failure.exit_code) == (LATE.what, 3)
    assert "more cores or memory" in failure.hint
    assert len(run.events("failure")) == 11, "ten tries, whatever the time"
    assert "11 failures, and no batch was committed in between" in run.events("gave up")[0]["reason"]


def test_a_driver_starts_again_when_the_machine_is_able_to(drivers: list[Driver], tmp_path: Path) -> None:
    gone = m.Failure("the machine could not start a thread", domain=Domain.MACHINE, redeploy=True)

    def dies(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts")
            driver.heard(m.QueryFailed("counts", 1, 0, gone))

    def lives(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, "counts")

    Driver.scripts = [dies, lives]
    PlayedProbe.takes = [SPARKS_LIMIT, SPARKS_LIMIT, 1.0]
    run = Run(tmp_path, ONCE)
    assert run(lambda client: client.wait_for(lambda: "RUNNING 2" in run.told.states)) is JobState.CANCELED
    assert PlayedProbe.started >= 3 and len(drivers) == 2


def test_after_a_failure_of_all_the_queries_come_back_one_after_the_other(
    drivers: list[Driver], tmp_path: Path
) -> None:
    names = [f"q{number}" for number in range(5)]
    asked: list[list[str]] = []

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            starts(driver, *names)
            for name in names:
                driver.heard(m.QueryFailed(name, 1, 0, LATE))
        elif isinstance(message, m.RestartQuery):
            asked[-1].append(message.query)

    def steps(client: Client) -> None:
        for _ in names:
            asked.append([])
            client.wait_for(lambda: asked[-1])
            threading.Event().wait(0.3)  # in which others would begin, if they might
            (name,) = asked[-1]
            drivers[0].heard(m.QueryStarted(name, 2, -1))

    Driver.scripts = [script]
    assert Run(tmp_path, {})(steps) is JobState.CANCELED
    assert sorted(name for some in asked for name in some) == names


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python whose processes come up as soon as the file `slow` is gone."""
    file, slow = tmp_path / "python", tmp_path / "slow"
    file.write_text(f'#!/bin/sh\nwhile [ -e "{slow}" ]; do sleep 0.05; done\nexit 0\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PYSPARK_PYTHON", str(file))
    slow.touch()
    return slow


def test_a_process_that_comes_up_opens_the_gate(python: Path) -> None:
    python.unlink()
    probe, clock = MachineProbe(), Clock()
    found: list[Gate] = []
    while not found or found[-1] is not Gate.OPEN:
        assert len(found) < 500
        found.append(probe.gate(0.0, clock.monotonic(), 300.0))
        threading.Event().wait(0.02)
    assert found[0] is Gate.PROBE and found.count(Gate.PROBE) == 1, "one process, however often it is asked"
    assert probe.newest is not None and probe.newest.in_time


def test_a_process_that_comes_too_late_is_ended_and_the_machine_left_alone(python: Path) -> None:
    probe = MachineProbe()
    assert probe.gate(0.0, 0.0, 300.0) is Gate.PROBE
    assert probe.gate(1.0, 1.0, 300.0) is Gate.SHUT
    process = probe._process
    assert process is not None and process.poll() is None
    assert probe.gate(11.0, SPARKS_LIMIT + 1, 300.0) is Gate.SHUT
    assert process.poll() is not None, "it is ended, and does not load the machine any more"
    assert probe.newest is not None and not probe.newest.came_up
    assert probe.gate(20.0, SPARKS_LIMIT + 10, 300.0) is Gate.SHUT
    assert probe.gate(40.0, 3.5 * SPARKS_LIMIT, 300.0) is Gate.PROBE
    assert probe.gate(None, 40.0, 300.0) is Gate.OPEN, "nothing waits any more"
    assert probe._process is None


def test_a_machine_without_processes_is_not_able(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "none"))
    probe = MachineProbe()
    assert probe.gate(0.0, 0.0, 300.0) is Gate.PROBE
    assert probe.newest is not None and not probe.newest.came_up
    assert probe.gate(1.0, 1.0, 300.0) is Gate.SHUT


def test_status_shows_what_waits_for_the_machine(weir: Weir, tmp_path: Path) -> None:
    job = FakeJob(tmp_path).state("RESTARTING").batch(7, "counts")
    job.queries(what=LATE.what, waits_for="machine", counts="RUNNING", rows="RESTARTING")
    job.event("restart", {"delay": 5.0, "query": "rows", "same_cause": False, "machine": True}, "rows")
    job.event("restart", {"delay": 1.0, "query": "rows", "same_cause": False}, "rows")
    dir = ("--dir", str(tmp_path))
    shown = weir("status", "wordcount", *dir).out
    assert "rows starts again when the machine can start a process in time: a Python process" in shown
    assert "2 restarts, 1 of them because of the machine" in shown
    found = weir("status", "wordcount", "--json", *dir).json
    assert (found["restarts"], found["machine_restarts"]) == (2, 1)
    assert [one["waits_for"] for one in found["queries"]] == [None, "machine"]
    assert "rows is RESTARTING, waits for the machine" in weir("list", *dir).out
