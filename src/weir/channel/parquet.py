"""Segment files as Arrow: counting, and the exact types that Spark asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from weir.channel.log import SegmentFile, lost
from weir.spark.parquet import open_file
from weir.storage.open import is_local


def open_parquet(url: str) -> pq.ParquetFile:
    """Open a file of a segment; raise `LostSegmentError` when it is gone or torn."""
    try:
        return open_file(url)
    except FileNotFoundError as error:
        raise lost(url) from error
    except (pa.ArrowInvalid, OSError) as error:
        if not _is_torn(url, error):
            raise
        raise lost(url, _words(error)) from error


def describe(url: str, name: str) -> SegmentFile:
    """What the log says of a file: its rows and its bytes in row groups."""
    with open_parquet(url) as file:
        return SegmentFile(name, file.metadata.num_rows, sum(row_group_bytes(file)))


def row_group_bytes(file: pq.ParquetFile) -> list[int]:
    """The compressed size of each row group."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    return [sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups]


def batches(
    url: str, row_groups: Sequence[int] | None, schema: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or of some of its row groups, in Spark's types."""
    with open_parquet(url) as file:
        groups = None if row_groups is None else list(row_groups)
        several = file.iter_batches(batch_size=batch_rows, row_groups=groups, use_threads=False)
        while (batch := _next(url, several)) is not None:
            yield conform(batch, schema)


def _next(url: str, several: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return next(several, None)
    except (pa.ArrowInvalid, OSError) as error:
        if not _is_torn(url, error):
            raise
        raise lost(url, _words(error)) from error


def _is_torn(url: str, error: Exception) -> bool:
    """Whether Arrow could not read what is there; an error of the system has a number."""
    return not isinstance(error, OSError) or (error.errno is None and is_local(url))


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).replace("(", "[").replace(")", "]")  # the hint is in ( )
    return f"can't be read: {text[:200]}"


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with exactly this schema; a column that is not there is null."""
    there = {name: number for number, name in enumerate(batch.schema.names)}
    columns = [
        _as(batch.column(there[field.name]), field.type)
        if field.name in there
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
