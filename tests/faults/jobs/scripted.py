"""A deterministic job that reads a script: rows counted and summed per key, in update mode.

It ends with its script. Arguments: the script file and the output folder.
"""

import sys

from pyspark.sql import functions as F

import weir
from weir.testing import ScriptedSource

job = weir.Job("scripted")


@job.pipeline
def scripted(env: weir.Env) -> None:
    script, output = sys.argv[1:]
    rows = env.source("rows", ScriptedSource(script, "k string, v long"))
    table = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    sink = weir.sinks.files(output)
    env.sink("counts", table, sink, output_mode="update", trigger={"availableNow": True})


if __name__ == "__main__":
    job.run()
