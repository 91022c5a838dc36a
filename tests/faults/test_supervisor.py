"""The supervisor is frozen or killed: its driver ends by itself, and `weir run` goes on where it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.faults.scripts import JOB, Script
from weir.testing import JobProcess, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults]

TIMEOUT = 6.0
SLACK = 10.0
"""For a machine that is busy; the driver's own limit is the heartbeat's timeout."""


@pytest.fixture
def settings(quick: Mapping[str, str]) -> dict[str, str]:
    return {**quick, "heartbeat.interval": "500 ms", "heartbeat.timeout": f"{TIMEOUT * 1000:.0f} ms"}


def wait_until_gone(pids: set[int], seconds: float) -> None:
    """Driver, JVM and Python workers."""
    until = time.monotonic() + seconds
    while left := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < until, f"{left} of {pids} are still there after {seconds:g} s"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_no_driver_outlives_its_supervisor_and_the_job_goes_on(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    script, out = Script.with_gate(tmp_path, 2, 2), tmp_path / "out"
    args = (script.path, out)
    with JobProcess(JOB, tmp_path / "weir", args=args, settings=settings) as process:
        process.wait_for_batch("counts", 1)
        others = process.members() - {process.pid}
        assert len(others) >= 2, "a driver and its JVM"
        process.kill_supervisor()
        wait_until_gone(others, TIMEOUT + SLACK)
    script.open_gate()
    run = run_job(JOB, tmp_path / "weir", args=args, settings=settings)
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    assert [b["batch"] for b in run.batches] == [0, 1, 2, 3]
    script.check(out)


def test_a_driver_whose_supervisor_is_frozen_ends_itself_and_is_started_again(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    script, out = Script.with_gate(tmp_path, 2, 1), tmp_path / "out"
    with JobProcess(JOB, tmp_path / "weir", args=(script.path, out), settings=settings) as process:
        process.wait_for_batch("counts", 1)
        others = process.members() - {process.pid}
        process.send(signal.SIGSTOP)
        wait_until_gone(others, TIMEOUT + SLACK)
        process.send(signal.SIGCONT)
        script.open_gate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    script.check(out)
