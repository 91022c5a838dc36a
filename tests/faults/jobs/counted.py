"""An endless job whose sink counts how often each batch is run.

Arguments: the output folder, and the file to which a line is added for each call of the sink.
"""

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import weir
from weir.ids import BatchId, Token
from weir.sinks.files import FilesSink

KEYS, ROWS = 10, 50


class CountingSink(FilesSink):
    """Files, and a line with batch and token for every time that a batch is run."""

    def __init__(self, path: str, calls: Path) -> None:
        super().__init__(path, "parquet", {})
        self._calls = calls

    def stage(self, frame: Any, batch: BatchId, token: Token) -> None:
        with open(self._calls, "a") as file:
            file.write(f"{batch} {token}\n")
        super().stage(frame, batch, token)


def build(env: weir.Env, out: str, calls: str) -> None:
    source = env.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rows = env.source("numbers", source.option("numPartitions", 2).load())
    table = rows.groupBy((F.col("value") % KEYS).alias("k")).count()
    env.sink("counts", table, CountingSink(out, Path(calls)), output_mode="update")


job = weir.Job("counted")


@job.pipeline
def counted(env: weir.Env) -> None:
    build(env, *sys.argv[1:])


if __name__ == "__main__":
    job.run()
