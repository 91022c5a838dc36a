"""Bronze, silver, gold: one job of five queries, with one consistent checkpoint of all of them.

    weir run examples/medallion.py [FOLDER]
    python examples/medallion.py [FOLDER]
    weir checkpoints medallion            # what was taken, and where the time went
    weir restore medallion latest         # all five queries, the channels and the files go back to it

`env.stream` cuts the graph: its frame is computed once, by a query of its own, and read by any
number of others. The job runs until it is cancelled (Ctrl-C, or `weir cancel medallion`).
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F

import weir

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "medallion")
job = weir.Job("medallion", execution_checkpointing_interval="5 s")


@job.pipeline
def medallion(env: weir.Env) -> None:
    rate = env.spark.readStream.format("rate").option("rowsPerSecond", 500).load()
    orders = env.source("orders", rate).select(
        F.col("value").alias("order"),
        (F.col("value") % 7).alias("customer"),
        (F.col("value") % 100 - 3).alias("amount"),
    )
    bronze = env.stream("bronze", orders)
    silver = env.stream("silver", bronze.where("amount > 0"))
    totals = silver.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
    env.sink("gold", totals, weir.sinks.files(str(folder / "gold")), output_mode="update")
    env.sink("refused", bronze.where("amount <= 0"), weir.sinks.files(str(folder / "refused")))
    env.sink("archive", bronze, weir.sinks.files(str(folder / "archive")))


if __name__ == "__main__":
    job.run()
