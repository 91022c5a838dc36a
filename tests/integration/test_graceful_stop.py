"""Ending a query without losing its batch: Spark's private API, pinned for the Spark that is installed.

`query.stop()` throws a running batch away. weir sets Spark's own state to terminated instead. When
one of these fails on a new Spark, `weir.job.query._terminate_after_batch` must learn its way.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from weir.job.query import _terminate_after_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

LIMIT = 60


class Held:
    """A query whose batches wait inside foreachBatch until they are let go."""

    def __init__(self, spark: SparkSession, folder: Path, trigger: dict[str, str] | None = None) -> None:
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.live = folder / "live"
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = source.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(self.live))
        self.query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()

    def _batch(self, frame: DataFrame, number: int) -> None:
        frame.count()
        self.entered.release()
        assert self.let_go.acquire(timeout=LIMIT)

    def log(self, name: str) -> list[int]:
        return sorted(int(file.name) for file in (self.live / name).glob("[0-9]*"))


def test_the_running_batch_is_committed_and_no_other_is_started(spark: SparkSession, tmp_path: Path) -> None:
    held = Held(spark, tmp_path)
    assert held.entered.acquire(timeout=LIMIT)
    held.let_go.release()
    assert held.entered.acquire(timeout=LIMIT)
    _terminate_after_batch(held.query)
    held.let_go.release()
    assert held.query.awaitTermination(LIMIT)
    assert held.query.exception() is None
    assert held.log("offsets") == held.log("commits") == [0, 1]


def test_a_query_that_sleeps_until_its_next_trigger_is_seen_to_be_idle(
    spark: SparkSession, tmp_path: Path
) -> None:
    held = Held(spark, tmp_path, {"processingTime": "1 hour"})
    assert held.entered.acquire(timeout=LIMIT)
    assert held.query.status["isTriggerActive"]
    held.let_go.release()
    until = threading.Event()
    for _ in range(LIMIT * 20):
        if held.log("commits") == [0] and not held.query.status["isTriggerActive"]:
            break
        until.wait(0.05)
    _terminate_after_batch(held.query)
    held.query.stop()
    assert held.query.awaitTermination(LIMIT)
    assert held.log("offsets") == held.log("commits") == [0]
