"""Detached runs: a supervisor in a session of its own, and how it reports that the job is running.

The starter gives the supervisor one end of a pipe (`WEIR_READY_FD`) and an unnamed file for its
output. Steps: the driver describes the job -> the job is held, and `logs/supervisor.log` takes over
from the unnamed file -> notes go through the pipe -> RUNNING or an error goes through the pipe,
which ends the starter. A pipe that closes without either means that the supervisor died.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Any

from weir.cli import say
from weir.cli.options import command
from weir.cli.watch import serve, where
from weir.clock import Clock
from weir.config import Config
from weir.errors import SupervisorDiedError, error_form
from weir.ids import job_name
from weir.protocol.states import JobState
from weir.restore.request import RestoreRequest
from weir.storage import paths
from weir.storage.open import beside
from weir.supervisor.loop import Supervisor
from weir.supervisor.process import OutputFile
from weir.supervisor.reports import Watcher
from weir.supervisor.supervised_job import Inputs

_VARIABLE = "WEIR_READY_FD"


class Ready(Watcher):
    """The supervisor's end: a watcher that keeps the log and reports to the starter."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._clock = Clock()
        self._held: list[str] = []
        self._log: OutputFile | None = None
        self._dir = ""

    @classmethod
    def inherited(cls) -> Ready | None:
        """What the starter gave us, or None when nobody detached us. Our children don't get it."""
        handle = os.environ.pop(_VARIABLE, None)
        if handle is None:
            return None
        os.set_inheritable(int(handle), False)
        return cls(os.fdopen(int(handle), "wb", buffering=0))

    def supervise(self, inputs: Inputs) -> int:
        """Run the job to its end; the exit code."""
        state, failure = Supervisor(inputs, self, self._clock).run()
        if failure is None or state is not JobState.FAILED:
            return 0
        self._keep(f"error: {failure.what}; why: {failure.why}; what to do: {failure.hint}")
        self._tell(error=error_form(failure), exit_code=failure.exit_code)
        return failure.exit_code

    def opened(self, job: str, config: Config) -> None:
        self._dir = dir = config.settings.execution_checkpointing_dir
        path = beside(dir, f"{paths.logs(job_name(job))}/supervisor.log")
        self._log = OutputFile(path)
        # a traceback, should there ever be one, belongs there too; without room it is lost
        with suppress(OSError), open(path, "ab") as file:
            for handle in (1, 2):
                os.dup2(file.fileno(), handle)
        for line in self._held:
            self._log.write(line.encode())
        self._held.clear()
        serve(job, config, self.note, self._show_link)

    def state(self, job: str, state: JobState, attempt: int) -> None:
        self._keep(f"{job}: {state.value}, attempt {attempt}")
        up = state in (JobState.RUNNING, JobState.DEGRADED)
        if up or (state.final and state is not JobState.FAILED):
            self._tell(job=job, state=state.value, attempt=attempt, pid=os.getpid(), dir=self._dir)
            self._pipe.close()

    def note(self, text: str) -> None:
        self._keep(text)
        self._tell(note=text)

    def _show_link(self, url: str, link: str) -> None:
        """The address is kept; the link that logs a browser in goes to the starter alone."""
        self._keep(where(url, link, to_a_person=False))
        self._tell(note=where(url, link, to_a_person=False), link=where(url, link, to_a_person=True))

    def _keep(self, text: str) -> None:
        line = f"{self._clock.now().isoformat(timespec='seconds')} {text}\n"
        if self._log is None:
            self._held.append(line)
        else:
            self._log.write(line.encode())

    def _tell(self, **body: Any) -> None:
        if not self._pipe.closed:
            with suppress(OSError):  # a starter that is gone does not stop the job
                self._pipe.write(json.dumps(body).encode() + b"\n")


def start_detached(inputs: Inputs) -> None:
    """Start a supervisor of its own and print what became of it; exits non-zero when it failed."""
    with tempfile.TemporaryFile() as words:
        process, pipe = _spawn(inputs, words)
        with pipe:
            try:
                end = _wait(pipe, inputs)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGTERM)
                say.note("interrupted: the supervisor was asked to end the job")
                raise
        if end is None:
            raise _died(inputs, process.wait(), words)
    if "error" in end:
        process.wait()
        say.say_error(**end["error"])
        sys.exit(end["exit_code"])
    process.returncode = 0  # nobody will wait for it: it outlives us
    _say_started(end)


def _spawn(inputs: Inputs, words: IO[bytes]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        _command(inputs),
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=words,
        env={**inputs.environ, _VARIABLE: str(theirs)},
        pass_fds=(theirs,),
        start_new_session=True,
    )
    os.close(theirs)
    return process, os.fdopen(ours, "rb")


def _command(inputs: Inputs) -> list[str]:
    settings = [f"-D{key}={value}" for key, value in inputs.overrides.items()]
    if inputs.settings_file:
        settings += ["--config", str(inputs.settings_file)]
    settings += ["--as", inputs.name] if inputs.name else []
    # never `above`: it comes from the savepoint too, and would take over without --take-over
    settings += ["--take-over", str(inputs.take_over)] if inputs.take_over is not None else []
    settings += _from(inputs.wanted) if inputs.wanted else []
    return [sys.executable, "-m", "weir", "run", *settings, "--", str(inputs.file), *inputs.arguments]


def _from(wanted: RestoreRequest) -> list[str]:
    flags = {
        "--accept-duplicates": wanted.accept_duplicates,
        "--allow-non-restored-state": wanted.allow_dropped,
        "--claim": wanted.claim,
    }
    maps = [part for given in wanted.maps for part in ("--map", given)]
    offsets = [part for key, value in wanted.offsets.items() for part in ("--set-offsets", f"{key}={value}")]
    return ["-s", wanted.point, *(flag for flag, given in flags.items() if given), *maps, *offsets]


def _wait(pipe: IO[bytes], inputs: Inputs) -> dict[str, Any] | None:
    """The supervisor's last word, or None when it died without one."""
    with say.waiting(f"starting {inputs.file.name}"):
        for line in pipe:
            body: dict[str, Any] = json.loads(line)
            if "note" not in body:
                return body
            say.note(body.get("link", body["note"]) if say.err.is_terminal else body["note"])
    return None


def _died(inputs: Inputs, code: int, words: IO[bytes]) -> SupervisorDiedError:
    words.seek(0)
    printed = words.read().decode(errors="replace").strip().splitlines()
    return SupervisorDiedError(
        file=inputs.file, code=code, reason=printed[-1] if printed else "it printed nothing"
    )


def _say_started(end: dict[str, Any]) -> None:
    job, dir = end["job"], end["dir"]
    log = beside(dir, f"{paths.logs(job_name(job))}/supervisor.log")
    if say.form is say.OutputForm.JSON:
        say.say_json({**end, "log": str(log)})
        return
    say.say(f"{job} is {end['state']}: attempt {end['attempt']}, process {end['pid']}")
    say.say(f"  to follow it: {command('logs', job, dir, ' -f')}")
    say.say(f"  to end it:    {command('cancel', job, dir)}")
    say.say(f"  its notes:    {log}")
