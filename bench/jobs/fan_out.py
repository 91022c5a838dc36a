"""A frame with a costly Python function into three sinks: computed once, or by each plain query again.

weir run fan_out.py INPUT OUTPUT          one stream, three sinks
python fan_out.py INPUT OUTPUT CHECKPOINT three plain queries in one session
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

from plain import run
from pyspark.sql import functions as F

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HASHES = 50
"""How often the function hashes its value: some 30 microseconds."""
SINKS = {"low": "score < 300", "middle": "score >= 300 and score < 600", "high": "score >= 600"}
job = weir.Job("fan-out")


def scored(spark: SparkSession, folder: str) -> DataFrame:
    @F.udf("long")
    def score(value: int) -> int:
        digest = str(value).encode()
        for _ in range(HASHES):
            digest = hashlib.sha256(digest).digest()
        return int.from_bytes(digest[:4], "big") % 1000

    rows = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1).parquet(folder)
    return rows.withColumn("score", score("value"))


@job.pipeline
def fan_out(env: weir.Env) -> None:
    folder, output = sys.argv[1:3]
    rows = env.stream("scored", scored(env.spark, folder))
    for name, condition in SINKS.items():
        env.sink(name, rows.where(condition), weir.sinks.files(f"{output}/{name}"))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        source, output, checkpoints = sys.argv[1:]
        run(
            lambda spark: {name: scored(spark, source).where(c) for name, c in SINKS.items()},
            output,
            checkpoints,
        )
    else:
        job.run()
