"""The command line over real jobs: one detached run from its start to its end, and files that are no jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

JOB = """
import weir

job = weir.Job("ticks")

@job.pipeline
def ticks(env):
    rate = env.spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    env.sink("shown", env.source("rate", rate), weir.sinks.console())

print("the job file speaks")
if __name__ == "__main__":
    job.run()
"""

Done = subprocess.CompletedProcess[str]
Weir = Callable[..., Done]


@pytest.fixture
def weir(tmp_path: Path) -> Weir:
    """`weir(...)` in a folder of its own, as a user types it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}

    def call(*arguments: str) -> Done:
        command = [sys.executable, "-m", "weir", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)

    return call


def answer(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


@pytest.mark.spark
def test_a_detached_job_is_started_seen_followed_and_cancelled(
    weir: Weir, tmp_path: Path, quick: Mapping[str, str]
) -> None:
    (tmp_path / "ticks.py").write_text(JOB)
    settings = {**quick, "heartbeat.interval": "500 ms"}
    options = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    options += ["--master", "local[2]"]
    started = answer(weir("run", "-d", "ticks.py", *options, "--json"))
    try:
        assert (started["job"], started["state"], started["attempt"]) == ("ticks", "RUNNING", 1)
        (listed,) = answer(weir("list", "--json"))["jobs"]
        assert (listed["state"], listed["alive"], listed["pid"]) == ("RUNNING", True, started["pid"])
        refused = weir("run", "ticks.py", *options)
        assert refused.returncode == 5
        assert "error: job 'ticks' is already running" in refused.stderr
        assert f"held by process {started['pid']} on" in refused.stderr
        assert "the job file speaks" in weir("logs", "ticks", "-n", "-1").stdout
        assert "ticks: RUNNING, attempt 1" in weir("logs", "ticks", "--supervisor").stdout
    finally:
        ended = weir("cancel", "ticks", "--json")
    assert answer(ended) == {"job": "ticks", "state": "CANCELED", "attempt": 1}
    status = answer(weir("status", "ticks", "--json"))
    assert (status["state"], status["alive"], status["failure"]) == ("CANCELED", False, None)
    assert [query["query"] for query in status["queries"]] == ["shown"]
    assert weir("cancel", "ticks").returncode == 5


BAD = {
    "no job": ("x = 1", "it makes no job"),
    "two jobs": ("import weir\nweir.Job('a')\nweir.Job('b')", "it makes 2 jobs: 'a', 'b'"),
    "an error": ("1 / 0", "it raised ZeroDivisionError"),
    "no pipeline": ("import weir\nweir.Job('a')", "job 'a' has no pipeline"),
    "a name with slashes": ("import weir\nweir.Job('a/b')", "names become folders"),
}


@pytest.mark.parametrize("detached", [False, True], ids=["foreground", "detached"])
@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_no_job_is_one_message_and_leaves_nothing(
    case: str, detached: bool, weir: Weir, tmp_path: Path
) -> None:
    text, why = BAD[case]
    (tmp_path / "bad.py").write_text(text)
    done = weir("run", "bad.py", *(["-d"] if detached else []))
    assert done.returncode == 2 and done.stdout == ""
    assert f"why: {why}" in done.stderr and "what to do: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["bad.py"]


def test_storage_that_can_not_be_written_is_one_message(weir: Weir, tmp_path: Path) -> None:
    (tmp_path / "ticks.py").write_text(JOB)
    (tmp_path / "file").touch()
    done = weir("run", "ticks.py", "--dir", "file")
    assert done.returncode == 3
    assert "error: the storage could not create" in done.stderr and "weir doctor --dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_job_py_is_weir_run(tmp_path: Path) -> None:
    (tmp_path / "ticks.py").write_text(JOB)
    environ = {**os.environ, "WEIR_EXECUTION_CHECKPOINTING_DIR": "/dev/null/x"}
    command = [sys.executable, "ticks.py", "--of-the-job", "-d"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "error: the storage could not create /dev/null/x/ticks/attempts" in done.stderr
