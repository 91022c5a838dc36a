"""What Spark's planner says of a query that has not started is what the query writes when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.stateful import KINDS, Kind
from weir.channel.stream import open_stream
from weir.ids import BatchId, Generation, JobName, SourceName
from weir.protocol.shape import PlannedOperator
from weir.sources import socket
from weir.sources.contract import Place
from weir.spark.frame_plan import PlannedQuery, output_mode_of, planned
from weir.spark.session import state_defaults
from weir.spark.state_schema import operators
from weir.storage import open_store
from weir.storage.paths import Live

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long, ts timestamp, id long"


def several(lines: DataFrame, others: DataFrame) -> DataFrame:
    """Four operators: the aggregation is 0, the join 1, the dedups 2 and 3."""
    left = lines.withWatermark("ts", "20 seconds").dropDuplicates(["id", "ts"])
    right = others.selectExpr("k as k2", "ts as ts2").withWatermark("ts2", "20 seconds")
    right = right.dropDuplicates(["k2", "ts2"])
    return left.join(right, (left.k == right.k2) & (left.ts == right.ts2)).groupBy("ts").count()


ALL = {**KINDS, "several": Kind("several", several, "append")}


class Lines:
    """A session with the settings of state, and one file of input."""

    def __init__(self, spark: SparkSession, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.session = spark.newSession()
        for key, value in {**state_defaults("rocksdb", cores=1), **(settings or {})}.items():
            self.session.conf.set(key, value)
        self.folder = folder
        row = {"k": "a", "v": 1, "ts": "2026-01-01T00:00:00Z", "id": 1}
        (folder / "in").mkdir()
        (folder / "in/0.json").write_text(json.dumps(row))

    def frame(self, name: str = "in") -> DataFrame:
        return self.session.readStream.schema(SCHEMA).json(str(self.folder / name))

    def run(self, frame: DataFrame, mode: str) -> Path:
        location = self.folder / "ran"
        writer = frame.writeStream.outputMode(mode).format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(location)).start().awaitTermination()
        return location


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def operator(frame: DataFrame, mode: str = "update", id: int = 0) -> PlannedOperator:
    return planned(frame, mode).shape.operators[id]


@pytest.mark.parametrize("name", ALL)
def test_an_operator_is_planned_as_it_is_written(name: str, spark: SparkSession, tmp_path: Path) -> None:
    kind = ALL[name]
    lines = Lines(spark, tmp_path, dict(kind.settings))
    found = planned(kind.frame(lines.frame(), lines.frame()), kind.mode)
    location = lines.run(kind.frame(lines.frame(), lines.frame()), kind.mode)
    written = operators(location, BatchId(0))
    facts = {"id", "kind", "stores", "partitions", "properties"}
    assert [one.model_dump(include=facts) for one in found.shape.operators] == [
        one.model_dump(include=facts) for one in written
    ]
    assert all(one.known for one in found.shape.operators)
    assert len(found.shape.sources) == len((location / "offsets/0").read_text().split("\n")[2:])
    _compare_files(found, location)


def _compare_files(found: PlannedQuery, location: Path) -> None:
    """Byte for byte, but for the place and the unique name of a schema file."""
    for path, data in found.files.items():
        if "/_metadata/v2/" not in path and "/_stateSchema/" not in path:
            assert (location / path).read_bytes() == data, path
        elif "/_stateSchema/" in path:
            (there,) = (p for p in (location / path).parent.iterdir() if p.suffix != ".crc")
            assert there.read_bytes() == data


def test_nothing_is_left_of_the_planning(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    (tmp_path / "empty").mkdir()
    assert operator(lines.frame("empty").groupBy("k").count()).partitions == 2
    assert not list(scratch.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "empty", "in"}


def test_what_an_offset_log_pins_counts_more_than_the_session(lines: Lines) -> None:
    counted = lines.frame().groupBy("k").count()
    pinned = {
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.streaming.aggregation.stateFormatVersion": "1",
    }
    found = planned(counted, "update", pinned).shape.operators[0]
    assert found.partitions == 7
    value = found.stores[0].value_schema
    assert value is not None
    # the older format keeps the key in the value, too
    assert [field["name"] for field in value["fields"]] == ["k", "count"]
    assert lines.session.conf.get("spark.sql.shuffle.partitions") == "2"


def test_names_and_unused_columns_do_not_count(lines: Lines) -> None:
    plain = operator(lines.frame().where("v > 3 and id > 0").groupBy("k").sum("v"))
    other = lines.frame().selectExpr("k as key", "v as value", "ts", "id", "v + 1 as unused")
    renamed = operator(other.where("id > 0").where("value > 3").groupBy("key").agg({"value": "sum"}))
    assert renamed.evidence == plain.evidence
    assert plain.keys == ("k",)
    assert [one.text for one in plain.computes] == ["sum(v)"]
    assert plain.reads[:2] == ("where (id > 0)", "where (v > 3)")


def test_what_an_aggregation_keeps_is_told_column_by_column(lines: Lines) -> None:
    from pyspark.sql import functions as F

    counted = (
        lines.frame()
        .groupBy("k")
        .agg(F.avg("v"), F.count("*"), F.collect_set("v"), F.sum(F.col("v").cast("decimal(10,2)")))
    )
    computes = operator(counted).computes
    assert [(one.text, one.columns, one.start) for one in computes] == [
        ("avg(v)", 2, (0.0, 0)),
        ("count(1)", 1, (0,)),
        ("collect_set(v, 0, 0, true)", 1, None),
        ("sum(cast(v as decimal(10,2)))", 2, (0, True)),
    ]


def test_a_longer_window_is_another_key(lines: Lines) -> None:
    from pyspark.sql import functions as F

    def windowed(length: str) -> PlannedOperator:
        return operator(lines.frame().groupBy(F.window("ts", length)).count())

    def session(gap: str) -> PlannedOperator:
        frame = (
            lines.frame().withWatermark("ts", "1 minute").groupBy(F.session_window("ts", gap), "k").count()
        )
        return operator(frame, "append")

    assert windowed("5 seconds") == windowed("5 seconds")
    assert windowed("30 seconds").keys == ("window(ts, 30 seconds)",)
    assert session("5 seconds").keys == ("k", "session_window(ts, 5 seconds)")
    sliding = operator(lines.frame().groupBy(F.window("ts", "10 minutes", "4 minutes")).count())
    assert sliding.keys == ("window(ts, 10 minutes, 4 minutes)",)
    assert not [line for line in sliding.reads if line.startswith("Expand")]
    twice = lines.frame().withWatermark("ts", "1 minute").groupBy(F.window("ts", "5 seconds"), "k").count()
    twice = twice.groupBy(F.window(F.window_time("window"), "1 minute")).count()
    outer, inner = planned(twice, "append").shape.operators
    assert inner.keys == ("window(ts, 5 seconds)", "k")
    assert outer.keys == ("window(window_time(window(ts, 5 seconds)), 1 minute)",)
    older = planned(lines.frame().groupBy(F.window("ts", "5 seconds")).count(), "update").shape.older
    (before,) = (text for text, now in older.items() if now == "window(ts, 5 seconds)")
    assert before.startswith("named_struct(start, knownnullable(precisetimestamp"), "as it was written once"
    assert windowed("5 seconds").keys != windowed("10 seconds").keys
    assert session("5 seconds").keys != session("10 seconds").keys


def test_chance_and_the_present_time_do_not_count(lines: Lines) -> None:
    frame = lines.frame().where("rand() < 0.5 and ts > current_timestamp() - interval 1 hour")
    assert operator(frame.groupBy("k").count()) == operator(frame.groupBy("k").count())


@pytest.mark.long
def test_a_source_has_a_name_that_does_not_change_with_the_generation(lines: Lines, tmp_path: Path) -> None:
    rows = lines.frame().withWatermark("ts", "10 seconds")
    names = []
    for generation in (1, 2):
        live = Live(open_store(str(tmp_path)), JobName("job"), Generation(generation))
        channel = open_stream(
            lines.session, rows.schema, f"{live.root}/channels/clean", f"{live.root}/queries/q", ""
        )
        received = socket("localhost", 1).load(lines.session, Place.of(live, SourceName("lines")))
        union = channel.select("k").unionAll(received.select("value"))
        rate = lines.session.readStream.format("rate").load().selectExpr("cast(value as string) as k")
        found = planned(union.unionAll(rate).groupBy("k").count(), "update").shape
        names.append([one.name for one in found.sources])
        assert list(found.operators[0].sources) == names[-1]
    assert names == [["channel clean", "source lines", "rate"]] * 2


def test_a_source_that_has_a_name_in_spark_goes_by_it(lines: Lines) -> None:
    lines.session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    named = lines.session.readStream.name("mine").format("rate").load()
    assert [one.name for one in planned(named, "append").shape.sources] == ["named mine"]


def test_sources_of_one_name_are_told_apart_by_what_is_done_with_them(lines: Lines) -> None:
    small, large = lines.frame().where("v < 8"), lines.frame().where("v >= 8").select("k", "v", "ts", "id")
    first, second = planned(small.union(large), "append").shape.sources
    assert first.name == second.name
    assert (first.used, second.used) == (("where (v < 8)",), ("where (v >= 8)",))
    assert (first.folder, second.folder) == (0, 1), "two frames, each with a log of its own"


def test_uses_of_one_frame_share_a_folder(lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    rows, other = lines.frame(), lines.frame("other")
    union = rows.where("v < 8").union(rows.where("v >= 8")).union(other)
    assert [one.folder for one in planned(union, "append").shape.sources] == [0, 0, 1]
    location = lines.run(union, "append")
    assert sorted(path.name for path in (location / "sources").iterdir()) == ["0", "1"]
    assert len((location / "offsets/0").read_text().split("\n")) == 5


def test_the_output_mode_of_a_writer_is_known(lines: Lines) -> None:
    writer = lines.frame().groupBy("k").count().writeStream
    assert output_mode_of(writer) == "append"
    assert output_mode_of(writer.outputMode("complete")) == "complete"
