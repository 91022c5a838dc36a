"""A driver that is frozen, replaced and woken up again is refused everywhere, and ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.faults.inputs import Feed
from tests.faults.processes import wait_until_gone
from weir.errors import FencedError
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "counts.py"
TIMEOUT = 6.0
SLACK = 15.0


@pytest.fixture
def settings(quick: Mapping[str, str]) -> dict[str, str]:
    return {**quick, "heartbeat.interval": "500 ms", "heartbeat.timeout": f"{TIMEOUT * 1000:.0f} ms"}


def ledger(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((out / "_weir/log").glob("[0-9]*.json"))}


@pytest.mark.long
def test_a_job_that_was_taken_over_is_refused_when_it_wakes_up(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    feed, out, home = Feed(tmp_path / "in"), tmp_path / "out", tmp_path / "weir"
    feed.add(4)
    args = (feed.folder, out, "endless")
    fault = "batch.staged#3"
    with JobProcess(JOB, home, faults=[f"{fault}:stop"], args=args, settings=settings) as old:
        old.wait_for("the driver to freeze", (old.marks / fault).exists)
        old.send(signal.SIGSTOP)
        old.signal_driver(signal.SIGSTOP)
        with JobProcess(JOB, home, args=args, settings=settings) as new:
            new.wait_for("delivery of what is there", lambda: feed.delivered(out))
            before = ledger(out)
            old.send(signal.SIGCONT)
            old.signal_driver(signal.SIGCONT)
            refused = old.wait(60)
            wait_until_gone(old.members(), TIMEOUT + SLACK)
            assert ledger(out) == before, "the zombie has written to the ledger"
            feed.add(1)
            new.wait_for("delivery of the rest", lambda: feed.delivered(out))
            new.terminate()
            run = new.wait()
    assert refused.exit_code == FencedError.exit_code, refused.stderr
    assert "has taken over" in refused.stderr
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    feed.check(out)


@pytest.mark.long
@pytest.mark.parametrize("frozen", ["the driver", "its JVM"])
def test_a_driver_that_is_frozen_is_killed_and_started_again(
    frozen: str, settings: Mapping[str, str], tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(2)
    args = (feed.folder, out, "endless")
    with JobProcess(JOB, tmp_path / "weir", args=args, settings=settings) as process:
        process.wait_for_batch("counts", 1)
        driver = process.driver
        os.kill(driver if frozen == "the driver" else jvm_of(driver), signal.SIGSTOP)
        feed.add(1)
        process.wait_for("delivery of the rest", lambda: feed.delivered(out))
        process.terminate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2]
    # A driver that lives beside a frozen JVM may notice first that its lease is over.
    by_itself = f"ended with exit code {FencedError.exit_code}"
    words = ("has not answered for",) if frozen == "the driver" else ("has not answered for", by_itself)
    assert any(word in run.failures[0]["what"] for word in words)
    noticed = run.recoveries[0]["parts"]["detect"]
    assert noticed < TIMEOUT + SLACK
    assert noticed > TIMEOUT - 1 or by_itself in run.failures[0]["what"]
    assert not psutil.pid_exists(driver)
    feed.check(out)


def jvm_of(driver: int) -> int:
    return next(child.pid for child in psutil.Process(driver).children() if child.name() == "java")
