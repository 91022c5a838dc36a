"""The state of an aggregation that keeps other columns for its keys: column by column.

What was computed before is taken over, a new column begins as a fresh aggregate would, and one that
nobody computes any more is left out. What becomes of each is decided elsewhere (`protocol/fits.py`).
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.protocol.fits import Reshape
from weir.protocol.operators import Operator
from weir.spark import rows
from weir.spark.rewrite import Change
from weir.spark.schemas import schema_file


def convert_aggregate(old: Operator, new: Operator, reshape: Reshape) -> Change:
    """The change that makes the values of `old` those of `new`; the keys stay.

    For `rewrite(changes={(old.id, "default"): ...})`, when `refusals.conversion_refusal` says None.
    """
    before, after = old.stores[0], new.stores[0]
    assert before.key_schema is not None and before.value_schema and after.value_schema
    convert = _converting(before.value_schema, after.value_schema, reshape.fields, reshape.fresh)
    conversion = F.pandas_udf(convert, "binary")  # type: ignore[call-overload]

    def apply(frame: DataFrame) -> DataFrame:
        return frame.withColumn("value_bytes", conversion("value_bytes"))

    return Change(apply, schema=schema_file(before.key_schema, after.value_schema))


def _converting(
    old: dict[str, Any], new: dict[str, Any], fields: tuple[int | None, ...], fresh: tuple[Any, ...]
) -> Any:
    def convert(values: pd.Series) -> pd.Series:
        before, after = rows.struct_type(old), rows.struct_type(new)
        return values.map(lambda row: rows.splice(bytes(row), before, fields, after, fresh))

    return convert
