"""As `uuids.py`, into PostgreSQL: the newest row of each key is merged into a table.

The url of the database is in DATABASE_OF_THE_TEST. Arguments: the input folder, and "endless" for a job
that waits for more files where it would otherwise end.
"""

import os
import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("uuids")


@job.pipeline
def uuids(env: weir.Env) -> None:
    folder, *endless = sys.argv[1:]
    url = os.environ["DATABASE_OF_THE_TEST"]
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    marked = env.source("rows", rows).withColumn("id", F.expr("uuid()"))
    newest = marked.groupBy("k").agg(F.max(F.struct("v", "id")).alias("newest"))
    flat = newest.select("k", "newest.v", "newest.id")
    table = weir.sinks.postgres(url, "newest", key="k", create=True)
    trigger = None if endless else {"availableNow": True}
    env.sink("newest", flat, table, output_mode="update", trigger=trigger)


if __name__ == "__main__":
    job.run()
