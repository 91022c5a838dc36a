"""A deterministic job: rows counted and summed per key, in update mode, one input file pair a batch.

Arguments: the input folder and the output folder.
"""

import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("counts")


@job.pipeline
def counts(env: weir.Env) -> None:
    folder, output = sys.argv[1:]
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    table = env.source("rows", rows).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    sink = weir.sinks.files(output)
    env.sink("counts", table, sink, output_mode="update", trigger={"availableNow": True})


if __name__ == "__main__":
    job.run()
