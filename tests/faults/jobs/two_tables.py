"""Two queries over one folder into two tables of PostgreSQL: `rows` as they come, `counts` by key.

The url of the database is in DATABASE_OF_THE_TEST. Argument: the input folder.
"""

import os
import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("tables")


@job.pipeline
def tables(env: weir.Env) -> None:
    url = os.environ["DATABASE_OF_THE_TEST"]
    source = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2)
    rows = env.source("rows", source.json(sys.argv[1]))
    counts = rows.groupBy("k").agg(F.count("*").alias("n"))
    env.sink("rows", rows, weir.sinks.postgres(url, "rows", create=True))
    env.sink("counts", counts, weir.sinks.postgres(url, "counts", key="k", create=True), output_mode="update")


if __name__ == "__main__":
    job.run()
