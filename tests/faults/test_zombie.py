"""A driver that is frozen, replaced and woken up again is refused everywhere, and ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.faults.scripts import JOB, Script
from weir.errors import FencedError
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults]

TIMEOUT = 6.0


@pytest.fixture
def settings(quick: Mapping[str, str]) -> dict[str, str]:
    return {**quick, "heartbeat.interval": "500 ms", "heartbeat.timeout": f"{TIMEOUT * 1000:.0f} ms"}


def ledger(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((out / "_weir/log").iterdir())}


def test_a_job_that_was_taken_over_is_refused_when_it_wakes_up(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    script, out = Script.with_gate(tmp_path, 4, 2), tmp_path / "out"
    fault = "batch.staged#3"
    given = {"args": (script.path, out), "settings": settings}
    with JobProcess(JOB, tmp_path / "weir", faults=[f"{fault}:stop"], **given) as old:  # type: ignore[arg-type]
        old.wait_for("the driver to freeze", (old.marks / fault).exists)
        old.send(signal.SIGSTOP)
        old.signal_driver(signal.SIGSTOP)
        with JobProcess(JOB, tmp_path / "weir", **given) as new:  # type: ignore[arg-type]
            new.wait_for_batch("counts", 3)
            new.wait_for("delivery of batch 3", lambda: len(ledger(out)) >= 1 + 2 + 4)
            before = ledger(out)
            old.send(signal.SIGCONT)
            old.signal_driver(signal.SIGCONT)
            refused = old.wait(60)
            gone_by(time.monotonic() + TIMEOUT + 30, old)
            assert ledger(out) == before, "the zombie has written to the ledger"
            script.open_gate()
            run = new.wait()
    assert refused.exit_code == FencedError.exit_code, refused.stderr
    assert "has taken over" in refused.stderr
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    script.check(out)


def gone_by(until: float, process: JobProcess) -> None:
    while process.members():
        assert time.monotonic() < until, f"still there: {process.members()}"
        time.sleep(0.05)


def test_a_driver_that_is_frozen_is_killed_and_started_again(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    script, out = Script.with_gate(tmp_path, 3, 1), tmp_path / "out"
    script.open_gate()
    fault = "batch.staged#2"
    with JobProcess(
        JOB, tmp_path / "weir", faults=[f"{fault}:stop"], args=(script.path, out), settings=settings
    ) as process:
        process.wait_for("the driver to freeze", (process.marks / fault).exists)
        frozen = process.driver
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    assert "has not answered for" in run.failures[0]["what"]
    assert run.recoveries[0]["parts"]["detect"] >= TIMEOUT
    assert not psutil.pid_exists(frozen)
    script.check(out)


def test_a_jvm_that_is_frozen_is_killed_and_started_again(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    script, out = Script.with_gate(tmp_path, 2, 2), tmp_path / "out"
    with JobProcess(JOB, tmp_path / "weir", args=(script.path, out), settings=settings) as process:
        process.wait_for_batch("counts", 1)
        os.kill(jvm_of(process.driver), signal.SIGSTOP)
        process.wait_for("the next attempt", lambda: len(process.events("attempt")) == 2)
        script.open_gate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    script.check(out)


def jvm_of(driver: int) -> int:
    return next(child.pid for child in psutil.Process(driver).children() if child.name() == "java")
