"""Sums per key into one table of PostgreSQL, every row into another; the url is in DATABASE_OF_THE_TEST.

The input lies beside this file, in `in`.
"""

import os
from pathlib import Path

from pyspark.sql import functions as F

import weir

HERE = Path(__file__).parent
KEY = "execution.checkpointing"

job = weir.Job("postgres", **{f"{KEY}.interval": "off", f"{KEY}.savepoint-dir": str(HERE / "saved")})


@job.pipeline
def postgres(env: weir.Env) -> None:
    url = os.environ["DATABASE_OF_THE_TEST"]
    reader = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    rows = env.source("rows", reader.json(str(HERE / "in")))
    sums = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    kept = weir.sinks.postgres(url, "sums", key="k", create=True)
    env.sink("sums", sums, kept, output_mode="update")
    env.sink("kept", rows, weir.sinks.postgres(url, "kept", create=True))


if __name__ == "__main__":
    job.run()
