"""`weir run` without Spark: what it hands to the supervisor, what it shows, and how it detaches."""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.fake_job import Weir
from weir.cli import detach, say
from weir.cli.run import run
from weir.cli.watch import Screen, terminal
from weir.clock import Clock
from weir.config import Config, resolve
from weir.errors import PreflightError
from weir.protocol.messages import BatchCommitted, CheckpointCompleted, Failure
from weir.protocol.states import JobState
from weir.supervisor.reports import Watcher
from weir.supervisor.supervised_job import Inputs

FAILURE = Failure("the job failed", "of a reason", "mend it", exit_code=3)


def quiet(dir: str) -> Config:
    return resolve(file=None, overrides={"rest.port": "off", "execution.checkpointing.dir": dir})


class FakeSupervisor:
    """Runs a job that prints, commits two batches and ends as told."""

    given: Inputs
    end: tuple[JobState, Failure | None] = (JobState.FINISHED, None)

    def __init__(self, inputs: Inputs, watcher: Watcher, clock: Clock) -> None:
        FakeSupervisor.given = inputs
        self.watcher = watcher

    def run(self) -> tuple[JobState, Failure | None]:
        w = self.watcher
        w.opened("wordcount", quiet("weir-data"))
        w.state("wordcount", JobState.RUNNING, 1)
        w.output(b"from the driver\n")
        w.note("something happened")
        w.batch(BatchCommitted("counts", 1, 0, 10, 0.1))
        w.batch(BatchCommitted("counts", 1, 1, 10, 0.1, state_rows=5000))
        w.checkpoint(CheckpointCompleted(1, "aligned", "interval", False, 0.84, 2**20, 34 * 2**20))
        w.state("wordcount", self.end[0], 1)
        return self.end


@pytest.fixture
def weir(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weir:
    monkeypatch.setattr("weir.cli.run.require_spark", lambda: None)
    monkeypatch.setattr("weir.cli.run.Supervisor", FakeSupervisor)
    monkeypatch.setattr(FakeSupervisor, "end", (JobState.FINISHED, None))
    (tmp_path / "job.py").touch()
    return weir


def test_what_the_job_prints_comes_out_and_notes_go_beside_it(weir: Weir) -> None:
    answer = weir("run", "job.py")
    assert (answer.code, answer.out) == (0, "from the driver\n")
    assert answer.err.splitlines() == [
        "weir: wordcount: RUNNING, attempt 1",
        "weir: something happened",
        "weir: wordcount: FINISHED, attempt 1",
    ]


def test_with_json_the_answer_alone_is_on_standard_output(weir: Weir) -> None:
    answer = weir("run", "job.py", "--json")
    body = {"job": "wordcount", "state": "FINISHED", "attempt": 1, "batches": {"counts": 1}}
    assert json.loads(answer.out) == body
    assert "from the driver\n" in answer.err


def test_a_failed_job_says_why_and_its_exit_code(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSupervisor, "end", (JobState.FAILED, FAILURE))
    answer = weir("run", "job.py")
    assert answer.code == 3
    assert answer.err.endswith("error: the job failed\n  why: of a reason\n  what to do: mend it\n")
    body = json.loads(weir("run", "job.py", "--json").out)
    assert body["error"] == {"what": "the job failed", "why": "of a reason", "hint": "mend it"}
    assert (body["job"], body["state"]) == ("wordcount", "FAILED")


def test_options_become_the_strongest_settings_and_the_rest_goes_to_the_job(
    weir: Weir, tmp_path: Path
) -> None:
    options = ["--master", "local[2]", "--conf", "spark.a=b=c", "-D", "heartbeat.timeout=9s", "--dir", "d"]
    assert weir("run", "job.py", "in", "out", *options, "--", "--rate", "-d").code == 0
    given = FakeSupervisor.given
    assert given.file == tmp_path / "job.py"
    assert given.arguments == ["in", "out", "--rate", "-d"]
    assert given.overrides == {
        "heartbeat.timeout": "9s",
        "spark.a": "b=c",
        "spark.master": "local[2]",
        "execution.checkpointing.dir": "d",
    }


def test_the_settings_file_is_here_or_beside_the_job_file_or_named(weir: Weir, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "job.py").touch()
    weir("run", "jobs/job.py")
    assert FakeSupervisor.given.settings_file is None
    (folder / "weir.yaml").touch()
    weir("run", "jobs/job.py")
    assert FakeSupervisor.given.settings_file == folder / "weir.yaml"
    (tmp_path / "weir.yaml").touch()
    weir("run", "jobs/job.py")
    assert FakeSupervisor.given.settings_file == tmp_path / "weir.yaml"
    weir("run", "jobs/job.py", "--config", "other.yaml")
    assert FakeSupervisor.given.settings_file == Path("other.yaml")


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["absent.py"], 2, "absent.py is not a job file\n  why: there is no such file"),
        (["job.py", "-D", "nothing"], 2, "-D can't be 'nothing'"),
        (["job.py", "--conf", "heartbeat.timeout=1s"], 2, "--conf can't be 'heartbeat.timeout'"),
        (["job.py", "--claim"], 2, "--claim can't be 'true'"),
        (["job.py", "-s", "41", "--claim"], 2, "--claim can't be 'chk-41'"),
        (["job.py", "--set-offsets", "counts/@0=latest"], 2, "--set-offsets counts/@0 can't be used"),
        (["job.py", "--map", "counts/0=1"], 2, "--map can't be 'counts/0=1'"),
        (["job.py", "-n"], 2, "-n can't be 'true'"),
        (["job.py", "--accept-duplicates"], 2, "--accept-duplicates can't be 'true'"),
        (["job.py", "-s", "latest", "--take-over", "0"], 2, "invalid value for '--take-over'"),
        (["job.py", "-s", "latest", "--take-over", "999999999"], 2, "invalid value for '--take-over'"),
        (
            ["job.py", "-s", "latest", "--set-offsets", "counts/orders=later"],
            2,
            "--set-offsets counts/orders can't be used\n  why: 'later' is not a place to resume from",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    arguments: list[str], code: int, what: str, weir: Weir, tmp_path: Path
) -> None:
    for more in ([], ["-d"]):
        answer = weir("run", *arguments, *more)
        assert (answer.code, answer.out) == (code, "")
        assert f"error: {what}" in answer.err
    assert [file.name for file in tmp_path.iterdir()] == ["job.py"]


def test_without_java_nothing_is_started(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise PreflightError(
            what="no java on the PATH", why="Spark needs Java 17 or newer", todo="install it"
        )

    monkeypatch.setattr("weir.cli.run.require_spark", missing)
    monkeypatch.setattr("weir.cli.run.Supervisor", None)
    answer = weir("run", "job.py")
    assert answer.code == 3 and "error: no java on the PATH" in answer.err and "install it" in answer.err


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()
    monkeypatch.setattr(say, "form", say.OutputForm.PEOPLE)
    monkeypatch.setattr(say, "err", Console(file=written, force_terminal=True, width=60, soft_wrap=True))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    return written


def test_on_a_terminal_the_last_batch_stays_in_sight(screen: io.StringIO) -> None:
    with terminal() as watcher:
        assert isinstance(watcher, Screen)
        watcher.opened("wordcount", quiet("weir-data"))
        watcher.state("wordcount", JobState.RUNNING, 2)
        watcher.batch(BatchCommitted("counts", 1, 41, 1000, 0.5, state_rows=300_000))
        for id in (6, 7):
            watcher.checkpoint(CheckpointCompleted(id, "aligned", "interval", False, 0.84, 2**20, 34 * 2**20))
        watcher.output(b"a line\nhalf a ")
        watcher.output(b"line\nno end")
        watcher.live.refresh()
    shown = screen.getvalue()
    assert "attempt 2" in shown and "counts: batch 41, 2k rows/s, 300k state rows" in shown
    assert "checkpoint 7: 0.84 s, 1 MiB new of 34 MiB" in shown and "checkpoint 6" not in shown
    assert "half a line\n" in shown and shown.count("a line\n") == 2
    assert "no end" in shown


def test_a_long_status_is_cut_to_the_width_and_to_some_queries(screen: io.StringIO) -> None:
    with terminal() as watcher:
        watcher.opened("wordcount", quiet("weir-data"))
        for number in range(20):
            watcher.batch(BatchCommitted(f"query-{number:02d}-" + "x" * 80, 1, 1, 1, 1.0))
        assert isinstance(watcher, Screen)
        watcher.live.refresh()
    assert "and 12 more: weir status wordcount" in screen.getvalue()
    assert "query-07" in screen.getvalue() and "query-08" not in screen.getvalue()


SUPERVISOR = """
import os, sys
from weir.cli.detach import Ready
from weir.config import resolve
from weir.protocol.states import JobState
ready = Ready.inherited()
assert "WEIR_READY_FD" not in os.environ
os.getsid(0) == os.getpid() or sys.exit("not a session of its own")
"""


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Say what the detached supervisor does."""

    def does(code: str) -> None:
        monkeypatch.setattr(detach, "_command", lambda inputs: [sys.executable, "-c", SUPERVISOR + code])

    return does


def test_a_detached_run_returns_when_the_job_is_running(
    weir: Weir, supervisor: Callable[[str], None], tmp_path: Path
) -> None:
    supervisor(
        """
ready.note("early words")
settings = {"rest.port": "off", "execution.checkpointing.dir": "there"}
ready.opened("wordcount", resolve(file=None, overrides=settings))
ready.state("wordcount", JobState.STARTING, 1)
ready.state("wordcount", JobState.RUNNING, 2)
ready.note("said later")
print("a traceback")
"""
    )
    answer = weir("run", "job.py", "-d")
    assert answer.code == 0
    assert answer.out.startswith("wordcount is RUNNING: attempt 2, process ")
    assert (
        "weir logs wordcount -f --dir there" in answer.out
        and "weir cancel wordcount --dir there" in answer.out
    )
    assert "weir: early words" in answer.err and "said later" not in answer.err


def test_a_detached_supervisor_keeps_its_notes_beside_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, starter = os.pipe()
    with os.fdopen(end, "rb") as pipe:
        ready = detach.Ready(os.fdopen(starter, "wb", buffering=0))
        monkeypatch.setattr(os, "dup2", lambda *_: None)
        ready.note("early words")
        ready.opened("wordcount", quiet(str(tmp_path)))
        ready.state("wordcount", JobState.RUNNING, 1)
        ready.note("said later")
        told = [json.loads(line) for line in pipe]
    lines = (tmp_path / "wordcount/logs/supervisor.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        *("early words", "wordcount: RUNNING, attempt 1", "said later")
    ]
    running = {"job": "wordcount", "state": "RUNNING", "attempt": 1, "pid": os.getpid(), "dir": str(tmp_path)}
    assert told == [{"note": "early words"}, running]


def test_a_detached_run_that_fails_says_the_real_error(weir: Weir, supervisor: Callable[[str], None]) -> None:
    supervisor("ready._tell(error={'what': 'it failed', 'why': 'so', 'hint': 'mend it'}, exit_code=5)")
    answer = weir("run", "job.py", "-d")
    assert (answer.code, answer.out) == (5, "")
    assert "error: it failed\n  why: so\n  what to do: mend it" in answer.err
    body = json.loads(weir("run", "job.py", "-d", "--json").out)
    assert body == {"error": {"what": "it failed", "why": "so", "hint": "mend it"}}


def test_a_detached_supervisor_that_dies_is_noticed_with_its_last_words(
    weir: Weir, supervisor: Callable[[str], None]
) -> None:
    supervisor("sys.exit('last words')")
    answer = weir("run", "job.py", "-d")
    assert answer.code == 4
    assert (
        "ended with exit code 1 before the job was running" in answer.err and "why: last words" in answer.err
    )


def test_the_detached_command_is_understood_as_it_was_meant(weir: Weir, tmp_path: Path) -> None:
    overrides = {"spark.master": "local[2]", "a": "b=c"}
    inputs = Inputs(tmp_path / "job.py", ["--rate", "-d"], tmp_path / "weir.yaml", {}, overrides)
    command: list[Any] = detach._command(inputs)
    assert command[:3] == [sys.executable, "-m", "weir"]
    assert weir(*command[3:]).code == 0
    given = FakeSupervisor.given
    assert (given.file, given.arguments, given.settings_file) == (
        inputs.file,
        inputs.arguments,
        inputs.settings_file,
    )
    assert given.overrides == overrides


OPTIONS: dict[str, list[str]] = {
    "define": ["-D", "heartbeat.timeout=9s"],
    "conf": ["--conf", "spark.a=b=c"],
    "master": ["--master", "local[2]"],
    "dir": ["--dir", "d"],
    "config": ["--config", "other.yaml"],
    "from_savepoint": ["-s", "saved/wordcount-12"],
    "allow_dropped": ["-n"],
    "map": ["--map", "counts/0=1", "--map", "counts/@old=none"],
    "set_offsets": ["--set-offsets", "counts/orders=timestamp:2024-01-01T00:00:00Z"],
    "parallelism": ["--parallelism", "8"],
    "state_backend": ["--state-backend", "hashmap"],
    "accept_duplicates": ["--accept-duplicates"],
    "claim": ["--claim"],
    "name": ["--as", "another"],
    "take_over": ["--take-over", "7"],
}
"""For every option of `weir run` that says something of the job: how it is given."""
OF_ANOTHER_POINT = ("allow_dropped", "map", "set_offsets", "accept_duplicates", "claim", "take_over")
"""These go with -s."""


def test_every_option_is_tried_with_and_without_detaching() -> None:
    of_the_command = {"file", "arguments", "detached", "json"}
    assert set(OPTIONS) == set(inspect.signature(run).parameters) - of_the_command


@pytest.mark.parametrize("detached", [[], ["-d"]])
def test_a_take_over_without_a_point_is_refused_with_a_command_that_works(
    detached: list[str], weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live files do not know the batches of the other directory: a start would resume after them."""
    started: list[Inputs] = []
    monkeypatch.setattr("weir.cli.run.start_detached", started.append)
    monkeypatch.setattr("weir.cli.run.Supervisor", lambda given, *_: pytest.fail("it was started"))
    refused = weir("run", *detached, "--take-over", "7", "job.py")
    assert refused.code == 2 and not started
    assert "without -s" in " ".join(refused.err.split())
    command = "weir run job.py -s latest --take-over 7"
    assert command in " ".join(refused.err.split())
    monkeypatch.setattr("weir.cli.run.Supervisor", FakeSupervisor)
    assert weir(*command.split()[1:]).code == 0
    given = FakeSupervisor.given
    assert given.wanted is not None and (given.wanted.point, given.take_over) == ("latest", 7)


@pytest.mark.parametrize("names", [*([name] for name in OPTIONS), list(OPTIONS)], ids="+".join)
def test_a_detached_supervisor_is_given_what_an_attached_one_is(
    names: list[str], weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The savepoint is of attempt 3: without --take-over nobody begins far above it."""
    monkeypatch.setattr("weir.cli.run.attempt_of", lambda _: 3)
    monkeypatch.setattr("weir.cli.run.randbelow", lambda _: 500)
    commands: list[list[str]] = []
    monkeypatch.setattr("weir.cli.run.start_detached", lambda given: commands.append(detach._command(given)))
    with_point = OPTIONS["from_savepoint"] if set(names) & set(OF_ANOTHER_POINT) else []
    words = [*with_point, *(word for name in names for word in OPTIONS[name])]
    assert weir("run", *words, "job.py", "in", "--", "--rate", "-d").code == 0
    attached = FakeSupervisor.given
    assert weir("run", "-d", *words, "job.py", "in", "--", "--rate", "-d").code == 0
    assert weir(*commands[0][3:]).code == 0
    detached = FakeSupervisor.given
    assert detached is not attached and detached == attached
    from_point = 3 if "-s" in words else 0
    assert detached.above == (1507 if "take_over" in names else from_point)
