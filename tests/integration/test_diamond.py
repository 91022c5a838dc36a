"""Checkpoints of the diamond, a graph with a query of two inputs: each is one consistent point in time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import weir
from tests.diamond import JOB, KEY, Diamond, Unpacked, assert_consistent, overlapping, wait, wait_for
from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.ids import QueryName
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason, Alignment
from weir.restore.point import verify
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import files, paths
from weir.testing import ScriptedSource, committed_rows, write_script
from weir.testing.script import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.driver.notebook import Run

pytestmark = pytest.mark.spark


def every(run: Run, interval: str) -> None:
    """Change the interval of the running job."""
    run._engine.ask(m.Ask("interval", "configure", {"settings": {f"{KEY}.interval": interval}}))


def aligned(manifest: Manifest) -> bool:
    return manifest.alignment is Alignment.ALIGNED


@pytest.mark.long
def test_every_checkpoint_is_what_the_queries_make_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    diamond = Diamond(tmp_path)
    turning: dict[str, Any] = {"aligned_checkpoint_timeout": "6 s", "unaligned.enabled": "true"}
    job = diamond.job(max_concurrent_checkpoints=3, num_retained=20, **turning)
    diamond.add(3)
    with job.start(spark) as run:
        wait(run, "the first rows", diamond.complete)
        wait(run, "one that stays aligned", lambda: aligned(diamond.manifest(run.checkpoint())))
        every(run, "1 s")
        diamond.hold(diamond.ids)
        diamond.add(4)
        wait(run, "two barriers in flight", lambda: len(diamond.pending()) >= 2)
        wait(run, "one that turned", lambda: not all(map(aligned, diamond.manifests())))
        diamond.release()
        wait(run, "all rows", diamond.complete)
        run.check()
    manifests = diamond.manifests()
    assert overlapping(manifests), "two barriers were in flight"
    turned = [one for one in manifests if not aligned(one)]
    assert any(one.queries["joined"].unaligned and not one.queries["left"].unaligned for one in turned)
    diamond.check()
    assert_consistent(spark, diamond, manifests, tmp_path / "scratch")


@pytest.mark.long
def test_unaligned_checkpoints_are_consistent_too(spark: SparkSession, tmp_path: Path) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job(num_retained=20, unaligned=True)
    diamond.add(3)
    with job.start(spark) as run:
        wait(run, "the first rows", diamond.complete)
        run.checkpoint()
        every(run, "1 s")
        diamond.hold(diamond.ids)
        diamond.add(4)
        wait(run, "some with rows between queries", lambda: run.checkpoints[-1].id >= 4)
        diamond.release()
        wait(run, "all rows", diamond.complete)
        run.check()
    manifests = diamond.manifests()
    assert not any(map(aligned, manifests))
    assert any(
        Unpacked.of(diamond.store, one, tmp_path / f"looked at {one.id}").before("right", "all")
        for one in manifests
    ), "rows between two queries belong to a checkpoint"
    diamond.check()
    assert_consistent(spark, diamond, manifests, tmp_path / "scratch")


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "mode", "times"),
    [
        ("diamond", "at_least_once", 2),
        ("diamond", "exactly_once", 1),
        ("chain", "at_least_once", 1),
        ("chain", "exactly_once", 1),
    ],
)
def test_only_a_query_of_two_inputs_counts_twice_and_only_at_least_once(
    shape: str, mode: str, times: int, spark: SparkSession, tmp_path: Path
) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job(shape, mode=mode)
    diamond.add(1)
    fast = "left" if shape == "diamond" else "all"

    def ahead() -> bool:
        """The fast side is beyond the barrier, with rows; also in the join, which may not wait for it."""
        barrier, rows = diamond.entries(fast, "barrier"), diamond.entries(fast, "segment")
        if not barrier or rows[-1] < barrier[-1]:
            return False
        return times == 1 or diamond.position("joined", fast) > rows[-1]

    with job.start(spark) as run, ThreadPoolExecutor() as aside:
        wait(run, "the first rows", diamond.complete)
        diamond.hold(diamond.ids)
        diamond.add(1)
        wait(run, "rows in front of the barrier", lambda: len(diamond.entries("all", "segment")) == 2)
        taking = aside.submit(run.checkpoint)
        wait(run, "the barrier", lambda: diamond.entries("all", "barrier"))
        behind = diamond.add(1)
        wait(run, "the fast side", ahead)
        diamond.release()
        id = taking.result()
        run.process_all()
    diamond.check()
    cut = diamond.manifest(id).queries["joined"]
    past = {channel for channel, (entry, _) in cut.set_back.items() if cut.positions[channel][0] > entry}
    assert past == ({"left"} if times == 2 else set())

    diamond.go_back(id)
    with job.start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == id
        run.process_all()
    assert diamond.counts() == {id: times if id >= behind else 1 for id in range(diamond.ids)}


def kept(frame: DataFrame) -> DataFrame:
    """A filter that Catalyst leaves above the watermark, since it looks at the event time."""
    return frame.withWatermark("ts", "10 seconds").where("kind = 'keep' or ts < '1970-01-01'")


def windows(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.groupBy(F.window("ts", "10 seconds")).count()


@pytest.mark.long
def test_windows_behind_a_stream_close_when_they_do_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    options = {f"{KEY}.dir": str(tmp_path / "weir"), f"{KEY}.interval": "off", "parallelism.default": 2}
    job = weir.Job("windows", **options)
    script = tmp_path / "in.jsonl"

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        rows = env.source("rows", ScriptedSource(script, "ts timestamp, kind string"))
        env.sink("one", windows(kept(rows)), weir.sinks.files(str(tmp_path / "one")))
        stream = env.stream("kept", kept(rows))
        env.sink("cut", windows(stream), weir.sinks.files(str(tmp_path / "cut")))

    def closed(name: str) -> list[tuple[Any, int]]:
        rows = committed_rows(str(tmp_path / name))
        return sorted((row["window"]["start"], row["count"]) for row in rows)

    steps = [("keep", "00:01"), ("drop", "00:21"), ("keep", "00:22"), ("drop", "02:00"), ("keep", "01:55")]
    seen = []
    with job.start(spark) as run:
        for kind, minute in [*steps, ("drop", "04:30")]:
            write_script(script, Rows([(f"2026-01-01T00:{minute}", kind)]))
            run.process_all()
            run.checkpoint()
            seen.append((closed("one"), closed("cut")))
    assert [cut for _, cut in seen] == [one for one, _ in seen]
    assert len({len(one) for one, _ in seen}) > 2, f"windows close one after the other: {seen}"


@pytest.mark.long
def test_what_spark_purges_is_kept_for_the_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job(purge=2, num_retained=100)
    diamond.add(2)
    with job.start(spark) as run:
        wait(run, "the first rows", diamond.complete)
        first = run.checkpoint()
        every(run, "300 ms")
        for _ in range(5):
            diamond.add(1)
            wait(run, "the next rows", diamond.complete)
        every(run, "off")
        last = run.checkpoint()
        run.check()
        assert not run.aborted
    old, new = diamond.manifest(first), diamond.manifest(last)
    for name, cut in old.queries.items():
        assert new.queries[name].batch >= cut.batch + 5
        assert not (diamond.folder_of(f"queries/{name}/offsets") / str(cut.batch)).exists(), "it was purged"
    assert not [one.id for one in diamond.manifests() if verify(diamond.store, one)]
    diamond.go_back(first)
    with job.start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == first
        diamond.add(1)
        run.process_all()
    diamond.check()


@pytest.mark.long
def test_what_nothing_retained_needs_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job(num_retained=2)
    with job.start(spark) as run:
        ids = []
        for _ in range(4):
            diamond.add(1)
            run.process_all()
            ids.append(run.checkpoint())
        planned = {name: set(names(diamond, f"queries/{name}/offsets")) for name in ("all", "left", "joined")}
    manifests = diamond.manifests()
    assert [one.id for one in manifests] == ids[-2:]
    assert mf.ids(diamond.store, JOB) == {"begun": set(ids[-2:]), "chk": set(ids[-2:]), "aborted": set()}
    pins = diamond.dir / paths.pins(JOB, diamond.live.generation)
    assert set(files.below(pins)) == {name for one in manifests for name in one.kept()}
    for one in manifests:
        assert verify(diamond.store, one) == []
    cut = manifests[-1].queries
    for channel, readers in {"all": ("left", "right"), "left": ("joined",), "right": ("joined",)}.items():
        low = min(cut[reader].positions[channel][0] for reader in readers)
        assert diamond.entries(channel)[0] == low - 1, "the entry in front of the slowest reader is the first"
        segments = diamond.entries(channel, "segment")
        assert len(names(diamond, f"channels/{channel}/data")) == len(segments)
    for name, before in planned.items():
        assert before == {str(batch) for batch in range(len(before))}, "Spark's own files are Spark's"
        assert before <= set(names(diamond, f"queries/{name}/offsets"))


def names(diamond: Diamond, folder: str) -> list[str]:
    """What is in a live folder, without Spark's checksums."""
    return [path.name for path in diamond.folder_of(folder).iterdir() if not path.name.startswith(".")]


@pytest.mark.long
def test_a_query_that_fails_aborts_what_is_pending_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job()
    diamond.add(2)
    with job.start(spark) as run, ThreadPoolExecutor() as aside:
        wait(run, "the first rows", diamond.complete)
        before = run.checkpoint()
        diamond.hold(diamond.ids)
        diamond.add(2)
        right = QueryFiles.of(diamond.live, QueryName("right"))
        wait(run, "the batch that will fail", lambda: right.last_planned() > right.last_committed())
        taking = aside.submit(run.checkpoint)
        wait(run, "a pending checkpoint", diamond.pending)
        (tmp_path / "fail").touch()
        diamond.release()
        with pytest.raises(weir.errors.WeirError):
            taking.result()
        wait_for("the failure", lambda: run.failures)
        assert run.failures.pop().query == "right"
        assert [(one.id, one.reason, one.detail) for one in run.aborted] == [
            (before + 1, AbortReason.QUERY_RESTARTED.value, "query right")
        ]
        run._engine.restart(QueryName("right"))
        run.process_all()
        diamond.check()
        after = run.checkpoint()
    assert [one.id for one in diamond.manifests()] == [before, after]
    assert after > before + 1
    diamond.go_back(after)
    diamond.add(1)
    with job.start(spark) as run:
        run.process_all()
    diamond.check()
