"""The supervisor is frozen or killed: its driver ends by itself, and `weir run` goes on where it was."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.inputs import Feed
from tests.faults.processes import wait_until_gone
from weir.testing import JobProcess, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "counts.py"
TIMEOUT = 6.0
SLACK = 15.0
"""For a machine that is busy; the driver's own limit is the heartbeat's timeout."""


@pytest.fixture
def settings(quick: Mapping[str, str]) -> dict[str, str]:
    return {**quick, "heartbeat.interval": "500 ms", "heartbeat.timeout": f"{TIMEOUT * 1000:.0f} ms"}


@pytest.mark.long
def test_no_driver_outlives_its_supervisor_and_the_job_goes_on(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(2)
    with JobProcess(JOB, tmp_path / "weir", args=(feed.folder, out, "endless"), settings=settings) as process:
        process.wait_for_batch("counts", 1)
        others = process.members() - {process.pid}
        assert len(others) >= 2, "a driver and its JVM"
        process.kill_supervisor()
        wait_until_gone(others, TIMEOUT + SLACK)
    feed.add(2)
    run = run_job(JOB, tmp_path / "weir", args=(feed.folder, out), settings=settings)
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    assert [b["batch"] for b in run.batches] == [0, 1, 2, 3]
    feed.check(out)


@pytest.mark.long
def test_a_driver_whose_supervisor_is_frozen_ends_itself_and_is_started_again(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(2)
    with JobProcess(JOB, tmp_path / "weir", args=(feed.folder, out, "endless"), settings=settings) as process:
        process.wait_for_batch("counts", 1)
        others = process.members() - {process.pid}
        process.send(signal.SIGSTOP)
        wait_until_gone(others, TIMEOUT + SLACK)
        feed.add(1)
        process.send(signal.SIGCONT)
        process.wait_for("delivery of the rest", lambda: feed.delivered(out))
        process.terminate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    feed.check(out)
