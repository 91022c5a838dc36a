"""How the types of Spark become those of PostgreSQL, and which columns take which.

A column is taken when every value either arrives as it is or is refused by the database with an
error. What would be changed without a word (rounded, cut, read in another zone) is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import types as T


class CopyForm(str, Enum):
    """How the values of a column are written for COPY."""

    PLAIN = "plain"
    UTC = "utc"
    """A moment: its clock time in UTC; the session's zone is UTC too."""
    HEX = "hex"
    ARRAY = "array"
    BYTES_ARRAY = "bytes array"
    JSON = "json"
    """A text that Spark made of it."""
    NOTHING = "nothing"
    """All values are null."""


@dataclass(frozen=True)
class PgType:
    """The type of a column as the catalogue has it; of a domain, the type below it."""

    name: str
    """`pg_type.typname`: int4, text, _int4 for an array, ..."""
    category: str
    """`pg_type.typcategory`: N for numbers, S for texts, A for arrays, ..."""
    scale: int | None = None
    """Digits after the decimal point that it keeps, where that is limited: of numeric, and of seconds."""
    element: PgType | None = None
    length: int | None = None
    """Characters that a varchar takes, where that is limited; of an array, each of its elements."""


INTEGERS = ("int2", "int4", "int8")
_JSON = ("json", "jsonb")
_CUTS_TEXT = ("name", "char")
_TEXT_CATEGORIES = "SUEIGV"

_SIMPLE: tuple[tuple[type[T.DataType], str], ...] = (
    (T.ByteType, "smallint"),
    (T.ShortType, "smallint"),
    (T.IntegerType, "integer"),
    (T.LongType, "bigint"),
    (T.FloatType, "real"),
    (T.DoubleType, "double precision"),
    (T.BooleanType, "boolean"),
    (T.StringType, "text"),
    (T.BinaryType, "bytea"),
    (T.DateType, "date"),
    (T.TimestampType, "timestamp with time zone"),
    (T.TimestampNTZType, "timestamp without time zone"),
    (T.NullType, "text"),
)
_ACCEPT: tuple[tuple[type[T.DataType], tuple[str, ...]], ...] = (
    (T.ByteType, (*INTEGERS, "numeric")),
    (T.ShortType, (*INTEGERS, "numeric")),
    (T.IntegerType, (*INTEGERS, "numeric")),
    (T.LongType, (*INTEGERS, "numeric")),
    (T.FloatType, ("float4", "float8")),
    (T.DoubleType, ("float8",)),
    (T.BooleanType, ("bool",)),
    (T.BinaryType, ("bytea",)),
    (T.DateType, ("date",)),
    (T.TimestampType, ("timestamptz",)),
    (T.TimestampNTZType, ("timestamp",)),
)


def sql_type(spark: T.DataType) -> str | None:
    """The type of a column that weir creates for it; None when there is none."""
    if isinstance(spark, T.DecimalType):
        return f"numeric({spark.precision},{spark.scale})"
    for kind, name in _SIMPLE:
        if isinstance(spark, kind):
            return name
    if isinstance(spark, T.ArrayType) and not _nested(spark.elementType):
        element = sql_type(spark.elementType)
        return f"{element}[]" if element else None
    return "jsonb" if _nested(spark) else None


def form(spark: T.DataType, column: PgType) -> CopyForm | None:
    """How values of this type are written to such a column; None when it does not take them."""
    if isinstance(spark, T.NullType):
        return CopyForm.NOTHING
    if column.name in _JSON and _nested(spark):
        return CopyForm.JSON
    if isinstance(spark, T.ArrayType) and not _nested(spark.elementType):
        if column.element is None:
            return None
        inner = form(spark.elementType, column.element)
        return {CopyForm.HEX: CopyForm.BYTES_ARRAY, None: None}.get(inner, CopyForm.ARRAY)
    if not _takes(spark, column):
        return None
    if isinstance(spark, T.BinaryType):
        return CopyForm.HEX
    return CopyForm.UTC if isinstance(spark, T.TimestampType) else CopyForm.PLAIN


def words(names: Iterable[str]) -> str:
    """Names of columns, for people."""
    return ", ".join(repr(name) for name in names)


def _takes(spark: T.DataType, column: PgType) -> bool:
    if isinstance(spark, T.StringType):
        return column.category in _TEXT_CATEGORIES and column.name not in (*_CUTS_TEXT, "bytea")
    if isinstance(spark, T.DecimalType):
        whole = spark.scale == 0 and column.name in INTEGERS
        return whole or (column.name == "numeric" and (column.scale is None or column.scale >= spark.scale))
    if column.scale is not None and (
        isinstance(spark, T.TimestampType | T.TimestampNTZType) or column.scale < 0
    ):
        return False
    return any(isinstance(spark, kind) and column.name in names for kind, names in _ACCEPT)


def _nested(spark: T.DataType) -> bool:
    return isinstance(spark, T.StructType | T.MapType | T.ArrayType | T.VariantType)
