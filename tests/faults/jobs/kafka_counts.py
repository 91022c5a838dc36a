"""Kafka to a stateful query to Kafka: values counted and summed per key, few records to a batch.

Arguments: the broker, the topic to read, the topic to write, and "endless" for a job that waits for more
where it would otherwise end. Records are JSON of `k` and `v`. With a database in the environment the counts
go to its table `counts` too, by a query of their own.
"""

import os
import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("kafka-counts")


@job.pipeline
def counts(env: weir.Env) -> None:
    bootstrap, read, written, *endless = sys.argv[1:]
    records = env.source("records", weir.sources.kafka(bootstrap, read, max_records=40))
    rows = records.select(F.from_json(F.col("value").cast("string"), "k string, v long").alias("row")).select(
        "row.*"
    )
    table = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    sink = weir.sinks.kafka(bootstrap, written, key="k", value=F.to_json(F.struct("k", "n", "sum")))
    trigger = None if endless else {"availableNow": True}
    env.sink("counts", table, sink, output_mode="update", trigger=trigger)
    if database := os.environ.get("DATABASE_OF_THE_TEST"):
        kept = weir.sinks.postgres(database, "counts", key="k", create=True)
        env.sink("rows", table, kept, output_mode="update", trigger=trigger)


if __name__ == "__main__":
    job.run()
