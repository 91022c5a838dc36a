"""Events per window of event time, with a watermark, to files: each window once.

    weir run examples/windowed.py [WINDOWS]
    python examples/windowed.py [WINDOWS]

The source makes 1,000 events a second. Append mode writes a window when the watermark has passed its
end: nothing later than 5 seconds can change it any more. The job runs until it is cancelled (Ctrl-C,
or `weir cancel windowed`); then the running batch is finished and committed. Read the result with

    pyarrow.parquet.ParquetDataset(weir.committed_files("windows")).read()
"""

import sys

from pyspark.sql import functions as F

import weir

windows = sys.argv[1] if len(sys.argv) > 1 else "windows"
job = weir.Job("windowed")


@job.pipeline
def windowed(env: weir.Env) -> None:
    rate = env.spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    events = env.source("events", rate).withColumn("sensor", F.col("value") % 10)
    per_window = (
        events.withWatermark("timestamp", "5 seconds")
        .groupBy(F.window("timestamp", "5 seconds"), "sensor")
        .agg(F.count("*").alias("events"), F.max("value").alias("newest"))
        .select("window.start", "window.end", "sensor", "events", "newest")
    )
    env.sink("windows", per_window, weir.sinks.files(windows), trigger={"processingTime": "2 seconds"})


if __name__ == "__main__":
    job.run()
