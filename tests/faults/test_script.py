"""The scripted source: it crashes where the script says, once, and is replayed exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from weir.testing import Crash, EndOfInput, Pause, Rows, committed_rows, run_job, write_script

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "scripted.py"


def batch(number: int) -> Rows:
    return Rows([(f"k{(number + i) % 5}", number * 10 + i) for i in range(10)])


@pytest.mark.long
def test_a_script_with_a_crash_and_pauses_is_counted_exactly(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    script, out, gate = tmp_path / "script.jsonl", tmp_path / "out", tmp_path / "gate"
    gate.touch()
    write_script(script, batch(0), batch(1), Crash(), batch(2), Pause(seconds=0.2), batch(3))
    write_script(script, Pause(until=str(gate)), batch(4), EndOfInput(), batch(5))
    run = run_job(JOB, tmp_path / "weir", args=(script, out), settings=quick)
    assert run.exit_code == 0, run.stderr
    assert run.states[-1] == "FINISHED"
    assert run.attempts == [1, 2]
    assert [f["error"] for f in run.failures] == ["DriverDiedError"]
    assert [r["first"]["batch"] for r in run.recoveries] == [2]
    assert {b["rows"] for b in run.batches} == {10}
    counted = {row["k"]: row["sum"] for row in committed_rows(str(out))}
    assert counted == sums(range(5))


def sums(batches: range) -> dict[str, int]:
    """An independent count."""
    total: Counter[str] = Counter()
    for number in batches:
        for key, value in batch(number).rows:
            total[key] += value
    return dict(total)
