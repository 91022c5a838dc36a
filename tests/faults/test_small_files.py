"""Tiny batches end as few files with a short ledger, though the driver is killed at each step towards it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import weir
from tests.faults.inputs import FILES, Feed
from weir.faults import POINTS
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "small_files.py"
BATCHES = 40
FAULTS = [f"{point}#1" for point in POINTS if point.startswith(("ledger.", "files."))]


@pytest.mark.long
def test_a_job_with_tiny_batches_has_few_files_and_a_short_ledger_in_the_end(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(BATCHES // FILES)
    settings = {**quick, "execution.checkpointing.interval": "300 ms"}
    wanted = sorted((row["k"], row["v"]) for number in range(BATCHES) for row in feed.rows(number))

    def found() -> list[tuple[str, int]]:
        # a reader beside it, at any moment: what it finds can be read
        rows = weir.read_files(str(out)).arrow().to_pylist() if (out / "_weir/about.json").exists() else []
        assert all(row["half"] == row["v"] % 2 for row in rows)
        return sorted((row["k"], row["v"]) for row in rows)

    def tidy() -> bool:
        rows = found()
        assert len(rows) == len(set(rows)) and set(rows) <= set(wanted)
        log = len(list((out / "_weir/log").glob("*.json"))) if out.exists() else 0
        return rows == wanted and len(weir.committed_files(str(out))) <= 30 and log <= 25

    args = (feed.folder, out)
    kills = [f"{fault}:kill" for fault in FAULTS]
    with JobProcess(JOB, tmp_path / "weir", faults=kills, args=args, settings=settings) as process:
        process.wait_for("few files and a short ledger", tidy, 240)
        process.terminate()
        run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert run.fired == set(FAULTS)
    assert len(run.attempts) == 1 + len(FAULTS)
    assert found() == wanted
