"""The files sink with partition columns, and its readers."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from pyspark.errors import AnalysisException

import weir
from weir.errors import FilesNotReadableError, SinkMismatchError
from weir.ids import Attempt, BatchId, QueryName, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks.files import FilesSink
from weir.sinks.staging import StagedFiles
from weir.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FAN = 4
"""So many small files are merged here."""
TOKEN = Token(Attempt(1), Run(1))
SCHEMA = "day date, place string, n bigint, price decimal(10,2), at timestamp"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
ROWS: list[tuple[Any, ...]] = [
    (date(2026, 1, 1), "a b", 1, Decimal("1.50"), AT),
    (date(2026, 1, 1), "x=y/z+50%", 2, Decimal("2.25"), AT),
    (date(2026, 1, 2), None, 3, None, None),
]


def deliver(spark: SparkSession, sink: FilesSink, batch: int, rows: list[tuple[Any, ...]]) -> None:
    staged = Staged(BatchId(batch), TOKEN)
    sink.stage(spark.createDataFrame(rows, SCHEMA), staged.batch, staged.token)
    sink.record(staged)
    sink.commit(staged)


def opened(path: Path, format: str, partition_by: tuple[str, ...]) -> FilesSink:
    sink = weir.sinks.files(str(path), format, partition_by=partition_by)
    sink.open("job/query", "lineage", TOKEN)
    return sink


@pytest.mark.parametrize("partition_by", [(), ("day", "place")])
def test_all_readers_see_the_same_rows(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    path = tmp_path / "key=out"
    sink = opened(path, "parquet", partition_by)
    deliver(spark, sink, 0, ROWS[:2])
    deliver(spark, sink, 1, ROWS[2:])
    staged = Staged(BatchId(2), TOKEN)
    sink.stage(spark.createDataFrame(ROWS, SCHEMA), staged.batch, staged.token)
    sink.record(staged)  # and not committed: nobody may see it

    found = weir.read_files(str(path))
    frame = found.spark(spark)
    assert frame.schema.simpleString().startswith("struct<day:date,place:string,n:bigint,price:decimal(10,2)")
    assert sorted([tuple(row) for row in frame.drop("at").collect()], key=str) == sorted(
        [row[:4] for row in ROWS], key=str
    )
    rows = {row["n"]: row for row in found.arrow().to_pylist()}
    assert {n: (r["day"], r["place"], r["price"]) for n, r in rows.items()} == {
        row[2]: (row[0], row[1], row[3]) for row in ROWS
    }
    assert rows[1]["at"].astimezone(timezone.utc) == AT
    assert sorted(found.pandas()["n"]) == [1, 2, 3]
    with duckdb.connect() as connection:
        relation = found.duckdb(connection)
        assert relation.aggregate("sum(n) total").fetchall() == [(6,)]


def test_columns_to_partition_by_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    names = ["order day", "a:b", "50%+", "x.y", "p=q", "é`ü"]
    schema = ", ".join(f"`{name.replace('`', '``')}` string" for name in names) + ", n int"
    rows = [(*(f"{name} {n}" for name in names), n) for n in range(2)] + [(*[None] * len(names), 2)]
    sink = opened(tmp_path / "a=b c", "parquet", tuple(names))
    staged = Staged(BatchId(0), TOKEN)
    sink.stage(spark.createDataFrame(rows, schema), staged.batch, staged.token)
    sink.record(staged)
    sink.commit(staged)
    found = weir.read_files(str(tmp_path / "a=b c"))
    assert sorted(map(tuple, found.spark(spark).collect()), key=lambda row: row[-1]) == rows
    of_arrow = [tuple(row.values()) for row in found.arrow().to_pylist()]
    assert sorted(of_arrow, key=lambda row: row[-1]) == rows
    wrong = replace(found, about={**found.about, "partition_by": [*names[:-1], "n"]})
    with pytest.raises(Exception, match="no folder is one of column n"):
        wrong.spark(spark).collect()


def test_other_formats_are_read_by_spark_with_the_options_they_were_written_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = weir.sinks.files(str(tmp_path), "csv", partition_by="place", sep="|", header="true")
    sink.open("job/query", "lineage", TOKEN)
    deliver(spark, sink, 0, ROWS)
    found = weir.read_files(str(tmp_path))
    assert sorted(row.n for row in found.spark(spark).where("place is not null").collect()) == [1, 2]
    with pytest.raises(FilesNotReadableError, match="spark"):
        found.pandas()


def test_a_folder_without_batches_and_columns_that_are_not_there_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(FilesNotReadableError):
        weir.read_files(str(tmp_path))
    frame = spark.createDataFrame(ROWS, SCHEMA)
    for columns in (("dey",), ("day", "place", "n", "price", "at")):
        with pytest.raises(SinkMismatchError):
            weir.sinks.files(str(tmp_path), partition_by=columns).check(QueryName("q"), frame, "append")
    sink = opened(tmp_path / "empty", "parquet", ("day",))
    deliver(spark, sink, 0, [])
    found = weir.read_files(str(tmp_path / "empty"))
    assert found.pandas().empty and found.spark(spark).count() == 0
    assert list(found.pandas().columns) == ["day", "place", "n", "price", "at"]


@pytest.mark.long
@pytest.mark.parametrize(("format", "partition_by"), [("parquet", ("day", "place")), ("orc", ())])
def test_merged_files_hold_the_same_rows_for_all_readers(
    spark: SparkSession,
    tmp_path: Path,
    format: str,
    partition_by: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.sinks.compaction.FAN", FAN)
    sink = weir.sinks.files(str(tmp_path), format, partition_by=partition_by, compact="1 mb")
    sink.open("job/query", "lineage", TOKEN)
    older = spark.createDataFrame([row[:4] for row in ROWS], SCHEMA.rpartition(",")[0]).coalesce(1)
    for batch in range(FAN):
        frame = older if batch == 0 else spark.createDataFrame(ROWS, SCHEMA).coalesce(1)
        staged = Staged(BatchId(batch), TOKEN)
        sink.stage(frame, staged.batch, staged.token)
        sink.record(staged)
        sink.commit(staged)
    before = sorted(map(str, weir.read_files(str(tmp_path)).spark(spark).collect()))
    sink._upkeep._upto = BatchId(FAN)
    sink._upkeep.work()

    found = weir.read_files(str(tmp_path))
    assert len(found.files) == (3 if partition_by else 1)
    assert all("/_merged/" in file for file in found.files)
    frame = found.spark(spark)
    assert sorted(map(str, frame.collect())) == before
    assert frame.where("at is null").count() == FAN + 2  # the column came later
    rows = found.arrow().to_pylist()
    assert sorted(row["n"] for row in rows) == sorted(row[2] for row in ROWS * FAN)
    assert {(row["day"], row["place"], row["n"], row["price"]) for row in rows} == {row[:4] for row in ROWS}
    with duckdb.connect() as connection:
        assert found.duckdb(connection).aggregate("sum(n) total").fetchall() == [(6 * FAN,)]


def test_files_whose_types_do_not_fit_are_not_merged(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.sinks.compaction.FAN", FAN)
    sink = weir.sinks.files(str(tmp_path), compact="1 mb")
    sink.open("job/query", "lineage", TOKEN)
    for batch in range(FAN):
        staged = Staged(BatchId(batch), TOKEN)
        kind = "v string" if batch else "v int"
        sink.stage(spark.createDataFrame([("1" if batch else 1,)], kind).coalesce(1), staged.batch, TOKEN)
        sink.record(staged)
        sink.commit(staged)
    before = weir.committed_files(str(tmp_path))
    sink._upkeep._upto = BatchId(FAN)
    sink._upkeep.work()
    assert weir.committed_files(str(tmp_path)) == before
    said = capsys.readouterr().err
    assert f"{FAN} small files" in said and "were not merged: [CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE]" in said


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_the_newest_row_of_a_key_is_read(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    sink = weir.sinks.files(str(tmp_path), partition_by=partition_by)
    frame = spark.createDataFrame(ROWS, SCHEMA)
    sink.check(QueryName("query"), frame, "update")
    sink.open("job/query", "lineage", TOKEN)
    deliver(spark, sink, 0, ROWS)
    first, _, third = ROWS
    newer = [replace_n(first, 11), replace_n(third, 13)]
    deliver(spark, sink, 1, newer)
    deliver(spark, sink, 2, [replace_n(first, 21)])
    latest = weir.read_files(str(tmp_path)).latest("day", "place")
    expected = {("a b", 21), ("x=y/z+50%", 2), (None, 13)}
    table = latest.arrow()
    assert table.schema.names == frame.columns or partition_by
    assert set(zip(table["place"].to_pylist(), table["n"].to_pylist(), strict=True)) == expected
    assert table.num_rows == 3
    assert {(row.place, row.n) for row in latest.spark(spark).collect()} == expected
    assert latest.spark(spark).columns == frame.columns
    batches = latest.with_batch("at_batch")
    assert dict(
        zip(batches.arrow()["n"].to_pylist(), batches.arrow()["at_batch"].to_pylist(), strict=True)
    ) == {
        21: 2,
        13: 1,
        2: 0,
    }
    assert {row.n: row.at_batch for row in batches.spark(spark).collect()} == {21: 2, 13: 1, 2: 0}
    everything = weir.read_files(str(tmp_path)).with_batch()
    assert sorted(everything.pandas()["weir_batch"]) == [0, 0, 0, 1, 1, 2]


def replace_n(row: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    return (*row[:2], n, *row[3:])


def test_reading_every_version_of_a_row_is_warned_of(spark: SparkSession, tmp_path: Path) -> None:
    sink = weir.sinks.files(str(tmp_path))
    frame = spark.createDataFrame(ROWS, SCHEMA)
    sink.check(QueryName("query"), frame, "update")
    sink.open("job/query", "lineage", TOKEN)
    deliver(spark, sink, 0, ROWS)
    with pytest.warns(UserWarning, match=r"every version of a row.*latest\(KEY\)"):
        weir.read_files(str(tmp_path)).pandas()
    with pytest.warns(UserWarning, match="every version of a row"):
        weir.read_files(str(tmp_path)).spark(spark)
    with pytest.raises(FilesNotReadableError, match="can't be read") as refused:
        weir.read_files(str(tmp_path)).latest("word")
    assert "no column 'word'" in refused.value.why and "place" in refused.value.hint


def test_a_query_that_has_had_no_rows_reads_as_empty(spark: SparkSession, tmp_path: Path) -> None:
    sink = weir.sinks.files(str(tmp_path))
    sink.expect(spark.createDataFrame([], SCHEMA).schema)
    sink.open("job/query", "lineage", TOKEN)
    found = weir.read_files(str(tmp_path))
    assert found.files == () and found.pandas().empty
    assert found.latest("place").spark(spark).columns == ["day", "place", "n", "price", "at"]
    assert found.with_batch().arrow().schema.names[-1] == "weir_batch"


def test_csv_columns_that_move_are_refused_and_new_ones_at_the_end_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    def opened(schema: str, run: int) -> FilesSink:
        sink = weir.sinks.files(str(tmp_path), "csv")
        sink.expect(spark.createDataFrame([], schema).schema)
        sink.open("job/query", "lineage", Token(Attempt(1), Run(run)))
        return sink

    sink = opened("a string, b string", 1)
    staged = Staged(BatchId(0), Token(Attempt(1), Run(1)))
    sink.stage(spark.createDataFrame([("a", "b")], "a string, b string"), staged.batch, staged.token)
    sink.record(staged)
    sink.commit(staged)
    with pytest.raises(SinkMismatchError, match="can't be used") as refused:
        opened("b string, a string", 2)
    assert "CSV is read by position" in refused.value.why
    sink = opened("a string, b string, c string", 3)
    staged = Staged(BatchId(1), Token(Attempt(1), Run(3)))
    frame = spark.createDataFrame([("a", "b", "c")], "a string, b string, c string")
    sink.stage(frame, staged.batch, staged.token)
    sink.record(staged)
    sink.commit(staged)
    rows = weir.read_files(str(tmp_path)).spark(spark).collect()
    assert {tuple(row) for row in rows} == {("a", "b", None), ("a", "b", "c")}


def test_a_plain_reader_of_the_folder_sees_nothing_rather_than_too_much(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = opened(tmp_path, "parquet", ())
    deliver(spark, sink, 0, ROWS)
    with pytest.raises(AnalysisException, match="infer schema"):
        spark.read.parquet(str(tmp_path))
    assert spark.read.schema(SCHEMA).parquet(str(tmp_path)).count() == 0
    assert weir.read_files(str(tmp_path)).spark(spark).count() == len(ROWS)


def test_what_an_earlier_version_has_delivered_and_staged_in_its_own_folders_still_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    earlier = opened(tmp_path, "parquet", ())
    earlier._staging = StagedFiles(open_store(str(tmp_path)), "_weir/staged")
    deliver(spark, earlier, 0, ROWS[:1])
    staged = Staged(BatchId(1), TOKEN)
    earlier.stage(spark.createDataFrame(ROWS[1:2], SCHEMA), staged.batch, staged.token)
    earlier.record(staged)
    never = Staged(BatchId(1), Token(Attempt(1), Run(0)))
    earlier.stage(spark.createDataFrame(ROWS, SCHEMA), never.batch, never.token)
    assert sorted(path.name for path in (tmp_path / "data").iterdir())[0].startswith("000000000-1-1")
    now = weir.sinks.files(str(tmp_path))
    now.open("job/query", "lineage", Token(Attempt(2), Run(1)))
    now.discard(BatchId(1), [staged])
    now.commit(staged)
    assert sorted(weir.read_files(str(tmp_path)).arrow()["n"].to_pylist()) == [1, 2]
    assert not any((tmp_path / "data").rglob("000000001-1-0*/part-*")), "what can't count was discarded"
