"""A query that is started from a restored checkpoint goes on exactly as the first one did.

The first run is the quiet run: its checkpoint is kept while it runs, and Spark then purges what it
was made of. Before the second run all that the first one has left is deleted, but for what was kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kept_job import KeptJob
from weir.checkpoint.manifest import QueryCut
from weir.checkpoint.pins import Pins
from weir.clock import Clock
from weir.config import CheckpointStorage
from weir.ids import BatchId, CheckpointId
from weir.restore.damage import look
from weir.restore.fetch import fetch
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.spark.closure import closure
from weir.spark.session import Backend, state_defaults
from weir.storage import generation as generations
from weir.storage.generation import FIRST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BATCHES = 7
CUT = BatchId(2)
CHECKPOINT = CheckpointId(1)
RETAINED = "2"

Given = dict[int, list[Any]]
Frame = Callable[["DataFrame"], "DataFrame"]


def counts(lines: DataFrame) -> DataFrame:
    return lines.groupBy("k").sum("v")


def joined(lines: DataFrame) -> DataFrame:
    """A join names its schema files in full: they must be found at the new place."""
    left = lines.selectExpr("k", "v as left")
    right = lines.where("v % 5 = 0").selectExpr("k as rk", "v as right")
    return left.join(right, left.k == right.rk)


@dataclass(frozen=True)
class Case:
    backend: Backend
    frame: Frame
    mode: str
    how: str


CASES = [
    Case("rocksdb", counts, "update", "links"),
    Case("hashmap", counts, "update", "full"),
    Case("rocksdb", joined, "append", "copies alone"),
    Case("hashmap", counts, "update", "memory"),
]


class Query:
    """One file a batch; what each batch gave is kept."""

    def __init__(self, spark: SparkSession, case: Case, folder: Path) -> None:
        self._case = case
        self._session = spark.newSession()
        for key, value in state_defaults(case.backend, cores=1).items():
            self._session.conf.set(key, value)
        for key, value in {
            "minBatchesToRetain": RETAINED,
            "stateStore.minDeltasForSnapshot": "2",
            "stateStore.maintenanceInterval": "100ms",
            "join.stateFormatVersion": "3",
        }.items():
            self._session.conf.set(f"spark.sql.streaming.{key}", value)
        self._input = folder / "in"
        self._input.mkdir()
        for number in range(BATCHES):
            rows = [{"k": f"k{(number + i) % 7}", "v": i} for i in range(20)]
            (self._input / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))

    def run(self, location: Path, before: Callable[[int], None] = lambda batch: None) -> Given:
        given: Given = {}

        def keep(frame: DataFrame, batch: int) -> None:
            before(batch)
            given[batch] = sorted(tuple(row) for row in frame.collect())

        lines = self._session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
        frame = self._case.frame(lines.json(str(self._input)))
        writer = frame.writeStream.outputMode(self._case.mode).foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(location)).start().awaitTermination()
        return given


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.frame.__name__}, {case.how}")
def test_a_restored_checkpoint_goes_on_as_the_quiet_run_did(
    case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    job = KeptJob(tmp_path / "weir")
    copy_dir = str(tmp_path / "second") if case.how == "copies alone" else None
    storage = CheckpointStorage.MEMORY if case.how == "memory" else CheckpointStorage.FILESYSTEM
    pins = Pins(job.store, job.job, FIRST, storage=storage, copy_dir=copy_dir)
    live = job.root() / "queries/counts"

    def checkpoint(batch: int) -> None:
        if batch != CUT + 1:  # the batch before it is committed
            return
        names = closure(live, CUT).files
        kept = pins.keep("queries/counts", names, checkpoint=CHECKPOINT, full=case.how == "full")
        cut = QueryCut(batch=CUT, files=kept.files)
        manifest = job.manifest(1, {"counts": cut}, full=case.how == "full", copied_to=pins.copied_to)
        pins.export_manifest(manifest)
        job.complete(manifest)

    query = Query(spark, case, tmp_path)
    quiet = query.run(live, checkpoint)
    assert sorted(quiet) == list(range(BATCHES))
    assert any(quiet.values())
    assert not (live / f"offsets/{CUT}").exists()
    assert look(job.store, job.job, FIRST) == []
    (job.folder if case.how == "copies alone" else live).rename(tmp_path / "lost")

    point = "latest" if copy_dir is None else f"{copy_dir}/job/checkpoints/chk-1.json"
    number = intend(job.store, job.job, RestoreRequest(point), clock=Clock(), why="a test")
    fetch(job.store, job.job, number)
    generations.mark_live(job.store, job.job, number)
    assert look(job.store, job.job, number) == []
    assert generations.live(job.store, job.job) == number
    location = job.root(number) / "queries/counts"
    assert query.run(location) == {batch: rows for batch, rows in quiet.items() if batch > CUT}
    operators = [path.read_text() for path in location.glob("state/*/_metadata/v2/[0-9]*")]
    assert bool(operators) == (case.frame is joined)
    assert all(str(location) in text and str(live) not in text for text in operators)
