"""Rows of a frame as rows of state: plain values from Arrow, packed as Spark keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from weir.spark.unsafe_row import struct_type

PACKED = "key_bytes binary, value_bytes binary, column_family_name string, place int"

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def packing(key: dict[str, Any], value: dict[str, Any], family: str) -> Task:
    """Makes rows of state of the columns of the key, those of the value, and `place`, in this order."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys, values = struct_type(key), struct_type(value)
        for batch in batches:
            *columns, place = batch.columns
            plain = [plain_values(column) for column in columns]
            split = len(keys.fields)
            arrays = [
                pa.array([keys.pack(row) for row in _rows(plain[:split], len(batch))], pa.binary()),
                pa.array([values.pack(row) for row in _rows(plain[split:], len(batch))], pa.binary()),
                pa.array([family] * len(batch), pa.string()),
                place.cast(pa.int32()),
            ]
            yield pa.RecordBatch.from_arrays(
                arrays, ["key_bytes", "value_bytes", "column_family_name", "place"]
            )

    return pack


def plain_values(array: Any) -> list[Any]:
    """The values of an Arrow array as Spark stores them (`spark/unsafe_row.py`)."""
    type = array.type
    if types.is_struct(type):
        rows = _rows([plain_values(column) for column in array.flatten()], len(array))
        return [row if there else None for row, there in zip(rows, _valid(array), strict=True)]
    if types.is_map(type):
        keys, items = plain_values(array.keys), plain_values(array.items)
        return _sliced(array, list(zip(keys, items, strict=True)))
    if types.is_list(type) or types.is_large_list(type):
        return _sliced(array, plain_values(array.values))
    if types.is_timestamp(type) or types.is_duration(type) or types.is_time64(type):
        return list(array.cast(pa.int64()).to_pylist())
    if types.is_date32(type):
        return list(array.cast(pa.int32()).to_pylist())
    if types.is_decimal(type):
        return [None if one is None else _unscaled(one, type.scale) for one in array.to_pylist()]
    if types.is_string(type) or types.is_large_string(type):
        return [None if one is None else one.encode() for one in array.to_pylist()]
    return list(array.to_pylist())


def _rows(columns: list[list[Any]], count: int) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _valid(array: Any) -> list[bool]:
    return list(array.is_valid().to_pylist())


def _sliced(array: Any, values: list[Any]) -> list[Any]:
    ends = array.offsets.to_pylist()
    spans = zip(ends, ends[1:], _valid(array), strict=False)
    return [values[start:end] if there else None for start, end, there in spans]


def _unscaled(number: Decimal, scale: int) -> int:
    """Arrow gives a decimal with all the digits behind its point that its type has."""
    sign, digits, exponent = number.as_tuple()
    assert exponent == -scale
    whole = int("".join(map(str, digits)))
    return -whole if sign else whole
