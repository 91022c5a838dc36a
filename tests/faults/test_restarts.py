"""What is started again after a failure, what is not, and what a driver may do meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.faults.inputs import FILES, Feed
from weir.errors import ExternalError, UserError
from weir.protocol.states import JobState
from weir.testing import JobProcess, committed_rows, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOBS = Path(__file__).parent / "jobs"
POISON = 3 * FILES * 10
"""A value in the first file of batch 3."""


@pytest.mark.long
def test_code_that_fails_at_the_same_batch_again_ends_its_query(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(4)
    args = (feed.folder, out, str(POISON), "-")
    with JobProcess(JOBS / "two.py", tmp_path / "weir", args=args, settings=quick) as process:
        process.wait_for_state(JobState.DEGRADED)
        feed.add(2)
        process.wait_for("delivery by the other", lambda: feed.delivered(out / "steady"))
        process.terminate()
        run = process.wait()
    assert run.states[-1] == "CANCELED"
    assert [(f["error"], f["batch"]) for f in run.failures] == [("ValueError", 3)] * 2
    assert "I can't stand 60" in run.failures[0]["stack"]
    assert "batch 3 of query 'shaky'" in run.stderr
    assert "ValueError: I can't stand 60" in run.failures[0]["why"]
    assert len(committed_rows(str(out / "shaky"))) == 3 * FILES * 8, "the batches before it are delivered"


@pytest.mark.long
def test_a_query_that_fails_is_started_again_alone(quick: Mapping[str, str], tmp_path: Path) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(4)
    args = (feed.folder, out, str(POISON), tmp_path / "failed once")
    with JobProcess(JOBS / "two.py", tmp_path / "weir", args=args, settings=quick) as process:
        process.wait_for_batch("shaky", 3)
        feed.add(2)
        process.wait_for("delivery by the one", lambda: feed.delivered(out / "steady"))
        process.wait_for("and the other", lambda: len(committed_rows(str(out / "shaky"))) == 6 * FILES * 8)
        process.terminate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1], "the driver went on"
    assert {b["run"] for b in run.batches if b["query"] == "steady"} == {1}
    assert [b["run"] for b in run.batches if b["query"] == "shaky"][:4] == [1, 1, 1, 2]
    assert [(f["error"], f["batch"]) for f in run.failures] == [("ValueError", 3)]
    assert [r["query"] for r in run.recoveries] == ["shaky"]
    feed.check(out / "steady")
    assert len(committed_rows(str(out / "shaky"))) == 6 * FILES * 8


@pytest.mark.long
def test_a_driver_may_print_megabytes(quick: Mapping[str, str], tmp_path: Path) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(1)
    run = run_job(JOBS / "noisy.py", tmp_path / "weir", args=(feed.folder, out, "12"), settings=quick)
    assert run.exit_code == 0, run.stderr
    assert len(committed_rows(str(out))) == FILES * 8
    assert re.search(r"\|\s*k0\|\s*0\|", run.stdout), "what the console sink prints is shown"
    kept = sum(file.stat().st_size for file in (tmp_path / "weir/noisy/logs").iterdir())
    assert 16 * 2**20 < kept < 4 * 17 * 2**20, "the newest output is kept, and not without bounds"


def test_a_jvm_that_does_not_start_is_told_with_where_to_look(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    wrong = {"spark.driver.extraJavaOptions": "-XX:NewSize=much", "restart-strategy.type": "none"}
    args = (Feed(tmp_path / "in").folder, tmp_path / "out")
    run = run_job(JOBS / "counts.py", tmp_path / "weir", args=args, settings={**quick, **wrong})
    assert run.exit_code == ExternalError.exit_code
    assert [f["error"] for f in run.failures] == ["JvmNotStartedError"]
    assert "Spark's JVM ended before it was up" in run.stderr
    assert "'weir logs counts'" in run.stderr
    logs = "".join(file.read_text() for file in (tmp_path / "weir/counts/logs").iterdir())
    assert "NewSize=much" in logs


def test_a_setting_that_spark_does_not_take_ends_the_job_and_is_named(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    wrong = {"spark.sql.streaming.stateStore.maintenanceInterval": "500 ms"}
    args = (Feed(tmp_path / "in").folder, tmp_path / "out")
    run = run_job(JOBS / "counts.py", tmp_path / "weir", args=args, settings={**quick, **wrong})
    assert run.exit_code == UserError.exit_code
    assert [f["error"] for f in run.failures] == ["SparkSettingError"], "the same would come again"
    assert "The value '500 ms' in the config" in run.stderr and "maintenanceInterval" in run.stderr


@pytest.mark.long
def test_the_death_of_the_jvm_is_one_failure_of_the_driver(quick: Mapping[str, str], tmp_path: Path) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(2)
    args = (feed.folder, out, "-1", "-")
    with JobProcess(JOBS / "two.py", tmp_path / "weir", args=args, settings=quick) as process:
        process.wait_for_batch("shaky", 1)
        process.wait_for_batch("steady", 1)
        (jvm,) = (pid for pid in process.members() if psutil.Process(pid).name() == "java")
        os.kill(jvm, signal.SIGKILL)
        process.wait_for("another driver", lambda: len(process.events("attempt")) == 2)
        feed.add(1)
        process.wait_for("delivery", lambda: feed.delivered(out / "steady"))
        process.terminate()
        run = process.wait()
    assert [one["error"] for one in run.failures] == ["JvmDiedError"]
    assert run.failures[0]["what"] == "the JVM died (killed by signal 9, SIGKILL)"
    assert len(run.of("restart")) == 1
    feed.check(out / "steady")
