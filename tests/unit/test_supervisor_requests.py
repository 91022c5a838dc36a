"""Requests to a running job, from file to answer: the real supervisor, and a driver that plays along."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.full_disk import full_disk
from tests.played_driver import (
    JOB,
    RESTORED,
    Client,
    Driver,
    Run,
    answers,
    dies_when_asked,
    plays_along,
    restores,
)
from tests.web_site import ASKS, served, site
from weir.cli import main
from weir.cli.detach import Ready
from weir.clock import Clock, ManualClock
from weir.config import Config
from weir.errors import StorageError
from weir.ids import Attempt
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason
from weir.protocol.states import JobState
from weir.storage import paths
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.supervisor import loop
from weir.supervisor import requests as planning
from weir.supervisor.inbox import Desk, Requests

INTERVAL = "execution.checkpointing.interval"
COMPLETED = m.CheckpointCompleted(7, "aligned", "request", False, 0.5, 100, 900, subsumed=[4])


def test_a_checkpoint_is_asked_of_the_driver_and_its_answer_is_the_answer(
    run: Run, drivers: list[Driver]
) -> None:
    Driver.scripts = [answers(True, id=7, seconds=0.5)]

    def steps(client: Client) -> None:
        assert client.call("checkpoint", full=True) == {"done": True, "id": 7, "seconds": 0.5}

    assert run(steps) is JobState.CANCELED
    (ask,) = drivers[0].heard_of(m.Ask)
    assert (ask.verb, ask.arguments) == ("checkpoint", {"full": True})
    assert [stop.cancelled for stop in drivers[0].heard_of(m.StopQueries)] == [True]


def test_every_checkpoint_is_in_the_journal_and_only_trouble_is_a_line(run: Run) -> None:
    aborted = m.CheckpointAborted(6, "aligned", "interval", 2.0, AbortReason.STORAGE.value, "disk full")
    begun = m.CheckpointBegun(7, "aligned", "request")
    at_the_end = m.CheckpointAborted(8, "aligned", "interval", 0.1, AbortReason.STOPPING.value)

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            for report in (
                begun,
                aborted,
                at_the_end,
                COMPLETED,
                RESTORED,
                m.Noted("live files are damaged"),
            ):
                driver.heard(report)
        plays_along(driver, message)

    Driver.scripts = [script]
    run(lambda client: None)
    assert run.events("checkpoint begun") == [asdict(begun)]
    assert run.events("checkpoint completed") == [asdict(COMPLETED)]
    assert run.events("checkpoint aborted") == [asdict(aborted), asdict(at_the_end)]
    assert run.events("restored") == [asdict(RESTORED)]
    assert run.told.checkpoints == [7]
    assert run.told.notes[:3] == [
        "checkpoint 6 was aborted: its files could not be kept (disk full)",
        "restored from checkpoint 41 in 1.5 s, as generation 2: asked for",
        "live files are damaged",
    ]


def test_what_nobody_knows_and_what_is_meant_for_another_is_refused(run: Run, drivers: list[Driver]) -> None:
    def steps(client: Client) -> None:
        assert client.call("juggle") == {"done": False, "reason": "it does not know how to juggle"}
        late = client._requests.ask("cancel", "an earlier supervisor")
        assert client.answer(late)["gone"] is True

    assert run(steps) is JobState.CANCELED
    assert drivers[0].heard_of(m.Ask) == []


def test_a_driver_that_dies_or_does_not_run_answers_nothing_and_that_is_said(
    run: Run, drivers: list[Driver]
) -> None:
    Driver.scripts = [dies_when_asked]

    def steps(client: Client) -> None:
        first = client.call("checkpoint")
        assert first == {"done": False, "reason": "its driver ended before it could answer"}
        second = client.call("configure", settings={INTERVAL: "1 s"})
        assert second["done"] is False and "its driver is down" in second["reason"]

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 1


def test_a_signal_that_is_ignored_stays_ignored(run: Run, drivers: list[Driver]) -> None:
    Driver.scripts = [answers(True)]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def steps(client: Client) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        assert client.call("checkpoint")["done"]

    assert run(steps) is JobState.CANCELED
    assert run.events("cancel") == [{"by": "cancel request"}]


def fails_twice(driver: Driver, message: m.Message) -> None:
    """Two queries fail at one time when it is asked; each commits when the other one has started again."""
    answers(True)(driver, message)
    if isinstance(message, m.Ask):
        for query in ("left", "right"):
            driver.heard(m.QueryFailed(query, 1, 3, m.Failure(f"{query} broke", retry=True)))
    restarted = [one.query for one in driver.heard_of(m.RestartQuery)]
    if isinstance(message, m.RestartQuery):
        driver.heard(m.StepDone("reset sinks", 2.0 if message.query == "left" else 5.0, message.query))
        driver.heard(m.QueryStarted(message.query, 2, 3))
        for query in restarted if len(restarted) == 2 else ():
            driver.heard(m.BatchCommitted(query, 2, 4, 10, 0.1, at="t"))


def test_two_queries_that_fail_at_one_time_have_a_recovery_each(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    Driver.scripts = [fails_twice]
    delay = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}
    run = Run(tmp_path, {**delay, "restart-strategy.fixed-delay.attempts": "5"})

    def steps(client: Client) -> None:
        client.call("checkpoint")
        client.wait_for(lambda: len(run.events("recovery")) == 2)

    assert run(steps) is JobState.CANCELED
    found = {body["query"]: body for body in run.events("recovery")}
    assert {query: body["cause"] for query, body in found.items()} == {
        "left": "left broke",
        "right": "right broke",
    }
    assert {query: body["parts"]["reset sinks"] for query, body in found.items()} == {"left": 2, "right": 5}
    assert len(drivers) == 1


def fails_for_good(driver: Driver, message: m.Message) -> None:
    plays_along(driver, message)
    if isinstance(message, m.StartAttempt):
        driver.heard(m.QueryFailed("counts", 1, 3, m.Failure("counts broke", retry=False)))


def test_a_job_that_fails_is_not_cancelled_and_keeps_its_checkpoints(run: Run, drivers: list[Driver]) -> None:
    Driver.scripts = [fails_for_good]
    state, failure = run.alone()
    assert state is JobState.FAILED and failure is not None and failure.what == "counts broke"
    assert [stop.cancelled for stop in drivers[0].heard_of(m.StopQueries)] == [False]


def test_a_driver_may_load_slowly_and_may_not_be_silent(
    tmp_path: Path, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, "first", m.Ping(0))
    clock = ManualClock()
    run = Run(tmp_path, {"heartbeat.timeout": "20 s"}, clock)

    def steps() -> None:
        client = Client(tmp_path)
        client.wait_for(lambda: drivers)
        for _ in range(5):
            clock.advance(100)
            drivers[0].heard(m.Ping(0))
            client.wait_for(lambda: run.heard_at == clock.monotonic())
        clock.advance(121)

    thread = threading.Thread(target=steps)
    thread.start()
    state, failure = run.alone()
    thread.join()
    assert state is JobState.FAILED and failure is not None
    assert failure.what.endswith("has not answered for 121 s")


def says(driver: Driver, message: m.Message) -> None:
    answers(True)(driver, message)
    if isinstance(message, m.Ask):
        for number in range(200):
            driver.heard(m.BatchCommitted("counts", 1, number, 10, 0.1, at="t"))
            driver.heard(m.Noted("x" * 1000))
        driver.heard(m.Ping(1))
        driver.heard(m.Ping(2))


def test_a_full_disk_does_not_end_a_detached_supervisor_and_it_goes_on_when_there_is_room(
    run: Run, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Driver.scripts = [says]
    monkeypatch.setattr("os.dup2", lambda *_: None)
    ready = Ready(open(os.devnull, "wb"))  # noqa: SIM115  it closes it
    monkeypatch.setattr(run.told, "opened", ready.opened)

    def note(text: str) -> None:
        ready.note(text)
        run.told.notes.append(text)

    monkeypatch.setattr(run.told, "note", note)

    def steps(client: Client) -> None:
        wish = client.ask("checkpoint")
        with full_disk():
            client.wait_for(lambda: any("the beat could not be written" in note for note in run.told.notes))
        assert client.answer(wish)["done"]
        client.call("checkpoint")
        assert client.call("checkpoint")["done"]

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 1
    assert run.events("state")[-1] == {"state": "CANCELED"}
    log = (tmp_path / paths.logs(JOB) / "supervisor.log").read_text()
    assert "could not be kept here" in log


@pytest.mark.parametrize(("room", "what"), [(0, "create"), (2000, "open")])
def test_a_disk_that_is_full_at_the_start_is_an_error_with_words(
    room: int,
    what: str,
    tmp_path: Path,
    drivers: list[Driver],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without any room there is no attempt; with little there is no journal."""
    monkeypatch.setattr("weir.cli.run.require_spark", lambda: None)
    (tmp_path / "job.py").touch()
    dir = tmp_path / "data"
    with full_disk(room), pytest.raises(SystemExit) as end:
        main(["run", str(tmp_path / "job.py"), "--dir", str(dir), "-D", "rest.port=off"])
    said = capsys.readouterr().err
    assert end.value.code == 3
    assert f"error: the storage could not {what} {dir / JOB}" in said and "weir doctor" in said
    assert "Traceback" not in said
    if room:
        assert AttemptLock(LocalStore(dir), JOB, Clock()).last_beat(Attempt(1)).released


def test_a_driver_that_can_not_be_started_is_started_later(
    tmp_path: Path, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}
    run = Run(tmp_path, {**delay, "restart-strategy.fixed-delay.attempts": "5"})
    Driver.scripts = [dies_when_asked, plays_along]

    def refuses(*_: object) -> None:
        monkeypatch.setattr(loop, "DriverProcess", Driver)
        raise OSError(errno.EAGAIN, "no process is left")

    def steps(client: Client) -> None:
        monkeypatch.setattr(loop, "DriverProcess", refuses)
        client.call("checkpoint")
        client.wait_for(lambda: "RUNNING 2" in run.told.states)

    assert run(steps) is JobState.CANCELED
    failure = run.events("failure")[-1]
    assert failure["what"] == "the machine could not start a process" and failure["domain"] == "machine"
    assert "the driver could not be started: no process is left" in failure["why"]


def test_changed_settings_are_checked_taken_and_given_to_the_next_driver(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    Driver.scripts = [answers(True), restores]

    def steps(client: Client) -> None:
        refused = client.call("configure", settings={"execution.checkpointing.mode": "at_least_once"})
        assert refused["done"] is False and "on a running job only" in refused["why"]
        assert client.call("configure", settings={INTERVAL: "1500ms"})["done"]
        assert client.call("restore", point="latest")["done"]

    assert run(steps) is JobState.CANCELED
    (ask,) = drivers[0].heard_of(m.Ask)
    assert ask.arguments == {"settings": {INTERVAL: "1500ms"}}
    assert run.events("configured") == [{INTERVAL: "1500ms"}]
    assert f"{INTERVAL} = 1500 ms" in run.told.notes
    before, after = (Config.from_wire(one.heard_of(m.Prepare)[0].config).text(INTERVAL) for one in drivers)
    assert (before, after) == ("10 s", "1500 ms")


def test_a_request_of_an_earlier_version_can_be_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    old = json.dumps({"verb": "cancel", "session": "me"}).encode()
    store.create(f"{paths.requests(JOB)}/abc.json", old)
    (request,) = Requests(store, JOB).pending()
    assert (request.id, request.verb, request.arguments) == ("abc", "cancel", {})


def test_an_answer_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    class Full(LocalStore):
        full = True

        def put(self, key: str, data: bytes) -> None:
            if self.full:
                raise StorageError(verb="write", path=key, reason="no space", root=str(tmp_path))
            super().put(key, data)

    store = Full(tmp_path)
    requests = Requests(store, JOB)
    desk = Desk(requests, "me")
    identity = requests.ask("checkpoint", "me", {"full": True})
    (request,) = desk.arrived()
    assert desk.open("checkpoint") == [request] and desk.arrived() == []
    assert desk.answer(identity, True, id=7) == request
    assert desk.answer(identity, True, id=8) is None
    assert desk.arrived() == [] and requests.answer_to(identity) is None
    store.full = False
    assert desk.arrived() == []
    assert requests.answer_to(identity) == {"done": True, "id": 7}
    assert requests.pending() == []


def test_rest_beside_a_supervisor_asks_it_and_shows_what_it_has_told(
    run: Run, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {"name": "counts", "inputs": [], "sources": [], "channel": False, "sink": None, "output_mode": ""}

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.StartAttempt):
            driver.heard(m.GraphLearnt([query]))
        if isinstance(message, m.Ask) and message.verb == "checkpoint":
            driver.heard(COMPLETED)
        answers(True, id=7, seconds=0.5)(driver, message)

    Driver.scripts = [script]
    planned: list[Any] = []

    def child(module: str, request: dict[str, Any], *arguments: str) -> tuple[dict[str, Any], str]:
        planned.append((module, request["point"], arguments))
        error = {"what": "no", "why": "it has none", "hint": "take one", "exit_code": 2}
        return ({"text": "fits", "code": 0} if request["point"] == "chk-41" else {"error": error}), ""

    monkeypatch.setattr(planning, "ask_child", child)

    def steps(_: Client) -> None:
        with served(site(run.dir, JOB)) as url, httpx.Client(base_url=f"{url}/api/v1/jobs/{JOB}") as api:
            done = api.post("/checkpoints?wait=20", json={}, headers=ASKS).json()["data"]
            assert (done["status"], done["result"]["id"]) == ("done", 7)
            assert [one["id"] for one in api.get("/checkpoints").json()["data"]] == [7]
            assert api.get("/graph").json()["data"]["queries"][0]["query"] == "counts"
            changed = api.patch("/checkpoints/config", json={"settings": {INTERVAL: "3 s"}}, headers=ASKS)
            assert changed.status_code == 200
            rows = {one["key"]: one for one in api.get("/checkpoints/config").json()["data"]["settings"]}
            assert (rows[INTERVAL]["value"], rows[INTERVAL]["origin"]) == ("3 s", "request")
            plan = api.post("/plan?wait=20", json={"point": "41"}, headers=ASKS).json()["data"]
            assert plan["result"]["text"] == "fits"
            misfit = api.post("/plan?wait=20", json={"point": "latest"}, headers=ASKS)
            assert misfit.json()["error"] == {"what": "no", "why": "it has none", "hint": "take one"}
            refused = api.post("/restore?wait=20", json={"point": "chk-99"}, headers=ASKS)
            assert refused.status_code == 409 and "chk-99" in refused.json()["error"]["what"]

    assert run(steps) is JobState.CANCELED
    assert [ask.verb for ask in drivers[0].heard_of(m.Ask)] == ["checkpoint", "configure"]
    file = str(run.dir / "job.py")
    assert planned == [(planning.PLANNING, point, (file,)) for point in ("chk-41", "latest")]
