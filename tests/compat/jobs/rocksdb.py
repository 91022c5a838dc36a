"""State in RocksDB: sums per key in update mode, and windows over event time behind a stream.

Everything lies beside this file: `in`, `sums`, `windows`.
"""

from pathlib import Path

from pyspark.sql import functions as F

import weir

HERE = Path(__file__).parent
KEY = "execution.checkpointing"

job = weir.Job(
    "rocksdb",
    **{
        "state.backend.type": "rocksdb",
        f"{KEY}.interval": "off",
        f"{KEY}.num-retained": 3,
        f"{KEY}.savepoint-dir": str(HERE / "saved"),
        # RocksDB's own snapshots, not only its changelog
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    },
)


@job.pipeline
def rocksdb(env: weir.Env) -> None:
    reader = env.spark.readStream.schema("k string, v long, at long").option("maxFilesPerTrigger", 1)
    rows = env.source("rows", reader.json(str(HERE / "in")))
    sums = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    env.sink("sums", sums, weir.sinks.files(str(HERE / "sums")), output_mode="update")

    timed = rows.select("v", F.timestamp_seconds("at").alias("at")).withWatermark("at", "10 seconds")
    events = env.stream("events", timed)
    windows = events.groupBy(F.window("at", "10 seconds").alias("w")).agg(F.sum("v").alias("sum"))
    flat = windows.select(F.unix_seconds("w.start").alias("start"), "sum")
    env.sink("windows", flat, weir.sinks.files(str(HERE / "windows")))


if __name__ == "__main__":
    job.run()
