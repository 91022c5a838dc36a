"""User state and listeners in a live session: along batches, restarts, failures and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import weir
from weir.clock import Clock
from weir.errors import NotRewindableError, UserStateError
from weir.ids import BatchId, QueryName
from weir.job.graph import Pipeline
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import open_store, sums
from weir.testing import AddRows, ExpectFailure, ProcessAll, ScriptedSource, Start, Stop, StreamTest
from weir.testing.script import Rows, write_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"
SOON = 60.0


def rows_of(env: weir.Env, folder: Path) -> DataFrame:
    return env.source("rows", ScriptedSource(folder / "in.jsonl", SCHEMA))


def total_of(frame: DataFrame) -> int:
    return int(frame.agg(F.coalesce(F.sum("v"), F.lit(0))).collect()[0][0])


class Adding:
    """A query `train` whose state is the sum of all values so far; each batch notes what it had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: list[tuple[int, int]] = []
        """The number of each batch that was run, and the state at its beginning."""
        self.fail_at: int | None = None
        self.states: list[weir.State] = []

    def pipeline(self, env: weir.Env) -> None:
        total = env.state("total", "train", initial=0)
        self.states.append(total)

        def train(frame: DataFrame, batch: int) -> None:
            self.before.append((batch, total.value))
            total.value += total_of(frame)
            if batch == self.fail_at:
                self.fail_at = None
                raise LookupError("after it was assigned")

        env.sink("train", rows_of(env, self.folder), weir.sinks.function(train))

    def values(self, generation: str = "0001") -> list[str]:
        folder = self.folder / "weir/test/generations" / generation / "user-state/train/values"
        return [sums.strip(file.read_bytes()).decode() for file in sorted(folder.iterdir())]


@pytest.mark.long
def test_the_value_goes_on_over_batches_and_restarts(spark: SparkSession, tmp_path: Path) -> None:
    adding = Adding(tmp_path)
    with StreamTest(adding.pipeline, spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1), ("b", 2)), ProcessAll(), AddRows(("a", 10)), ProcessAll(), Stop())
        test.run(Start(), AddRows(("a", 100)), ProcessAll(), Stop())
    assert adding.before == [(0, 0), (1, 3), (2, 13)]
    assert adding.values() == ['{"total": 3}', '{"total": 13}', '{"total": 113}']


@pytest.mark.long
def test_a_batch_that_runs_again_begins_with_the_value_of_the_batch_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    adding = Adding(tmp_path)
    adding.fail_at = 1
    with StreamTest(adding.pipeline, spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ProcessAll(), AddRows(("a", 10)))
        test.run(ExpectFailure("code of the job raised LookupError in query 'train', batch 1"))
        test.run(Start(), ProcessAll(), Stop())
    assert adding.before == [(0, 0), (1, 1), (1, 1)]
    assert adding.values() == ['{"total": 1}', '{"total": 11}']


@pytest.mark.long
def test_a_query_that_is_restarted_alone_has_the_value_of_its_last_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    adding = Adding(tmp_path)
    adding.fail_at = 1
    job = weir.Job("test", **{"execution.checkpointing.dir": str(tmp_path / "weir")})
    job.pipeline(adding.pipeline)
    write_script(tmp_path / "in.jsonl", Rows([("a", 1)]), Rows([("a", 10)]))
    with job.start(spark) as run:
        with run._changed:
            assert run._changed.wait_for(lambda: run.failures, SOON)
        run.failures.clear()
        run._engine.restart(QueryName("train"))
        run.process_all()
    assert adding.before == [(0, 0), (1, 1), (1, 1)]
    assert adding.values() == ['{"total": 1}', '{"total": 11}']


@pytest.mark.long
def test_a_function_sees_each_batch_of_a_stateful_query_whole(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    def pipeline(env: weir.Env) -> None:
        def note(frame: DataFrame, batch: int) -> None:
            frame.persist()
            rows = frame.collect()
            assert frame.count() == len(rows)
            frame.unpersist()
            seen.append({row["k"]: row["sum"] for row in rows})

        sums = rows_of(env, tmp_path).groupBy("k").agg(F.sum("v").alias("sum"))
        env.sink("sums", sums, weir.sinks.function(note), output_mode="update")

    with StreamTest(pipeline, spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1), ("b", 2)), ProcessAll(), Stop())
        test.run(Start(), AddRows(("a", 10), ("c", 3)), ProcessAll(), Stop())
    assert seen == [{"a": 1, "b": 2}, {"a": 11, "c": 3}]


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize(
    ("look", "at"), [(lambda frame: frame.take(1), 1), (lambda frame: None, 0)], ids=["a row", "nothing"]
)
def test_a_function_that_evaluates_only_a_part_of_a_stateful_batch_is_refused_before_it_counts(
    look: Callable[[DataFrame], Any], at: int, backend: str, spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(env: weir.Env) -> None:
        sums = rows_of(env, tmp_path).groupBy("k").agg(F.sum("v").alias("sum"))
        sink = weir.sinks.function(lambda frame, batch: look(frame) if batch == at else frame.collect())
        env.sink("sums", sums, sink, output_mode="update")

    dir = tmp_path / "weir"
    files = QueryFiles(open_store(str(dir)), "test/generations/0001/queries/sums")

    options: dict[str, Any] = {"state.backend.type": backend, "parallelism.default": 2}
    job = weir.Job("test", **{"execution.checkpointing.dir": str(dir), **options})
    job.pipeline(pipeline)
    rows = [(f"key {number}", 1) for number in range(20)]
    with StreamTest(job, spark, tmp_path) as test:
        test.run(Start(), *[AddRows(*rows) for _ in range(at + 1)])
        test.run(ExpectFailure(f"has evaluated only a part of batch {at}"))
    assert not files.committed(BatchId(at))


def test_states_of_two_queries_are_apart_and_each_only_in_its_own_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    found: dict[str, list[Any]] = {"one": [], "two": []}

    def pipeline(env: weir.Env) -> None:
        rows = rows_of(env, tmp_path)
        states = {name: env.state("n", name, initial=0) for name in found}

        def counting(name: str, other: str) -> Callable[[DataFrame, int], None]:
            def count(frame: DataFrame, batch: int) -> None:
                states[name].value += 1
                with pytest.raises(UserStateError, match="for another query"):
                    states[other].value  # noqa: B018
                found[name].append(states[name].value)

            return count

        env.sink("one", rows, weir.sinks.function(counting("one", "two")))
        env.sink("two", rows, weir.sinks.function(counting("two", "one")))

    with StreamTest(pipeline, spark, tmp_path) as test:
        # rows first: a query that begins without any runs an empty batch
        test.run(AddRows(("a", 1)), Start(), ProcessAll(), AddRows(("a", 2)), ProcessAll(), Stop())
    assert found == {"one": [1, 2], "two": [1, 2]}


def test_a_value_that_can_not_be_kept_fails_the_batch_with_words(spark: SparkSession, tmp_path: Path) -> None:
    def pipeline(env: weir.Env) -> None:
        state = env.state("weights", "train")

        def train(frame: DataFrame, batch: int) -> None:
            state.value = {1, 2}

        env.sink("train", rows_of(env, tmp_path), weir.sinks.function(train))

    with StreamTest(pipeline, spark, tmp_path) as test:
        test.run(Start(), AddRows(("a", 1)), ExpectFailure("state 'weights' of query 'train' can't be kept"))


def test_states_that_can_not_work_are_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    write_script(tmp_path / "in.jsonl")
    function = weir.sinks.function(lambda frame, batch: None)

    def to_console(env: weir.Env) -> None:
        env.state("s", "q")
        env.sink("q", rows_of(env, tmp_path), weir.sinks.console())

    def to_a_writer(env: weir.Env) -> None:
        env.state("s", "q")
        env.sink("q", rows_of(env, tmp_path).writeStream.format("noop"))

    def of_nobody(env: weir.Env) -> None:
        env.state("s", "other")
        env.sink("q", rows_of(env, tmp_path), function)

    def of_a_stream(env: weir.Env) -> None:
        env.state("s", "clean")
        env.sink("q", env.stream("clean", rows_of(env, tmp_path)), function)

    def read_while_building(env: weir.Env) -> None:
        frame = rows_of(env, tmp_path).where(F.col("v") > env.state("s", "q", initial=1).value)
        env.sink("q", frame, function)

    refused: list[tuple[Pipeline, str]] = [
        (to_console, "one of Spark's own"),
        (to_a_writer, "one of Spark's own"),
        (of_nobody, "no query of this name"),
        (of_a_stream, "it is a stream"),
        (read_while_building, "can't be read"),
    ]
    for pipeline, words in refused:
        job = weir.Job("refused", **{"execution.checkpointing.dir": str(tmp_path / "weir")})
        job.pipeline(pipeline)
        with pytest.raises(UserStateError, match=words):
            job.start(spark)


def test_a_checkpoint_holds_the_value_of_its_cut_and_listeners_hear_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    adding, heard = Adding(tmp_path), list[Any]()
    options = {
        "execution.checkpointing.dir": str(tmp_path / "weir"),
        "execution.checkpointing.interval": "off",
    }
    job = weir.Job("test", **options)
    job.pipeline(adding.pipeline)

    @job.on_checkpoint_complete
    def broken(id: int) -> None:
        raise LookupError(f"no room for {id}")

    @job.on_checkpoint_complete
    def note(id: int) -> None:
        heard.append(id)

    write_script(tmp_path / "in.jsonl", Rows([("a", 1)]))
    with job.start(spark) as run:
        run.process_all()
        cut = run.checkpoint()
        write_script(tmp_path / "in.jsonl", Rows([("a", 10)]))
        run.process_all()
    assert heard == [cut]
    assert [text for text in run.notes if "broken" in text and f"no room for {cut}" in text]

    def go_back(accept_duplicates: bool) -> None:
        store = open_store(str(tmp_path / "weir"))
        intend(
            store,
            job.name,
            RestoreRequest(f"chk-{cut}", accept_duplicates=accept_duplicates),
            clock=Clock(),
            why="test",
        )

    adding.before.clear()
    with pytest.raises(NotRewindableError):
        go_back(accept_duplicates=False)
    go_back(accept_duplicates=True)
    with job.start(spark) as run:
        run.process_all()
    assert adding.before == [(1, 1)], "it goes on with the value of the cut, and batch 1 comes again"
    newest = max(path.name for path in (tmp_path / "weir/test/generations").iterdir())
    assert adding.values(newest) == ['{"total": 1}', '{"total": 11}']
