"""One input, counted and summed per key by three queries: into files, a table of PostgreSQL and a topic.

The url of the database is in DATABASE_OF_THE_TEST. Arguments: the input folder, the output folder, the
broker, and the topic to write.
"""

import os
import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("three-sinks")


@job.pipeline
def three_sinks(env: weir.Env) -> None:
    folder, output, bootstrap, topic = sys.argv[1:]
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    table = env.source("rows", rows).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    value = F.to_json(F.struct("k", "n", "sum"))
    kept = weir.sinks.postgres(os.environ["DATABASE_OF_THE_TEST"], "counts", key="k", create=True)
    sent = weir.sinks.kafka(bootstrap, topic, key="k", value=value)
    now = {"availableNow": True}
    env.sink("files", table, weir.sinks.files(output), output_mode="update", trigger=now)
    env.sink("table", table, kept, output_mode="update", trigger=now)
    env.sink("topic", table, sent, output_mode="update", trigger=now)


if __name__ == "__main__":
    job.run()
