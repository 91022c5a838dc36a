"""Savepoints of a running job, and its stop with one: the real supervisor, and drivers that play along."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.played_driver import Client, Driver, Run, Script, answers, plays_along
from weir.protocol import messages as m
from weir.protocol.states import JobState

SAVED: dict[str, Any] = {"id": 8, "path": "/saved/wordcount-8", "seconds": 1.5, "bytes": 900}
AT_ONCE = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "restart-strategy.fixed-delay.attempts": "5",
}


def stops(*behind: m.Message, done: bool = True, **body: Any) -> Script:
    """Ends its queries when it is asked to stop, says what is given, answers, and ends."""

    def script(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask) and message.verb == "stop":
            driver.heard(m.SavepointProgress(message.request, "end"))
            for report in behind:
                driver.heard(report)
            driver.heard(m.Answered(message.request, done, body))
            driver.heard(m.Ended(False))
            driver.heard(None)

    return script


def test_a_stop_is_answered_with_the_savepoint_when_the_job_has_finished(
    run: Run, drivers: list[Driver]
) -> None:
    taken = m.SavepointTaken(8, "/saved/wordcount-8", "stop", "ada@engine", 1.5, 900)
    failed = m.QueryFailed("counts", 1, 9, m.Failure("it was cut off"))
    Driver.scripts = [stops(failed, taken, **SAVED)]

    def steps(client: Client) -> None:
        answer = client.call("stop", savepoint=True, path="/saved", drain=True, by="ada@engine")
        assert answer == {"done": True, "state": "FINISHED", **SAVED}

    assert run(steps) is JobState.FINISHED
    (ask,) = drivers[0].heard_of(m.Ask)
    assert (ask.arguments["path"], ask.arguments["drain"], ask.arguments["seconds"]) == ("/saved", True, 180)
    assert run.events("savepoint taken") == [asdict(taken)]
    assert "savepoint /saved/wordcount-8 was taken in 1.5 s" in run.told.notes
    assert run.events("restart") == [] and len(run.events("failure")) == 1
    assert run.told.states[-1] == "FINISHED 1"


def dies(*before: m.Message, saved: bool) -> Script:
    """Is asked to stop, and dies before it says that it has ended: behind its answer, or without one."""

    def script(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask) and message.verb == "stop":
            driver.heard(m.SavepointProgress(message.request, "end"))
            if saved:
                driver.heard(m.Answered(message.request, True, SAVED))
            for report in before:
                driver.heard(report)
            driver.heard(None)

    return script


@pytest.mark.parametrize(
    "before",
    [
        [],
        [m.DriverFailed(m.Failure("it broke"))],
        [m.DriverFailed(m.Failure("it can't be mended", retry=False))],
        [m.QueryFailed("counts", 1, 9, m.Failure("the session is gone", redeploy=True))],
    ],
)
def test_a_driver_that_dies_behind_the_savepoint_of_a_stop_ends_the_job_as_stopped(
    before: list[m.Message], tmp_path: Path, drivers: list[Driver]
) -> None:
    run = Run(tmp_path, AT_ONCE)
    Driver.scripts = [dies(*before, saved=True), plays_along]

    def steps(client: Client) -> None:
        assert client.call("stop", savepoint=True) == {"done": True, "state": "FINISHED", **SAVED}

    assert run(steps) is JobState.FINISHED
    assert len(drivers) == 1 and run.events("restart", "gave up") == []
    assert len(run.events("failure")) == 1
    assert any(note.endswith("the job was stopped before that, and ends") for note in run.told.notes)


def test_a_driver_that_dies_before_the_savepoint_of_a_stop_is_restarted_and_the_job_is_whole_again(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    run = Run(tmp_path, AT_ONCE)
    Driver.scripts = [dies(saved=False), answers(True, id=9)]

    def steps(client: Client) -> None:
        refused = {"done": False, "reason": "its driver ended before it could answer"}
        assert client.call("stop", savepoint=True) == refused
        client.wait_for(lambda: "RUNNING 2" in run.told.states)
        assert client.call("checkpoint") == {"done": True, "id": 9}

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 2


def test_a_detached_stop_whose_driver_dies_before_the_savepoint_is_told(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    run = Run(tmp_path, AT_ONCE)
    Driver.scripts = [dies(saved=False), plays_along]

    def steps(client: Client) -> None:
        assert client.call("stop", savepoint=True, detached=True)["done"]
        client.wait_for(lambda: "RUNNING 2" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert "the job was not stopped: its driver ended before it could answer" in run.told.notes


def test_a_detached_stop_is_answered_at_once_and_goes_on(run: Run, drivers: list[Driver]) -> None:
    Driver.scripts = [stops(**SAVED)]

    def steps(client: Client) -> None:
        assert client.call("stop", savepoint=True, detached=True) == {"done": True, "detached": True}
        client.wait_for(lambda: "FINISHED 1" in run.told.states)

    assert run(steps) is JobState.FINISHED


def test_a_detached_stop_that_fails_is_told(run: Run) -> None:
    told = "the job was not stopped: the disk is full"
    Driver.scripts = [stops(done=False, reason="the disk is full", ended=True), plays_along]

    def steps(client: Client) -> None:
        assert client.call("stop", savepoint=True, detached=True)["done"]
        client.wait_for(lambda: told in run.told.notes)

    assert run(steps) is JobState.CANCELED


def test_a_stop_that_fails_before_the_end_leaves_the_job_running(run: Run, drivers: list[Driver]) -> None:
    Driver.scripts = [answers(False, reason="the disk is full", ended=False)]

    def steps(client: Client) -> None:
        assert client.call("stop", savepoint=True) == {
            "done": False,
            "reason": "the disk is full",
            "ended": False,
        }
        assert client.call("checkpoint")["reason"] == "the disk is full"

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 1 and len(drivers[0].heard_of(m.Ask)) == 2


def test_a_stop_that_fails_behind_the_end_is_followed_by_another_driver_at_once(
    run: Run, drivers: list[Driver]
) -> None:
    Driver.scripts = [stops(done=False, reason="the disk is full", ended=True), plays_along]

    def steps(client: Client) -> None:
        assert client.call("stop", savepoint=True)["done"] is False
        client.wait_for(lambda: "RUNNING 2" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert run.told.states[1:5] == ["RUNNING 1", "RESTARTING 1", "STARTING 2", "RUNNING 2"]
    assert run.events("failure", "restart") == [] and len(drivers) == 2


def test_while_a_job_drains_a_query_is_restarted_and_nothing_else_is_taken_on(
    run: Run, drivers: list[Driver]
) -> None:
    run_ = Run(run.dir, {"restart-strategy.fixed-delay.delay": "10 ms"})
    answered = []

    def drains(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask) and message.verb == "stop":
            driver.heard(m.SavepointProgress(message.request, "drain"))
            driver.heard(m.QueryFailed("counts", 1, 9, m.Failure("it broke")))

    Driver.scripts = [drains]

    def steps(client: Client) -> None:
        wish = client.ask("stop", savepoint=True, drain=True)
        client.wait_for(lambda: drivers[0].heard_of(m.RestartQuery))
        for verb in ("checkpoint", "savepoint", "stop", "restore"):
            given = {"point": "chk-41"} if verb == "restore" else {}
            assert client.call(verb, **given) == {"done": False, "reason": "it is ending"}
        client.ask("cancel")
        answered.append(client.answer(wish))

    assert run_(steps) is JobState.CANCELED
    assert answered == [{"done": False, "reason": "its driver ended before it could answer"}]


def test_a_cancel_while_a_job_is_stopped_ends_it_without_another_driver(
    run: Run, drivers: list[Driver]
) -> None:
    answered = []

    def gives_up(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask):
            driver.heard(m.SavepointProgress(message.request, "copy", 10, 100))
        if isinstance(message, m.StopQueries):
            (ask,) = driver.heard_of(m.Ask)
            driver.heard(m.Answered(ask.request, False, {"reason": "the job was ended", "ended": True}))

    Driver.scripts = [gives_up]

    def steps(client: Client) -> None:
        wish = client.ask("stop", savepoint=True)
        client.wait_for(lambda: drivers[0].heard_of(m.Ask))
        client.ask("cancel")
        answered.append(client.answer(wish)["reason"])

    assert run(steps) is JobState.CANCELED
    assert answered == ["the job was ended"] and len(drivers) == 1


def test_a_savepoint_is_asked_of_the_driver_and_how_far_it_is_can_be_seen(
    run: Run, drivers: list[Driver]
) -> None:
    failed = m.SavepointFailed("/full", "schedule", "ada@engine", 0.5, "the disk is full")

    def saves(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask):
            for done in (10, 100):
                driver.heard(m.SavepointProgress(message.request, "copy", done, 100))
            driver.heard(failed)
            driver.heard(m.SavepointsDeleted(["/saved/wordcount-1"]))
            driver.heard(m.Answered(message.request, True, SAVED))

    Driver.scripts = [saves]

    def steps(client: Client) -> None:
        assert client.call("savepoint", path="/saved", detached=False) == {"done": True, **SAVED}
        assert client.call("savepoint", path="/saved", detached=True) == {"done": True, "detached": True}
        client.wait_for(lambda: len(drivers[0].heard_of(m.Ask)) == 2)

    assert run(steps) is JobState.CANCELED
    (progress,) = run.events("savepoint progress")
    assert (progress["phase"], progress["done_bytes"], progress["full_bytes"]) == ("copy", 100, 100)
    assert run.events("savepoint failed")[0] == asdict(failed)
    assert "a savepoint was not taken: the disk is full" in run.told.notes
    assert "made room for newer savepoints: /saved/wordcount-1" in run.told.notes
