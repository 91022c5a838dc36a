"""Two queries: one reads a user's own data source in Python, the other JSON files; both are copied to files.

Arguments: the file that says how many numbers there are, the input folder, the output folder, and a file:
while it is there the source fails, which takes it away.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import weir

job = weir.Job("python_source", execution_checkpointing_interval="1 s")


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumbersReader(self.options["upto"], self.options["broken"])


class NumbersReader(DataSourceStreamReader):
    def __init__(self, upto: str, broken: str) -> None:
        self.upto = upto
        self.broken = broken

    def initialOffset(self) -> dict[str, int]:
        return {"number": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        if os.path.exists(self.broken):
            os.remove(self.broken)
            raise ValueError("the source is broken, once")
        return {"number": int(Path(self.upto).read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["number"], end["number"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return ((number,) for number in range(*partition.value))


@job.pipeline
def python_source(env: weir.Env) -> None:
    upto, folder, output, broken = sys.argv[1:]
    env.spark.dataSource.register(Numbers)
    numbers = env.spark.readStream.format("numbers").option("upto", upto).option("broken", broken).load()
    env.sink("numbers", env.source("numbers", numbers), weir.sinks.files(f"{output}/numbers"))
    files = env.spark.readStream.schema("k string, v long").json(folder)
    env.sink("steady", env.source("files", files), weir.sinks.files(f"{output}/steady"))


if __name__ == "__main__":
    job.run()
