"""Unaligned checkpoints, which hold rows between two queries, and are copied to another directory.

Everything lies beside this file: `in`, `out`, `copies`. With the argument "slow" the reader of the stream
runs one batch an hour.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F

import weir

HERE = Path(__file__).parent
KEY = "execution.checkpointing"

job = weir.Job(
    "unaligned",
    **{
        f"{KEY}.interval": "off",
        f"{KEY}.num-retained": 2,
        f"{KEY}.unaligned.enabled": "true",
        f"{KEY}.copy-dir": str(HERE / "copies"),
    },
)


@job.pipeline
def unaligned(env: weir.Env) -> None:
    reader = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    rows = env.stream("rows", env.source("files", reader.json(str(HERE / "in"))))
    sums = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    trigger = {"processingTime": "1 hour"} if "slow" in sys.argv else None
    env.sink("sums", sums, weir.sinks.files(str(HERE / "out")), output_mode="update", trigger=trigger)


if __name__ == "__main__":
    job.run()
