"""The closure of a batch is enough: a query started from a copy of it goes on as the original did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.ids import BatchId
from weir.spark.closure import GoneError, closure
from weir.spark.session import Backend, state_defaults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CASES: list[tuple[Backend, bool]] = [("rocksdb", True), ("rocksdb", False), ("hashmap", True)]
BATCHES = 5


class Counting:
    """A count by key over one file a batch; what each batch gave is kept."""

    def __init__(self, spark: SparkSession, backend: Backend, changelog: bool, folder: Path) -> None:
        self._session = spark.newSession()
        for key, value in state_defaults(backend, cores=1, changelog=changelog).items():
            self._session.conf.set(key, value)
        self._session.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
        self._input = folder / "in"
        self._input.mkdir(exist_ok=True)

    def feed(self) -> None:
        for number in range(BATCHES):
            rows = [{"k": f"k{(number + i) % 7}", "v": i} for i in range(20)]
            (self._input / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))

    def run(self, checkpoint: Path) -> dict[int, list[Any]]:
        given: dict[int, list[Any]] = {}

        def keep(frame: DataFrame, batch: int) -> None:
            given[batch] = sorted(tuple(row) for row in frame.collect())

        lines = self._session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
        counts = lines.json(str(self._input)).groupBy("k").sum("v")
        writer = counts.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        return given


@pytest.mark.parametrize(("backend", "changelog"), CASES)
def test_a_copy_of_the_closure_goes_on_as_the_original_did(
    backend: Backend, changelog: bool, spark: SparkSession, tmp_path: Path
) -> None:
    query = Counting(spark, backend, changelog, tmp_path)
    query.feed()
    original = tmp_path / "original"
    quiet = query.run(original)
    assert sorted(quiet) == list(range(BATCHES))
    cut = BatchId(BATCHES - 3)
    files = closure(original, cut).files
    assert not {f"offsets/{cut + 1}", f"commits/{cut + 1}"} & set(files)
    copy = tmp_path / "copy"
    for file in files:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original / file, copy / file)
    assert closure(copy, cut).files == files
    shutil.rmtree(original)
    assert query.run(copy) == {batch: quiet[batch] for batch in (cut + 1, cut + 2)}


def test_a_batch_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(GoneError):
        closure(tmp_path, BatchId(7))
