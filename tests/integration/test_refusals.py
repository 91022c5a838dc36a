"""What a pipeline may not ask of Spark, and which of Spark's sources weir knows: on a live session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import weir
from weir.errors import PipelineError
from weir.ids import Generation, job_name
from weir.job.env import Env
from weir.job.graph import Graph, learn
from weir.spark.frame_plan import FrameStream, Replayable, streams
from weir.storage import open_store
from weir.storage.paths import Live

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = pytest.mark.spark

Change = Callable[["DataStreamWriter"], "DataStreamWriter"]


def env(spark: SparkSession) -> Env:
    return Env(job_name("job"), spark, None)  # type: ignore[arg-type]


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.trigger(continuous="1 second"), "'continuous', which commits no batches"),
        (lambda w: w.trigger(realTime="5 seconds"), "'realTime', which commits no batches"),
        (lambda w: w.option("asyncProgressTrackingEnabled", "TRUE"), "does not record every batch"),
        (lambda w: w.option("ASYNCprogressTrackingEnabled", True), "does not record every batch"),
        (lambda w: w.option("checkpointLocation", "/prod/ckpt"), "of its own, /prod/ckpt"),
        (lambda w: w.queryName("other"), "has the queryName 'other'"),
    ],
)
def test_a_writer_with_what_weir_can_not_honour_is_refused(
    spark: SparkSession, change: Change, reason: str
) -> None:
    writer = change(rate(spark).writeStream.format("noop"))
    with pytest.raises(PipelineError, match=reason) as refused:
        env(spark).sink("q", writer)
    assert refused.value.hint


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w,
        lambda w: w.trigger(processingTime="1 second"),
        lambda w: w.trigger(availableNow=True),
        lambda w: w.trigger(once=True),
        lambda w: w.queryName("q"),
        lambda w: w.option("asyncProgressTrackingEnabled", "false"),
    ],
)
def test_every_other_writer_is_taken(spark: SparkSession, change: Change) -> None:
    made = env(spark)
    made.sink("q", change(rate(spark).writeStream.format("noop")))
    assert list(made.queries) == ["q"]


def test_which_sources_can_be_replayed(spark: SparkSession, tmp_path: Path) -> None:
    def replay(format: str, **options: Any) -> list[Replayable]:
        reader = spark.readStream.format(format).options(**options)
        files = format in ("json", "text", "parquet", "csv", "orc")
        frame = reader.schema("value string").load(str(tmp_path)) if files else reader.load()
        return [stream.replay for stream in streams(frame)]

    for known in ("json", "text", "parquet", "csv", "orc", "rate"):
        assert replay(known) == [Replayable.YES], known
    assert replay("rate-micro-batch", rowsPerBatch=1) == [Replayable.YES]
    assert replay("socket", host="127.0.0.1", port=9) == [Replayable.NO]
    assert FrameStream("com.example.jms.DefaultSource", "").replay is Replayable.UNKNOWN, "of either kind"


def test_lines_of_sparks_socket_never_reach_a_state(spark: SparkSession, tmp_path: Path) -> None:
    def learnt(count: bool, writer: bool) -> Graph:
        def pipeline(env: weir.Env) -> None:
            reader = env.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9)
            lines = reader.load()
            rows = lines.groupBy("value").count() if count else lines
            if writer:
                env.sink("q", rows.writeStream.format("console").outputMode("update"))
            else:
                env.sink("q", rows, weir.sinks.console(), output_mode="update")

        store = open_store(str(tmp_path))
        name = job_name("job")
        return learn(name, pipeline, spark, Live(store, name, Generation(1)))

    for writer in (True, False):
        with pytest.raises(PipelineError, match="can't be run") as refused:
            learnt(count=True, writer=writer)
        assert "has state and reads Spark's socket" in refused.value.why
        assert "weir.sources.socket" in refused.value.hint
        (doubt,) = learnt(count=False, writer=writer).doubts
        assert "lines are lost at each restart" in doubt and "weir.sources.socket" in doubt


def test_a_table_that_is_started_in_the_pipeline_is_refused_with_the_way_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = weir.Job("job", **{"execution.checkpointing.dir": str(tmp_path)})

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        rate(env.spark).writeStream.toTable("t")

    with pytest.raises(PipelineError, match="can't be run") as refused:
        job.start(spark)
    assert ".toTable() on a writer" in refused.value.why and "env.sink" in refused.value.hint
    rate(spark).writeStream.format("noop").start(checkpointLocation=str(tmp_path / "own")).stop()


def test_output_that_is_seen_at_once_can_not_wait_for_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    for sink in (weir.sinks.memory(), weir.sinks.function(lambda frame, batch: None), None):
        options = {"execution.checkpointing.dir": str(tmp_path), "sink.commit": "checkpoint"}
        job = weir.Job("job", **options)

        @job.pipeline
        def shown(env: weir.Env, sink: Any = sink) -> None:
            rows = env.source("rate", rate(env.spark))
            if sink is None:
                env.sink("seen", rows.writeStream.format("noop"))
            else:
                env.sink("seen", rows, sink)

        with pytest.raises(PipelineError, match="shows the rows of a batch at once") as refused:
            job.start(spark)
        assert "leave sink.commit at 'batch'" in refused.value.hint


@pytest.mark.parametrize("option", ["cleanSource", "CLEANSOURCE"])
def test_files_that_spark_takes_away_are_refused_on_any_frame(
    spark: SparkSession, tmp_path: Path, option: str
) -> None:
    (tmp_path / "in").mkdir()
    name = job_name("job")

    def learnt(value: str) -> Graph:
        def pipeline(env: Env) -> None:
            reader = env.spark.readStream.schema("k string").option(option, value)
            rows = reader.json(str(tmp_path / "in")).where("k > 'a'")
            env.sink("q", rows.union(rows), weir.sinks.files(str(tmp_path / "out")))

        return learn(name, pipeline, spark, Live(open_store(str(tmp_path)), name, Generation(1)))

    assert learnt("OFF").queries == ["q"]
    with pytest.raises(PipelineError, match="can't be run") as refused:
        learnt("delete")
    assert "with Spark's option cleanSource" in refused.value.why
