"""The reading end of a channel, as a streaming data source of Spark.

Spark runs the planning part in one process for each reader and the reading part in its tasks;
neither shares memory with the driver, so all that a reader knows comes from its options and from
files (`facts.py`). Offsets are `{"entry": e, "barrier": k, "channel": name}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from weir.channel.event_time import CONTROL
from weir.channel.facts import Planning
from weir.channel.log import end_number
from weir.channel.position import Bound, Mode, Position
from weir.channel.shares import Piece, share_out
from weir.storage import Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "weir-channel"
MAX_SEGMENTS = 1000
"""So many segments at most make one batch, unless the stream says otherwise."""
BATCH_ROWS = 65536
SMALLEST_SHARE = 4 << 20
"""Bytes that are worth a task of their own. The measurements are in `docs/explanation/channels.md`."""


class ChannelDataSource(DataSource):
    """Registered by `stream.open_stream`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChannelReader(dict(self.options), schema)


@dataclass
class Share(InputPartition):
    """What one task reads; the watermark, if there is one, comes as a last row."""

    pieces: tuple[Piece, ...]
    watermark_ms: int | None = None


class ChannelReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One channel as one query reads it, for one start of the query."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        # Spark pickles this object into its tasks: what the planning part needs is made when it asks.
        self._options = {key.lower(): value for key, value in options.items()}
        self._schema = schema
        self._until: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._planning.start().offset(self._channel)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = int(self._options["maxsegmentspertrigger"])
        return ReadMaxFiles(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = end_number(self._store)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = self._planning.next(Position.parse(start), _bound(limit), self._until)
        return end.offset(self._channel)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        used = self._planning.segments(start["entry"], end["entry"])
        tasks = int(self._options["tasks"])
        shares = [Share(pieces) for pieces in share_out(used, tasks, SMALLEST_SHARE, self._row_groups)]
        watermark = max((s.watermark_ms for s in used if s.watermark_ms is not None), default=None)
        if watermark is not None and CONTROL in self._schema.names:
            shares = shares or [Share(())]
            shares[0].watermark_ms = watermark
        return shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  loads pyarrow

        from weir.channel import parquet  # noqa: PLC0415  loads pyarrow

        assert isinstance(partition, Share)
        schema, rows = to_arrow_schema(self._schema, timezone="UTC"), int(self._options["batchrows"])
        for piece in partition.pieces:
            url = f"{self._options['location']}/{piece.file}"
            yield from parquet.batches(url, piece.row_groups, schema, rows)
        if partition.watermark_ms is not None:
            yield _control_row(partition.watermark_ms, schema)

    @cached_property
    def _store(self) -> Store:
        return open_store(self._options["location"])

    @cached_property
    def _planning(self) -> Planning:
        folder, query = self._options["checkpoints"], open_store(self._options["query"])
        checkpoints = open_store(folder) if folder else None
        return Planning(self._store, query, checkpoints, Mode(self._options["mode"]))

    @property
    def _channel(self) -> str:
        return self._options["location"].rstrip("/").rsplit("/", 1)[1]

    def _row_groups(self, file: str) -> list[int]:
        from weir.channel import parquet  # noqa: PLC0415  loads pyarrow

        with parquet.open_parquet(f"{self._options['location']}/{file}") as opened:
            return parquet.row_group_bytes(opened)


def _bound(limit: ReadLimit) -> Bound:
    """What Spark allows; to Spark a segment is a file. A minimum is not for barriers to wait for."""
    if isinstance(limit, ReadMaxFiles):
        return Bound(segments=limit.max_files)
    if isinstance(limit, ReadMaxRows):
        return Bound(rows=limit.max_rows)
    return Bound(bytes=limit.max_bytes) if isinstance(limit, ReadMaxBytes) else Bound()


def _control_row(watermark_ms: int, schema: Any) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    columns = [
        pa.array([watermark_ms * 1000], pa.int64()).cast(field.type)
        if field.name == CONTROL
        else pa.nulls(1, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
