"""A machine that can't start a Python process within Spark's ten seconds: a Python that waits."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.inputs import Feed
from weir.clock import Clock
from weir.monitor.figures import figures
from weir.monitor.report import report
from weir.testing import JobProcess, committed_rows

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "python_source.py"
ONE_RESTART = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "10 ms",
}


def waiting_python(folder: Path) -> tuple[Path, Path]:
    """A Python that does nothing while a file is there, as on a machine that has no time for it."""
    python, slow = folder / "python", folder / "slow"
    python.write_text(f'#!/bin/sh\nwhile [ -e "{slow}" ]; do sleep 0.1; done\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python, slow


@pytest.mark.long
def test_a_query_waits_until_the_machine_can_start_its_python_process_and_loses_nothing(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    python, slow = waiting_python(tmp_path)
    feed, out, upto, broken = Feed(tmp_path / "in"), tmp_path / "out", tmp_path / "upto", tmp_path / "broken"
    feed.add(1)
    upto.write_text("10")
    environ = {"PYSPARK_PYTHON": str(python)}
    settings = {**quick, **ONE_RESTART}
    args = (upto, feed.folder, out, broken)
    with JobProcess(JOB, tmp_path / "weir", args=args, settings=settings, environ=environ) as process:
        process.wait_for_batch("numbers", 0)
        slow.touch()
        broken.touch()  # the one failure of its own: its restart needs a process that does not come

        def waits() -> bool:
            shown = report(str(tmp_path / "weir"), "python_source", Clock()).job.queries
            return shown["numbers"].waits_for == "machine"

        process.wait_for("the wait for the machine", waits)
        feed.add(2)
        upto.write_text("30")
        process.wait_for("the other query", lambda: len(process.batches("steady")) > 1)
        assert waits(), "it starts no process while it waits"
        slow.unlink()
        process.wait_for("the numbers", lambda: len(committed_rows(str(out / "numbers"))) == 30)
        process.terminate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1], "the driver went on"
    assert sorted(row["number"] for row in committed_rows(str(out / "numbers"))) == list(range(30))
    own, *machine = run.failures
    assert (own["domain"], own["error"]) == ("user", "ValueError")
    assert machine, "Spark's ten seconds ran out"
    assert {(one["domain"], one["error"]) for one in machine} == {("machine", "LateProcessError")}
    assert "did not answer within 10 s" in machine[0]["what"] and "overloaded" in machine[0]["why"]
    assert "more cores" in machine[0]["hint"]
    assert [one.body["machine"] for one in run.of("restart")] == [False] + [True] * len(machine)
    assert "the restart waits until it can" in run.stderr
    counted = {one.name: one.value for one in figures(str(tmp_path / "weir"), run.job, Clock())}
    assert counted["weir_machine_failures_total"] == len(machine)
    assert counted["weir_failures_total"] == len(machine) + 1
