"""Savepoints of a graph in a live session: taken while it runs, and when it is stopped."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import weir
from tests.diamond import wait
from weir.checkpoint import manifest as mf
from weir.clock import Clock
from weir.errors import NoSavepointError
from weir.ids import BatchId, CheckpointId, JobName, QueryName
from weir.job.graph import Pipeline
from weir.protocol.ledger import Staged
from weir.restore.point import verify as verify_checkpoint
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import verify
from weir.sinks import Outcome
from weir.sinks.files import FilesSink
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.closure import closure
from weir.spark.state_schema import operators
from weir.storage import Store, open_store
from weir.storage.generation import FIRST
from weir.storage.paths import Live
from weir.testing import ScriptedSource, committed_rows, folded
from weir.testing.script import Rows, write_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"


def cleaned(folder: Path) -> Pipeline:
    """A stream that is counted by key, and kept as it is."""

    def pipeline(env: weir.Env) -> None:
        clean = env.stream("clean", env.source("rows", ScriptedSource(folder / "in.jsonl", SCHEMA)))
        counts = clean.groupBy("k").agg(F.sum("v").alias("sum"))
        env.sink("counts", counts, weir.sinks.files(str(folder / "counts")), output_mode="update")
        env.sink("raw", clean, weir.sinks.files(str(folder / "raw")))

    return pipeline


def job_in(folder: Path, **options: Any) -> weir.Job:
    job = weir.Job(
        "saved",
        **{
            "execution.checkpointing.dir": str(folder / "weir"),
            "execution.checkpointing.interval": "off",
            "execution.checkpointing.num-retained": 1,
            "parallelism.default": 2,
            **options,
        },
    )
    job.pipeline(cleaned(folder))
    return job


def add(folder: Path, *rows: tuple[str, int]) -> None:
    write_script(folder / "in.jsonl", Rows(list(rows)))


def whole(place: str) -> dict[str, Any]:
    """The savepoint is whole, closed under itself, and what it says of its operators is so."""
    found = verify(SavepointPlace(place), Clock())
    assert found.whole, found.damage
    savepoint = SavepointPlace(place).read()
    for name, query in savepoint.queries.items():
        root, batch = Path(place) / "queries" / name, BatchId(query.batch)
        own = savepoint.files_of(name)
        assert set(closure(root, batch).files) == set(own)
        told = [one.model_copy(update={"rows": None}) for one in query.operators]
        assert list(operators(root, batch)) == told
    return dict(savepoint.queries)


def test_a_savepoint_of_a_running_graph_is_whole_without_the_job(spark: SparkSession, tmp_path: Path) -> None:
    add(tmp_path, ("a", 1), ("b", 2), ("c", 3))
    with job_in(tmp_path).start(spark) as run:
        run.process_all()
        place = run.savepoint(str(tmp_path / "saved"))
        add(tmp_path, ("a", 10))
        run.process_all()
        run.checkpoint()
        with pytest.raises(NoSavepointError, match="no savepoint directory is configured"):
            run.savepoint()
        with pytest.raises(NoSavepointError, match="the job's own directory"):
            run.savepoint(str(tmp_path / "weir" / "saved" / "mine"))
        (taken,) = run.savepoints
        assert run.active
    shutil.rmtree(tmp_path / "weir")
    savepoint = SavepointPlace(place).read()
    assert place == taken.path and Path(place).name == f"saved-{savepoint.id}"
    assert (savepoint.trigger, savepoint.job_file) == ("application", "test_savepoints.py")
    assert len(savepoint.job_version) == 12 and savepoint.taken_by == taken.by
    queries = whole(place)
    counts = queries["counts"]
    assert [(one.kind, one.rows) for one in counts.operators] == [("stateStoreSave", 3)]
    assert counts.operators[0].stores[0].key_schema["fields"][0]["name"] == "k"
    assert (counts.output_mode, counts.sink.kind, counts.state_format) == ("update", "files", 2)
    assert [source.channel for source in counts.sources] == ["clean"]
    assert queries["clean"].sink.kind == "channel" and queries["clean"].sources[0].description
    assert not any(query.unaligned for query in queries.values())
    assert set(savepoint.channels) == {"clean"}


@pytest.mark.long
def test_a_moved_savepoint_brings_the_whole_job_back(spark: SparkSession, tmp_path: Path) -> None:
    add(tmp_path, ("a", 1), ("b", 2), ("c", 3))
    with job_in(tmp_path).start(spark) as run:
        run.process_all()
        place = run.savepoint(str(tmp_path / "saved"))
        add(tmp_path, ("a", 10), ("d", 4))
        run.process_all()
        saved = SavepointPlace(place).read().id
    moved = shutil.move(place, tmp_path / "elsewhere")
    for _ in range(2):  # and once more behind what the first time became
        with job_in(tmp_path).start(spark, str(moved)) as run:
            assert run.restored is not None and run.restored.checkpoint == saved
            run.process_all()
            assert run.checkpoint() > saved
        table = folded(committed_rows(str(tmp_path / "counts")), ["k"])
        assert {k: row["sum"] for (k,), row in table.items()} == {"a": 11, "b": 2, "c": 3, "d": 4}
        raw = sorted((row["k"], row["v"]) for row in committed_rows(str(tmp_path / "raw")))
        assert raw == [("a", 1), ("a", 10), ("b", 2), ("c", 3), ("d", 4)]


@pytest.mark.long
def test_a_stop_commits_what_runs_and_saves_exactly_that(spark: SparkSession, tmp_path: Path) -> None:
    add(tmp_path, ("a", 1), ("b", 2))
    job = job_in(tmp_path, **{"execution.checkpointing.savepoint-dir": str(tmp_path / "saved")})
    with job.start(spark) as run:
        run.wait_for_batch("counts", 0)
        add(tmp_path, ("a", 10), ("d", 4))
        place = run.stop_with_savepoint(drain=True)
        assert not run.active
    savepoint = SavepointPlace(place).read()
    assert savepoint.trigger == "stop"
    queries = whole(place)
    for name, query in queries.items():
        commits = tmp_path / "weir" / "saved" / "generations" / "0001" / "queries" / name / "commits"
        assert query.batch == max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    (counts,) = queries["counts"].operators
    assert counts.rows == 3
    assert queries["counts"].positions["clean"][0] <= savepoint.channels["clean"].behind


@pytest.mark.long
def test_a_savepoint_holds_nothing_that_a_sink_has_not_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, ("a", 1), ("b", 2))
    back, commit = threading.Event(), FilesSink.commit

    def down(sink: FilesSink, staged: Staged) -> Outcome:
        assert "raw" not in sink.describe() or back.wait(120)
        return commit(sink, staged)

    monkeypatch.setattr(FilesSink, "commit", down)
    with job_in(tmp_path, **{"task.cancellation.timeout": "1 s"}).start(spark) as run:
        run.wait_for_batch("raw", 0)
        with pytest.raises(NoSavepointError, match=r"query 'raw' has committed .*raw has not taken it"):
            run.stop_with_savepoint(str(tmp_path / "saved"))
        assert not list((tmp_path / "saved").iterdir())
        back.set()
    with job_in(tmp_path).start(spark) as run:
        run.process_all()
        place = run.savepoint(str(tmp_path / "saved"))
    assert whole(place)["raw"].sink.last_batch == whole(place)["raw"].batch
    raw = sorted((row["k"], row["v"]) for row in committed_rows(str(tmp_path / "raw")))
    assert raw == [("a", 1), ("b", 2)]


@pytest.mark.long
@pytest.mark.parametrize("left", ["savepoint", "copies"])
def test_a_function_goes_on_behind_a_point_when_the_directory_is_lost(
    spark: SparkSession, tmp_path: Path, left: str
) -> None:
    """Its ledger is in the directory: what the point has, it was called with."""
    called: list[tuple[int, list[str]]] = []

    def pipeline(env: weir.Env) -> None:
        rows = env.source("rows", ScriptedSource(tmp_path / "in.jsonl", SCHEMA))
        env.sink("called", rows, weir.sinks.function(call))

    def call(frame: DataFrame, batch: int) -> None:
        called.append((batch, sorted(row["k"] for row in frame.collect())))

    def job() -> weir.Job:
        made = weir.Job(
            "saved",
            **{
                "execution.checkpointing.dir": str(tmp_path / "weir"),
                "execution.checkpointing.interval": "off",
                "execution.checkpointing.copy-dir": str(tmp_path / "copies"),
            },
        )
        made.pipeline(pipeline)
        return made

    add(tmp_path, ("a", 1), ("b", 2))
    with job().start(spark) as run:
        run.process_all()
        point = run.savepoint(str(tmp_path / "saved"))
        if left == "copies":
            point = str(tmp_path / f"copies/saved/checkpoints/chk-{run.checkpoint()}.json")
    assert called == [(0, ["a", "b"])]
    shutil.rmtree(tmp_path / "weir")
    add(tmp_path, ("c", 3))
    with job().start(spark, point) as run:
        run.process_all()
    assert called[1:] == [(1, ["c"])]


def test_checkpoints_after_a_restore_elsewhere_of_one_that_shared_its_barrier_are_consistent_cuts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing there but the channel and the offsets knows the number of the barrier."""
    hold = tmp_path / "hold"

    def slowly(v: int) -> int:
        while hold.exists():
            time.sleep(0.01)
        return v

    def pipeline(env: weir.Env) -> None:
        rows = env.source("rows", ScriptedSource(tmp_path / "in.jsonl", SCHEMA))
        clean = env.stream("clean", rows.select("k", F.udf(slowly, "long")("v").alias("v")))
        env.sink("raw", clean, weir.sinks.files(str(tmp_path / "raw")))

    def job(dir: str) -> weir.Job:
        own = "execution.checkpointing."
        several = {own + "max-concurrent-checkpoints": 2, own + "num-retained": 9}
        made = weir.Job("saved", **{own + "dir": str(tmp_path / dir), own + "interval": "off", **several})
        made.pipeline(pipeline)
        return made

    def begun(store: Store, number: int) -> bool:
        return number in mf.ids(store, JobName("saved"))["begun"]

    here, there = open_store(str(tmp_path / "weir")), open_store(str(tmp_path / "there"))
    add(tmp_path, ("a", 1))
    with job("weir").start(spark) as run, ThreadPoolExecutor() as aside:
        run.process_all()
        hold.touch()
        add(tmp_path, ("a", 2))
        files = QueryFiles.of(Live(here, JobName("saved"), FIRST), QueryName("clean"))
        wait(run, "a batch of the root", lambda: files.last_planned() > files.last_committed())
        saving = aside.submit(run.savepoint, str(tmp_path / "saved"))
        wait(run, "the savepoint's checkpoint", lambda: begun(here, 1))
        taking = aside.submit(run.checkpoint)
        wait(run, "a checkpoint beside it", lambda: begun(here, 2))
        hold.unlink()
        place, second = saving.result(), taking.result()
    savepoint = SavepointPlace(place).read()
    assert (savepoint.id, second) == (1, 2)
    assert savepoint.queries["raw"].positions["clean"][1] == 2, "they share a barrier"

    with job("there").start(spark, place) as run:
        ids = []
        for value in (3, 4):
            add(tmp_path, ("a", value))
            run.process_all()
            ids.append(run.checkpoint())
    assert ids == [3, 4]
    for id in ids:
        manifest = mf.read(there, JobName("saved"), CheckpointId(id))
        assert manifest is not None and verify_checkpoint(there, manifest) == []
        assert manifest.queries["raw"].positions["clean"][0] == manifest.channels["clean"].behind
    with job("there").start(spark, "chk-3") as run:
        run.process_all()
    assert sorted(row["v"] for row in committed_rows(str(tmp_path / "raw"))) == [1, 2, 3, 4]
