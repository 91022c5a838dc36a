"""Sums per key over the Parquet files in a folder: the same query under weir and in plain PySpark.

weir run sums.py INPUT OUTPUT              under weir
python sums.py INPUT OUTPUT CHECKPOINTS    plain, with the Spark settings that weir gives
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plain import run
from pyspark.sql import functions as F

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

job = weir.Job("sums")
SUMS = 16
"""So many for each key: a row of state is not always two numbers."""


def sums(spark: SparkSession, folder: str) -> DataFrame:
    rows = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1).parquet(folder)
    several = [F.sum(F.col("value") * n).alias(f"sum_{n}") for n in range(1, SUMS + 1)]
    return rows.groupBy("key").agg(F.count("*").alias("n"), *several)


@job.pipeline
def pipeline(env: weir.Env) -> None:
    env.sink("sums", sums(env.spark, sys.argv[1]), weir.sinks.files(sys.argv[2]), output_mode="update")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run(lambda spark: {"sums": sums(spark, sys.argv[1])}, *sys.argv[2:])
    else:
        job.run()
