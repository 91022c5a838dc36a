"""Jobs in a live session, step by step: what they deliver, go on from, and refuse."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import weir
from weir.errors import (
    JobRunningError,
    PinnedStateError,
    PipelineError,
    RunFailedError,
    SinkMismatchError,
)
from weir.job.graph import Pipeline
from weir.testing import (
    AddRows,
    CheckRows,
    CheckTable,
    Crash,
    ExpectFailure,
    ProcessAll,
    Rows,
    ScriptedSource,
    Start,
    Stop,
    StreamTest,
    committed_rows,
    write_script,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"


def rows_of(env: weir.Env, folder: Path, name: str = "rows") -> DataFrame:
    return env.source(name, ScriptedSource(folder / "in.jsonl", SCHEMA))


def counting(folder: Path, query: str = "counts") -> Pipeline:
    """Counts per key, in update mode."""

    def pipeline(env: weir.Env) -> None:
        table = rows_of(env, folder).groupBy("k").agg(F.sum("v").alias("sum"))
        env.sink(query, table, weir.sinks.files(str(folder / "out")), output_mode="update")

    return pipeline


def job(pipeline: Pipeline, folder: Path, name: str = "test", **options: Any) -> weir.Job:
    made = weir.Job(name, **{"execution.checkpointing.dir": str(folder / "weir"), **options})
    made.pipeline(pipeline)
    return made


def everything(folder: Path) -> dict[Path, int]:
    """Every file, with its time, that says whether something was written."""
    return {file: file.stat().st_mtime_ns for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_a_job_goes_on_with_its_state_after_a_restart(
    backend: str, spark: SparkSession, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"state.backend.type": backend, "parallelism.default": 2}
    with StreamTest(job(counting(tmp_path), tmp_path, **options), spark, tmp_path) as test:
        test.run(
            AddRows(("a", 1), ("b", 2), ("c", 3)),
            Start(),
            ProcessAll(),
            CheckTable(("a", 1), ("b", 2), ("c", 3), key=["k"]),
            AddRows(("a", 10)),
            ProcessAll(),
            Stop(),
            CheckTable(("a", 11), ("b", 2), ("c", 3), key=["k"]),
            AddRows(("b", 20), ("d", 4)),
            Start(),
            ProcessAll(),
            CheckTable(("a", 11), ("b", 22), ("c", 3), ("d", 4), key=["k"]),
        )


@pytest.mark.long
def test_settings_that_spark_would_ignore_are_refused_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    first: dict[str, Any] = {"state.backend.type": "hashmap", "parallelism.default": 2}
    with StreamTest(job(counting(tmp_path), tmp_path, **first), spark, tmp_path) as test:
        test.run(AddRows(("a", 1)), Start(), ProcessAll(), Stop())
    live = tmp_path / "weir/test/generations"
    before = everything(live) | everything(tmp_path / "out")
    for change, live_value in (
        ({"state.backend.type": "rocksdb"}, "hashmap"),
        ({"parallelism.default": 3}, 2),
    ):
        with pytest.raises(PinnedStateError) as refused:
            job(counting(tmp_path), tmp_path, **{**first, **change}).start(spark)
        assert refused.value.fields["live"] == live_value
        assert everything(live) | everything(tmp_path / "out") == before
    with StreamTest(job(counting(tmp_path), tmp_path, **first), spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ProcessAll(), CheckTable(("a", 2), key=["k"]))


@pytest.mark.long
def test_two_queries_of_one_job_have_frames_and_batches_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(env: weir.Env) -> None:
        rows = rows_of(env, tmp_path)
        env.sink("all", rows, weir.sinks.files(str(tmp_path / "all")))
        env.sink("large", rows.where("v > 1"), weir.sinks.files(str(tmp_path / "large")))

    with StreamTest(pipeline, spark, tmp_path) as test:
        test.run(
            Start(),
            AddRows(("a", 1), ("b", 2)),
            ProcessAll(),
            Stop(),
            Start(),
            AddRows(("c", 3)),
            ProcessAll(),
            CheckRows(("a", 1), ("b", 2), ("c", 3), of=tmp_path / "all"),
            CheckRows(("b", 2), ("c", 3), of=tmp_path / "large"),
        )


@pytest.mark.long
def test_a_writer_as_spark_users_have_it_becomes_a_query(spark: SparkSession, tmp_path: Path) -> None:
    def pipeline(env: weir.Env) -> None:
        writer = rows_of(env, tmp_path).writeStream.format("parquet").option("path", str(tmp_path / "native"))
        env.sink("native", writer)

    with StreamTest(pipeline, spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ProcessAll(), Stop())
        test.run(Start(), AddRows(("b", 2)), ProcessAll(), Stop())
    found = spark.read.parquet(str(tmp_path / "native")).collect()
    assert sorted((row.k, row.v) for row in found) == [("a", 1), ("b", 2)]
    assert (tmp_path / "weir/test/generations/0001/queries/native/commits").is_dir()


def test_sinks_for_looking_show_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    sessions: list[SparkSession] = []

    def pipeline(env: weir.Env) -> None:
        sessions.append(env.spark)
        rows = rows_of(env, tmp_path)
        env.sink("shown", rows, weir.sinks.console())
        env.sink("kept", rows, weir.sinks.memory())

    with StreamTest(pipeline, spark, tmp_path) as test:
        test.run(Start(), AddRows(("a-row-to-see", 1)), ProcessAll())
        assert [(row.k, row.v) for row in sessions[-1].table("kept").collect()] == [("a-row-to-see", 1)]
        assert {b.query for b in test.live.batches} == {"shown", "kept"}


def test_a_driver_that_died_while_spark_planned_the_first_batch_is_of_no_harm(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark alone never begins again beside what that left; pinned here, so that we see when it does."""

    def die(location: Path) -> Path:
        log = location / "offsets"
        log.mkdir(parents=True)
        name = ".0.85ea7e7c-b431-4f79-a56c-151c17170cb9.tmp"
        (log / f".{name}.crc").touch()
        (log / name).touch()
        return log

    die(tmp_path / "plain")
    rows = spark.readStream.format("rate").load().writeStream.format("noop")
    query = rows.option("checkpointLocation", str(tmp_path / "plain")).start()
    with pytest.raises(StreamingQueryException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        query.awaitTermination(60)

    log = die(tmp_path / "weir/test/generations/0001/queries/counts")
    write_script(tmp_path / "in.jsonl", Rows([("a", 1)]))
    with job(counting(tmp_path), tmp_path).start(spark) as run:
        run.process_all()
    assert committed_rows(str(tmp_path / "out")) == [{"k": "a", "sum": 1}]
    assert not [path.name for path in log.iterdir() if path.name.endswith(".tmp")]


def test_a_query_that_is_started_past_weir_is_refused_and_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(env: weir.Env) -> None:
        rows = rows_of(env, tmp_path)
        rows.writeStream.format("noop").queryName("by_itself").start()
        env.sink("rows", rows, weir.sinks.files(str(tmp_path / "out")))

    with pytest.raises(PipelineError, match="starts the query without weir"):
        job(pipeline, tmp_path).start(spark)
    assert not [query for query in spark.streams.active if query.name == "by_itself"]
    assert not (tmp_path / "out").exists()


def test_the_output_of_another_job_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with StreamTest(counting(tmp_path), spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ProcessAll())
    before = everything(tmp_path / "out")
    with pytest.raises(SinkMismatchError, match="'test/counts'"):
        job(counting(tmp_path), tmp_path, name="other").start(spark)
    assert everything(tmp_path / "out") == before


def test_output_that_is_ahead_of_a_fresh_start_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with StreamTest(counting(tmp_path), spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ProcessAll())
    before = everything(tmp_path / "out")
    shutil.rmtree(tmp_path / "weir/test")
    with pytest.raises(SinkMismatchError, match="live files that are gone"):
        job(counting(tmp_path), tmp_path).start(spark)
    assert everything(tmp_path / "out") == before


def test_a_job_that_runs_can_not_be_started_beside_itself(spark: SparkSession, tmp_path: Path) -> None:
    with StreamTest(counting(tmp_path), spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ProcessAll())
        with pytest.raises(JobRunningError):
            job(counting(tmp_path), tmp_path).start(spark)
        test.run(AddRows(("a", 1)), ProcessAll(), CheckTable(("a", 2), key=["k"]))


def failing(folder: Path, value: int) -> Pipeline:
    def pipeline(env: weir.Env) -> None:
        checked = F.when(F.col("v") == value, F.raise_error(F.lit("not this one"))).otherwise(F.col("v"))
        frame = rows_of(env, folder).withColumn("v", checked.cast("long"))
        env.sink("rows", frame, weir.sinks.files(str(folder / "out")))

    return pipeline


@pytest.mark.long
def test_a_failure_in_a_notebook_is_told_and_mended_code_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with StreamTest(failing(tmp_path, 2), spark, tmp_path) as test:
        test.run(
            Start(),
            AddRows(("a", 1)),
            ProcessAll(),
            AddRows(("b", 2), ("c", 3)),
            ExpectFailure("not this one", query="rows"),
            CheckRows(("a", 1)),
        )
    with StreamTest(failing(tmp_path, 99), spark, tmp_path) as test:
        test.run(Start(), ProcessAll(), CheckRows(("a", 1), ("b", 2), ("c", 3)))


def test_a_notebook_sees_batches_and_failures(spark: SparkSession, tmp_path: Path) -> None:
    write_script(tmp_path / "in.jsonl")
    with job(failing(tmp_path, 2), tmp_path).start(spark) as run:
        AddRows(("a", 1)).take(StreamTest(failing(tmp_path, 2), spark, tmp_path))
        run.wait_for_batch("rows", 0)
        assert [(b.query, b.batch, b.rows) for b in run.batches] == [("rows", 0, 1)]
        assert not run.wait(0.01)
        AddRows(("b", 2)).take(StreamTest(failing(tmp_path, 2), spark, tmp_path))
        with pytest.raises(RunFailedError, match="not this one"):
            run.wait(60)
    assert committed_rows(str(tmp_path / "out")) == [{"k": "a", "v": 1}]


def test_a_notebook_that_is_fenced_stops_its_queries_and_tells_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(env: weir.Env) -> None:
        env.sink("seen", rows_of(env, tmp_path), weir.sinks.memory())

    write_script(tmp_path / "in.jsonl", Rows([("a", 1)]))
    run = job(pipeline, tmp_path, **{"heartbeat.interval": "50 ms"}).start(spark)
    run.wait_for_batch("seen", 0)
    (tmp_path / "weir/test/attempts/000002.json").write_text("{}")
    with pytest.raises(RunFailedError, match="attempt 2 has taken over"):
        run.wait(60)
    assert [(one.query, one.batch, one.failure.error) for one in run.failures] == [("seen", 1, "FencedError")]
    assert not [one for one in run._engine._context.spark.streams.active if one.name == "seen"]
    run.stop()


@pytest.mark.long
def test_past_the_time_for_a_clean_end_the_batch_is_cut_off_which_is_said_and_runs_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    entered, let_go = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(frame: DataFrame, batch: int) -> None:
        frame.count()
        entered.set()
        assert let_go.wait(60)
        seen.append(batch)
        if len(seen) == 1:
            raise OSError("it was cut off")

    def pipeline(env: weir.Env) -> None:
        env.sink("rows", rows_of(env, tmp_path), weir.sinks.function(slow), trigger={"availableNow": True})

    write_script(tmp_path / "in.jsonl", Rows([("a", 1)]))
    made = job(pipeline, tmp_path, **{"task.cancellation.timeout": "100 ms"})
    run = made.start(spark)
    assert entered.wait(60)
    stopping = threading.Thread(target=run.stop)
    stopping.start()
    with run._changed:
        assert run._changed.wait_for(lambda: run.notes, 60)
    assert run.notes == ["query rows was cut off after 0.1 s; its batch will run again"]
    let_go.set()
    stopping.join()
    with made.start(spark) as again:
        assert again.wait(60)
    assert seen == [0, 0]


def test_a_crash_step_kills_nobody_in_a_live_session(spark: SparkSession, tmp_path: Path) -> None:
    write_script(tmp_path / "in.jsonl", Crash())
    with StreamTest(counting(tmp_path), spark, tmp_path) as test:
        test.run(Start(), ExpectFailure("outside of 'weir run'"))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda: CheckRows(("a", 2)), "step 3, CheckRows"),
        (lambda: CheckTable(("a", 2), key=["k"]), "step 3, CheckTable"),
        (Start, "runs already"),
    ],
)
def test_a_step_that_does_not_hold_is_named(
    step: Callable[[], Any], words: str, spark: SparkSession, tmp_path: Path
) -> None:
    write_script(tmp_path / "in.jsonl")
    with (
        StreamTest(counting(tmp_path), spark, tmp_path) as test,
        pytest.raises(AssertionError, match=words),
    ):
        test.run(Start(), ProcessAll(), step())


def test_settings_of_sparks_count_in_a_notebook_too(spark: SparkSession, tmp_path: Path) -> None:
    write_script(tmp_path / "in.jsonl", Rows([("a", 1)]))
    seen = {}
    options = {
        "execution.checkpointing.dir": str(tmp_path / "weir"),
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.executor.memory": "4321m",
    }
    job = weir.Job("partitions", **options)

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        seen.update({key: env.spark.conf.get(key) for key in options if key.startswith("spark.sql.")})
        counting(tmp_path)(env)

    with job.start(spark) as run:
        run.process_all()
        assert any("spark.executor.memory is 4321m" in note for note in run.notes)
        assert not any("spark.sql" in note for note in run.notes)
    assert seen == {"spark.sql.shuffle.partitions": "3", "spark.sql.session.timeZone": "Asia/Tokyo"}
    assert spark.conf.get("spark.sql.session.timeZone") != "Asia/Tokyo", "the session beside it is left alone"
