"""What an edit makes of the rows of an operator: checked against what is there before anything is written.

Rows that are given become rows of state here, in a file of their own: what is written is what was
checked, also when the caller's frame gives something else the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as types
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NullType, StructField, StructType

from weir.errors import StateNotRewritableError
from weir.protocol.operators import Operator, StateStore
from weir.spark import content, cut
from weir.spark import unsafe_row as rows
from weir.spark.logs import PARTITIONS
from weir.spark.reshape import JOIN, TRANSFORM, edit_refusal, partition_columns
from weir.spark.rewrite import Change
from weir.spark.rewrite import Place as StorePlace
from weir.spark.unsafe_row import struct_type
from weir.state.point import StatePoint
from weir.state.read import session_for

# Rows of a frame as rows of state: plain values from Arrow, packed as Spark keeps them.


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
    """Arrow gives a decimal with all the digits after its point that its type has."""
    sign, digits, exponent = number.as_tuple()
    assert exponent == -scale
    digits_only = int("".join(map(str, digits)))
    return -digits_only if sign else digits_only


class Changes:
    """The rows of one operator, and what can become of them. Raises `StateNotRewritableError`."""

    def __init__(self, spark: SparkSession, point: StatePoint, operator: Operator, folder: Path) -> None:
        conf = cut.conf_of(point.root, point.batch)
        refused = edit_refusal(operator, conf)
        if refused is not None:
            raise _refused(point, str(refused), refused.hint)
        self._point, self._operator, self._folder = point, operator, folder
        self._partitions = int(conf[PARTITIONS])
        self._view = cut.lay_out(point.root, point.batch, folder / "read")
        self._session = session_for(spark, point.root, point.batch)
        self.before = sum(self._rows(store).count() for store in operator.stores)
        """How many rows there are."""

    def without(self, condition: str | Column) -> Mapping[StorePlace, Change]:
        """All rows but those for which a condition over `key` (and `value`) holds."""
        stores = self._operator.stores
        return {
            (self._operator.id, store.name): self._without(store, number, condition)
            for number, store in enumerate(stores)
        }

    def replaced(self, given: DataFrame) -> Mapping[StorePlace, Change]:
        """Other values for some keys, which must be there."""
        store = self._one_store()
        unknown = self._packed(store, given).join(self._rows(store), "key", "left_anti").count()
        if unknown:
            raise self._refusal(f"{unknown} of the given keys do not exist", "leave them out")

        def apply(frame: DataFrame) -> DataFrame:
            new = self._stored(frame).select("key_bytes", F.col("value_bytes").alias("new"))
            joined = frame.join(new, "key_bytes", "left")
            return joined.withColumn("value_bytes", F.coalesce("new", "value_bytes")).drop("new")

        return {(self._operator.id, store.name): Change(apply, scatters=True)}

    def seeded(self, given: DataFrame) -> Mapping[StorePlace, Change]:
        """All rows of an operator that has none."""
        store = self._one_store()
        if self.before:
            raise self._refusal(f"it has {self.before} rows already", "replace their values, or delete them")
        self._packed(store, given)
        return {(self._operator.id, store.name): Change(self._stored, scatters=True)}

    def _without(self, store: StateStore, number: int, condition: str | Column) -> Change:
        holds = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        there = self._rows(store)
        if self._operator.kind in TRANSFORM or self._operator.kind == JOIN:
            there = there.select("key")
        try:
            chosen = there.where(holds)
        except AnalysisException as error:
            reason = str(error).partition("\n")[0]
            todo = f"the columns are {there.drop('partition_id').schema.simpleString()}"
            raise self._refusal(f"the condition can't be used: {reason}", todo) from error
        if _families(store):
            return Change(lambda frame: _renamed(_renamed(frame, "partition_key", "key").where(~holds)))
        place = str(self._folder / f"deleted-{number}")
        keys = _struct(store.key_schema)
        columns = [F.col("key").getField(field.name).alias(name) for name, field in _numbered("key", keys)]
        task = packing(_json(store.key_schema), {"fields": []}, "default")
        packed = chosen.select(*columns, F.lit(0).alias("place")).mapInArrow(task, PACKED)
        packed.select("key_bytes").write.parquet(place)

        def apply(frame: DataFrame) -> DataFrame:
            return frame.join(frame.sparkSession.read.parquet(place), "key_bytes", "left_anti")

        return Change(apply, scatters=True)

    def _rows(self, store: StateStore) -> DataFrame:
        """What Spark reads in a store: `key, value`, or of column families their partition key as `key`."""
        where = (self._session, self._view, self._point.batch, self._operator.id, store.name)
        if _families(store):
            return _renamed(content.bytes_of(*where), "partition_key", "key").select("key")
        return content.typed(*where)

    def _one_store(self) -> StateStore:
        """The store of an operator whose rows can be made from plain columns."""
        if self._operator.kind in TRANSFORM or self._operator.kind == JOIN:
            raise self._refusal("only complete keys of it can be deleted", "use delete")
        (store,) = self._operator.stores
        for schema in (store.key_schema, store.value_schema):
            if unknown := rows.check(_json(schema)):
                raise self._refusal(f"weir can't make rows with {unknown}", "use delete")
        return store

    def _packed(self, store: StateStore, given: DataFrame) -> DataFrame:
        """Keep the rows of a frame, as rows of state, in a file; gives their keys."""
        keys, values = _struct(store.key_schema), _struct(store.value_schema)
        columns = self._columns(given, "key", keys) + self._columns(given, "value", values)
        chosen = given.select(*columns)
        chosen.write.parquet(str(self._folder / "given"))
        chosen = given.sparkSession.read.parquet(str(self._folder / "given"))
        self._check(chosen, keys)
        leading = [f"key_{n}" for n in range(partition_columns(self._operator, store))]
        place = F.pmod(F.hash(*leading), F.lit(self._partitions)) if leading else F.lit(0)
        task = packing(_json(store.key_schema), _json(store.value_schema), "default")
        chosen.withColumn("place", place).mapInArrow(task, PACKED).write.parquet(str(self._folder / "packed"))
        names = [F.col(f"key_{n}").alias(field.name) for n, field in enumerate(keys.fields)]
        return chosen.select(F.struct(*names).alias("key"))

    def _stored(self, frame: DataFrame) -> DataFrame:
        return frame.sparkSession.read.parquet(str(self._folder / "packed"))

    def _columns(self, given: DataFrame, part: str, schema: StructType) -> list[Column]:
        """The columns of a key or a value, of their types: from the struct, or by their names."""
        inner = part in given.columns and isinstance(given.schema[part].dataType, StructType)
        there = given.schema[part].dataType.fieldNames() if inner else given.columns  # type: ignore[attr-defined]
        found = []
        for number, field in enumerate(schema.fields):
            if isinstance(field.dataType, NullType):
                column = F.lit(None).cast("boolean")  # Parquet has no column of nothing
            elif field.name not in there:
                todo = f"give {part} as {schema.simpleString()}, or its columns by their names"
                raise self._refusal(f"the rows that were given have no column {field.name!r}", todo)
            else:
                column = (F.col(part).getField(field.name) if inner else F.col(field.name)).cast(
                    field.dataType
                )
            found.append(column.alias(f"{part}_{number}"))
        return found

    def _check(self, chosen: DataFrame, keys: StructType) -> None:
        names = [name for name, _ in _numbered("key", keys)]
        if twice := chosen.groupBy(*names).count().where("count > 1").count():
            raise self._refusal(f"{twice} keys are given more than once", "give one row for each key")

    def _refusal(self, reason: str, todo: str) -> StateNotRewritableError:
        return _refused(self._point, f"operator {self._operator.id} ({self._operator.kind}): {reason}", todo)


def _refused(point: StatePoint, reason: str, todo: str) -> StateNotRewritableError:
    return StateNotRewritableError(query=point.query, reason=reason, todo=todo)


def _families(store: StateStore) -> bool:
    return any(family.name != "default" for family in store.families)


def _renamed(frame: DataFrame, old: str = "key", new: str = "partition_key") -> DataFrame:
    return frame.withColumnRenamed(old, new)


def _numbered(part: str, schema: StructType) -> list[tuple[str, StructField]]:
    return [(f"{part}_{number}", field) for number, field in enumerate(schema.fields)]


def _json(schema: dict[str, Any] | None) -> dict[str, Any]:
    return schema or {"type": "struct", "fields": []}


def _struct(schema: dict[str, Any] | None) -> StructType:
    return StructType.fromJson(_json(schema))
