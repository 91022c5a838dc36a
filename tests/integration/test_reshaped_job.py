"""A job whose queries were split, merged, renamed or rekeyed goes on with exactly its own counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import weir
from weir.errors import ChangedQueryError, RestorePlanError
from weir.testing import committed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.driver.notebook import Run

pytestmark = pytest.mark.spark

SCHEMA = "id int, k string, g string, v long"
Pipeline = Callable[[weir.Env, "Reshaped"], None]


class Reshaped:
    """A job over folders of JSON files; its pipeline may be another at each start."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def add(self, *rows: tuple[int, str, str, int], to: str = "in") -> None:
        (self.folder / to).mkdir(exist_ok=True)
        number = len(list((self.folder / to).iterdir()))
        lines = [json.dumps(dict(zip(("id", "k", "g", "v"), row, strict=True))) for row in rows]
        (self.folder / to / f"{number:03}.json").write_text("\n".join(lines))

    def read(self, env: weir.Env, name: str = "in") -> DataFrame:
        files = weir.sources.files(str(self.folder / name), "json", SCHEMA, max_files=1)
        return env.source(name, files)

    def sink(self, env: weir.Env, name: str, frame: DataFrame, out: str = "out") -> None:
        env.sink(name, frame, weir.sinks.files(str(self.folder / out)), output_mode="update")

    def job(self, pipeline: Pipeline, **options: Any) -> weir.Job:
        settings = {
            "execution.checkpointing.dir": str(self.folder / "weir"),
            "execution.checkpointing.interval": "off",
            "parallelism.default": 2,
        }
        job = weir.Job("reshaped", **settings | options)
        job.pipeline(lambda env: pipeline(env, self))
        return job

    def run(self, pipeline: Pipeline, point: str | None = None, **more: Any) -> Run:
        options = more.pop("options", {})
        with self.job(pipeline, **options).start(self.spark, point, **more) as run:
            run.process_all()
        return run

    def saved(self, pipeline: Pipeline, point: str | None = None, **more: Any) -> str:
        """Work off all that is there, then stop with a savepoint."""
        options = more.pop("options", {})
        with self.job(pipeline, **options).start(self.spark, point, **more) as run:
            run.process_all()
            return run.stop_with_savepoint(str(self.folder / "saved"))

    def newest(self, out: str = "out", keys: int = 1) -> dict[Any, tuple[Any, ...]]:
        """The last row that was delivered for each key."""
        rows = [tuple(row.values()) for row in committed_rows(str(self.folder / out))]
        return {row[0] if keys == 1 else row[:keys]: row[keys:] for row in rows}


@pytest.fixture
def reshaped(spark: SparkSession, tmp_path: Path) -> Reshaped:
    return Reshaped(spark, tmp_path)


def sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("sum"), F.count("*").alias("n"))


def chain(env: weir.Env, job: Reshaped) -> None:
    job.sink(env, "chain", sums(job.read(env).dropDuplicates(["id"])))


def in_two(env: weir.Env, job: Reshaped) -> None:
    deduped = env.stream("deduped", job.read(env).dropDuplicates(["id"]))
    job.sink(env, "chain", sums(deduped))


def test_a_query_is_split_and_merged_again_and_counts_nothing_twice(reshaped: Reshaped) -> None:
    reshaped.add((1, "a", "x", 1), (2, "b", "x", 2))
    reshaped.add((1, "a", "x", 1), (3, "a", "x", 4))
    place = reshaped.saved(chain)
    assert reshaped.newest() == {"a": (5, 2), "b": (2, 1)}

    reshaped.add((3, "a", "x", 4), (4, "b", "x", 8))  # 3 was seen before the savepoint
    with pytest.raises(RestorePlanError, match="deduped source 0 ambiguous"):
        reshaped.run(in_two, place, maps=["chain/0=0"], allow_dropped=True)
    split = ["chain/@0=deduped/@0", "chain/1=deduped/0", "chain/0=0"]
    run = reshaped.run(in_two, place, maps=split)
    assert run.planned is not None and "takes the state of operator 1 of query chain" in run.planned.text
    assert reshaped.newest() == {"a": (5, 2), "b": (10, 2)}
    reshaped.add((4, "b", "x", 8), (5, "a", "x", 16))
    place = reshaped.saved(in_two)  # a plain start on the files of the split
    assert reshaped.newest() == {"a": (21, 3), "b": (10, 2)}

    reshaped.add((1, "a", "x", 1), (5, "a", "x", 16), (6, "b", "x", 32))
    merge = ["deduped/@0=chain/@0", "deduped/0=chain/1", "chain/0=0"]
    reshaped.run(chain, place, maps=merge)
    assert reshaped.newest() == {"a": (21, 3), "b": (42, 3)}
    reshaped.add((6, "b", "x", 32), (7, "c", "x", 64))
    run = reshaped.run(chain)
    assert run.restored is None, run.notes
    assert reshaped.newest() == {"a": (21, 3), "b": (42, 3), "c": (64, 1)}


def test_a_query_is_renamed_and_a_new_one_begins_where_the_user_says(reshaped: Reshaped) -> None:
    def before(env: weir.Env, job: Reshaped) -> None:
        job.sink(env, "old", sums(job.read(env)))

    def after(env: weir.Env, job: Reshaped) -> None:
        rows = job.read(env)
        job.sink(env, "new", sums(rows))
        job.sink(env, "late", rows.groupBy("k").count(), "late")
        job.sink(env, "same", rows.groupBy("g").count(), "same")

    reshaped.add((1, "a", "x", 1), (2, "b", "x", 2))
    place = reshaped.saved(before)
    reshaped.add((3, "a", "x", 4))
    given = {"late/in": "latest"}
    run = reshaped.run(after, place, maps=["old=new", "old/@0=same/@0"], set_offsets=given)
    assert run.planned is not None and "new  was old" in run.planned.text
    assert reshaped.newest() == {"a": (5, 2), "b": (2, 1)}
    assert reshaped.newest("late") == {}, "all files that were there count as read"
    assert reshaped.newest("same") == {"x": (1,)}, "it began where the other one stood"
    reshaped.add((4, "b", "y", 8))
    place = reshaped.saved(after)
    assert reshaped.newest() == {"a": (5, 2), "b": (10, 2)}
    assert reshaped.newest("late") == {"b": (1,)}
    assert reshaped.newest("same") == {"x": (1,), "y": (1,)}
    reshaped.add((5, "b", "y", 16))
    elsewhere = {"execution.checkpointing.dir": str(reshaped.folder / "moved")}
    reshaped.run(after, place, options=elsewhere)
    assert reshaped.newest() == {"a": (5, 2), "b": (26, 3)}, "the sink is found by the savepoint alone"


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_keys_change_their_order_and_integers_become_longer(reshaped: Reshaped, backend: str) -> None:
    options = {"state.backend.type": backend}

    def before(env: weir.Env, job: Reshaped) -> None:
        rows = job.read(env)
        job.sink(env, "order", rows.groupBy("k", "g").agg(F.sum("v").alias("sum")))
        wide = rows.groupBy((F.col("id") % 10).alias("m")).agg(
            F.max("id").alias("top"), F.sum("id").alias("s")
        )
        job.sink(env, "wide", wide, "wide")
        job.sink(env, "once", rows.dropDuplicates(["k", "id"]).select("k", "id"), "once")

    def after(env: weir.Env, job: Reshaped) -> None:
        rows = job.read(env)
        job.sink(env, "order", rows.groupBy("g", "k").agg(F.sum("v").alias("sum")).select("k", "g", "sum"))
        big = F.col("id").cast("bigint")
        wide = rows.groupBy((big % 10).alias("m")).agg(F.max(big).alias("top"), F.sum(big).alias("s"))
        job.sink(env, "wide", wide.select(F.col("m").cast("int"), F.col("top").cast("int"), "s"), "wide")
        job.sink(env, "once", rows.dropDuplicates(["id", "k"]).select("k", "id"), "once")

    first = [(n - 5, f"k{n % 4}", f"g{n % 3}", 1) for n in range(12)]
    reshaped.add(*first)
    place = reshaped.saved(before, options=options)
    reshaped.add(*first, (7, "k9", "g9", 5))
    run = reshaped.run(after, place, options=options | {"parallelism.default": 3})
    assert run.planned is not None
    assert "its keys changed their order: k, g became g, k" in run.planned.text
    assert "its key (id % 10) was integer, is now bigint" in run.planned.text
    found = reshaped.newest(keys=2)
    expected: dict[tuple[str, str], int] = {}
    for _, k, g, v in [*first, *first, (7, "k9", "g9", 5)]:
        expected[k, g] = expected.get((k, g), 0) + v
    assert found == {key: (value,) for key, value in expected.items()}
    for m, (top, total) in reshaped.newest("wide").items():
        mine = [n for n in range(-5, 7) if _modulo(n) == m]
        more = [7] if m == 7 else []
        assert (top, total) == (max(mine + more), 2 * sum(mine) + sum(more))
    once = [(row["k"], row["id"]) for row in committed_rows(str(reshaped.folder / "once"))]
    assert sorted(once) == sorted((k, id) for id, k, *_ in [*first, (7, "k9", "g9", 5)])


def _modulo(n: int) -> int:
    """As Spark has it: with the sign of the number."""
    return n % 10 if n >= 0 else -(-n % 10)


def test_two_uses_of_one_frame_change_places(reshaped: Reshaped) -> None:
    def pipeline(*order: str) -> Pipeline:
        def made(env: weir.Env, job: Reshaped) -> None:
            rows = job.read(env)
            frames = {
                "small": rows.where("v < 8").dropDuplicates(["id"]),
                "large": rows.where("v >= 8").dropDuplicates(["id"]),
                "other": job.read(env, "other"),
            }
            first, *others = (frames[name] for name in order)
            for one in others:
                first = first.union(one)
            job.sink(env, "q", first.select("id"))

        return made

    def ids() -> list[int]:
        return sorted(row["id"] for row in committed_rows(str(reshaped.folder / "out")))

    reshaped.add((1, "a", "x", 1))
    reshaped.add((9, "a", "x", 9), (1, "a", "x", 1))
    reshaped.add((50, "a", "x", 1), to="other")
    place = reshaped.saved(pipeline("small", "large", "other"))
    assert ids() == [1, 9, 50]
    with pytest.raises(ChangedQueryError, match="moved"):
        reshaped.run(pipeline("large", "small", "other"))
    for number in (51, 52, 53):  # its log is longer than that of the other
        reshaped.add((number, "a", "x", 1), to="other")
    reshaped.add((1, "a", "x", 1), (9, "a", "x", 9), (2, "a", "x", 2))
    reshaped.run(pipeline("large", "small", "other"), place)
    assert ids() == [1, 2, 9, 50, 51, 52, 53]
    reshaped.add((10, "a", "x", 10))
    place = reshaped.saved(pipeline("large", "small", "other"))
    reshaped.add((2, "a", "x", 2), (3, "a", "x", 3))
    reshaped.add((54, "a", "x", 1), to="other")
    reshaped.run(pipeline("other", "small", "large"), place)
    assert ids() == [1, 2, 3, 9, 10, 50, 51, 52, 53, 54]
    reshaped.run(pipeline("other", "small", "large"), "latest", set_offsets={"q/@0": "earliest"})
    assert ids() == [1, 2, 3, 9, 10, *sorted([50, 51, 52, 53] * 2), 54], "54 came after the latest point"
