"""What was delivered is what the state saw, also when a batch that runs twice gives other rows.

Each batch has keys of its own, so that the state still shows at the end which run of which batch it
took its rows from; a key that differs names the batch, and so the point at which it went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Once
from tests.faults.chance import SEEDS, drawn
from tests.faults.inputs import Feed, own_keys
from weir.testing import JobRun, committed_rows, folded, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "jobs" / "uuids.py"
POINTS = (
    "batch.state",
    "batch.written",
    "batch.committed",
    "sink.committing",
    "sink.committed",
    "batch.staged",
)
BATCHES = 14
FEW = 4


def given(once: Once, batches: int) -> Path:
    return once(f"own-keys-{batches}", lambda folder: Feed(folder, own_keys).add(batches))


def live_state(spark: SparkSession, folder: Path) -> dict[str, tuple[int, str]]:
    """What Spark's state holds at the last committed batch: for each key the newest row."""
    session = spark.newSession()
    state = "spark.sql.streaming.stateStore"
    session.conf.set(f"{state}.checkpointFormatVersion", "2")
    session.conf.set(
        f"{state}.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
    frame = session.read.format("statestore").load(str(folder / "uuids/generations/0001/queries/newest"))
    return {row.key[0]: (row.value[0].v, row.value[0].id) for row in frame.collect()}


def delivered(out: Path) -> dict[str, tuple[int, str]]:
    table = folded(committed_rows(str(out)), ["k"])
    return {row["k"]: (row["newest"]["v"], row["newest"]["id"]) for row in table.values()}


def check(run: JobRun, faults: list[str], spark: SparkSession, folder: Path, batches: int) -> None:
    assert run.fired == set(faults), f"not every fault fired:\n{run.stderr}"
    assert run.exit_code == 0, run.stderr
    compare(spark, folder, batches)


def compare(spark: SparkSession, folder: Path, batches: int) -> None:
    seen, kept = delivered(folder / "out"), live_state(spark, folder / "weir")
    assert len(kept) == 6 * batches + 1
    wrong = {key: (seen.get(key), kept[key]) for key in kept if seen.get(key) != kept[key]}
    assert not wrong, f"delivered and kept differ: {wrong}"
    assert seen.keys() == kept.keys()


def run(folder: Path, rows: Path, faults: list[str], quick: Mapping[str, str]) -> JobRun:
    armed = [f"{fault}:kill" for fault in faults]
    args = (rows, folder / "out")
    return run_job(JOB, folder / "weir", faults=armed, args=args, settings=quick, timeout=500)


@pytest.mark.long
def test_what_was_delivered_is_what_the_state_saw(
    once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path
) -> None:
    # Each attempt dies in its second batch at another point, the last one in its third, before Spark decided.
    faults = [f"{point}#{3 if point == 'batch.staged' else 2}" for point in POINTS]
    done = run(tmp_path, given(once, BATCHES), faults, quick)
    check(done, faults, spark, tmp_path, BATCHES)
    assert len(done.attempts) == len(POINTS) + 1
    # A batch that ran twice did give other rows; otherwise all this would show nothing.
    data = tmp_path / "out/data"
    again = max(folder.name for folder in data.glob("*-6-1")).partition("-")[0]
    thrown_away, counted = (rows_in(data / f"{again}-{attempt}-1") for attempt in (6, 7))
    assert thrown_away.keys() == counted.keys() != set()
    assert all(thrown_away[key] != counted[key] for key in counted)


@pytest.mark.long
@pytest.mark.parametrize("occurrence", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_what_was_delivered_is_what_the_state_saw_after_a_kill_at(
    point: str, occurrence: int, once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path
) -> None:
    faults = [f"{point}#{occurrence}"]
    done = run(tmp_path, given(once, FEW), faults, quick)
    check(done, faults, spark, tmp_path, FEW)


@pytest.mark.long
@pytest.mark.seeds
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_delivered_is_what_the_state_saw_after_kills_by_seed(
    seed: int, once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path
) -> None:
    faults = drawn(seed)
    done = run(tmp_path, given(once, FEW), faults, quick)
    about = f"seed {seed}: {', '.join(faults)}"
    assert done.exit_code == 0, f"{about}\n{done.stderr}"
    assert done.fired, about
    compare(spark, tmp_path, FEW)


def rows_in(folder: Path) -> dict[str, Any]:
    """The uuids that one run of a batch has staged, delivered or not."""
    from pyarrow import parquet

    rows = [row for file in folder.glob("part-*") for row in parquet.read_table(file).to_pylist()]
    return {row["k"]: row["newest"]["id"] for row in rows}
