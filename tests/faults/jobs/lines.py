"""Lines from a socket, counted per line into files. Arguments: host, port, output folder."""

import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("lines")


@job.pipeline
def lines(env: weir.Env) -> None:
    host, port, output = sys.argv[1:]
    values = env.source("lines", weir.sources.socket(host, int(port)))
    table = values.groupBy("value").agg(F.count("*").alias("n"))
    env.sink("counts", table, weir.sinks.files(output), output_mode="update")


if __name__ == "__main__":
    job.run()
