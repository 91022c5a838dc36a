"""The scripted source: it crashes where the script says, once, and is replayed exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.scripts import JOB, Script, batch
from weir.testing import Crash, Pause, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def test_a_script_with_crashes_and_pauses_is_counted_exactly(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    script = Script(
        tmp_path, batch(0), batch(1), Crash(), batch(2), Pause(seconds=0.2), batch(3), Crash(), batch(4)
    )
    run = run_job(JOB, tmp_path / "weir", args=(script.path, tmp_path / "out"), settings=quick)
    assert run.exit_code == 0, run.stderr
    assert run.attempts == [1, 2, 3]
    assert [b["batch"] for b in run.batches] == [0, 1, 2, 3, 4]
    assert [b["rows"] for b in run.batches] == [10] * 5
    assert [f["error"] for f in run.failures] == ["DriverDiedError"] * 2
    assert [r["first"]["batch"] for r in run.recoveries] == [2, 4]
    script.check(tmp_path / "out")
