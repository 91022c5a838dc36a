"""A job that is not deterministic: each row gets a uuid, and the state keeps the newest one per key.

A batch that runs twice gives other uuids, so a row that was delivered by one run and kept in the
state by another is found out. Arguments: the input folder and the output folder.
"""

import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("uuids")


@job.pipeline
def uuids(env: weir.Env) -> None:
    folder, output = sys.argv[1:]
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    marked = env.source("rows", rows).withColumn("id", F.expr("uuid()"))
    newest = marked.groupBy("k").agg(F.max(F.struct("v", "id")).alias("newest"))
    sink = weir.sinks.files(output)
    env.sink("newest", newest, sink, output_mode="update", trigger={"availableNow": True})


if __name__ == "__main__":
    job.run()
