"""A keyed count over JSON lines: parse, filter, count; each a query of its own, or all in one plain query.

weir run chain.py INPUT OUTPUT          a chain of three queries
python chain.py INPUT OUTPUT CHECKPOINT one plain query
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plain import run
from pyspark.sql import functions as F

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

job = weir.Job("chain")


def parsed(spark: SparkSession, folder: str) -> DataFrame:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(folder)
    return lines.select(F.from_json("value", "key long, value long").alias("one")).select("one.*")


def kept(rows: DataFrame) -> DataFrame:
    return rows.where("value % 10 != 0")


def counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("sum"))


@job.pipeline
def chain(env: weir.Env) -> None:
    folder, output = sys.argv[1:3]
    clean = env.stream("parsed", parsed(env.spark, folder))
    wanted = env.stream("kept", kept(clean))
    env.sink("counts", counts(wanted), weir.sinks.files(output), output_mode="update")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        source, output, checkpoints = sys.argv[1:]
        run(lambda spark: {"counts": counts(kept(parsed(spark, source)))}, output, checkpoints)
    else:
        job.run()
