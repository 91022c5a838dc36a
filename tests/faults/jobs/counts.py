"""A deterministic job: rows counted and summed per key, in update mode, two input files to a batch.

Arguments: the input folder, the output folder, and "endless" for a job that waits for more files
where it would otherwise end.
"""

import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("counts")


@job.pipeline
def counts(env: weir.Env) -> None:
    folder, output, *endless = sys.argv[1:]
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    table = env.source("rows", rows).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    trigger = None if endless else {"availableNow": True}
    env.sink("counts", table, weir.sinks.files(output), output_mode="update", trigger=trigger)


if __name__ == "__main__":
    job.run()
