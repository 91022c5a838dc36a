"""The real supervisor over a driver that is played: what it says is a script, and no process is started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weir.clock import Clock
from weir.ids import job_name
from weir.protocol import messages as m
from weir.protocol.machine import SPARKS_LIMIT, Probe
from weir.protocol.states import JobState
from weir.restore.request import RestoreRequest
from weir.storage import paths
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.supervisor.history import History
from weir.supervisor.inbox import Requests
from weir.supervisor.loop import Supervisor
from weir.supervisor.machine import MachineProbe
from weir.supervisor.process import Heard, OutputFile
from weir.supervisor.reports import Watcher
from weir.supervisor.supervised_job import Inputs

JOB = job_name("wordcount")
RESTORED = m.Restored(41, 2, "asked for", 1.5)
Script = Callable[["Driver", m.Message], None]


class Driver:
    """In place of a driver process: describes the job, starts one query, ends when it is told to."""

    made: list[Driver]
    scripts: list[Script]
    """What each driver does besides; the last one goes for all that follow."""
    first: m.Message = m.JobDescribed(JOB, {})

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
        if isinstance(message, m.StopQueries):
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
    if isinstance(message, m.StartAttempt):
        driver.heard(m.QueryStarted("counts", 1, -1))


def answers(done: bool, **body: Any) -> Script:
    def script(driver: Driver, message: m.Message) -> None:
        plays_along(driver, message)
        if isinstance(message, m.Ask):
            driver.heard(m.Answered(message.request, done, body))

    return script


def restores(driver: Driver, message: m.Message) -> None:
    if isinstance(message, m.StartAttempt):
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

    def __init__(
        self,
        dir: Path,
        overrides: dict[str, str],
        clock: Clock | None = None,
        wanted: RestoreRequest | None = None,
    ) -> None:
        self.dir, self.told = dir, Told()
        settings = {"execution.checkpointing.dir": str(dir), **overrides}
        inputs = Inputs(dir / "job.py", [], None, {}, settings, wanted)
        self._supervisor = Supervisor(inputs, self.told, clock or Clock())

    @property
    def heard_at(self) -> float:
        """When the supervisor has heard from its driver."""
        return self._supervisor._job.driver.heard_at if self._supervisor._job.driver else 0.0

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


def dies_when_asked(driver: Driver, message: m.Message) -> None:
    plays_along(driver, message)
    if isinstance(message, m.Ask):
        driver.heard(None)


class PlayedProbe(MachineProbe):
    """In place of a process that is started to see how long that takes: it took what `takes` says."""

    takes: list[float]
    """Seconds, one after the other; the last one goes for all that follow."""
    started: int

    def _begin(self, now: float) -> None:
        kind = type(self)
        seconds = kind.takes[min(kind.started, len(kind.takes) - 1)]
        kind.started += 1
        self.newest = Probe(seconds, now, came_up=seconds < SPARKS_LIMIT)
