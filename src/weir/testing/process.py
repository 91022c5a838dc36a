"""`weir run` as a real process that a test can watch, stop, kill and wait for.

What a test knows it knows from outside: the exit code, what was printed, the journal and the
processes. Every wait has a limit, and whatever a test leaves running is ended by process id.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import psutil

from weir.faults import Fault
from weir.protocol.states import JobState
from weir.supervisor.history import Event, History


def armed(*faults: str, folder: str | Path) -> dict[str, str]:
    """The environment that arms these faults in a driver; raises ValueError for a point that does not exist.

    A fault is `point#occurrence:action`, for example `batch.staged#2:kill`; the points are
    `weir.faults.POINTS`. Each fires once over all attempts, and leaves a mark in the folder (`fired`): so
    a test can see that what it meant to show did happen.
    """
    for fault in faults:
        Fault.parse(fault)
    if not faults:
        return {}
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {"WEIR_FAULTS": ",".join(faults), "WEIR_FAULTS_DIR": str(Path(folder).absolute())}


def fired(folder: str | Path) -> set[str]:
    """The faults that have fired, as `point#occurrence`."""
    return {mark.name for mark in Path(folder).glob("*#*")}


Answer = TypeVar("Answer")

QUICK: Mapping[str, str] = {
    "spark.master": "local[2]",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-Djdk.lang.Process.launchMechanism=VFORK",
    "parallelism.default": "2",
    "restart-strategy.exponential-delay.initial-backoff": "1 ms",
    "restart-strategy.exponential-delay.max-backoff": "1 s",
    "rest.port": "off",
}
"""Settings that let a small job start, end and come back soon."""

_LOOK = 0.05
_SPARING = 4.0
"""It rests N times as long as a look took, before the next: what is waited for needs the processor."""
_ALL = 1_000_000


@dataclass(frozen=True)
class JobRun:
    """What is left of a run that is over."""

    job: str
    exit_code: int
    stdout: str
    stderr: str
    events: list[Event] = field(repr=False)
    batches: list[dict[str, Any]] = field(repr=False)
    """The committed batches of all attempts, as the journal has them."""
    fired: set[str] = field(default_factory=set)
    """The armed faults that did fire, as `point#occurrence`."""

    @property
    def states(self) -> list[str]:
        """The states of the job, in order."""
        return [str(e.body["state"]) for e in self.of("state")]

    @property
    def attempts(self) -> list[int]:
        """The attempts that were granted to a driver."""
        return [e.attempt for e in self.of("attempt")]

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """Each recovery with its parts."""
        return [e.body for e in self.of("recovery")]

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [e.body for e in self.of("failure")]

    def of(self, *kinds: str) -> list[Event]:
        """The events of these kinds, oldest first."""
        return [e for e in self.events if e.kind in kinds]


class JobProcess:
    """A running `weir run`, in a process group of its own. Leaving the `with` block kills it.

    `dir` becomes `execution.checkpointing.dir`; `faults` are armed by `weir.testing.armed`,
    with their marks in `<dir>.faults`; `args` go to the job file, `options` to `weir run` itself.
    """

    def __init__(
        self,
        file: str | Path,
        dir: str | Path,
        *,
        faults: Sequence[str] = (),
        args: Sequence[str | Path] = (),
        settings: Mapping[str, str] = QUICK,
        environ: Mapping[str, str] | None = None,
        options: Sequence[str | Path] = (),
    ) -> None:
        self.dir = Path(dir).absolute()
        self.marks = Path(f"{self.dir}.faults")
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        given = {**settings, "execution.checkpointing.dir": str(self.dir)}
        command = [sys.executable, "-m", "weir", "run"]
        command += [word for key, value in given.items() for word in ("-D", f"{key}={value}")]
        command += [*map(str, options), str(file), *map(str, args)]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env=clean | armed(*faults, folder=self.marks) | dict(environ or {}),
            start_new_session=True,
        )

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()

    # what can be seen

    @property
    def job(self) -> str:
        """The job's name, or "" before it holds an attempt."""
        found = sorted(self.dir.glob("*/attempts"))
        return found[0].parent.name if found else ""

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return self._process.pid

    @property
    def driver(self) -> int:
        """The driver's process, which leads a group of its own; 0 before one was granted an attempt."""
        granted = self._mine("attempt")
        return int(granted[-1].body["driver"]) if granted else 0

    @property
    def alive(self) -> bool:
        """Whether the supervisor still runs."""
        return self._process.poll() is None

    @property
    def stdout(self) -> str:
        return _text(self._out)

    @property
    def stderr(self) -> str:
        return _text(self._err)

    def events(self, *kinds: str) -> list[Event]:
        """The events in the job's journal, of earlier runs too, oldest first."""
        return _read_journal(self.dir / self.job, lambda history: history.events(*kinds, limit=_ALL))

    def batches(self, query: str | None = None) -> list[dict[str, Any]]:
        """The committed batches in the job's journal, oldest first."""
        return _read_journal(self.dir / self.job, lambda history: history.batches(query, limit=_ALL))

    def members(self) -> set[int]:
        """The living processes of this run: the supervisor, its drivers, their JVMs and workers."""
        return {p.pid for p in self._family()}

    # waiting

    def wait_for(self, what: str, there: Callable[[], Any], seconds: float = 120.0) -> None:
        """Wait until something holds; raises when the run ends or the time is over before."""
        until = time.monotonic() + seconds
        while True:
            since = time.monotonic()
            if there():
                return
            if self._process.poll() is not None and not there():
                raise AssertionError(self._words(f"ended with {self._process.returncode} before {what}"))
            if time.monotonic() > until:
                raise TimeoutError(self._words(f"waited {seconds:g} s for {what}"))
            time.sleep(max(_LOOK, _SPARING * (time.monotonic() - since)))

    def wait_for_state(self, state: JobState, seconds: float = 120.0) -> None:
        """Wait until this run of the job is in a state."""

        def there() -> bool:
            states = self._mine("state")
            return bool(states) and states[-1].body["state"] == state.value

        self.wait_for(f"the state {state.value}", there, seconds)

    def wait_for_batch(self, query: str, batch: int, seconds: float = 120.0) -> None:
        """Wait until the journal has this batch of a query, or a later one."""
        self.wait_for(
            f"batch {batch} of {query}",
            lambda: any(b["batch"] >= batch for b in self.batches(query)),
            seconds,
        )

    def wait(self, seconds: float = 180.0) -> JobRun:
        """Wait for the end of the run; what is left of it."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(self._words(f"did not end in {seconds:g} s")) from None
        return JobRun(
            self.job, code, self.stdout, self.stderr, self.events(), self.batches(), fired(self.marks)
        )

    # faults from outside

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor alone."""
        self._process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM: the running batches finish and commit, then the job ends."""
        self.send(signal.SIGTERM)

    def kill_supervisor(self) -> None:
        """SIGKILL of the supervisor; its driver lives until it notices."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def kill_driver(self) -> int:
        """SIGKILL of the driver's process; its JVM is left to the supervisor. Returns its id."""
        driver = self.driver
        os.kill(driver, signal.SIGKILL)
        return driver

    def signal_driver(self, number: signal.Signals) -> int:
        """Send a signal to the driver's whole group, JVM included. Returns the group."""
        driver = self.driver
        os.killpg(driver, number)
        return driver

    def close(self) -> None:
        """Kill whatever is left of this run; safe to repeat."""
        family = self._family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self._process.wait(10)
        self._out.close()
        self._err.close()

    # small things

    def _mine(self, *kinds: str) -> list[Event]:
        """The events of the attempts that this process has opened."""
        opened = set()
        for record in self.dir.glob("*/attempts/*.json"):
            with suppress(ValueError):  # a test may have damaged a record; this process wrote its own
                if json.loads(record.read_text())["pid"] == self.pid:
                    opened.add(int(record.stem))
        return [e for e in self.events(*kinds) if e.attempt in opened]

    def _family(self) -> list[psutil.Process]:
        groups = {self.pid} | {int(e.body["driver"]) for e in self._mine("attempt")}
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                    found |= {p.pid: p for p in (process, *process.children(recursive=True))}
        return list(found.values())

    def _words(self, what: str) -> str:
        return f"'weir run' of {self.job or self.dir} {what}; its output:\n{self.stderr[-4000:]}"


def run_job(
    file: str | Path,
    dir: str | Path,
    *,
    faults: Sequence[str] = (),
    args: Sequence[str | Path] = (),
    settings: Mapping[str, str] = QUICK,
    environ: Mapping[str, str] | None = None,
    timeout: float = 240.0,
) -> JobRun:
    """Run a job with `weir run` to its end; raises TimeoutError, and kills it, when that takes longer."""
    with JobProcess(file, dir, faults=faults, args=args, settings=settings, environ=environ) as process:
        return process.wait(timeout)


def _read_journal(job: Path, read: Callable[[History], list[Answer]]) -> list[Answer]:
    """Read a job's journal, which may not be there yet or be in the making."""
    with suppress(sqlite3.OperationalError), closing(History(job / "journal" / "journal.sqlite")) as history:
        return read(history)
    return []


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
