"""A keyed sum over files that grows a dedup in front and a count beside.

Arguments: the input folder, the output folder, and "before" or "after" the change.
"""

import sys

from pyspark.sql import functions as F

import weir

folder, out, code = sys.argv[1:]
job = weir.Job("changed")


@job.pipeline
def pipeline(env: weir.Env) -> None:
    lines = (
        env.spark.readStream.schema("id long, k string, v long").option("maxFilesPerTrigger", 1).json(folder)
    )
    rows = env.source("rows", lines)
    if code == "after":
        rows = rows.dropDuplicates(["id"])
    columns = [F.sum("v").alias("sum"), *([F.count("*").alias("n")] if code == "after" else [])]
    env.sink("sums", rows.groupBy("k").agg(*columns), weir.sinks.files(out), output_mode="update")
