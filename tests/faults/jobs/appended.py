"""Rows as they come, by a query for each sink: files, a table of PostgreSQL and a topic.

The url of the database is in DATABASE_OF_THE_TEST. Arguments: the input folder, the output folder, the
broker, and the topic to write.
"""

import os
import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("appended")


@job.pipeline
def appended(env: weir.Env) -> None:
    folder, output, bootstrap, topic = sys.argv[1:]
    reader = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2)
    rows = env.source("rows", reader.json(folder))
    env.sink("files", rows, weir.sinks.files(output))
    env.sink("table", rows, weir.sinks.postgres(os.environ["DATABASE_OF_THE_TEST"], "rows", create=True))
    value = F.to_json(F.struct("k", "v"))
    env.sink("topic", rows, weir.sinks.kafka(bootstrap, topic, key="k", value=value))


if __name__ == "__main__":
    job.run()
