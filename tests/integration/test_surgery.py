"""A query that was changed goes on with the state that it had: planned, carried out, started again, exact.

Each test runs a query, plans what becomes of its state in another one, makes the files for that one,
and compares what it gives from there on with a model in plain Python, or with a quiet run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stateful import KINDS
from weir.errors import SurgeryError
from weir.ids import BatchId
from weir.protocol.restore_plan import Overall, QueryPlan, RestorePlan
from weir.savepoint.query_change import Before, Options
from weir.savepoint.verdicts import plan
from weir.spark import cut
from weir.spark.frame_plan import planned
from weir.spark.planner import refusal
from weir.spark.relocate import operate
from weir.spark.session import Backend, state_defaults
from weir.spark.state_schema import operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long, ts timestamp, id long"
FILES: list[list[dict[str, Any]]] = [
    [
        {"k": f"k{i % 3}", "v": i, "ts": f"2026-01-01T00:{n:02d}:{i:02d}Z", "id": (5 * n + i) % 13}
        for i in range(8)
    ]
    for n in range(4)
]
"""One a batch."""

Rows = list[tuple[Any, ...]]


class Query:
    """A query over one file a batch, on one backend, wherever its checkpointLocation is."""

    def __init__(self, spark: SparkSession, folder: Path, backend: Backend, changelog: bool) -> None:
        self.session = spark.newSession()
        for key, value in state_defaults(backend, cores=1, changelog=changelog).items():
            self.session.conf.set(key, value)
        self.session.conf.set("spark.sql.session.timeZone", "UTC")
        self.folder = folder

    def feed(self, *numbers: int, name: str = "in") -> None:
        (self.folder / name).mkdir(exist_ok=True)
        for number in numbers:
            file = self.folder / f"{name}/{number}.json"
            file.write_text("\n".join(map(json.dumps, FILES[number])))
            os.utime(file, (1_700_000_000 + number,) * 2)

    def lines(self, name: str = "in") -> DataFrame:
        (self.folder / name).mkdir(exist_ok=True)
        reader = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / name))

    def run(self, frame: DataFrame, location: str, mode: str) -> Rows:
        """Work off all there is; the rows of all batches, in order."""
        given: dict[int, Rows] = {}

        def keep(batch: DataFrame, number: int) -> None:
            given[number] = sorted(tuple(map(str, row)) for row in batch.collect())

        writer = frame.writeStream.outputMode(mode).foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / location)).start().awaitTermination()
        return [row for number in sorted(given) for row in given[number]]

    def plan(self, location: str, old: DataFrame, new: DataFrame, mode: str, *maps: str) -> RestorePlan:
        """What becomes of the state of the old frame in the new one."""
        before = self.before(location, old, mode)
        after = planned(new, mode, before.conf)
        return plan({"q": before}, {"q": after.shape}, Options(maps=maps, allow_dropped=True))

    def before(self, location: str, old: DataFrame, mode: str) -> Before:
        place, batch = self.folder / location, self.last(location)
        shape = planned(old, mode).shape.with_files(operators(place, batch))
        offsets = (place / f"offsets/{batch}").read_text().split("\n")[2:]
        return Before(shape, cut.conf_of(place, batch), tuple(offsets))

    def change(
        self, location: str, to: str, old: DataFrame, new: DataFrame, mode: str, fits: bool = True
    ) -> QueryPlan:
        """Plan it, make the files of the changed query, and hear from Spark that it would go on there."""
        found = self.plan(location, old, new, mode)
        assert found.overall is Overall.FITS
        query, conf = found.query("q"), self.before(location, old, mode).conf
        after, batch = planned(new, mode, conf), self.last(location)
        operate(
            self.session,
            self.folder / location,
            self.folder / to,
            batch,
            moves=query.moves,
            added=[one for one in after.shape.operators if one.id in query.added],
            descriptions=after.files,
            sources=query.sources if query.sources_change else None,
            folders=query.folders,
        )
        shutil.rmtree(self.folder / location)
        if fits:
            assert refusal(new, mode, self.folder / to, batch) == ""
        return query

    def last(self, location: str) -> BatchId:
        names = os.listdir(self.folder / location / "commits")
        return BatchId(max(int(name) for name in names if name.isdigit()))


BACKENDS: list[tuple[Backend, bool]] = [("rocksdb", True), ("rocksdb", False), ("hashmap", True)]


@pytest.fixture(params=BACKENDS, ids=["changelog", "snapshots", "hashmap"])
def query(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, *request.param)


@pytest.fixture
def rocksdb(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, "rocksdb", True)


def counted(lines: DataFrame) -> DataFrame:
    return lines.groupBy("k").count()


def once(lines: DataFrame) -> DataFrame:
    return lines.dropDuplicates(["id"])


class Model:
    """What the queries of these tests do, in plain Python."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seen: set[int] = set()

    def count(self, number: int, *, dedup: bool) -> Rows:
        """The counts that one file changes."""
        rows = [(row["id"], row["k"]) for row in FILES[number]]
        keys = [key for _, key in self.fresh(rows)] if dedup else [key for _, key in rows]
        self.counts.update(keys)
        return sorted((key, str(self.counts[key])) for key in set(keys))

    def fresh(self, rows: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        for id, key in rows:
            if id not in self.seen:
                self.seen.add(id)
                yield id, key


@pytest.mark.long
def test_a_dedup_is_put_in_front_of_an_aggregation_and_removed_again(query: Query) -> None:
    plain, deduped, model = counted(query.lines()), counted(once(query.lines())), Model()
    query.feed(0, 1)
    assert query.run(plain, "one", "update") == model.count(0, dedup=False) + model.count(1, dedup=False)
    found = query.change("one", "two", plain, deduped, "update")
    assert (found.moves, found.added, found.dropped) == ({0: 0}, (1,), ())
    query.feed(2)
    assert query.run(deduped, "two", "update") == model.count(2, dedup=True)
    found = query.change("two", "three", deduped, plain, "update")
    assert (found.moves, found.added, found.dropped) == ({0: 0}, (), (1,))
    query.feed(3)
    assert query.run(plain, "three", "update") == model.count(3, dedup=False)


def test_an_aggregation_behind_a_dedup_moves_it_and_moves_it_back(query: Query) -> None:
    deduped, both, model = once(query.lines()), counted(once(query.lines())), Model()
    query.feed(0, 1)
    query.run(deduped, "one", "append")
    for rows in FILES[:2]:
        list(model.fresh([(row["id"], row["k"]) for row in rows]))
    found = query.change("one", "two", deduped, both, "update")
    assert (found.moves, found.added, found.dropped) == ({0: 1}, (0,), ())
    query.feed(2)
    assert query.run(both, "two", "update") == model.count(2, dedup=True)
    found = query.change("two", "three", both, deduped, "append")
    assert (found.moves, found.added, found.dropped) == ({1: 0}, (), (0,))
    query.feed(3)
    given = query.run(deduped.select("id", "k"), "three", "append")
    expected = model.fresh([(row["id"], row["k"]) for row in FILES[3]])
    assert given == sorted((str(id), key) for id, key in expected)


def branches(query: Query, *, swapped: bool) -> DataFrame:
    """Two dedups that look alike in every file of Spark's."""
    from pyspark.sql import functions as F

    small = once(query.lines().where("v < 4")).select(F.lit("small").alias("which"), "id")
    large = once(query.lines().where("v >= 4")).select(F.lit("large").alias("which"), "id")
    return large.union(small) if swapped else small.union(large)


@pytest.mark.long
def test_twins_that_changed_places_keep_their_own_state(rocksdb: Query) -> None:
    before, after = branches(rocksdb, swapped=False), branches(rocksdb, swapped=True)
    rocksdb.feed(0, 1)
    first = rocksdb.run(before, "one", "append")
    assert len({id for _, id in first}) < len(first)  # some ids are in both, so a mistake would show
    shutil.copytree(rocksdb.folder / "one", rocksdb.folder / "unplanned")
    found = rocksdb.change("one", "two", before, after, "append")
    assert found.moves == {0: 1, 1: 0}
    assert found.sources == (1, 0)
    shutil.copy(rocksdb.folder / "in/0.json", rocksdb.folder / "in/again.json")
    assert rocksdb.run(after, "two", "append") == []
    # Spark alone takes one for the other without a word
    assert rocksdb.run(after, "unplanned", "append") != []


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_an_operator_of_any_kind_begins_with_nothing_in_a_query_without_state(
    name: str, rocksdb: Query
) -> None:
    """It gives what a new query gives that never saw the first files."""
    kind = KINDS[name]
    for key, value in kind.settings:
        rocksdb.session.conf.set(key, value)
    plain = rocksdb.lines().where("v >= 0")
    changed = kind.frame(rocksdb.lines(), rocksdb.lines("other"))
    rocksdb.feed(0, 1)
    rocksdb.run(plain, "one", "append")
    found = rocksdb.change("one", "two", plain, changed, kind.mode)
    assert found.added and not found.moves
    rocksdb.feed(2, 3)
    rocksdb.feed(2, 3, name="other")
    given = rocksdb.run(changed, "two", kind.mode)
    rocksdb.feed(2, 3, name="late")
    quiet = kind.frame(rocksdb.lines("late"), rocksdb.lines("other"))
    assert given == rocksdb.run(quiet, "quiet", kind.mode) != []


@pytest.mark.long
def test_a_join_whose_schemas_are_named_in_full_is_moved(rocksdb: Query) -> None:
    """A dedup behind it takes its number; the files that its metadata names must be found again."""
    rocksdb.session.conf.set("spark.sql.streaming.join.stateFormatVersion", "3")
    left, right = rocksdb.lines().select("k", "v"), rocksdb.lines().selectExpr("k as k2", "id")
    joined = left.join(right, left.k == right.k2)
    deduped = joined.dropDuplicates()
    rocksdb.feed(0, 1)
    rocksdb.run(joined, "one", "append")
    found = rocksdb.change("one", "two", joined, deduped, "append")
    assert (found.moves, found.added) == ({0: 1}, (0,))
    rocksdb.feed(2)
    given = rocksdb.run(deduped, "two", "append")
    old = [row for rows in FILES[:2] for row in rows]
    pairs = {(a["k"], a["v"], b["k"], b["id"]) for a in old + FILES[2] for b in FILES[2] if a["k"] == b["k"]}
    pairs |= {(a["k"], a["v"], b["k"], b["id"]) for a in FILES[2] for b in old if a["k"] == b["k"]}
    assert given == sorted(tuple(map(str, pair)) for pair in pairs)


def test_a_query_that_lost_all_its_state_goes_on(rocksdb: Query) -> None:
    rocksdb.feed(0, 1)
    rocksdb.run(once(rocksdb.lines()), "one", "append")
    found = rocksdb.change("one", "two", once(rocksdb.lines()), rocksdb.lines(), "append")
    assert found.dropped == (0,)
    rocksdb.feed(2)
    assert len(rocksdb.run(rocksdb.lines(), "two", "append")) == len(FILES[2])


def test_sources_that_changed_places_go_on_where_they_were(rocksdb: Query) -> None:
    """One more source comes, and those that were there are read in another order."""
    before = rocksdb.lines().union(rocksdb.lines("other"))
    after = rocksdb.lines("third").union(rocksdb.lines("other")).union(rocksdb.lines())
    rocksdb.feed(0, 1)
    rocksdb.feed(2, name="other")
    rocksdb.run(before, "one", "append")
    found = rocksdb.change("one", "two", before, after, "append")
    assert found.sources == (None, 1, 0)
    rocksdb.feed(3)
    rocksdb.feed(1, name="third")
    given = rocksdb.run(after, "two", "append")
    expected = [*FILES[3], *FILES[1]]
    assert sorted(row[3] for row in given) == sorted(str(row["id"]) for row in expected)


@pytest.mark.long
def test_an_aggregate_column_is_added_behind_a_dedup_that_is_new(rocksdb: Query) -> None:
    """The operators are put in place first, then the values are made anew."""
    from weir.spark.convert import convert_state
    from weir.spark.rewrite import rewrite

    old, deduped = counted(rocksdb.lines()), once(rocksdb.lines()).groupBy("k")
    new = deduped.agg({"v": "avg", "*": "count"})
    rocksdb.feed(0, 1)
    rocksdb.run(old, "one", "update")
    (was,) = operators(rocksdb.folder / "one", BatchId(1))
    query = rocksdb.change("one", "two", old, new, "update", fits=False)
    (part,) = (part for part in query.of("operator") if part.reshape is not None)
    assert part.notes == (
        "avg(v) starts again: it covers the rows since the savepoint only",
        "now also: Deduplicate id",
    )
    assert part.reshape is not None and part.old == part.new == 0
    after = planned(new, "update").shape.operators[0]
    rewrite(
        rocksdb.session,
        rocksdb.folder / "two",
        rocksdb.folder / "three",
        BatchId(1),
        operators(rocksdb.folder / "two", BatchId(1)),
        partitions=2,
        backend="rocksdb",
        changes={(0, "default"): convert_state(was, after, 2, reshape=part.reshape)},
    )
    rocksdb.feed(2)
    given = rocksdb.run(new, "three", "update")
    model = Model()
    for number in (0, 1):
        model.count(number, dedup=False)
    counts: dict[str, str] = dict(model.count(2, dedup=True))
    assert {row[0]: row[2] for row in given} == counts
    values: dict[str, list[int]] = {}
    for row in FILES[2]:
        values.setdefault(row["k"], []).append(row["v"])
    assert {row[0]: float(row[1]) for row in given} == {k: sum(v) / len(v) for k, v in values.items()}


def test_what_does_not_fit_is_known_before_anything_is_written(rocksdb: Query) -> None:
    from pyspark.sql import functions as F

    rocksdb.feed(0)
    old = counted(rocksdb.lines())
    rocksdb.run(old, "one", "update")
    there = sorted(rocksdb.folder.rglob("*"))
    odd = rocksdb.lines().groupBy("k").agg(F.count("*"), F.collect_set("v"))
    assert rocksdb.plan("one", old, odd, "update").overall is Overall.MISFITS
    other_key = rocksdb.lines().groupBy("v").count()
    assert rocksdb.plan("one", old, other_key, "update").overall is Overall.MISFITS
    lower = rocksdb.lines().groupBy(F.lower("k")).count()
    assert rocksdb.plan("one", old, lower, "update").overall is Overall.NEEDS_MAP
    assert rocksdb.plan("one", old, lower, "update", "q/0=0").overall is Overall.FITS
    assert sorted(rocksdb.folder.rglob("*")) == there


def test_spark_says_beforehand_what_it_would_refuse(rocksdb: Query) -> None:
    rocksdb.feed(0)
    old = rocksdb.lines().groupBy("k").count()
    rocksdb.run(old, "one", "update")
    there = sorted(rocksdb.folder.rglob("*"))
    one, batch = rocksdb.folder / "one", BatchId(0)
    assert refusal(old, "update", one, batch) == ""
    other_key = rocksdb.lines().groupBy("v").count()
    assert "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE" in refusal(other_key, "update", one, batch)
    more = counted(once(rocksdb.lines()))
    assert "STREAMING_STATEFUL_OPERATOR_NOT_MATCH" in refusal(more, "update", one, batch)
    assert sorted(rocksdb.folder.rglob("*")) == there


def test_files_that_are_not_whole_are_refused_and_nothing_is_left(rocksdb: Query) -> None:
    rocksdb.feed(0)
    rocksdb.run(counted(rocksdb.lines()), "one", "update")
    (rocksdb.folder / "one/offsets/0").unlink()
    with pytest.raises(SurgeryError):
        operate(rocksdb.session, rocksdb.folder / "one", rocksdb.folder / "two", BatchId(0), moves={0: 0})
    assert {path.name for path in rocksdb.folder.iterdir()} == {"in", "one"}
