"""A diamond: a source into a stream, two streams behind it, and sums per key over both, into files.

weir run diamond.py INPUT OUTPUT diamond    four queries, three channels
weir run diamond.py INPUT OUTPUT single     the sums in one query, without a channel
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("diamond")


@job.pipeline
def diamond(env: weir.Env) -> None:
    folder, output, shape = sys.argv[1:4]
    files = env.spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    rows = env.source("rows", files.parquet(folder))
    if shape == "diamond":
        rows = env.stream("all", rows)
        left = env.stream("left", rows.select("key", (2 * F.col("value")).alias("value")))
        right = env.stream("right", rows.select("key", (F.col("value") + 1).alias("value")))
        rows = left.unionByName(right)
    sums = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("sum"))
    env.sink("sums", sums, weir.sinks.files(output), output_mode="update")


if __name__ == "__main__":
    job.run()
