"""Two queries over one folder; a function of the author's fails in one of them.

Arguments: the input folder, the output folder, a value and a file: the value makes the function
raise, once when the file can be made, always when it is "-".
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import weir
from weir.testing.script import fire_once

job = weir.Job("two")


@job.pipeline
def two(env: weir.Env) -> None:
    folder, output, value, mark = sys.argv[1:]

    def checked(v: int) -> int:
        if v == int(value) and (mark == "-" or fire_once(Path(mark).parent, Path(mark).name)):
            raise ValueError(f"I can't stand {v}")
        return v

    source = env.spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 2)
    rows = env.source("rows", source.json(folder))
    table = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
    env.sink("steady", table, weir.sinks.files(f"{output}/steady"), output_mode="update")
    shaky = rows.withColumn("v", F.udf(checked, LongType())("v"))
    env.sink("shaky", shaky, weir.sinks.files(f"{output}/shaky"))


if __name__ == "__main__":
    job.run()
