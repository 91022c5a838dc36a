"""Checkpoints of a whole graph in a live session: taken, kept, and gone back to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import weir
from tests.diamond import wait
from weir.channel.backpressure import Pressure
from weir.checkpoint import manifest as mf
from weir.clock import Clock
from weir.errors import PipelineError
from weir.ids import CheckpointId
from weir.job.graph import Pipeline
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.storage import open_store
from weir.testing import ScriptedSource, committed_rows, folded
from weir.testing.script import EndOfInput, Pause, Rows, write_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"
OFF = {"execution.checkpointing.interval": "off"}


class Bench:
    """A job in one folder, its input, and its checkpoints."""

    def __init__(self, pipeline: Pipeline, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.dir = str(folder / "weir")
        settings = {"execution.checkpointing.dir": self.dir, "parallelism.default": 2, **OFF, **options}
        self.job = weir.Job("graph", **settings)
        self.job.pipeline(pipeline)
        self.store = open_store(self.dir)

    def add(self, *rows: tuple[str, int]) -> None:
        write_script(self.folder / "in.jsonl", Rows(list(rows)))

    def manifest(self, id: int) -> mf.Manifest:
        found = mf.read(self.store, self.job.name, CheckpointId(id))
        assert found is not None
        return found

    def go_back(self, id: int) -> None:
        intend(self.store, self.job.name, RestoreRequest(f"chk-{id}"), clock=Clock(), why="test")

    def table(self, name: str, *key: str) -> dict[Any, Any]:
        return folded(committed_rows(str(self.folder / name)), list(key))


def medallion(folder: Path) -> Pipeline:
    """One stream into three sinks, one of them behind a second stream."""

    def pipeline(env: weir.Env) -> None:
        bronze = env.stream("bronze", env.source("rows", ScriptedSource(folder / "in.jsonl", SCHEMA)))
        silver = env.stream("silver", bronze.where("v > 0"))
        sums = silver.groupBy("k").agg(F.sum("v").alias("sum"))
        env.sink("gold", sums, weir.sinks.files(str(folder / "gold")), output_mode="update")
        env.sink("raw", bronze, weir.sinks.files(str(folder / "raw")))
        env.sink("bad", bronze.where("v <= 0"), weir.sinks.files(str(folder / "bad")))

    return pipeline


@pytest.mark.long
def test_a_job_goes_back_to_a_checkpoint_of_all_its_queries(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(medallion(tmp_path), tmp_path)
    bench.add(("a", 1), ("b", 2), ("a", -5))
    with bench.job.start(spark) as run:
        run.process_all()
        first = run.checkpoint()
        bench.add(("a", 10), ("c", 3))
        run.process_all()
        second = run.checkpoint()
        bench.add(("c", 100), ("c", -100))
        run.process_all()
    assert second > first
    manifest = bench.manifest(first)
    assert set(manifest.queries) == {"bronze", "silver", "gold", "raw", "bad"}
    assert set(manifest.channels) == {"bronze", "silver"}
    assert not any(cut.unaligned for cut in manifest.queries.values())
    whole = {("a",): 11, ("b",): 2, ("c",): 103}
    assert {k: row["sum"] for k, row in bench.table("gold", "k").items()} == whole

    bench.go_back(first)
    with bench.job.start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == first
        assert {k: row["sum"] for k, row in bench.table("gold", "k").items()} in (
            {("a",): 1, ("b",): 2},
            whole,
        )
        run.process_all()
        third = run.checkpoint()
    assert third > second
    assert {k: row["sum"] for k, row in bench.table("gold", "k").items()} == whole
    raw = sorted((row["k"], row["v"]) for row in committed_rows(str(tmp_path / "raw")))
    assert raw == sorted([("a", 1), ("b", 2), ("a", -5), ("a", 10), ("c", 3), ("c", 100), ("c", -100)])
    assert sorted(row["v"] for row in committed_rows(str(tmp_path / "bad"))) == [-100, -5]


def staged(folder: Path) -> Pipeline:
    """A bounded stage, one that begins when it has ended, and a query that goes on for ever."""

    def pipeline(env: weir.Env) -> None:
        bounded = {"availableNow": True}
        rows = env.source("rows", ScriptedSource(folder / "in.jsonl", SCHEMA))
        first = env.stream("first", rows.where("v > 0"), trigger=bounded)
        sums = first.groupBy("k").agg(F.sum("v").alias("sum"))
        sink = weir.sinks.files(str(folder / "second"))
        env.sink("second", sums, sink, output_mode="update", trigger=bounded)
        live = env.source("live", ScriptedSource(folder / "live.jsonl", SCHEMA))
        env.sink("live", live, weir.sinks.files(str(folder / "live")))

    return pipeline


@pytest.mark.long
def test_queries_that_have_ended_or_not_begun_stop_no_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(staged(tmp_path), tmp_path, **{"channel.max-segments-ahead": 1})
    go_on = tmp_path / "go-on"
    for number in range(3):  # more than the stream may be ahead: who waits for its end does not hold it up
        bench.add(("a", 1), ("b", number))
    write_script(tmp_path / "in.jsonl", Pause(until=str(go_on)), Rows([("a", 10)]), EndOfInput())

    def live(value: int) -> None:
        write_script(tmp_path / "live.jsonl", Rows([("x", value)]))

    def delivered(name: str) -> list[tuple[str, int]]:
        return sorted(tuple(row.values()) for row in committed_rows(str(tmp_path / name)))

    def sums() -> dict[Any, int]:
        return {k: row["sum"] for k, row in bench.table("second", "k").items()}

    live(1)
    whole = {("a",): 13, ("b",): 3}
    with bench.job.start(spark) as run:
        wait(run, "three batches", lambda: bench.manifest(run.checkpoint()).queries["first"].batch == 2)
        waiting = bench.manifest(run.checkpoint())
        assert waiting.queries["second"].batch == -1, "it has not begun"
        go_on.touch()
        wait(run, "the second stage", lambda: sums() == whole)
        live(2)
        wait(run, "the live query", lambda: ("x", 2) in delivered("live"))
        ended = bench.manifest(run.checkpoint())
        assert ended.queries["first"].batch > 2 and ended.queries["second"].batch >= 0

    for back in (ended.id, waiting.id):
        bench.go_back(back)
        with bench.job.start(spark) as run:
            assert run.restored is not None and run.restored.checkpoint == back
            wait(run, "the second stage", lambda: sums() == whole)
            wait(run, "the live query", lambda: delivered("live") == [("x", 1), ("x", 2)])


@pytest.mark.long
def test_a_bounded_writer_of_sparks_begins_when_its_stream_has_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(env: weir.Env) -> None:
        rows = env.source("rows", ScriptedSource(tmp_path / "in.jsonl", SCHEMA))
        first = env.stream("first", rows, trigger={"availableNow": True})
        writer = first.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        env.sink("second", writer.trigger(availableNow=True))

    bench = Bench(pipeline, tmp_path)
    bench.add(("a", 1), ("b", 2))
    write_script(tmp_path / "in.jsonl", EndOfInput())
    with bench.job.start(spark) as run:
        assert run.wait(120)
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect())) == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_a_stream_waits_for_its_slowest_reader_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, held = threading.Event(), threading.Event()
    seen: list[int] = []
    ask = Pressure.full

    def full(pressure: Pressure) -> bool:
        answer = ask(pressure)
        if answer:
            held.set()
        return answer

    def slow(frame: DataFrame, batch: int) -> None:
        assert go_on.wait(240)
        seen.extend(row["v"] for row in frame.collect())

    def pipeline(env: weir.Env) -> None:
        rows = env.stream("rows", env.source("input", ScriptedSource(tmp_path / "in.jsonl", SCHEMA)))
        env.sink("slow", rows, weir.sinks.function(slow))
        env.sink("quick", rows, weir.sinks.files(str(tmp_path / "quick")))

    monkeypatch.setattr(Pressure, "full", full)
    bench = Bench(pipeline, tmp_path, **{"channel.max-segments-ahead": 2})
    for number in range(6):  # a batch each
        bench.add(("a", number))

    def quick() -> list[int]:
        return sorted(row["v"] for row in committed_rows(str(tmp_path / "quick")))

    with bench.job.start(spark) as run:
        wait(run, "the stream to be held", held.is_set)
        wait(run, "the quick reader", lambda: quick() == [0, 1])
        go_on.set()
        run.process_all()
    assert (sorted(seen), quick()) == ([*range(6)], [*range(6)])


@pytest.mark.long
def test_a_stream_is_computed_once_for_all_its_readers(spark: SparkSession, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def pipeline(env: weir.Env) -> None:
        rows = env.source("rows", ScriptedSource(tmp_path / "in.jsonl", SCHEMA))

        @F.udf("long")
        def costly(value: int) -> int:
            with open(calls, "a") as file:
                file.write("x")
            return value * 2

        doubled = env.stream("doubled", rows.withColumn("v", costly("v")))
        for name in ("one", "two", "three"):
            env.sink(name, doubled, weir.sinks.files(str(tmp_path / name)))

    bench = Bench(pipeline, tmp_path)
    bench.add(("a", 1), ("b", 2), ("c", 3))
    with bench.job.start(spark) as run:
        run.process_all()
    assert len(calls.read_text()) == 3
    for name in ("one", "two", "three"):
        assert sorted(row["v"] for row in committed_rows(str(tmp_path / name))) == [2, 4, 6]


def test_what_a_graph_may_not_be(spark: SparkSession, tmp_path: Path) -> None:
    source = ScriptedSource(tmp_path / "in.jsonl", SCHEMA)

    def twice(env: weir.Env) -> None:
        rows = env.source("rows", source)
        a = env.stream("same", rows)
        env.stream("same", rows)
        env.sink("out", a, weir.sinks.files(str(tmp_path / "out")))

    def unread(env: weir.Env) -> None:
        rows = env.source("rows", source)
        env.stream("lonely", rows)
        env.sink("out", rows, weir.sinks.files(str(tmp_path / "out")))

    def endless(env: weir.Env) -> None:
        rows = env.stream("rows", env.source("rows", source))
        env.sink("out", rows, weir.sinks.files(str(tmp_path / "out")), trigger={"availableNow": True})

    refused = {
        twice: "two streams have the name 'same'",
        unread: "is read nowhere",
        endless: "'out' is bounded, so it begins when its streams have ended, and stream 'rows' never ends",
    }
    for pipeline, words in refused.items():
        bench = Bench(pipeline, tmp_path)
        bench.add(("a", 1))
        with pytest.raises(PipelineError, match=words):
            bench.job.start(spark)
