"""Queries without weir: started in one session with weir's Spark settings, until the process is killed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(queries: Callable[[SparkSession], Mapping[str, DataFrame]], output: str, checkpoints: str) -> None:
    """Write each frame to Parquet files, batch by batch; its progress goes to the file BENCH_PROGRESS."""
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQueryListener

    class Progress(StreamingQueryListener):
        def onQueryStarted(self, event: object) -> None: ...

        def onQueryProgress(self, event: object) -> None:
            with open(os.environ["BENCH_PROGRESS"], "a") as file:
                file.write(json.dumps(json.loads(event.progress.json)) + "\n")  # type: ignore[attr-defined]

        def onQueryIdle(self, event: object) -> None: ...

        def onQueryTerminated(self, event: object) -> None: ...

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for key, value in json.loads(os.environ["BENCH_SPARK"]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.streams.addListener(Progress())
    for name, frame in queries(spark).items():

        def write(batch: DataFrame, number: int, folder: str = f"{output}/{name}") -> None:
            batch.write.parquet(f"{folder}/{number}")

        writer = frame.writeStream.queryName(name).outputMode("update").foreachBatch(write)
        writer.option("checkpointLocation", f"{checkpoints}/{name}").start()
    spark.streams.awaitAnyTermination()
