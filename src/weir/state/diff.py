"""Two states of one operator compared: which keys came, went, or have another value."""

from __future__ import annotations

import json
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

KEYS = ("key", "user_map_key")
"""The columns of a frame of state that tell its rows apart."""
_TIMER = "expiration_timestamp_ms"
_NOT_VALUES = {*KEYS, "partition_id"}


def diff(before: DataFrame, after: DataFrame, by: Literal["key", "row"] = "key") -> DataFrame:
    """What is different between two frames that `weir.state.read` gave for the same operator.

    A row for each key that is "added", "removed" or "changed", with its values `before` and `after`.
    Where a key has several rows, as in one side of a join, compare `by="row"`: then a row that is there
    more often than before is "added", one that is there less often "removed", with how often as `times`.
    Timers are always compared so.
    """
    rowwise = by == "row" or _TIMER in before.columns
    return _by_row(before, after) if rowwise else _by_key(before, after)


def _by_key(before: DataFrame, after: DataFrame) -> DataFrame:
    keys = [name for name in KEYS if name in before.columns]
    old = before.select(
        *(F.col(name).alias(f"old_{name}") for name in keys),
        _value(before).alias("before"),
        F.lit(True).alias("was"),
    )
    new = after.select(
        *(F.col(name).alias(f"new_{name}") for name in keys),
        _value(after).alias("after"),
        F.lit(True).alias("is"),
    )
    same = reduce(Column.__and__, (F.col(f"old_{name}").eqNullSafe(F.col(f"new_{name}")) for name in keys))
    change = F.when(F.col("was").isNull(), "added").when(F.col("is").isNull(), "removed").otherwise("changed")
    found = old.join(new, same, "full_outer").select(
        *(F.coalesce(f"old_{name}", f"new_{name}").alias(name) for name in keys),
        change.alias("change"),
        "before",
        "after",
    )
    equal = _comparable(found, "before").eqNullSafe(_comparable(found, "after"))
    return found.where((F.col("change") != "changed") | ~equal)


def _by_row(before: DataFrame, after: DataFrame) -> DataFrame:
    columns = [name for name in before.columns if name != "partition_id"]
    texts = [_comparable(before, name).alias(f"_{name}") for name in columns]
    plain = [F.col(name) for name in columns]
    old = before.select(*plain, *texts, F.lit(-1).alias("times"))
    new = after.select(*plain, *texts, F.lit(1).alias("times"))
    firsts = [F.first(name).alias(name) for name in columns]
    counted = old.unionByName(new).groupBy(*(f"_{name}" for name in columns)).agg(*firsts, F.sum("times"))
    times = F.col("sum(times)")
    change = F.when(times > 0, "added").otherwise("removed").alias("change")
    return counted.where(times != 0).select(*columns, change, F.abs(times).alias("times"))


def _value(frame: DataFrame) -> Column:
    """All that a row has besides its key: a column of its own, or several in a struct."""
    names = [name for name in frame.columns if name not in _NOT_VALUES]
    return F.col(names[0]) if len(names) == 1 else F.struct(*names)


def _comparable(frame: DataFrame, name: str) -> Column:
    """A column in a form that Spark can compare; it can't compare maps."""
    has_map = '"map"' in json.dumps(frame.schema[name].jsonValue())
    return F.to_json(F.struct(name)) if has_map else F.col(name)
