"""Own code places and packs rows as Spark does: compared with Spark's own hash, and its own reading."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.ids import BatchId
from weir.spark.state_schema import operators
from weir.spark.unsafe_row import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "number": "int",
    "big": "bigint",
    "part": "float",
    "real": "double",
    "price": "decimal(10,2)",
    "huge": "decimal(38,10)",
    "text": "string",
    "raw": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "span": "interval day to second",
    "window": "struct<start:timestamp,end:timestamp,name:string>",
    "words": "array<string>",
    "numbers": "array<smallint>",
    "nested": "array<struct<a:decimal(38,0),b:array<int>>>",
}
PARTITIONS = 1009


def value(kind: str, draw: random.Random) -> Any:
    """A value of a type, sometimes null, sometimes at an end of its range."""
    if draw.random() < 0.15:
        return None
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
    if kind in bits:
        top = 2 ** (bits[kind] - 1)
        return draw.choice([0, -1, top - 1, -top, draw.randrange(-top, top)])
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=draw.randrange(-(10**15), 10**15)
    )
    text = "".join(draw.choices("abcßü€𝄞\0", k=draw.randrange(12)))
    makers: dict[str, Any] = {
        "boolean": lambda: draw.random() < 0.5,
        "float": lambda: draw.choice([0.0, -0.0, float("nan"), float("inf"), 0.5, -1.25]),
        "double": lambda: draw.choice([0.0, -0.0, float("nan"), float("-inf"), draw.uniform(-9, 9)]),
        "decimal(10,2)": lambda: Decimal(draw.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
        "decimal(38,10)": lambda: Decimal(draw.randrange(-(10**28), 10**28)).scaleb(-10),
        "decimal(38,0)": lambda: Decimal(draw.choice([0, 127, 128, -128, -129, draw.randrange(10**28)])),
        "string": lambda: text,
        "binary": lambda: draw.randbytes(draw.randrange(20)),
        "date": lambda: date(1970, 1, 1) + timedelta(days=draw.randrange(-9999, 30000)),
        "timestamp": lambda: moment,
        "timestamp_ntz": lambda: moment.replace(tzinfo=None),
        "interval day to second": lambda: timedelta(microseconds=draw.randrange(-(10**12), 10**12)),
        COLUMNS["window"]: lambda: (moment, value("timestamp", draw), value("string", draw)),
        "array<string>": lambda: [value("string", draw) for _ in range(draw.randrange(4))],
        "array<smallint>": lambda: [value("smallint", draw) for _ in range(draw.randrange(70))],
        "array<int>": lambda: [value("int", draw) for _ in range(draw.randrange(4))],
        COLUMNS["nested"]: lambda: [
            (value("decimal(38,0)", draw), value("array<int>", draw)) for _ in range(draw.randrange(3))
        ],
    }
    return makers[kind]()


@pytest.mark.long
def test_rows_of_every_type_are_packed_and_placed_as_spark_does(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from weir.state.changes import PACKED, packing

    draw = random.Random(7)
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    rows = [tuple(value(kind, draw) for kind in COLUMNS.values()) for _ in range(300)]
    frame = spark.createDataFrame(rows, schema)
    key = frame.schema.jsonValue()
    told = F.pmod(F.hash(*COLUMNS), F.lit(PARTITIONS)).alias("place")
    packed = frame.select(*COLUMNS, told).mapInArrow(packing(key, {"fields": []}, "default"), PACKED)
    place = place_of(key, len(COLUMNS), PARTITIONS)
    found = [(place(bytes(row["key_bytes"])), row["place"]) for row in packed.collect()]
    assert len(found) == len(rows)
    assert [mine for mine, _ in found] == [sparks for _, sparks in found]
    for number, (name, kind) in enumerate(COLUMNS.items()):  # each alone, so that a fault has a name
        alone = {"fields": [key["fields"][number]]}
        told = F.pmod(F.hash(name), F.lit(PARTITIONS)).alias("place")
        task = packing(alone, {"fields": []}, "default")
        one = place_of(alone, 1, PARTITIONS)
        answers = frame.select(name, told).mapInArrow(task, PACKED).collect()
        assert [one(bytes(row["key_bytes"])) for row in answers] == [row["place"] for row in answers], kind


def test_packed_keys_are_the_bytes_that_spark_keeps(spark: SparkSession, tmp_path: Path) -> None:
    from weir.spark import content
    from weir.spark.cut import lay_out
    from weir.spark.session import state_defaults
    from weir.state.changes import PACKED, packing

    draw = random.Random(8)
    names = [name for name in COLUMNS if name != "span"]  # Parquet has no intervals
    schema = ", ".join(f"{name} {COLUMNS[name]}" for name in names)
    rows = [tuple(value(COLUMNS[name], draw) for name in names) for _ in range(200)]
    frame = spark.createDataFrame(rows, schema)
    frame.write.parquet(str(tmp_path / "in"))
    session = spark.newSession()
    for key, setting in state_defaults("rocksdb", cores=1).items():
        session.conf.set(key, setting)
    once = session.readStream.schema(frame.schema).parquet(str(tmp_path / "in")).dropDuplicates(names)
    writer = once.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "it"))
    writer.trigger(availableNow=True).start().awaitTermination()

    (operator,) = operators(tmp_path / "it", BatchId(0))
    view = lay_out(tmp_path / "it", BatchId(0), tmp_path / "view")
    where = (session, view, BatchId(0), 0, "default")
    kept = [bytes(row["key_bytes"]) for row in content.bytes_of(*where).select("key_bytes").collect()]
    key_schema = operator.stores[0].key_schema
    assert key_schema is not None and len(kept) > 190
    columns = [f"key.{field['name']} as c{n}" for n, field in enumerate(key_schema["fields"])]
    keys = content.typed(*where).selectExpr(*columns, "0 as place")
    packed = keys.mapInArrow(packing(key_schema, {"fields": []}, "default"), PACKED)
    assert sorted(bytes(row["key_bytes"]) for row in packed.collect()) == sorted(kept)
