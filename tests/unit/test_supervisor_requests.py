"""Requests to a running job, from file to answer: the real supervisor, and a driver that plays along."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.full_disk import full_disk
from tests.web_site import ASKS, served, site
from weir.checkpoint.restore import Changes, From
from weir.cli import main
from weir.cli.detach import Ready
from weir.clock import Clock, ManualClock
from weir.config import Config
from weir.errors import NoSuchCheckpointError, StorageError
from weir.ids import Attempt, JobName, job_name
from weir.protocol import messages as m
from weir.protocol.checkpoints import AbortReason
from weir.protocol.states import JobState
from weir.storage import Store, paths
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.supervisor import loop, planning, restoring
from weir.supervisor.desk import Desk
from weir.supervisor.inputs import Inputs
from weir.supervisor.journal import History
from weir.supervisor.loop import Supervisor
from weir.supervisor.process import Heard, OutputFile
from weir.supervisor.requests import Requests
from weir.supervisor.telling import Watcher

JOB = job_name("wordcount")
INTERVAL = "execution.checkpointing.interval"
COMPLETED = m.CheckpointCompleted(7, "aligned", "request", False, 0.5, 100, 900, subsumed=[4])
RESTORED = m.Restored(41, 2, "asked for", 1.5)
Script = Callable[["Driver", m.Message], None]


class Driver:
    """In place of a driver process: describes the job, starts one query, ends when it is told to."""

    made: list[Driver]
    scripts: list[Script]
    """What each driver does besides; the last one goes for all that follow."""
    first: m.Message = m.Described(JOB, {})

    def __init__(self, file: Path, arguments: list[str], name: str, heard: Heard, show: object) -> None:
        self.heard = heard
        self.got: list[m.Message] = []
        self.group = 0
        self._script = self.scripts[min(len(self.made), len(self.scripts) - 1)]
        self.made.append(self)
        heard(self.first)

    def send(self, message: m.Message) -> None:
        self.got.append(message)
        self._script(self, message)
        if isinstance(message, m.Stop):
            self.heard(m.Ended(True))
            self.heard(None)

    def keep_output(self, output: OutputFile) -> None:
        output.close()

    def wait(self, seconds: float) -> int:
        return 0

    def end(self) -> int:
        return 0

    def heard_of(self, kind: type[m.Message]) -> list[Any]:
        return [message for message in self.got if isinstance(message, kind)]


def plays_along(driver: Driver, message: m.Message) -> None:
    if isinstance(message, m.Start):
        driver.heard(m.QueryStarted("counts", 1, -1))


def answers(done: bool, **body: Any) -> Script:
    def script(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask):
            driver.heard(m.Answered(message.request, done, body))

    return script


def restores(driver: Driver, message: m.Message) -> None:
    if isinstance(message, m.Start):
        driver.heard(RESTORED)
    plays_along(driver, message)


class Told(Watcher):
    def __init__(self) -> None:
        self.states: list[str] = []
        self.notes: list[str] = []
        self.checkpoints: list[int] = []

    def state(self, job: str, state: JobState, attempt: int) -> None:
        self.states.append(f"{state.value} {attempt}")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def checkpoint(self, completed: m.CheckpointCompleted) -> None:
        self.checkpoints.append(completed.id)


class Client:
    """Another process, played by a thread: asks and waits for answers."""

    def __init__(self, dir: Path) -> None:
        self._store = LocalStore(dir)
        self._requests = Requests(self._store, JOB)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        for _ in range(2000):
            if found := what():
                return found
            threading.Event().wait(0.01)
        raise AssertionError("it did not come")

    def ask(self, verb: str, **arguments: Any) -> str:
        newest = self.wait_for(lambda: AttemptLock(self._store, JOB, Clock()).newest())
        return self._requests.ask(verb, newest.session, arguments)

    def answer(self, identity: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.wait_for(lambda: self._requests.answer_to(identity))
        return answer

    def call(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.ask(verb, **arguments))


class Run:
    """One supervised job: the client's steps run beside it, and it is cancelled behind them."""

    def __init__(self, dir: Path, overrides: dict[str, str], clock: Clock | None = None) -> None:
        self.dir, self.told = dir, Told()
        settings = {"execution.checkpointing.dir": str(dir), **overrides}
        inputs = Inputs(dir / "job.py", [], None, {}, settings)
        self._supervisor = Supervisor(inputs, self.told, clock or Clock())

    @property
    def heard_at(self) -> float:
        """When the supervisor has heard from its driver."""
        return self._supervisor._live.heard_at if self._supervisor._live else 0.0

    def __call__(self, steps: Callable[[Client], None]) -> JobState:
        client = Client(self.dir)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                client.wait_for(lambda: "RUNNING 1" in self.told.states)
                steps(client)
            except BaseException as error:
                failed.append(error)
            finally:
                client.ask("cancel")

        thread = threading.Thread(target=work)
        thread.start()
        state, _ = self._supervisor.run()
        thread.join()
        if failed:
            raise failed[0]
        return state

    def alone(self) -> tuple[JobState, m.Failure | None]:
        """Run it without a client."""
        return self._supervisor.run()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        history = History(self.dir / paths.journal(JOB))
        try:
            return [event.body for event in history.events(*kinds)]
        finally:
            history.close()


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Driver]]:
    before = {number: signal.getsignal(number) for number in loop._SIGNALS.values()}
    monkeypatch.setattr(loop, "DriverProcess", Driver)
    monkeypatch.setattr(Driver, "made", [], raising=False)
    monkeypatch.setattr(Driver, "scripts", [plays_along], raising=False)
    yield Driver.made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The points that were intended; chk-99 is not there."""
    found: list[tuple[str, bool]] = []

    def intend(
        store: Store,
        job: JobName,
        point: str,
        *,
        accept_duplicates: bool,
        clock: Clock,
        why: str,
        changes: Changes,
        savepoint_dir: str,
    ) -> int:
        if point == "chk-99":
            raise NoSuchCheckpointError(job=job, point=point, reason="it is not there")
        found.append((point, accept_duplicates))
        return 2

    monkeypatch.setattr(restoring, "intend", intend)
    return found


@pytest.fixture
def run(tmp_path: Path, drivers: list[Driver]) -> Run:
    return Run(
        tmp_path, {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 h"}
    )


def test_a_checkpoint_is_asked_of_the_driver_and_its_answer_is_the_answer(
    run: Run, drivers: list[Driver]
) -> None:
    Driver.scripts = [answers(True, id=7, seconds=0.5)]

    def steps(client: Client) -> None:
        assert client.call("checkpoint", full=True) == {"done": True, "id": 7, "seconds": 0.5}

    assert run(steps) is JobState.CANCELED
    (ask,) = drivers[0].heard_of(m.Ask)
    assert (ask.verb, ask.arguments) == ("checkpoint", {"full": True})
    assert [stop.cancelled for stop in drivers[0].heard_of(m.Stop)] == [True]


def test_every_checkpoint_is_in_the_journal_and_only_trouble_is_a_line(run: Run) -> None:
    aborted = m.CheckpointAborted(6, "aligned", "interval", 2.0, AbortReason.STORAGE.value, "disk full")
    begun = m.CheckpointBegun(7, "aligned", "request")
    at_the_end = m.CheckpointAborted(8, "aligned", "interval", 0.1, AbortReason.STOPPING.value)

    def script(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.Start):
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


def dies_when_asked(driver: Driver, message: m.Message) -> None:
    plays_along(driver, message)
    if isinstance(message, m.Ask):
        driver.heard(None)


def test_a_driver_that_dies_or_does_not_run_answers_nothing_and_that_is_said(
    run: Run, drivers: list[Driver]
) -> None:
    Driver.scripts = [dies_when_asked]

    def steps(client: Client) -> None:
        first = client.call("checkpoint")
        assert first == {"done": False, "reason": "its driver ended before it could answer"}
        second = client.call("configure", settings={INTERVAL: "1 s"})
        assert second["done"] is False and "no driver of it runs now" in second["reason"]

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
    monkeypatch.setattr("weir.cli.run.require_java", lambda: None)
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
    assert "could not be started: no process is left" in run.events("failure")[-1]["what"]


def test_changed_settings_are_checked_taken_and_given_to_the_next_driver(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    Driver.scripts = [answers(True), restores]

    def steps(client: Client) -> None:
        refused = client.call("configure", settings={"execution.checkpointing.mode": "at_least_once"})
        assert refused["done"] is False and "on a running job only" in refused["why"]
        assert client.call("configure", settings={INTERVAL: "1500"})["done"]
        assert client.call("restore", point="latest")["done"]

    assert run(steps) is JobState.CANCELED
    (ask,) = drivers[0].heard_of(m.Ask)
    assert ask.arguments == {"settings": {INTERVAL: "1500"}}
    assert run.events("configured") == [{INTERVAL: "1500"}]
    assert f"{INTERVAL} = 1500 ms" in run.told.notes
    before, after = (Config.from_wire(one.heard_of(m.Prepare)[0].config).text(INTERVAL) for one in drivers)
    assert (before, after) == ("10 s", "1500 ms")


def test_a_restore_ends_the_driver_and_another_goes_on_at_once(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    Driver.scripts = [plays_along, restores]

    def steps(client: Client) -> None:
        answer = client.call("restore", point="chk-41", accept_duplicates=True)
        assert answer == {"done": True, **asdict(RESTORED)}
        client.wait_for(lambda: "RUNNING 2" in run.told.states)

    assert run(steps) is JobState.CANCELED
    assert points == [("chk-41", True)]
    assert [stop.cancelled for stop in drivers[0].heard_of(m.Stop)] == [False]
    assert run.told.states[1:5] == ["RUNNING 1", "RESTARTING 1", "STARTING 2", "RUNNING 2"]
    assert run.events("failure", "restart", "recovery") == []
    assert run.events("restore") == [{"point": "chk-41"}]


def test_a_restore_into_another_shape_gives_the_next_driver_its_settings(
    run: Run, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    Driver.scripts = [plays_along, restores]
    intended: list[dict[str, Any]] = []
    monkeypatch.setattr(restoring, "intend", lambda *_args, **given: intended.append(given))
    wanted = From("latest", changes=Changes(parallelism=8, allow_dropped=True))

    def steps(client: Client) -> None:
        assert client.call("restore", **wanted.to_wire())["done"]

    assert run(steps) is JobState.CANCELED
    assert intended[0]["changes"] == Changes(parallelism=8, allow_dropped=True, backend="rocksdb")
    before, after = (Config.from_wire(one.heard_of(m.Prepare)[0].config) for one in drivers)
    assert (before.settings.parallelism_default, after.settings.parallelism_default) == (None, 8)
    assert not after.explicit("state.backend.type")


def test_a_restore_that_is_refused_leaves_the_job_as_it_is(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    def steps(client: Client) -> None:
        answer = client.call("restore", point="chk-99")
        assert (answer["done"], answer["why"]) == (False, "it is not there")
        assert client.call("restore", point="chk-99")["done"] is False

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 1 and "RESTARTING 1" not in run.told.states


def test_a_restore_whose_driver_fails_answers_with_the_failure(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    failure = m.Failure("a file is gone", "somebody deleted it", "bring it back")

    def fails(driver: Driver, message: m.Message) -> None:
        if isinstance(message, m.Start):
            driver.heard(m.Failed(failure))
            driver.heard(None)

    Driver.scripts = [plays_along, fails]

    def steps(client: Client) -> None:
        answer = client.call("restore", point="latest")
        words = {"what": failure.what, "why": failure.why, "hint": failure.hint}
        assert answer == {"done": False, **words}

    assert run(steps) is JobState.CANCELED
    assert [body["what"] for body in run.events("failure")] == ["a file is gone"]


def test_a_job_that_waits_for_its_restart_goes_back_without_waiting(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    Driver.scripts = [dies_when_asked, restores]

    def steps(client: Client) -> None:
        client.call("checkpoint")
        assert client.call("restore", point="latest")["done"]

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 2


def test_a_driver_that_fails_on_its_way_out_is_no_failure_of_the_job(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    failure = m.Failure("it broke")

    def stumbles(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Stop):
            driver.heard(m.QueryFailed("counts", 1, 3, failure))
            driver.heard(m.QueryStarted("counts", 2, 3))
            driver.heard(m.Failed(replace(failure, redeploy=True)))
            driver.heard(None)

    Driver.scripts = [stumbles, restores]

    def steps(client: Client) -> None:
        assert client.call("restore", point="latest")["done"]

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 2
    assert run.events("restart") == [] and len(run.events("failure")) == 2


def test_a_job_cancelled_during_a_restore_ends_and_says_what_the_next_start_does(
    run: Run, drivers: list[Driver], points: list[tuple[str, bool]]
) -> None:
    def never_starts(driver: Driver, message: m.Message) -> None:
        pass

    Driver.scripts = [plays_along, never_starts]
    answers_: list[dict[str, Any]] = []

    def steps(client: Client) -> None:
        wish = client.ask("restore", point="latest")
        client.wait_for(lambda: "STARTING 2" in run.told.states)
        assert "it is being restored" in client.call("checkpoint")["reason"]
        client.ask("cancel")
        answers_.append(client.answer(wish))

    assert run(steps) is JobState.CANCELED
    assert answers_ == [{"done": False, "reason": "the job ended; the next 'weir run' goes on from there"}]


SAVED: dict[str, Any] = {"id": 8, "path": "/saved/wordcount-8", "seconds": 1.5, "bytes": 900}


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
            assert client.call(verb) == {"done": False, "reason": "it is ending"}
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
        if isinstance(message, m.Stop):
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
        if isinstance(message, m.Start):
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
