"""A keyed count over the Parquet files in a folder: the same query under weir and in plain PySpark.

weir run keyed_count.py INPUT OUTPUT          under weir
python keyed_count.py INPUT OUTPUT CHECKPOINT plain, with the Spark settings that weir gives
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

job = weir.Job("keyed-count")


def counts(spark: SparkSession, folder: str) -> DataFrame:
    records = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1).parquet(folder)
    return records.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


@job.pipeline
def pipeline(env: weir.Env) -> None:
    env.sink(
        "counts",
        counts(env.spark, sys.argv[1]),
        weir.sinks.files(sys.argv[2]),
        output_mode="update",
        trigger={"availableNow": True},
    )


def plain(source: str, output: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for key, value in json.loads(os.environ["BENCH_SPARK"]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    run = os.getpid()

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.parquet(f"{output}/{batch}-{run}")

    writer = counts(spark, source).writeStream.outputMode("update").trigger(availableNow=True)
    writer.foreachBatch(write).option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        plain(*sys.argv[1:])
    else:
        job.run()
