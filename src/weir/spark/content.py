"""What a state store holds, in numbers that do not depend on order and place: before and after must agree.

Rows are counted, and the hashes of all keys with their values are summed up and combined by exclusive
or. The same reading shows whether each row is in the partition where Spark will look for it.
Stores of two backends are compared by what Spark's state reader makes of their rows; else by the bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from weir.ids import BatchId


@dataclass(frozen=True)
class Content:
    """What one store holds."""

    rows: int
    checksum: str
    """Of all keys with their values."""


def bytes_of(session: SparkSession, root: Path, batch: BatchId, operator: int, store: str) -> DataFrame:
    """The rows of a RocksDB store as bytes: `partition_key, key_bytes, value_bytes, column_family_name`."""
    reader = _reader(session, batch, operator, store).option("_readAllColumnFamilies", "true")
    return reader.load(f"file:{root}")


def typed(session: SparkSession, root: Path, batch: BatchId, operator: int, store: str) -> DataFrame:
    """The rows of a store without column families: `key, value, partition_id`."""
    return _reader(session, batch, operator, store).load(f"file:{root}")


def _reader(session: SparkSession, batch: BatchId, operator: int, store: str) -> DataFrameReader:
    reader = session.read.format("statestore").option("batchId", int(batch))
    return reader.option("operatorId", operator).option("storeName", store)


def measures_of_bytes() -> list[Column]:
    """To be aggregated over the rows that `bytes_of` gives."""
    return _measures(F.xxhash64("column_family_name", "key_bytes", "value_bytes"))


def measures_of_typed(frame: DataFrame) -> list[Column]:
    """To be aggregated over the rows that `typed` gives."""
    columns = ["key", "value"]
    has_map = '"map"' in json.dumps(frame.select(*columns).schema.jsonValue())
    return _measures(F.xxhash64(*(F.to_json(column) if has_map else F.col(column) for column in columns)))


def _measures(hash: Column) -> list[Column]:
    added = F.sum(hash.bitwiseAND(F.lit(0xFFFFFFFF)))  # no sum of so few bits overflows
    return [
        F.count(F.lit(1)).alias("rows"),
        F.bit_xor(hash).alias("crossed"),
        added.alias("added"),
    ]


def content_of(rows: int, crossed: int | None, added: int | None) -> Content:
    """From the values of the measures; a store without rows has neither hash."""
    return Content(rows, f"{(crossed or 0) & 0xFFFFFFFFFFFFFFFF:016x}{added or 0:016x}")


def measured(frame: DataFrame, measures: list[Column]) -> Content:
    """Read all of a frame."""
    row = frame.agg(*measures).first()
    assert row is not None
    return content_of(row["rows"], row["crossed"], row["added"])


def misplaced(frame: DataFrame, columns: int | None, partitions: int) -> Column:
    """Counts the rows that are in another `partition_id` than that where Spark will look for them.

    By the first columns of the key, or by `partition_key`. Keys with a collation are not looked
    at: Spark has no function that hashes them as its shuffle does.
    """
    key = "partition_key" if columns is None else "key"
    type: Any = frame.schema[key].dataType
    names = type.fieldNames()[:columns]
    if "collate" in type.simpleString():
        return F.lit(0)
    place = F.pmod(F.hash(*(F.col(key).getField(name) for name in names)), F.lit(partitions))
    return F.count_if(F.col("partition_id") != (place if names else F.lit(0)))
