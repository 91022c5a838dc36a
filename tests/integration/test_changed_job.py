"""A job that goes on from a savepoint with other code, scale or state backend: exact, or refused before."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import weir
from weir.channel.position import Mode
from weir.clock import Clock, Deadline
from weir.config import resolve
from weir.driver.notebook import start
from weir.errors import (
    BadOffsetsError,
    ChangedQueryError,
    NotASavepointError,
    PinnedStateError,
    RestorePlanError,
    SinkMismatchError,
    SinkTakenError,
)
from weir.ids import Generation, JobName
from weir.restore import plan as replan
from weir.restore.convert_savepoint import convert
from weir.restore.point import of_savepoint
from weir.restore.request import RestoreRequest
from weir.savepoint.about import source_of
from weir.savepoint.place import SavepointPlace
from weir.spark import session
from weir.spark.file_sink import described
from weir.state import edit
from weir.storage import open_store
from weir.storage.generation import live as live_generation
from weir.storage.generation import read_origin
from weir.storage.paths import Live
from weir.testing import ScriptedSource, committed_rows
from weir.testing.script import Rows, write_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.driver.notebook import Run

pytestmark = pytest.mark.spark

SCHEMA = "id long, k string, v long"
FIRST = [(1, "a", 1), (2, "b", 2), (3, "a", 3), (3, "a", 3)]
THEN = [(3, "a", 3), (4, "b", 10), (5, "c", 5), (5, "c", 5)]


def sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("sum"))


def sums_and_counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("sum"), F.count("*").alias("n"))


def once(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["id"])


class Changing:
    """A query `counts` whose steps may be others at each start."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.raw = ""
        """The folder of a second sink, when there is one."""
        self.out = "out"

    def job(self, *steps: Callable[[DataFrame], DataFrame], **options: Any) -> weir.Job:
        job = weir.Job(
            "changing",
            **{
                "execution.checkpointing.dir": str(self.folder / "weir"),
                "execution.checkpointing.interval": "off",
                "parallelism.default": 2,
                **options,
            },
        )

        def pipeline(env: weir.Env) -> None:
            rows = env.source("rows", ScriptedSource(self.folder / "in.jsonl", SCHEMA))
            frame = rows
            for step in steps:
                frame = step(frame)
            env.sink("counts", frame, weir.sinks.files(str(self.folder / self.out)), output_mode="update")
            if self.raw:
                env.sink("raw", rows, weir.sinks.files(str(self.folder / self.raw)))

        job.pipeline(pipeline)
        return job

    def saved(self, *steps: Callable[[DataFrame], DataFrame], **options: Any) -> str:
        """Run over the first rows, and stop with a savepoint."""
        self.add(FIRST)
        with self.job(*steps, **options).start(self.spark) as run:
            run.process_all()
            return run.stop_with_savepoint(str(self.folder / "saved"))

    def goes_on(self, job: weir.Job, point: str, **more: Any) -> Run:
        """Go on over the other rows."""
        self.add(THEN)
        with job.start(self.spark, point, **more) as run:
            run.process_all()
        return run

    def add(self, rows: list[tuple[int, str, int]]) -> None:
        write_script(self.folder / "in.jsonl", Rows(rows))

    def rows(self, folder: str) -> list[dict[str, Any]]:
        return committed_rows(str(self.folder / folder))

    def newest(self) -> dict[str, tuple[Any, ...]]:
        """The last row that was delivered for each key."""
        return {row["k"]: tuple(row.values())[1:] for row in self.rows(self.out)}


@pytest.fixture
def changing(spark: SparkSession, tmp_path: Path) -> Changing:
    return Changing(spark, tmp_path)


def verdicts(run: Run, query: str = "counts") -> dict[str, list[str]]:
    assert run.planned is not None
    (found,) = [one for one in run.planned.plan["queries"] if one["name"] == query]
    return {f"{part['what']} {part['new']}": part["verdicts"] for part in found["parts"]}


@pytest.mark.long
def test_a_dedup_comes_in_front_of_an_aggregation_and_goes_again(changing: Changing) -> None:
    run = changing.goes_on(changing.job(once, sums), changing.saved(sums))
    assert verdicts(run) == {
        "source 0": ["kept"],
        "operator 0": ["kept"],
        "operator 1": ["new"],
        "sink 0": ["kept"],
    }
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (5,)}, "3 was new to the dedup"
    with changing.job(once, sums).start(changing.spark) as run:
        place = run.stop_with_savepoint(str(changing.folder / "saved"))
    with pytest.raises(RestorePlanError, match="fits with loss: counts operator 1"):
        changing.job(sums).start(changing.spark, place)
    run = changing.goes_on(changing.job(sums), place, allow_dropped=True)
    assert changing.newest() == {"a": (13,), "b": (22,), "c": (15,)}


@pytest.mark.long
def test_an_aggregate_gains_a_column_and_a_second_sink_begins(changing: Changing) -> None:
    place = changing.saved(sums)
    changing.raw = "raw"
    run = changing.goes_on(changing.job(sums_and_counts), place)
    assert verdicts(run)["operator 0"] == ["converted"]
    assert verdicts(run, "raw") == {"source 0": ["new"], "sink 0": ["new"]}
    assert changing.newest() == {"a": (10, 1), "b": (12, 1), "c": (10, 2)}
    assert len(changing.rows("raw")) == 8, "a new query begins at the beginning"


@pytest.mark.long
def test_a_query_and_its_source_go_and_the_other_keeps_its_state(changing: Changing) -> None:
    changing.raw = "raw"
    place = changing.saved(sums)
    before = changing.rows("raw")
    changing.raw = ""
    with pytest.raises(RestorePlanError, match="fits with loss: raw source 0"):
        changing.job(sums).start(changing.spark, place)
    changing.goes_on(changing.job(sums), place, allow_dropped=True)
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}
    assert changing.rows("raw") == before


def test_writers_of_sparks_own_are_told_apart_by_where_they_write(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    kafka = rows.writeStream.format("kafka").option("topic", "orders")
    assert described(kafka) == "kafka orders, by Spark's own sink"
    assert described(rows.writeStream.format("console")) == "console, by Spark's own sink"


def converted(changing: Changing, job: weir.Job, place: str, to: str, **changes: Any) -> str:
    """What `weir savepoint convert` makes of a savepoint."""
    config = resolve(file=None, job_options=job.options, environ={})
    session.set_state(changing.spark, config, changes.get("parallelism", 2))
    live = Live(open_store(str(changing.folder / "weir")), JobName(job.name), Generation(99))
    changes = {"backend": config.settings.state_backend_type.value, **changes}
    request = RestoreRequest(place, **changes)
    made = replan.make(job, changing.spark, live, of_savepoint(place), request, Mode.ALIGNED)
    return convert(changing.spark, made, str(changing.folder / to), source_of(job), Clock().monotonic())


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_a_new_operator_gets_its_rows_from_a_table_before_the_job_starts(
    changing: Changing, backend: str
) -> None:
    options = {"state.backend.type": backend}
    old, job = changing.saved(sums, **options), changing.job(once, sums, **options)
    before = SavepointPlace(old).read()
    place = converted(changing, job, old, "converted")
    saved = SavepointPlace(place).read()
    assert [(one.kind, one.rows) for one in saved.queries["counts"].operators] == [
        ("stateStoreSave", 2),
        ("dedupe", 0),
    ]
    assert (saved.trigger, saved.id, SavepointPlace(old).read()) == ("convert", before.id, before)
    assert [SavepointPlace(place).damage(file) for file in saved.files] == [None] * len(saved.files)
    assert converted(changing, job, place, "again") == "", "it is what the job needs"

    table = changing.spark.createDataFrame([(3,), (5,)], "id long")
    seeded = edit(changing.spark, place, changing.folder / "seeded", "counts", 1, seed=table)
    assert (seeded.before, seeded.after) == (0, 2)
    run = changing.goes_on(job, seeded.place)
    assert run.planned is None, "nothing is left to be changed"
    assert changing.newest() == {"a": (7,), "b": (12,)}, "3 and 5 had been seen, says the table"


@pytest.mark.long
def test_a_converted_savepoint_has_the_scale_and_the_queries_that_were_asked_for(changing: Changing) -> None:
    changing.raw = "raw"
    old = changing.saved(once, sums)
    changing.raw = ""
    job = changing.job(once, sums, **{"state.backend.type": "hashmap", "parallelism.default": 3})
    place = converted(changing, job, old, "converted", parallelism=3, allow_dropped=True)
    saved = SavepointPlace(place).read()
    assert (saved.backend, saved.parallelism, [*saved.queries]) == ("hashmap", 3, ["counts"])
    assert not [file.path for file in saved.files if "/raw/" in file.path]
    run = changing.goes_on(job, place)
    assert run.planned is None, "nothing is left to be changed"
    assert changing.newest() == {"a": (4,), "b": (12,), "c": (5,)}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_state_is_rescaled_and_converted(changing: Changing, backend: str) -> None:
    other = {"rocksdb": "hashmap", "hashmap": "rocksdb"}[backend]
    place = changing.saved(once, sums, **{"state.backend.type": backend})
    with pytest.raises(PinnedStateError):
        changing.job(once, sums, **{"state.backend.type": other}).start(changing.spark)
    job = changing.job(once, sums, **{"state.backend.type": other, "parallelism.default": 5})
    run = changing.goes_on(job, place)
    assert verdicts(run)["operator 0"] == ["rescaled", "converted"]
    assert changing.newest() == {"a": (4,), "b": (12,), "c": (5,)}


@pytest.mark.long
def test_a_sink_is_swapped_and_gets_what_comes_behind_the_savepoint(changing: Changing) -> None:
    place = changing.saved(sums)
    before = changing.rows("out")
    changing.out = "other"
    run = changing.goes_on(changing.job(sums), place)
    assert run.planned is not None and "dropped" in run.planned.text
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}
    assert changing.rows("out") == before
    changing.add([(9, "d", 1)])
    with changing.job(sums).start(changing.spark) as run:
        run.process_all()
    assert changing.newest()["d"] == (1,)


@pytest.mark.long
def test_what_does_not_fit_is_refused_with_nothing_written(changing: Changing) -> None:
    place = changing.saved(sums)
    job = changing.folder / "weir" / "changing"
    before = sorted(str(path) for path in (job / "generations").rglob("*"))

    def other_key(frame: DataFrame) -> DataFrame:
        return frame.groupBy(F.col("id").alias("k")).agg(F.sum("v").alias("sum"))

    with pytest.raises(RestorePlanError, match="does not fit"):
        changing.job(other_key).start(changing.spark, place)
    assert sorted(str(path) for path in (job / "generations").rglob("*")) == before
    assert SavepointPlace(place).read().queries["counts"].shape is not None
    changing.add(THEN)
    with changing.job(sums).start(changing.spark) as run:
        run.process_all()
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}, "the live files are as they were"


@pytest.mark.long
def test_swapped_twins_that_spark_would_mix_up_are_refused_at_a_plain_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    changing = Changing(spark, tmp_path)
    code = """
import weir
from pyspark.sql import functions as F
from weir.testing import ScriptedSource
def pipeline(env):
    rows = env.source("rows", ScriptedSource({file!r}, "id long, k string, v long"))
    frame = rows.dropDuplicates([{first!r}]).dropDuplicates([{second!r}])
    env.sink("counts", frame, weir.sinks.files({out!r}))
"""

    def job(first: str, second: str) -> weir.Job:
        file = tmp_path / "job.py"
        names = {"file": str(tmp_path / "in.jsonl"), "out": str(tmp_path / "out")}
        file.write_text(code.format(first=first, second=second, **names))
        space: dict[str, Any] = {}
        exec(compile(file.read_text(), str(file), "exec"), space)
        made = changing.job()
        made.pipeline(space["pipeline"])
        return made

    changing.add(FIRST)
    with job("id", "v").start(spark) as run:
        run.process_all()
    with pytest.raises(ChangedQueryError, match="counts"):
        job("v", "id").start(spark)
    changing.add(THEN)
    with job("id", "v").start(spark) as run:
        run.process_all()
    assert sorted(row["id"] for row in changing.rows("out")) == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_a_claimed_savepoint_goes_when_checkpoints_have_made_up_for_it(changing: Changing) -> None:
    place = changing.saved(sums)
    wanted = RestoreRequest(place, claim=True)
    changing.add(THEN)
    job = changing.job(sums, **{"execution.checkpointing.num-retained": 2})
    with start(job, changing.spark, wanted) as run:
        run.process_all()
        run.checkpoint()
        assert Path(place).exists()
        run.checkpoint()
        deadline = Deadline(Clock(), Clock().monotonic() + 30)
        while Path(place).exists() and deadline.left() > 0:
            Clock().wait(Event(), 0.05)
    assert not Path(place).exists()
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}


@pytest.mark.long
def test_a_fork_goes_on_beside_the_original_and_never_into_its_output(changing: Changing) -> None:
    place = changing.saved(sums)
    fork = changing.job(sums)
    fork.name = JobName("experiment")
    wanted = RestoreRequest(place, forked_from="changing")
    with pytest.raises(RestorePlanError, match="must not write where the original does"):
        start(fork, changing.spark, wanted)
    assert not (changing.folder / "weir" / "experiment" / "generations").exists()
    changing.add(THEN)
    changing.out = "experiment"
    with start(fork, changing.spark, wanted) as run:
        run.process_all()
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}
    changing.out = "out"
    with pytest.raises(SinkMismatchError, match="must not write where the original does"):
        start(fork, changing.spark)
    assert changing.newest() == {"a": (7,), "b": (2,)}
    changing.out = "experiment"
    changing.add([(9, "d", 1)])
    with start(fork, changing.spark) as run:
        run.process_all()
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,), "d": (1,)}
    changing.out = "out"
    with changing.job(sums).start(changing.spark) as run:
        run.process_all()
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,), "d": (1,)}


@pytest.mark.long
def test_a_job_goes_on_in_another_directory_only_above_what_it_was_elsewhere(changing: Changing) -> None:
    place = changing.saved(sums)
    changing.add(THEN)
    for _ in range(2):
        with changing.job(sums).start(changing.spark) as run:
            run.process_all()
    moved = changing.job(sums, **{"execution.checkpointing.dir": str(changing.folder / "moved")})
    with pytest.raises(SinkTakenError, match="--take-over 3"):
        moved.start(changing.spark, place)
    with start(moved, changing.spark, RestoreRequest(place), above=1003) as run:
        run.process_all()
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}, (
        "it was taken back to the savepoint first"
    )
    with pytest.raises(SinkTakenError), changing.job(sums).start(changing.spark):
        pass


@pytest.mark.long
def test_a_savepoint_that_is_out_of_reach_is_waited_for(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(changing.saved(sums))
    away = place.rename(place.with_name("away"))
    changing.add(THEN)
    with changing.job(sums).start(changing.spark) as run:
        run.process_all()
    live = changing.folder / "weir" / "changing" / "generations" / "0001"
    before = {path: path.read_bytes() for path in live.rglob("*") if path.is_file()}
    away.rename(place)

    def gone(point: str) -> None:
        if point == "restore.intended":
            place.rename(away)

    with monkeypatch.context() as patched:
        patched.setattr("weir.restore.walk.faults.point", gone)
        with pytest.raises(NotASavepointError, match="there is no such directory"):
            changing.job(sums).start(changing.spark, str(place))
    with pytest.raises(NotASavepointError, match="there is no such directory"):
        changing.job(sums).start(changing.spark)
    assert {path: path.read_bytes() for path in live.rglob("*") if path.is_file()} == before

    away.rename(place)
    with changing.job(sums).start(changing.spark) as run:
        run.process_all()
    assert run.restored is not None and run.restored.generation == 2
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}

    for checkpoint in (changing.folder / "weir" / "changing" / "checkpoints").glob("chk-*.json"):
        checkpoint.unlink()
    with changing.job(sums).start(changing.spark, "latest") as run:
        run.process_all()
    assert [note for note in run.notes if f"the latest point is {place}," in note], run.notes
    assert changing.newest() == {"a": (10,), "b": (12,), "c": (10,)}


@pytest.mark.long
def test_a_source_of_files_goes_on_where_the_user_says(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def add(name: str, v: int, modified: int) -> None:
        file = tmp_path / "in" / f"{name}.json"
        file.write_text(f'{{"k": "a", "v": {v}}}')
        os.utime(file, (modified, modified))

    def job() -> weir.Job:
        made = weir.Job(
            "files", **{"execution.checkpointing.dir": str(tmp_path / "weir"), "parallelism.default": 2}
        )

        @made.pipeline
        def pipeline(env: weir.Env) -> None:
            source = weir.sources.files(str(tmp_path / "in"), "json", "k string, v long", max_files=1)
            rows = env.source("drops", source)
            both = rows.select("k", "v").union(
                env.source("ticks", weir.sources.rate()).selectExpr("'t'", "0")
            )
            env.sink("counts", sums(both), weir.sinks.files(str(tmp_path / "out")), output_mode="update")

        return made

    def saved_batch() -> int:
        return SavepointPlace(place).read().queries["counts"].batch

    def sum_of(**offsets: str) -> int:
        """What the job counts when it goes on from the savepoint so; each start begins there again."""
        given = {f"counts/{name}": value for name, value in offsets.items()}
        with start(job(), spark, RestoreRequest(place, offsets=given)) as run:
            # one file a batch, of four; the ticks never end, so there is no waiting for all of it
            run.wait_for_batch("counts", saved_batch() + 5, 240)
        assert run.planned is not None and "  set" in run.planned.text
        return [int(row["sum"]) for row in committed_rows(str(tmp_path / "out")) if row["k"] == "a"][-1]

    add("1", 1, 1000)
    add("2", 2, 2000)
    with job().start(spark) as run:
        run.wait_for_batch("counts", 2, 240)
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    add("3", 4, 3000)
    add("4", 8, 4000)
    live = tmp_path / "weir" / "files" / "generations"
    before = sorted(live.iterdir())
    for offsets, words in (
        ({"counts/drop": "latest"}, "it has @0 drops, @1 ticks"),
        ({"counts/ticks": "latest"}, "'rate' can only start from its beginning"),
        ({"counts/drops": '{"logOffset": 2}'}, "its log ends there"),
    ):
        with pytest.raises(BadOffsetsError, match=words):
            start(job(), spark, RestoreRequest(place, offsets=offsets))
    assert sorted(live.iterdir()) == before

    assert sum_of(drops="earliest") == 3 + 15, "every file again, on the state that was there"
    assert sum_of(**{"@0": '{"logOffset": 0}'}) == 3 + 14
    add("5", 16, 500)
    assert sum_of(drops="timestamp:1970-01-01T00:50:00Z") == 3 + 12
    generations = open_store(str(tmp_path / "weir"))
    origin = read_origin(generations, JobName("files"), live_generation(generations, JobName("files")))
    assert origin is not None and origin.options.offsets == {"counts/drops": "timestamp:1970-01-01T00:50:00Z"}

    given = RestoreRequest(place, offsets={"counts/drops": "latest"})
    with start(job(), spark, given) as run:
        assert run.planned is not None and "5 files that are there count as read" in run.planned.text
        add("6", 32, 100)
        run.wait_for_batch("counts", saved_batch() + 4, 240)
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    with start(job(), spark, RestoreRequest(place)) as run:
        add("7", 64, 7000)
        run.wait_for_batch("counts", saved_batch() + 4, 240)
    rows = committed_rows(str(tmp_path / "out"))
    assert [row["sum"] for row in rows if row["k"] == "a"][-1] == 3 + 32 + 64


@pytest.mark.parametrize("named", [True, False], ids=["named", "by what they read"])
def test_sources_come_and_go(named: bool, spark: SparkSession, tmp_path: Path) -> None:
    def add(name: str, *values: int) -> None:
        for v in values:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{v}.json").write_text(f'{{"k": "{name}", "v": {v}}}')

    def job(*names: str, called: Mapping[str, str] = MappingProxyType({})) -> weir.Job:
        settings = {"execution.checkpointing.dir": str(tmp_path / "weir"), "parallelism.default": 2}
        made = weir.Job("named", **settings)

        @made.pipeline
        def pipeline(env: weir.Env) -> None:
            env.spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", str(named).lower())
            frames = []
            for name in names:
                reader = env.spark.readStream
                reader = reader.name(called.get(name, name)) if named else reader
                frames.append(reader.schema("k string, v long").json(str(tmp_path / name)))
            frame = reduce(DataFrame.union, frames)
            env.sink("counts", sums(frame), weir.sinks.files(str(tmp_path / "out")), output_mode="update")

        return made

    add("a", 1)
    add("b", 2)
    with job("a", "b").start(spark) as run:
        run.process_all()
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    add("a", 10)
    add("b", 20)
    add("c", 30)
    with pytest.raises(RestorePlanError, match="needs --map: counts source 0 ambiguous"):
        job("c", "b", "a").start(spark, place)
    with job("c", "b", "a").start(spark, place, set_offsets={"counts/@0": "initial"}) as run:
        run.process_all()
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    newest = {row["k"]: row["sum"] for row in committed_rows(str(tmp_path / "out"))}
    assert newest == {"a": 11, "b": 22, "c": 30}
    add("a", 100)
    add("c", 300)
    with job("c", "a").start(spark, place, allow_dropped=True) as run:
        run.process_all()
    newest = {row["k"]: row["sum"] for row in committed_rows(str(tmp_path / "out"))}
    assert newest == {"a": 111, "b": 22, "c": 330}
    if not named:
        return
    with job("c", "a").start(spark) as run:
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    add("a", 1000)
    renamed = job("a", "c", called={"a": "c", "c": "d"})  # to a name that was another's
    with start(renamed, spark, RestoreRequest(place, maps=("counts/@1=0", "counts/@0=1"))) as run:
        run.process_all()
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    newest = {row["k"]: row["sum"] for row in committed_rows(str(tmp_path / "out"))}
    assert newest == {"a": 1111, "b": 22, "c": 330}
