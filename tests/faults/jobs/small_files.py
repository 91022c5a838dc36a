"""A few rows a batch, to files by a partition column that are merged as soon as there are four.

Arguments: the input folder, the output folder.
"""

import sys

import weir
from weir.sinks import compaction as merging
from weir.sinks import files_ledger

files_ledger.EVERY = 5
merging.FAN = 4
job = weir.Job("small-files")


@job.pipeline
def pipeline(env: weir.Env) -> None:
    folder, output = sys.argv[1:]
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(folder)
    rows = env.source("rows", rows).selectExpr("k", "v", "v % 2 AS half")
    env.sink("out", rows, weir.sinks.files(output, partition_by="half", compact="1 mb"))


if __name__ == "__main__":
    job.run()
