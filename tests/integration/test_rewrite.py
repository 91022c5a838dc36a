"""State with other partitions or in another backend: the query goes on exactly as the quiet run did."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Once
from tests.stateful import BATCHES, KINDS, Given, Kind, StatefulQuery, write_input
from weir.errors import StateDiffersError, StateNotRewritableError
from weir.ids import BatchId
from weir.protocol.compatibility import Reshape
from weir.spark.closure import closure
from weir.spark.cut import conf_of
from weir.spark.logs import PARTITIONS, StateIds
from weir.spark.reshape import backend_of, conversion_refusal
from weir.spark.session import Backend
from weir.spark.state_schema import operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.spark.rewrite import Rewritten

pytestmark = pytest.mark.spark

Frame = Callable[["DataFrame", "DataFrame"], "DataFrame"]

CUT = BatchId(2)
LATER = BatchId(4)


@dataclass(frozen=True)
class Shape:
    partitions: int
    backend: Backend
    changelog: bool = True

    def __str__(self) -> str:
        return f"{self.partitions} {self.backend}{'' if self.changelog else ' without changelog'}"


@dataclass(frozen=True)
class Way:
    """A kind of query, and the shapes that its state takes one after the other."""

    kind: Kind
    shapes: tuple[Shape, Shape, Shape]

    def __str__(self) -> str:
        return f"{self.kind.name}: {' -> '.join(map(str, self.shapes))}"


def rescales(backend: Backend, changelog: bool = True) -> tuple[Shape, Shape, Shape]:
    return Shape(2, backend, changelog), Shape(5, backend, changelog), Shape(3, backend, changelog)


THERE_AND_BACK = (Shape(2, "rocksdb"), Shape(2, "hashmap"), Shape(2, "rocksdb"))
BACK_AND_THERE = (Shape(2, "hashmap"), Shape(3, "rocksdb"), Shape(2, "hashmap"))

FEW = [
    Way(KINDS["aggregation"], rescales("rocksdb")),
    Way(KINDS["global aggregation"], BACK_AND_THERE),
    Way(KINDS["dedup"], rescales("hashmap")),
]
ALL = [
    *(Way(kind, rescales("rocksdb")) for kind in KINDS.values() if kind.name != "join 4"),
    *(Way(kind, rescales("rocksdb", changelog=False)) for kind in (KINDS["aggregation"], KINDS["join"])),
    *(Way(kind, rescales("hashmap")) for kind in KINDS.values() if kind.hashmap),
    *(
        Way(kind, shapes)
        for kind in KINDS.values()
        if kind.hashmap and kind.name != "limit"
        for shapes in (THERE_AND_BACK, BACK_AND_THERE)
    ),
]


@pytest.fixture(scope="session")
def input(once: Once) -> Path:
    return once("stateful-input", lambda folder: write_input(folder / "in")) / "in"


def query(spark: SparkSession, kind: Kind, input: Path, shape: Shape) -> StatefulQuery:
    return StatefulQuery(spark, kind, input, shape.backend, shape.partitions, shape.changelog)


def rescale(spark: SparkSession, read: Path, write: Path, batch: BatchId, shape: Shape) -> Rewritten:
    from weir.spark.rewrite import rewrite

    there = operators(read, batch)
    return rewrite(spark, read, write, batch, there, partitions=shape.partitions, backend=shape.backend)


def behind(given: Given, batch: BatchId) -> Given:
    return {number: rows for number, rows in given.items() if number > batch}


def check(way: Way, spark: SparkSession, input: Path, folder: Path) -> None:
    first, second, third = way.shapes
    quiet = query(spark, way.kind, input, first).run(folder / "first")
    assert len(quiet) >= BATCHES and any(behind(quiet, LATER).values())
    made = rescale(spark, folder / "first", folder / "the second", CUT, second)
    assert made.rows or way.kind.name == "limit"
    shutil.rmtree(folder / "first")
    # what the session says does not count any more
    assert query(spark, way.kind, input, Shape(7, second.backend)).run(folder / "the second") == behind(
        quiet, CUT
    )
    rescale(spark, folder / "the second", folder / "third", LATER, third)
    conf = conf_of(folder / "third", LATER)
    assert (int(conf[PARTITIONS]), backend_of(conf)) == (third.partitions, third.backend)
    shutil.rmtree(folder / "the second")
    assert query(spark, way.kind, input, third).run(folder / "third") == behind(quiet, LATER)
    assert sorted(path.name for path in folder.iterdir()) == ["third"]


@pytest.mark.long
@pytest.mark.parametrize("way", FEW, ids=str)
def test_a_query_goes_on_with_its_state_in_another_shape(
    way: Way, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    check(way, spark, input, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("way", [way for way in ALL if way not in FEW], ids=str)
def test_every_kind_goes_on_in_every_shape(
    way: Way, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    check(way, spark, input, tmp_path)


REFUSED = [
    ("join 4", Shape(5, "rocksdb"), "join state of version 4"),
    ("join 3", Shape(2, "hashmap"), "join state of version 3"),
    ("transformWithState", Shape(2, "hashmap"), "no transformWithState on the hashmap backend"),
    ("limit", Shape(2, "hashmap"), "Spark keeps no schema"),
]


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [pytest.param(*one, marks=[] if one[0] == "limit" else pytest.mark.long, id=one[0]) for one in REFUSED],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    name: str, shape: Shape, why: str, spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    query(spark, KINDS[name], input, Shape(2, "rocksdb")).run(tmp_path / "it")
    with pytest.raises(StateNotRewritableError, match=why):
        rescale(spark, tmp_path / "it", tmp_path / "other", CUT, shape)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_a_difference_is_told_and_leaves_nothing(
    backend: Backend, spark: SparkSession, input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.spark import hashmap, rewriter

    query(spark, KINDS["global aggregation"], input, Shape(2, backend)).run(tmp_path / "it")
    before = {name: (tmp_path / "it" / name).read_bytes() for name in closure(tmp_path / "it", CUT).files}
    rewrite: Any = rewriter.rewrite

    def losing(*given: Any) -> StateIds | None:
        rewrite(*given)
        *where, _, to = given
        lost: StateIds | None = rewrite(*where, lambda _, __, frame: frame.where("rand() > 2"), to)
        return lost

    monkeypatch.setattr(rewriter, "rewrite", losing)

    def losing_task(*given: Any) -> hashmap.Task:
        task = hashmap.writing(*given)
        return lambda batches: task(batch.slice(0, 0) for batch in batches)

    monkeypatch.setattr("weir.spark.rewrite.writing", losing_task)
    with pytest.raises(StateDiffersError, match="1 rows were expected, and there are 0"):
        rescale(spark, tmp_path / "it", tmp_path / "other", CUT, Shape(5, backend))
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert before == {name: (tmp_path / "it" / name).read_bytes() for name in before}


def test_a_query_without_state_only_gets_other_settings(
    spark: SparkSession, input: Path, tmp_path: Path
) -> None:
    kind = Kind("stateless", lambda lines, _: lines.where("v > 3"), "append")
    quiet = query(spark, kind, input, Shape(2, "rocksdb")).run(tmp_path / "first")
    made = rescale(spark, tmp_path / "first", tmp_path / "second", CUT, Shape(5, "hashmap"))
    assert made.rows == 0
    assert query(spark, kind, input, Shape(5, "hashmap")).run(tmp_path / "second") == behind(quiet, CUT)


def shorter(lines: DataFrame, _: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return lines.groupBy("k").agg(F.sum("v"), F.count("*"))


def longer(lines: DataFrame, _: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return lines.groupBy("k").agg(F.sum("v"), F.max("id"), F.avg("v"), F.count("*"))


GAINED = Reshape(
    fields=(0, None, None, None, 1),
    fresh=(None, None, 0.0, 0, None),
    started=("max(id)", "avg(v)"),
    lost=(),
)
LOST = Reshape(fields=(0, 4), fresh=(None, None), started=(), lost=("max(id)", "avg(v)"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "reshape", "shape"),
    [
        pytest.param(shorter, longer, GAINED, Shape(3, "rocksdb"), id="gained, rescaled"),
        pytest.param(longer, shorter, LOST, Shape(2, "hashmap"), id="lost", marks=pytest.mark.long),
    ],
)
def test_an_aggregate_gains_or_loses_columns(
    before: Frame,
    after: Frame,
    reshape: Reshape,
    shape: Shape,
    spark: SparkSession,
    input: Path,
    tmp_path: Path,
) -> None:
    from weir.spark.convert import convert_state
    from weir.spark.rewrite import rewrite

    old, new = Kind("old", before, "update"), Kind("new", after, "update")
    quiet = query(spark, old, input, Shape(2, shape.backend)).run(tmp_path / "first")
    later = tmp_path / "later"
    later.mkdir()
    for file in sorted(input.iterdir())[CUT + 1 :]:
        shutil.copy2(file, later)
    alone = query(spark, new, later, shape).run(tmp_path / "alone")
    (was,) = operators(tmp_path / "first", CUT)
    (will_be,) = operators(tmp_path / "alone", BatchId(0))
    assert conversion_refusal(was, will_be) is None
    change = convert_state(was, will_be, shape.partitions, reshape=reshape)
    rewrite(
        spark,
        tmp_path / "first",
        tmp_path / "second",
        CUT,
        [was],
        partitions=shape.partitions,
        backend=shape.backend,
        changes={(0, "default"): change},
    )
    found = query(spark, new, input, shape).run(tmp_path / "second")
    assert sorted(found) == sorted(behind(quiet, CUT))
    kept = {(row[0], row[1], row[-1]) for rows in behind(quiet, CUT).values() for row in rows}
    assert {(row[0], row[1], row[-1]) for rows in found.values() for row in rows} == kept
    for batch, rows in found.items():
        fresh = {row[0]: row[2:-1] for row in alone[batch - CUT - 1]}
        assert {row[0]: row[2:-1] for row in rows} == fresh
