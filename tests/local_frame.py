"""A frame without Spark: enough of one for a sink that copies from the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_TASKS = count(1000)


@dataclass(frozen=True)
class LocalFrame:
    """Rows in partitions; `mapInArrow(...).collect()` runs one task for each, or several as a retry does."""

    schema: StructType
    partitions: Sequence[Sequence[Mapping[str, Any]]]
    tries: int = 1
    """So often each partition is run; only the last counts, as with a task whose executor was lost."""

    def mapInArrow(
        self, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> _Mapped:
        return _Mapped(self, function)

    def selectExpr(self, *columns: str) -> LocalFrame:
        """Only plain columns."""
        names = [column.partition(" AS ")[0].strip("`") for column in columns]
        rows = [[{name: row[name] for name in names} for row in part] for part in self.partitions]
        return LocalFrame(StructType([self.schema[name] for name in names]), rows, self.tries)

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self.schema, timezone="Asia/Tokyo")
        rows = self.partitions[number]
        for first in range(0, len(rows), 3):
            yield pa.RecordBatch.from_pylist([dict(row) for row in rows[first : first + 3]], schema)


@dataclass(frozen=True)
class _Mapped:
    frame: LocalFrame
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def collect(self) -> list[dict[str, Any]]:
        found = []
        for number in range(len(self.frame.partitions)):
            rows: list[dict[str, Any]] = []
            for _ in range(self.frame.tries):
                with _task(number):
                    rows = [
                        row
                        for batch in self.function(self.frame.batches(number))
                        for row in batch.to_pylist()
                    ]
            found += rows
        return found


@contextmanager
def _task(partition: int) -> Iterator[None]:
    context = mock.Mock(spec=TaskContext)
    context.partitionId.return_value = partition
    context.taskAttemptId.return_value = next(_TASKS)
    with mock.patch.object(TaskContext, "get", return_value=context):
        yield
