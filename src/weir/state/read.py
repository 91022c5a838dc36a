"""State as a frame, through Spark's state reader.

The reader needs settings that depend on the files, so each frame has a session of its own, beside
that of the caller; frames of both can be joined. What it reads is a folder of links, which lives as
long as the process.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import reduce
from pathlib import Path
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.errors import StateNotReadableError
from weir.ids import BatchId
from weir.protocol.operators import Operator
from weir.spark import cut
from weir.spark.reshape import JOIN, LIMIT, TRANSFORM
from weir.state.point import StatePoint, locate, unreadable

Side = Literal["left", "right"]

TIMERS = "timers"
"""What `var` is called for the timers of transformWithState."""
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_TIME_ZONE = "spark.sql.session.timeZone"
_LIST = "ListState"


def read(
    spark: SparkSession,
    path: str | Path,
    query: str | None = None,
    operator: int = 0,
    *,
    store: str | None = None,
    side: Side | None = None,
    var: str | None = None,
) -> DataFrame:
    """The state of one operator of a query: one row for each key, with `key`, `value`, `partition_id`.

    `path` is a savepoint, `<dir>/<job>` (its live files), `<dir>/<job>/chk-41`, or any checkpointLocation.
    The query need not be named where it is the only one; operator 0 is the one nearest the sink. A join
    has a `side`, or a `store` of its own kind; transformWithState has variables: `var` names one, or
    "timers". Of a list variable a row has `list_value`, of a map variable `user_map_key` and
    `user_map_value`. Raises `StateNotReadableError` for what is not there or can't be read.
    """
    point = locate(str(path), query, lambda: scratch(spark, Path(str(path))))
    return frame_of(spark, point, operator, store=store, side=side, var=var)


def frame_of(
    spark: SparkSession,
    point: StatePoint,
    id: int,
    *,
    store: str | None = None,
    side: str | None = None,
    var: str | None = None,
) -> DataFrame:
    """The same of a point that is found already."""
    options = options_of(point, id, store=store, side=side, var=var)
    laid_out = cut.lay_out(point.root, point.batch, scratch(spark, point.root) / point.query)
    session = session_for(spark, laid_out, point.batch)
    session.conf.set(_TIME_ZONE, spark.conf.get(_TIME_ZONE) or "UTC")
    return session.read.format("statestore").options(**options).load(f"file:{laid_out}")


def session_for(spark: SparkSession, root: Path, batch: BatchId) -> SparkSession:
    """A session of its own that reads state of the format that these files have."""
    session = spark.newSession()
    session.conf.set(_FORMAT, str(cut.format_of(root, batch)))
    return session


def options_of(
    point: StatePoint, id: int, *, store: str | None = None, side: str | None = None, var: str | None = None
) -> dict[str, str]:
    """The options of Spark's reader; raises `StateNotReadableError` for what it can't read."""
    chosen = _options(point, point.operator(id), store, side, var)
    return {"batchId": str(int(point.batch)), "operatorId": str(id), **chosen}


def scratch(spark: SparkSession, near: Path) -> Path:
    """A folder for links, until the process ends; where executors are elsewhere, beside the files."""
    local = str(spark.sparkContext.master).startswith("local")
    folder = Path(tempfile.mkdtemp(prefix="weir-state-")) if local else cut.scratch(near)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def variables(operator: Operator) -> dict[str, str]:
    """The variables of a transformWithState, each with its kind."""
    listed = operator.properties.get("stateVariables") or []
    return {one["stateName"]: one["stateVariableType"] for one in listed if "$" not in one["stateName"]}


def _options(
    point: StatePoint, operator: Operator, store: str | None, side: str | None, var: str | None
) -> dict[str, str]:
    if operator.kind == LIMIT:
        raise _refused(point, operator, "Spark keeps no schema of what a limit has counted", "")
    if operator.kind in TRANSFORM:
        return _variable(point, operator, store or side, var)
    if var is not None:
        raise _refused(point, operator, "only transformWithState has variables", "leave var out")
    if operator.kind == JOIN:
        return _of_join(point, operator, store, side)
    if side is not None or store not in (None, "default"):
        raise _refused(point, operator, "only a join has sides and stores", "leave side and store out")
    return {}


def _variable(point: StatePoint, operator: Operator, other: str | None, var: str | None) -> dict[str, str]:
    known = variables(operator)
    timed = str(operator.properties.get("timeMode", "")).lower() not in ("", "none", "notime")
    choices = [*known, *([TIMERS] if timed else [])]
    todo = f"name one: {', '.join(choices)}"
    if other is not None:
        raise _refused(point, operator, "it has variables instead of sides and stores", todo)
    if var == TIMERS and timed and TIMERS not in known:
        return {"readRegisteredTimers": "true"}
    if var not in known:
        reason = "it has several variables" if var is None else f"it has no variable {var!r}"
        raise _refused(point, operator, reason, todo)
    # one row a key: a list in one, a map by its own keys
    return {"stateVarName": var, "flattenCollectionTypes": str(known[var] != _LIST).lower()}


def _of_join(point: StatePoint, operator: Operator, store: str | None, side: str | None) -> dict[str, str]:
    families = [family.name for one in operator.stores for family in one.families]
    stores = [one.name for one in operator.stores if one.name != "default"]
    names = stores or [name for name in families if name != "default"]
    if side in ("left", "right") and store is None:
        return {"joinSide": side}
    if side is None and store in names:
        return {"storeName": store}
    reason = "a join has two sides" if side is None and store is None else "it has no such side or store"
    raise _refused(
        point, operator, reason, f"name side left or right, or one of the stores {', '.join(names)}"
    )


def _refused(point: StatePoint, operator: Operator, reason: str, todo: str) -> StateNotReadableError:
    refused = f"operator {operator.id} ({operator.kind}): {reason}"
    return unreadable(point.path, point.query, refused, todo)


# State as files that anybody can read.


Format = Literal["parquet", "json"]


def export(frame: DataFrame, target: str | Path, format: Format = "parquet") -> None:
    """Write a frame of state, or of differences, as a folder of Parquet or JSON files.

    The folder must not be there. JSON has one row a line.
    """
    frame.write.mode("errorifexists").format(format).save(str(target))


# Two states of one operator compared: which keys came, went, or have another value.


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
