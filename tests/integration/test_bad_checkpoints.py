"""What goes wrong with a checkpoint ends the checkpoint and not the job; what is damaged is said so."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import weir
from tests.conftest import Once
from tests.diamond import JOB, KEY, Diamond, wait, wait_for
from weir.checkpoint import manifest as mf
from weir.clock import Clock
from weir.errors import (
    DamagedError,
    NoCheckpointError,
    NoSuchCheckpointError,
    NotRewindableError,
    PipelineError,
    StorageError,
    WeirError,
)
from weir.ids import CheckpointId
from weir.protocol.checkpoint import AbortReason
from weir.restore import repair
from weir.restore.intent import intend
from weir.restore.point import verify
from weir.restore.request import RestoreRequest
from weir.storage import Created, files, open_store, paths
from weir.storage import generation as generations
from weir.storage.local import LocalStore
from weir.testing import ScriptedSource, committed_rows, write_script
from weir.testing.script import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def full(*_: Any) -> bool:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.long
def test_a_full_disk_and_a_listener_that_raises_end_no_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job("chain")
    heard: list[tuple[int, str]] = []
    job.on_checkpoint_aborted(lambda id, reason: heard.append((id, reason)))

    @job.on_checkpoint_complete
    def grumpy(id: int) -> None:
        raise ValueError(f"I can't stand {id}")

    create = LocalStore.create

    def no_room_for_checkpoints(self: LocalStore, key: str, data: bytes) -> Created:
        if "/checkpoints/" in key:
            raise StorageError(verb="write", path=key, reason="the disk is full", root=self.url)
        return create(self, key, data)

    diamond.add(1)
    with job.start(spark) as run:
        wait(run, "the first rows", diamond.complete)
        with monkeypatch.context() as broken:
            broken.setattr(files, "link", full)
            with pytest.raises(NoCheckpointError, match="the disk is full"):
                run.checkpoint()
        with monkeypatch.context() as broken:
            broken.setattr(LocalStore, "create", no_room_for_checkpoints)
            with pytest.raises(NoCheckpointError, match="the disk is full"):
                run.checkpoint()
        assert [one.reason for one in run.aborted] == [AbortReason.STORAGE.value] * 2
        assert run.checkpoint() == 3
        diamond.add(1)
        run.process_all()
        assert run.checkpoint() == 4
        wait_for("the listeners", lambda: len(run.notes) == 2)
    assert [id for id, _ in heard] == [1, 2]
    assert all(AbortReason.STORAGE.value in reason and "the disk is full" in reason for _, reason in heard)
    assert run.notes == [
        f"listener grumpy raised ValueError: I can't stand {id}; the job continues" for id in (3, 4)
    ]
    assert mf.ids(diamond.store, JOB) == {"begun": {1, 3, 4}, "chk": {3, 4}, "aborted": {1, 2}}
    assert [verify(diamond.store, one) for one in diamond.manifests()] == [[], []]
    diamond.check()


@pytest.mark.long
def test_a_file_of_a_channel_that_was_deleted_by_hand_is_told_and_the_next_start_goes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job("chain")
    diamond.add(1)
    with job.start(spark) as run:
        wait(run, "the first rows", diamond.complete)
        assert run.checkpoint() == 1
        there = len(diamond.entries("all", "segment"))
        diamond.hold(diamond.ids)
        diamond.add(1)
        wait(run, "rows that are being read", lambda: len(diamond.entries("all", "segment")) == there + 1)
        diamond.add(1)
        wait(run, "rows that are not read yet", lambda: len(diamond.entries("all", "segment")) == there + 2)
        newest = max(diamond.folder_of("channels/all/data").iterdir())
        (lost,) = list(newest.glob("part-*"))[:1]
        lost.unlink()
        diamond.release()
        wait_for("the failure", lambda: run.failures)
    failure = run.failures[0].failure
    assert (run.failures[0].query, failure.error) == ("right", "LostSegmentError")
    assert failure.what == f"the channel file {lost} is gone"
    assert f"'weir restore {JOB} latest" in failure.hint
    assert failure.retry and failure.redeploy
    with job.start(spark) as run:
        wait(run, "all of it", diamond.complete)
        assert any("of channel all is gone): the job resumes from checkpoint 1" in note for note in run.notes)
    diamond.check()


def words(env: weir.Env, folder: Path) -> None:
    """A stream of long words, and how often each has come."""
    rows = env.stream("words", env.source("rows", ScriptedSource(folder / "in.jsonl", "word string")))
    counts = rows.groupBy("word").agg(F.count("*").alias("n"))
    env.sink("counts", counts, weir.sinks.files(str(folder / "out")), output_mode="update")


@pytest.mark.long
def test_what_is_too_large_for_memory_names_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    script = tmp_path / "in.jsonl"
    options = {f"{KEY}.dir": str(tmp_path / "weir"), f"{KEY}.storage": "memory", f"{KEY}.interval": "off"}
    job = weir.Job("words", **options, **{"parallelism.default": 2})
    job.pipeline(lambda env: words(env, tmp_path))
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    long = [chance.randbytes(600_000).hex() for _ in range(10)]
    write_script(script, Rows(["a", "b", "a"]))
    with job.start(spark) as run:
        run.process_all()
        small = run.checkpoint()
        write_script(script, Rows([*long, "a"]))
        run.process_all()
        with pytest.raises(NoCheckpointError) as refused:
            run.checkpoint()
        write_script(script, Rows(["b"]))
        run.process_all()
    assert f"{KEY}.storage: filesystem" in str(refused.value), f"seed {seed}"
    assert "5" in str(refused.value) and AbortReason.STORAGE.value in str(refused.value)

    def counted() -> dict[str, int]:
        return {row["word"]: row["n"] for row in committed_rows(str(tmp_path / "out"))}

    whole = {"a": 3, "b": 2} | dict.fromkeys(long, 1)
    assert counted() == whole
    store = open_store(str(tmp_path / "weir"))
    assert not list(files.below(tmp_path / "weir" / paths.pins(job.name, generations.FIRST)))
    intend(store, job.name, RestoreRequest(f"chk-{small}"), clock=Clock(), why="test")
    with job.start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == small
        run.process_all()
    assert counted() == whole


@pytest.mark.long
def test_in_a_notebook_too_a_job_fails_whose_checkpoints_do(spark: SparkSession, tmp_path: Path) -> None:
    options = {f"{KEY}.dir": str(tmp_path / "weir"), f"{KEY}.interval": "off"}
    job = weir.Job("words", **options, **{f"{KEY}.tolerable-failed-checkpoints": 0})
    job.pipeline(lambda env: words(env, tmp_path))
    write_script(tmp_path / "in.jsonl", Rows(["a", "b"]))
    with job.start(spark) as run:
        run.process_all()
        shutil.rmtree(tmp_path / "weir" / paths.pins(job.name, generations.FIRST), ignore_errors=True)
        (tmp_path / "weir" / paths.pins(job.name, generations.FIRST)).touch()  # nothing can be kept there
        with suppress(WeirError):  # it is refused, or the job has failed already
            run.checkpoint()
        with pytest.raises(WeirError, match="1 checkpoints in a row failed"):
            run.wait(60)
    assert not spark.streams.active


def test_a_pipeline_with_streams_that_starts_a_query_by_itself_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = weir.Job("own", **{f"{KEY}.dir": str(tmp_path / "weir")})

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        rows = env.stream("rows", env.source("rows", ScriptedSource(tmp_path / "in.jsonl")))
        env.sink("out", rows, weir.sinks.files(str(tmp_path / "out")))
        source = env.spark.readStream.format("rate").load()
        source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "own")).start()

    with pytest.raises(PipelineError, match=r"calls \.start\(\) on a writer"):
        job.start(spark)
    assert not spark.streams.active
    assert not (tmp_path / "weir/own/generations").exists(), "nothing was begun"


def test_a_pipeline_that_builds_another_graph_at_each_call_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, calls = weir.Job("own", **{f"{KEY}.dir": str(tmp_path / "weir")}), count()

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        source = env.source("rows", ScriptedSource(tmp_path / "in.jsonl"))
        here, there = env.stream("here", source), env.stream("there", source)
        swapped = next(calls) > 0
        env.sink("out", there if swapped else here, weir.sinks.files(str(tmp_path / "out")))
        env.sink("other", here if swapped else there, weir.sinks.files(str(tmp_path / "other")))

    with pytest.raises(PipelineError, match="'out' read the streams here at first, and there now"):
        job.start(spark)
    assert not spark.streams.active


# damaged live files


@pytest.fixture(scope="module")
def worked(once: Once, spark: SparkSession) -> Path:
    """A diamond with two checkpoints and rows behind them, that has ended."""

    def make(folder: Path) -> None:
        diamond = Diamond(folder)
        # every file of a checkpoint has a pin, for `spoil`
        with diamond.job(data_inline_threshold="0 b").start(spark) as run:
            for _ in range(2):
                diamond.add(1)
                run.process_all()
                run.checkpoint()
            diamond.add(1)
            run.process_all()
        diamond.check()

    return once("worked diamond", make)


def torn_commit(live: Path) -> str:
    newest = max((live / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    os.truncate(newest, 0)
    return f"commits/{newest.name}"


def lost_commit(live: Path) -> str:
    newest = max((live / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    return f"commits/{newest.name}"


def lost_state(live: Path) -> str:
    newest = max(live.glob("state/0/0/*/*.changelog"), key=lambda path: int(path.name.partition("_")[0]))
    newest.unlink()
    return str(newest.relative_to(live))


def spoil(diamond: Diamond, id: int) -> None:
    """Change one byte of a file of a checkpoint."""
    file = next(file for file in diamond.manifest(id).queries["joined"].files if "/commits/" in file.path)
    pin = diamond.dir / paths.pins(JOB, generations.FIRST) / diamond.manifest(id).kept_at(file)
    data = bytearray(pin.read_bytes())
    data[-1] ^= 1
    pin.unlink()
    pin.write_bytes(data)


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "spoilt", "found"), [(torn_commit, [], 2), (lost_commit, [], 2), (lost_state, [2], 1)]
)
def test_damaged_live_files_are_replaced_by_the_last_whole_checkpoint_and_it_says_so(
    damage: Callable[[Path], str],
    spoilt: list[int],
    found: int,
    worked: Path,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    shutil.copytree(worked, tmp_path / "copy")
    diamond = Diamond(tmp_path / "copy")
    gone = damage(diamond.folder_of("queries/joined"))
    for id in spoilt:
        spoil(diamond, id)
    diamond.add(1)
    with diamond.job().start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == found
        assert gone in run.restored.why
        told = [f"checkpoint {id} is damaged" for id in spoilt] + [f"the job resumes from checkpoint {found}"]
        assert len(run.notes) == len(told)
        assert all(one in note for one, note in zip(told, run.notes, strict=True))
        assert gone in run.notes[-1]
        run.process_all()
        run.checkpoint()
    diamond.check()


@pytest.mark.long
def test_without_a_whole_checkpoint_damaged_files_are_left_as_they_are(
    worked: Path, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copytree(worked, tmp_path / "copy")
    diamond = Diamond(tmp_path / "copy")
    gone = torn_commit(diamond.folder_of("queries/joined"))
    for id in (1, 2):
        spoil(diamond, id)
    before = diamond.counts()
    for _ in range(2):
        with pytest.raises(DamagedError, match=gone):
            diamond.job().start(spark)
    assert generations.numbers(diamond.store, JOB) == [1]
    assert diamond.counts() == before


def torn_plan(live: Path) -> str:
    newest = max(int(path.name) for path in (live / "offsets").glob("[0-9]*"))
    (live / f"offsets/{newest + 1}").touch()
    return f"offsets/{newest + 1}"


def torn_state(live: Path) -> str:
    newest = max(live.glob("state/0/0/*.changelog"), key=lambda path: int(path.name.partition("_")[0]))
    os.truncate(newest, 0)
    return str(newest.relative_to(live))


@pytest.mark.long
def test_a_job_without_a_checkpoint_goes_on_from_its_last_whole_batch_when_it_is_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    script, store = tmp_path / "in.jsonl", open_store(str(tmp_path / "weir"))
    options = {f"{KEY}.dir": str(tmp_path / "weir"), f"{KEY}.interval": "off", "parallelism.default": 1}
    job = weir.Job("alone", **options)

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        rows = env.source("source", ScriptedSource(script)).groupBy("value").count()
        env.sink("counts", rows, weir.sinks.files(str(tmp_path / "out")), output_mode="update")

    given = []
    for number, tear in enumerate((None, torn_plan, torn_commit, torn_state)):
        if tear is not None:
            live = tmp_path / "weir" / paths.generation(job.name, generations.live(store, job.name))
            torn = tear(live / "queries/counts")
            way = repair.plan(store, job.name)
            assert way is not None and not way.point
            assert [torn in one.text for one in way.damage] == [True]
            (replay,) = way.replays
            assert replay.newest - replay.back_to == (0 if tear is torn_plan else 1)
            repair.carry_out(store, job.name, way, accept_duplicates=False, clock=Clock(), still=lambda: None)
        for word in ("again", f"only {number}"):
            given.append(word)
            write_script(script, Rows([word]))
        with job.start(spark) as run:
            run.process_all()
        found = {row["value"]: row["count"] for row in committed_rows(str(tmp_path / "out"))}
        assert found == Counter(given)
        assert generations.live(store, job.name) == number + 1


@pytest.mark.long
def test_automatic_recovery_does_not_go_behind_what_can_not_be_taken_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    script, calls = tmp_path / "in.jsonl", tmp_path / "calls"
    job = weir.Job("calls", **{f"{KEY}.dir": str(tmp_path / "weir"), f"{KEY}.interval": "off"})

    ids: set[tuple[int, str]] = set()

    def call(frame: DataFrame, batch: int) -> None:
        ids.add((batch, str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))))
        values = [row.value for row in frame.collect()]
        with open(calls, "a") as file:
            file.write("".join(f"{value}\n" for value in values))

    @job.pipeline
    def pipeline(env: weir.Env) -> None:
        rows = env.stream("rows", env.source("source", ScriptedSource(script)))
        env.sink("called", rows, weir.sinks.function(call))

    write_script(script, Rows(["a"]))
    with job.start(spark) as run:
        run.process_all()
        id = run.checkpoint()
        write_script(script, Rows(["b"]))
        run.process_all()
    torn_commit(tmp_path / "weir" / paths.generation(job.name, generations.FIRST) / "queries/rows")
    for _ in range(2):
        with pytest.raises(NotRewindableError, match=f"chk-{id}") as refused:
            job.start(spark)
    assert "--accept-duplicates" in refused.value.hint
    assert calls.read_text().split() == ["a", "b"]
    store = open_store(str(tmp_path / "weir"))
    intend(store, job.name, RestoreRequest(f"chk-{id}", accept_duplicates=True), clock=Clock(), why="test")
    with job.start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == CheckpointId(id)
        run.process_all()
    assert Counter(calls.read_text().split()) == {"a": 1, "b": 2}
    seen = [batch for batch, _ in ids]
    assert len(seen) > len(set(seen)), "a table that remembers (id, batch) takes what comes again for new"


@pytest.mark.long
def test_a_checkpoint_behind_which_the_job_was_taken_back_is_of_no_use_any_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    diamond = Diamond(tmp_path)
    job = diamond.job("chain")
    with job.start(spark) as run:
        ids = []
        for _ in range(3):
            diamond.add(1)
            run.process_all()
            ids.append(run.checkpoint())
    diamond.go_back(ids[0])
    diamond.go_back(ids[1])  # nothing has gone back yet: this one counts
    with job.start(spark) as run:
        assert run.restored is not None and run.restored.checkpoint == ids[1]
        run.process_all()
    diamond.check()
    with pytest.raises(NoSuchCheckpointError, match="rewound past it"):
        diamond.go_back(ids[2])
    diamond.go_back(ids[0])
    diamond.add(1)
    with job.start(spark) as run:
        run.process_all()
    diamond.check()
