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


@pytest.mark.long
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


COUNTS = """
import weir
from pyspark.sql import functions as F

job = weir.Job("counts")

@job.pipeline
def counts(env):
    rate = env.spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    keyed = env.source("rate", rate).groupBy((F.col("value") % 5).alias("k")).count()
    env.sink("counted", keyed, weir.sinks.files("out"), output_mode="update")

if __name__ == "__main__":
    job.run()
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_running_job_is_saved_looked_into_and_stopped_with_a_savepoint(
    weir: Weir, tmp_path: Path, quick: Mapping[str, str]
) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "weir.yaml").write_text("execution.checkpointing.savepoint-dir: saved\n")
    settings = {**quick, "heartbeat.interval": "500 ms", "execution.checkpointing.interval": "1 s"}
    options = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    started = answer(weir("run", "-d", "counts.py", *options, "--master", "local[2]", "--json"))
    try:
        assert started["state"] == "RUNNING"
        for _ in range(100):  # each is a process of its own
            (query,) = answer(weir("status", "counts", "--json"))["queries"]
            if (query["state_rows"] or 0) == 5:
                break
        first = answer(weir("savepoint", "counts", "--json"))
        assert first["status"] == "taken" and first["bytes"] > 0
        refused = weir("savepoint", "counts", str(tmp_path / "weir-data" / "counts" / "mine"))
        assert refused.returncode == 1 and "the job's own directory" in refused.stderr
        asked = answer(weir("savepoint", "counts", "elsewhere", "--detached", "--json"))
        assert asked["status"] == "asked"
        assert answer(weir("status", "counts", "--json"))["state"] == "RUNNING"
        stopped = answer(weir("stop", "counts", "--json"))
    finally:
        weir("cancel", "counts")
    assert (stopped["state"], stopped["job"]) == ("FINISHED", "counts")
    known = answer(weir("savepoints", "counts", "--json"))["savepoints"]
    paths = [one["path"] for one in known]
    assert paths[0] == first["path"] and paths[-1] == stopped["path"] and len(paths) == 3
    assert {Path(one).parent.name for one in paths} == {"saved", "elsewhere"}
    assert [one["trigger"] for one in known] == ["request", "request", "stop"]
    shown = answer(weir("savepoint", "show", stopped["path"], "--json"))
    query = shown["queries"]["counted"]
    commits = tmp_path / "weir-data" / "counts" / "generations" / "0001" / "queries" / "counted" / "commits"
    assert query["batch"] == max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    assert (query["operators"][0]["kind"], query["operators"][0]["rows"]) == ("stateStoreSave", 5)
    assert (shown["job_file"], query["sink"]["kind"]) == ("counts.py", "files")
    assert answer(weir("verify", "counts", "--json"))["ok"]
    assert answer(weir("status", "counts", "--json"))["state"] == "FINISHED"


BAD = {
    "no job": ("x = 1", "it makes no job"),
    "two jobs": ("import weir\nweir.Job('a')\nweir.Job('b')", "it makes 2 jobs: 'a', 'b'"),
    "an error": ("1 / 0", "bad.py:1: ZeroDivisionError"),
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
