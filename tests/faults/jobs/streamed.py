"""Rows that go through a stream and are counted and summed per key, in update mode.

Arguments: the input folder, the output folder, and the folder of a `tests.cluster.Gate`: while that is
closed, the tasks that write the counts stand still, each having said its process.
"""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

import weir

folder, output, gate = sys.argv[1:]
job = weir.Job("streamed")


def through_the_gate(batches):  # type: ignore[no-untyped-def]
    for batch in batches:
        if (Path(gate) / "closed").exists():
            (Path(gate) / f"task-{os.getpid()}").touch()
        while (Path(gate) / "closed").exists():
            time.sleep(0.05)
        yield batch


@job.pipeline
def pipeline(env: weir.Env) -> None:
    rows = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2).json(folder)
    clean = env.stream("clean", env.source("rows", rows))
    table = clean.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    held = table.mapInArrow(through_the_gate, "k string, n long, sum long")
    env.sink("counts", held, weir.sinks.files(output), output_mode="update")
