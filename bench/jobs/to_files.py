"""The Parquet files in a folder, two a batch, written to Parquet files: by weir's sink and by Spark's own.

weir run to_files.py INPUT OUTPUT           under weir
python to_files.py INPUT OUTPUT CHECKPOINT  plain, with the Spark settings that weir gives
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

job = weir.Job("to-files")


def rows(spark: SparkSession, folder: str) -> DataFrame:
    schema = "id long, name string, amount double, at timestamp, note string"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(folder)


@job.pipeline
def pipeline(env: weir.Env) -> None:
    folder, output = sys.argv[1:]
    env.sink("rows", rows(env.spark, folder), weir.sinks.files(output), trigger={"availableNow": True})


def plain(folder: str, output: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for key, value in json.loads(os.environ["BENCH_SPARK"]).items():
        builder = builder.config(key, value)
    writer = rows(builder.getOrCreate(), folder).writeStream.trigger(availableNow=True).format("parquet")
    writer.option("checkpointLocation", checkpoint).option("path", output).start().awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        plain(*sys.argv[1:])
    else:
        job.run()
