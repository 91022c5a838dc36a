"""Many small batches into partitioned files that are merged: a ledger with snapshots and without its head.

Everything lies beside this file: `in`, `out`.
"""

from pathlib import Path

from pyspark.sql import functions as F

import weir

HERE = Path(__file__).parent
KEY = "execution.checkpointing"

job = weir.Job("files", **{f"{KEY}.interval": "off", f"{KEY}.num-retained": 2})


@job.pipeline
def files(env: weir.Env) -> None:
    env.spark.conf.set("spark.sql.streaming.minBatchesToRetain", 20)
    source = weir.sources.files(str(HERE / "in"), format="json", schema="k string, v long", max_files=1)
    rows = env.source("rows", source).withColumn("part", F.col("v") % 2).coalesce(1)
    env.sink("kept", rows, weir.sinks.files(str(HERE / "out"), partition_by="part", compact="64 kb"))


if __name__ == "__main__":
    job.run()
