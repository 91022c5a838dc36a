"""The Parquet files in a folder, two a batch, appended to a table. The url is in BENCH_DATABASE.

weir run to_postgres.py INPUT TABLE exactly_once|at_least_once
"""

from __future__ import annotations

import os
import sys

import weir

job = weir.Job("to-postgres")


@job.pipeline
def pipeline(env: weir.Env) -> None:
    folder, table, delivery = sys.argv[1:]
    schema = "id long, name string, amount double, at timestamp, note string"
    rows = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(folder)
    url = os.environ["BENCH_DATABASE"]
    sink = weir.sinks.postgres(url, table, create=True, delivery=delivery)  # type: ignore[arg-type]
    env.sink("rows", env.source("files", rows), sink, trigger={"availableNow": True})


if __name__ == "__main__":
    job.run()
