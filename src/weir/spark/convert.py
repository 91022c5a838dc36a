"""The state of an operator whose keys or values have other columns: column by column.

What was computed before is taken over, a new column begins as a fresh aggregate would, and one that
nobody computes any more is left out. Keys may come in another order, and integers may become longer
ones; then each row goes to the partition in which Spark looks for its new key. What becomes of each
column is decided elsewhere (`protocol/compatibility.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.protocol.compatibility import Rekey, Reshape
from weir.protocol.operators import Operator
from weir.spark import unsafe_row as rows
from weir.spark.reshape import partition_columns
from weir.spark.rewrite import Change
from weir.spark.state_schema import schema_file


def convert_state(
    old: Operator,
    new: Operator,
    partitions: int,
    *,
    reshape: Reshape | None = None,
    rekey: Rekey | None = None,
) -> Change:
    """The change that makes the rows of `old` those of `new`, which are in this many partitions.

    For `rewrite(changes={(old.id, "default"): ...})`, when `refusals.conversion_refusal` says None.
    """
    before, after = old.stores[0], new.stores[0]
    assert before.key_schema and before.value_schema and after.key_schema and after.value_schema
    changed: dict[str, Any] = {}
    if reshape is not None:
        convert = _converting(before.value_schema, after.value_schema, reshape.fields, reshape.fresh)
        changed["value_bytes"] = F.pandas_udf(convert, "binary")("value_bytes")  # type: ignore[call-overload]
    if rekey is not None:
        fresh = (None,) * len(rekey.fields)
        convert = _converting(before.key_schema, after.key_schema, rekey.fields, fresh)
        changed["key_bytes"] = F.pandas_udf(convert, "binary")("key_bytes")  # type: ignore[call-overload]
    columns = partition_columns(new, after)
    place = F.pandas_udf(_placing(after.key_schema, columns, partitions), "int")  # type: ignore[call-overload]

    def apply(frame: DataFrame) -> DataFrame:
        frame = frame.withColumns(changed)
        return frame if rekey is None else frame.drop("partition_key").withColumn("place", place("key_bytes"))

    key = before.key_schema if rekey is None else after.key_schema
    return Change(apply, scatters=rekey is not None, schema=schema_file(key, after.value_schema))


def _converting(
    old: dict[str, Any], new: dict[str, Any], fields: Sequence[int | None], fresh: Sequence[Any]
) -> Any:
    def convert(values: pd.Series) -> pd.Series:
        before, after = rows.struct_type(old), rows.struct_type(new)
        return values.map(lambda row: rows.splice(bytes(row), before, fields, after, fresh))

    return convert


def _placing(key: dict[str, Any], columns: int, partitions: int) -> Any:
    def place(keys: pd.Series) -> pd.Series:
        of = rows.place_of(key, columns, partitions)
        return keys.map(lambda row: of(bytes(row)))

    return place
