"""The scripted source as Spark sees it; its neighbour `script.py` knows what the steps mean.

Offsets are `{"step": n}`: so many steps of the script are used up. A batch never has more than one
`Rows`, whatever limit Spark gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import DataType, DateType, DecimalType, StructType, TimestampType

from weir.testing.script import FORMAT, Position


class ScriptDataSource(DataSource):
    """Registered by `ScriptedSource.load`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        position = Position(Path(self.options["path"]), int(self.options["driver"]))
        return ScriptReader(position, schema, int(self.options["partitions"]))


@dataclass
class _Share(InputPartition):
    """The rows of one partition of one batch; they travel with the plan."""

    rows: list[tuple[Any, ...]]


class ScriptReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One start of one query on one script."""

    def __init__(self, position: Position, schema: StructType, partitions: int) -> None:
        self._position = position
        self._columns = [_reading(field.dataType) for field in schema.fields]
        self._partitions = partitions

    def initialOffset(self) -> dict[str, int]:
        return {"step": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._position.until_end = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"step": self._position.next(start["step"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        rows = [self._tuple(row) for row in self._position.rows(start["step"], end["step"])]
        shares = [rows[number :: self._partitions] for number in range(self._partitions)]
        return [_Share(share) for share in shares if share]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Share)
        return iter(partition.rows)

    def _tuple(self, row: Any) -> tuple[Any, ...]:
        values = row if isinstance(row, list) else [row]
        return tuple(
            None if value is None else column(value)
            for value, column in zip(values, self._columns, strict=True)
        )


def _reading(kind: DataType) -> Callable[[Any], Any]:
    """How a value of this type comes back from the script's JSON."""
    if isinstance(kind, TimestampType):
        return datetime.fromisoformat
    if isinstance(kind, DateType):
        return date.fromisoformat
    if isinstance(kind, DecimalType):
        return Decimal
    return lambda value: value
