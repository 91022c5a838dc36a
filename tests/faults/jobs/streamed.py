"""Rows that go through a stream and are counted and summed per key, in update mode.

Arguments: the input folder and the output folder.
"""

import sys

from pyspark.sql import functions as F

import weir

folder, output = sys.argv[1:]
job = weir.Job("streamed")


@job.pipeline
def pipeline(env: weir.Env) -> None:
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    clean = env.stream("clean", env.source("rows", rows))
    table = clean.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    env.sink("counts", table, weir.sinks.files(output), output_mode="update")
