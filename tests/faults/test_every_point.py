"""The driver is killed at every named point; the result is that of a run without any fault.

The job has one query, writes a few files and takes no checkpoint: points on the path of a checkpoint or of
a restore, of the upkeep of many files (`test_small_files.py`), and of other sinks, are not met here.
`test_three_sinks.py` has them with all sinks at once. Here they are killed in a row, so that a driver dies
while it makes good what the one before left, and each in a run of its own, at the first occurrence and at a
later one. A later occurrence of a start-up point is one of a job whose driver died with a batch that Spark
had committed and the sink had not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once
from tests.faults.inputs import FILES, Feed
from weir.faults import POINTS
from weir.testing import assert_same_result, committed_rows, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "counts.py"
BATCHES = 12
LATER = 2
"""Each kill at a later occurrence lets a driver before it commit a batch."""
ELSEWHERE = ("checkpoint.", "barrier.", "savepoint.", "restore.", "ledger.", "files.", "kafka.")
MET = [point for point in POINTS if not point.startswith(ELSEWHERE)]
STARTS = [point for point in MET if point.startswith("start.")]
BATCH = [point for point in MET if not point.startswith("start.")]
FIRST, AGAIN = "first", "later"
assert len(BATCH) + 2 < BATCHES, "each later kill needs a batch of its own"


@pytest.fixture(scope="module")
def rows(once: Once) -> Path:
    """The input: keys that all batches share."""
    return once("rows", lambda folder: Feed(folder).add(BATCHES))


@pytest.fixture(scope="module")
def quiet(once: Once, rows: Path, quick: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the job delivers when nothing goes wrong."""

    def make(folder: Path) -> None:
        run = run_job(JOB, folder / "weir", args=(rows, folder / "out"), settings=quick)
        assert run.exit_code == 0, run.stderr
        assert [b["batch"] for b in run.batches] == list(range(BATCHES))

    return committed_rows(str(once("quiet", make) / "out"))


@pytest.fixture(scope="module")
def died(once: Once, rows: Path, quick: Mapping[str, str]) -> Path:
    """A job whose driver died when Spark had committed batch 1 and the sink had not."""

    def make(folder: Path) -> None:
        settings = {**quick, "restart-strategy.type": "none"}
        fault = "batch.committed#2"
        run = run_job(
            JOB, folder / "weir", faults=[f"{fault}:kill"], args=(rows, folder / "out"), settings=settings
        )
        assert run.fired == {fault} and run.exit_code == 3, run.stderr

    return once("died", make)


@pytest.mark.long
def test_the_quiet_run_counts_right(quiet: list[dict[str, Any]]) -> None:
    assert sum(row["n"] for row in {row["k"]: row for row in quiet}.values()) == FILES * BATCHES * 8


@pytest.mark.long
@pytest.mark.parametrize("occurrence", [FIRST, AGAIN])
@pytest.mark.parametrize("points", [STARTS, BATCH], ids=["starts", "batches"])
@pytest.mark.timeout(600)
def test_kills_in_a_row_change_nothing(
    points: list[str],
    occurrence: str,
    rows: Path,
    quiet: list[dict[str, Any]],
    quick: Mapping[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    killed(points, occurrence, rows, quiet, quick, tmp_path, request)


@pytest.mark.long
@pytest.mark.parametrize("occurrence", [FIRST, AGAIN])
@pytest.mark.parametrize("point", MET)
def test_a_kill_at_any_point_changes_nothing(
    point: str,
    occurrence: str,
    rows: Path,
    quiet: list[dict[str, Any]],
    quick: Mapping[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    killed([point], occurrence, rows, quiet, quick, tmp_path, request)


def killed(
    points: list[str],
    occurrence: str,
    rows: Path,
    quiet: list[dict[str, Any]],
    quick: Mapping[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Run the job, kill its driver at each of these points, compare."""
    started = points[0].startswith("start.")
    if started and occurrence == AGAIN:
        died: Path = request.getfixturevalue("died")
        for name in ("weir", "out"):
            shutil.copytree(died / name, tmp_path / name)
    number = LATER if occurrence == AGAIN and not started else 1
    faults, out = {f"{point}#{number}" for point in points}, tmp_path / "out"
    armed = [f"{fault}:kill" for fault in sorted(faults)]
    run = run_job(JOB, tmp_path / "weir", faults=armed, args=(rows, out), settings=quick, timeout=540.0)
    assert run.fired == faults, f"{faults - run.fired} did not fire:\n{run.stderr}"
    assert run.exit_code == 0, run.stderr
    assert_same_result(committed_rows(str(out)), quiet, mode="update", key=["k"])
    assert_each_batch_once(out)


def assert_each_batch_once(out: Path) -> None:
    """The ledger has every batch once, in order, and all the files that it names are there.

    There may be fewer than in the quiet run: see `inputs.py`.
    """
    entries = [json.loads(file.read_text()) for file in sorted((out / "_weir/log").iterdir())]
    batches = [entry for entry in entries if entry["kind"] == "batch"]
    assert [entry["batch"] for entry in batches] == list(range(len(batches)))
    assert 1 < len(batches) <= BATCHES
    assert all((out / name).exists() for entry in batches for name in entry["body"]["files"])
