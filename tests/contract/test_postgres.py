"""The PostgreSQL sink against a real server, beyond the contract suite; no Spark but its types."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import types as T

from tests.cutting_proxy import CuttingProxy
from tests.local_frame import LocalFrame
from tests.needed import missing
from tests.postgres_server import PASSWORD, PostgresServer, binaries
from weir import sinks
from weir.errors import DatabaseError, FencedError, LoginRefusedError, RefusedRowError, SinkMismatchError
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import Outcome
from weir.sinks.postgres import task as copying
from weir.sinks.postgres.database import SETTINGS, Address, Database, connect
from weir.sinks.postgres.sink import PostgresSink
from weir.sinks.postgres.staging_table import Recorded
from weir.sinks.postgres.user_table import Moved

Row = Mapping[str, Any]
KV = T.StructType([T.StructField("k", T.StringType()), T.StructField("v", T.LongType())])
TOKEN = Token(Attempt(1), Run(1))


def opened(sink: PostgresSink, schema: T.StructType = KV, attempt: int = 1) -> PostgresSink:
    sink.expect(schema)
    sink.open("job/query", "lineage", Token(Attempt(attempt), Run(1)))
    return sink


def staged(sink: PostgresSink, batch: int, *rows: Row, schema: T.StructType = KV, attempt: int = 1) -> Staged:
    one = Staged(BatchId(batch), Token(Attempt(attempt), Run(1)))
    sink.stage(LocalFrame(schema, [rows[::2], rows[1::2]]), one.batch, one.token)  # type: ignore[arg-type]
    sink.record(one)
    return one


def deliver(sink: PostgresSink, batch: int, *rows: Row, schema: T.StructType = KV) -> None:
    assert sink.commit(staged(sink, batch, *rows, schema=schema)) is Outcome.DONE_NOW


def kv(k: str | None, v: int | None) -> Row:
    return {"k": k, "v": v}


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        done = connection.execute(text.encode())
        return done.fetchall() if done.description else []


# types and names

SIMPLE: list[tuple[T.DataType, str, list[Any]]] = [
    (T.ByteType(), "smallint", [-128, 127]),
    (T.ShortType(), "smallint", [-32768, 32767]),
    (T.IntegerType(), "integer", [-(2**31), 2**31 - 1]),
    (T.LongType(), "bigint", [-(2**63), 2**63 - 1]),
    (T.FloatType(), "real", [1.5, float("inf")]),
    (T.DoubleType(), "double precision", [0.1 + 0.2, -float("inf"), 5e-324]),
    (T.DecimalType(38, 10), "numeric(38,10)", [Decimal("-1234567890123456789012345678.0123456789")]),
    (T.StringType(), "text", ["", "a'b\"c\\d", "x\n\\.\ny", "\\.", "\\N", "NULL", "é漢🦆", "\t,;\r\n"]),
    (T.BooleanType(), "boolean", [True, False]),
    (T.DateType(), "date", [date(1, 1, 1), date(9999, 12, 31)]),
    (
        T.TimestampType(),
        "timestamp with time zone",
        [datetime(2024, 3, 31, 1, 30, 0, 1, timezone.utc), datetime(1900, 1, 1, tzinfo=timezone.utc)],
    ),
    (T.TimestampNTZType(), "timestamp without time zone", [datetime(2024, 3, 31, 2, 30, 0, 999999)]),
    (T.BinaryType(), "bytea", [b"", b"\x00\xff\\x41"]),
    (T.ArrayType(T.IntegerType()), "integer[]", [[], [1, None, -3]]),
    (T.ArrayType(T.StringType()), "text[]", [["", 'a"b\\c', None, "NULL", "{,}", " "]]),
    (T.ArrayType(T.BinaryType()), "bytea[]", [[b"\x00", b""]]),
    (T.ArrayType(T.DoubleType()), "double precision[]", [[0.1, float("inf")]]),
    (T.ArrayType(T.BooleanType()), "boolean[]", [[True, None]]),
    (T.ArrayType(T.DateType()), "date[]", [[date(2024, 2, 29)]]),
    (T.ArrayType(T.DecimalType(5, 2)), "numeric[]", [[Decimal("1.10")]]),
    (
        T.ArrayType(T.TimestampType()),
        "timestamp with time zone[]",
        [[datetime(2024, 3, 31, 1, 30, tzinfo=timezone.utc)]],
    ),
]


@pytest.mark.parametrize(("spark", "sql", "values"), SIMPLE, ids=lambda one: str(one).partition("(")[0])
def test_a_type_arrives_as_it_is(database: str, spark: T.DataType, sql: str, values: list[Any]) -> None:
    schema = T.StructType([T.StructField("n", T.IntegerType()), T.StructField("x", spark)])
    sink = opened(sinks.postgres(database, "typed", create=True), schema)
    rows: list[Row] = [{"n": number, "x": value} for number, value in enumerate([*values, None])]
    deliver(sink, 0, *rows, schema=schema)
    found = query(database, "SELECT x FROM typed ORDER BY n")
    assert [value for (value,) in found] == [*values, None]
    named = query(
        database, "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attname = 'x' AND attnum = 2"
    )
    assert named == [(sql.partition("(")[0] + ("[]" if sql.endswith("[]") and "(" in sql else ""),)]


def test_identifiers_with_quotes_are_only_names(database: str) -> None:
    evil = 'we"ird %s ; DROP TABLE x; --'
    query(database, 'CREATE SCHEMA "s""c%"; CREATE TABLE x (a int)')
    schema = T.StructType(
        [T.StructField(f"k{evil}", T.StringType()), T.StructField(f"v{evil}", T.LongType())]
    )
    rows: list[Row] = [{f"k{evil}": "a", f"v{evil}": 1}, {f"k{evil}": "b", f"v{evil}": None}]
    for key in (None, f"k{evil}"):
        table = ('s"c%', f"{evil}{key is None}")
        letters = ("public", f"{evil} letters")
        sink = opened(
            sinks.postgres(database, table, key, create=True, dead_letter=letters, schema='w"%s'), schema
        )
        deliver(sink, 0, *rows, schema=schema)
        deliver(sink, 1, rows[0], schema=schema)
        assert sink.rewind(BatchId(0)) is Outcome.DONE_NOW
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in table)
        assert sorted(row[:2] for row in query(database, f"SELECT * FROM {quoted}")) == [
            ("a", 1),
            ("b", None),
        ]
    assert query(database, "SELECT * FROM x") == []


@pytest.mark.parametrize(
    ("ddl", "options", "words"),
    [
        ("", {}, "there is no such table"),
        ("CREATE TABLE t (k text, weir_batch bigint)", {}, "has no column 'v'"),
        ("CREATE TABLE t (k text, v int, w text NOT NULL, weir_batch bigint)", {}, "'w' may not be null"),
        ("CREATE TABLE t (k text, v text, weir_batch bigint)", {}, "'v' is text, which does not take bigint"),
        ("CREATE TABLE t (k bytea, v int, weir_batch bigint)", {}, "does not take string"),
        ("CREATE TABLE t (k name, v int, weir_batch bigint)", {}, "does not take string"),
        ("CREATE TABLE t (k text, v real, weir_batch bigint)", {}, "does not take bigint"),
        ("CREATE TABLE t (k text, v bigint)", {}, 'ALTER TABLE "public"."t" ADD COLUMN "weir_batch"'),
        ("CREATE TABLE t (k text, v bigint, weir_batch text)", {}, "not a bigint"),
        ("CREATE TABLE t (k text, v bigint)", {"key": "k"}, "no unique index"),
        ("CREATE TABLE t (k text, v bigint, PRIMARY KEY (k, v))", {"key": "k"}, "no unique index"),
        ("CREATE TABLE t (k text PRIMARY KEY, v bigint)", {"key": "z"}, "key column 'z'"),
        ("CREATE TABLE t (k text PRIMARY KEY, v bigint)", {"key": "k", "delete": "v"}, "must be boolean"),
        (
            "CREATE TABLE t (k text PRIMARY KEY, v bigint)",
            {"key": "k", "columns": ["k", "q"]},
            "no column 'q'",
        ),
        ("CREATE VIEW t AS SELECT ''::text k, 1::bigint v", {}, "not a table"),
        (
            "CREATE TABLE t (k text, v bigint GENERATED ALWAYS AS (1) STORED, weir_batch bigint)",
            {},
            "generated",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_first_batch(
    database: str, ddl: str, options: dict[str, Any], words: str
) -> None:
    if ddl:
        query(database, ddl)
    with pytest.raises(SinkMismatchError) as caught:
        opened(sinks.postgres(database, "t", **options))
    assert words in caught.value.text
    assert caught.value.hint
    assert query(database, "SELECT to_regclass('weir.ledger')") == [(None,)], "nothing was left behind"


@pytest.mark.parametrize(
    ("spark", "column"),
    [
        (T.DecimalType(10, 4), "numeric(10,2)"),
        (T.DoubleType(), "real"),
        (T.DoubleType(), "numeric(10,2)"),
        (T.TimestampType(), "timestamp"),
        (T.TimestampNTZType(), "timestamptz"),
        (T.TimestampType(), "timestamptz(3)"),
        (T.DateType(), "timestamptz"),
        (T.ArrayType(T.DoubleType()), "real[]"),
        (T.ArrayType(T.LongType()), "bigint"),
        (T.DayTimeIntervalType(), "interval"),
    ],
    ids=str,
)
def test_what_would_change_a_value_without_a_word_is_refused(
    database: str, spark: T.DataType, column: str
) -> None:
    query(database, f"CREATE TABLE t (x {column}, weir_batch bigint)")
    with pytest.raises(SinkMismatchError):
        opened(sinks.postgres(database, "t"), T.StructType([T.StructField("x", spark)]))


def test_other_types_that_take_the_values_are_taken(database: str) -> None:
    query(
        database,
        "CREATE DOMAIN age AS integer CHECK (VALUE >= 0); CREATE TYPE mood AS ENUM ('ok', 'bad'); "
        "CREATE TABLE t (id uuid, a age, m mood, d numeric, j jsonb, s varchar(3), weir_batch bigint)",
    )
    text = T.StringType()
    kinds = [
        ("id", text),
        ("a", T.LongType()),
        ("m", text),
        ("d", T.DecimalType(9, 3)),
        ("j", text),
        ("s", text),
    ]
    schema = T.StructType([T.StructField(name, kind) for name, kind in kinds])
    sink = opened(sinks.postgres(database, "t"), schema)
    id = "00000000-0000-4000-8000-000000000001"
    row = {"id": id, "a": 7, "m": "ok", "d": Decimal("1.5"), "j": '{"x": [1]}', "s": "abc"}
    deliver(sink, 0, row, schema=schema)
    assert query(database, "SELECT id::text, a, m::text, d, j, s FROM t") == [
        (id, 7, "ok", Decimal("1.500"), {"x": [1]}, "abc")
    ]


def test_columns_can_be_chosen_and_renamed(database: str) -> None:
    query(database, "CREATE TABLE t (name text, at int DEFAULT 5, weir_batch bigint)")
    deliver(opened(sinks.postgres(database, "t", columns={"k": "name"})), 0, kv("a", 1))
    assert query(database, "SELECT * FROM t") == [("a", 5, 0)]
    deliver(opened(sinks.postgres(database, "u", columns=["v"], create=True)), 0, kv("a", 1))
    assert query(database, "SELECT * FROM u") == [(1, 0)]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_the_deliveries_are_told_apart_by_a_batch_that_runs_twice(database: str, delivery: Any) -> None:
    query(database, "CREATE TABLE t (k varchar(3), v bigint, weir_batch bigint)")
    sink = opened(sinks.postgres(database, "t", delivery=delivery, dead_letter="letters"))
    sink.stage(LocalFrame(KV, [[kv("a", 1)], [kv("long", 2)]]), BatchId(0), TOKEN)  # type: ignore[arg-type]
    seen_at_once = query(database, "SELECT k FROM t")
    again = opened(sinks.postgres(database, "t", delivery=delivery, dead_letter="letters"), attempt=2)
    again.discard(BatchId(-1), [])
    again.commit(staged(again, 0, kv("a", 1), kv("long", 2), attempt=2))
    twice = delivery == "at_least_once"
    assert len(seen_at_once) == twice
    assert query(database, "SELECT k, weir_batch FROM t") == [("a", 0)] * (1 + twice)
    assert query(database, "SELECT value FROM letters") == [('"long"',)]
    assert query(database, "SELECT rows, refused FROM weir.delivered") == [(1, 1)]
    again.rewind(BatchId(-1))
    assert query(database, "SELECT * FROM t") == []


# keys


def test_of_several_rows_with_one_key_the_last_counts(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", "k", create=True))
    one = Staged(BatchId(0), TOKEN)
    rows = [kv("a", number) for number in range(20)]
    sink.stage(LocalFrame(KV, [[kv("a", 99), kv("b", 1)], rows]), one.batch, one.token)  # type: ignore[arg-type]
    sink.record(one)
    sink.commit(one)
    assert query(database, "SELECT * FROM t ORDER BY k") == [("a", 19), ("b", 1)]


def test_what_a_merge_costs_does_not_grow_with_rows_times_tasks(database: str) -> None:
    """The tasks are joined; a list that is searched for each row would take minutes, and so is cancelled."""
    url = f"{database}?options=-c%20statement_timeout%3D30s"
    sink = opened(sinks.postgres(url, "t", "k", create=True))
    one = Staged(BatchId(0), TOKEN)
    sink.stage(LocalFrame(KV, [[kv("a", 1)]]), one.batch, one.token)  # type: ignore[arg-type]
    query(
        database,
        'INSERT INTO weir.s1_0_1_1 ("weir:task", "weir:row", k, v) '
        "SELECT 1000000 + n % 60000, n, n % 1000, n FROM generate_series(0, 299999) n",
    )
    sink._written[one.batch, one.token] = Recorded(300_000, 0, tuple(range(1_000_000, 1_060_000)))
    sink.record(one)
    assert sink.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT count(*), min(v), max(v) FROM t") == [(1_000, 299_000, 299_999)]


MARKED = T.StructType([*KV.fields, T.StructField("gone", T.BooleanType())])


def marked(k: str, v: int | None, gone: bool | None = None) -> Row:
    return {"k": k, "v": v, "gone": gone}


def test_a_marked_row_is_deleted_and_a_rewind_brings_all_back(database: str) -> None:
    query(
        database,
        "CREATE TABLE t (k text PRIMARY KEY, v bigint NOT NULL, note text DEFAULT 'mine', "
        "id int GENERATED ALWAYS AS IDENTITY, twice bigint GENERATED ALWAYS AS (v * 2) STORED); "
        "INSERT INTO t (k, v, note) VALUES ('theirs', 1, 'kept')",
    )
    sink = opened(sinks.postgres(database, "t", "k", delete="gone"), MARKED)
    deliver(sink, 0, marked("a", 1), marked("b", 2, gone=False), schema=MARKED)
    query(database, "UPDATE t SET note = 'changed' WHERE k = 'a'")
    before = query(database, "SELECT * FROM t ORDER BY k")
    assert len(before) == 3
    deliver(sink, 1, marked("a", None, gone=True), marked("theirs", 5), marked("c", 3), schema=MARKED)
    deliver(sink, 2, marked("b", 9), marked("c", 0, gone=True), marked("never", 0, gone=True), schema=MARKED)
    deliver(sink, 3, marked("a", 7), marked("theirs", 0, gone=True), schema=MARKED)
    assert query(database, "SELECT k, v FROM t ORDER BY k") == [("a", 7), ("b", 9)]
    assert sink.rewind(BatchId(0)) is Outcome.DONE_NOW
    assert query(database, "SELECT * FROM t ORDER BY k") == before
    deliver(sink, 1, marked("a", 8), schema=MARKED)
    assert query(database, "SELECT v, note FROM t WHERE k = 'a'") == [(8, "changed")]


def test_images_are_kept_as_long_as_a_checkpoint_may_need_them(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", "k", create=True))
    for batch in range(4):
        deliver(sink, batch, kv("a", batch))
    sink.forget(BatchId(1))
    assert query(database, 'SELECT "weir:batch" FROM weir.before_1 ORDER BY 1') == [(2,), (3,)]
    assert query(database, "SELECT batch FROM weir.delivered ORDER BY 1") == [(2,), (3,)]
    after = sinks.postgres(database, "t", "k")
    after.expect(KV)
    ledger: Ledger = after.open("job/query", "lineage", Token(Attempt(2), Run(1)))
    assert (ledger.last, ledger.floor) == (3, 1)
    assert after.rewind(BatchId(1)) is Outcome.DONE_NOW
    assert query(database, "SELECT * FROM t") == [("a", 1)]
    with pytest.raises(FencedError):
        sink.forget(BatchId(3))


def test_images_follow_a_table_that_changes(database: str) -> None:
    query(database, "CREATE TABLE t (k text PRIMARY KEY, v int)")
    deliver(opened(sinks.postgres(database, "t", "k")), 0, kv("a", 1))
    query(database, "ALTER TABLE t ALTER v TYPE bigint, ADD COLUMN note text DEFAULT 'new'")
    sink = opened(sinks.postgres(database, "t", "k"), attempt=2)
    for batch, value in ((1, 2**40), (2, 2**41)):
        sink.commit(staged(sink, batch, kv("a", value), attempt=2))
    assert sink.rewind(BatchId(1)) is Outcome.DONE_NOW
    assert query(database, "SELECT * FROM t") == [("a", 2**40, "new")]


def test_what_was_appended_is_not_taken_for_rows_with_a_key(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    deliver(sink, 0, kv("a", 1))
    query(database, "ALTER TABLE t ADD PRIMARY KEY (k)")
    changed = sinks.postgres(database, "t", "k")
    changed.expect(KV)
    assert changed.open("job/query", "lineage", Token(Attempt(2), Run(1))).floor == 0


def test_a_table_without_a_batch_column_can_be_appended_to_and_not_rewound(database: str) -> None:
    query(database, "CREATE TABLE t (k text, v bigint)")
    sink = opened(sinks.postgres(database, "t", batch_column=None))
    assert not sink.rewindable
    deliver(sink, 0, kv("a", 1))
    assert query(database, "SELECT * FROM t") == [("a", 1)]


KRV = T.StructType([*KV.fields, T.StructField("r", T.StringType())])
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batch_column": None}, {}),
    ({}, {"batch_column": "b"}),
    ({"key": "k"}, {"key": ["k", "r"]}),
    ({"key": "k"}, {"key": "k", "columns": ["k", "v"]}),
    ({"dead_letter": "one"}, {"dead_letter": "other"}),
    ({"dead_letter": "one"}, {}),
]


@pytest.mark.parametrize(
    ("before", "after"),
    CHANGES,
    ids=["batch column", "its name", "key", "columns", "dead letters", "no dead letters"],
)
def test_what_was_written_in_another_way_is_below_the_floor(
    database: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    query(
        database,
        "CREATE TABLE t (k text, v bigint, r text, weir_batch bigint, b bigint, UNIQUE (k), UNIQUE (k, r))",
    )
    sink = opened(sinks.postgres(database, "t", **before), KRV)
    for batch in range(2):
        deliver(sink, batch, {"k": f"{batch}", "v": batch, "r": "x"}, schema=KRV)
    for attempt in (2, 3):  # also at the second start
        sink = sinks.postgres(database, "t", **after)
        sink.expect(KRV)
        assert sink.open("job/query", "lineage", Token(Attempt(attempt), Run(1))).floor == 1
    row = {"k": "1" if "key" in after else "2", "v": 7, "r": "x"}
    sink.commit(staged(sink, 2, row, schema=KRV, attempt=3))
    assert sink.rewind(BatchId(1)) is Outcome.DONE_NOW
    assert query(database, "SELECT k, v FROM t ORDER BY k") == [("0", 0), ("1", 1)]


@pytest.mark.parametrize("after", [{}, {"dead_letter": "one"}, {"delivery": "at_least_once"}], ids=str)
def test_what_a_rewind_does_not_depend_on_leaves_the_floor(database: str, after: dict[str, Any]) -> None:
    deliver(opened(sinks.postgres(database, "t", create=True)), 0, kv("a", 1))
    sink = sinks.postgres(database, "t", **after)
    sink.expect(KV)
    assert sink.open("job/query", "lineage", Token(Attempt(2), Run(1))).floor == -1


@pytest.mark.parametrize(("key", "former"), [(None, "append"), ("k", "upsert")])
def test_the_mode_that_an_earlier_version_has_entered_is_known(
    database: str, key: str | None, former: str
) -> None:
    deliver(opened(sinks.postgres(database, "t", key, create=True)), 0, kv("a", 1))
    query(database, f"UPDATE weir.ledger SET mode = '{former}'")
    sink = sinks.postgres(database, "t", key)
    sink.expect(KV)
    assert sink.open("job/query", "lineage", Token(Attempt(2), Run(1))).floor == -1
    query(database, f"UPDATE weir.ledger SET mode = '{'append' if key else 'upsert'}'")
    assert sink.open("job/query", "lineage", Token(Attempt(3), Run(1))).floor == 0


def test_a_batch_that_wrote_columns_which_are_not_written_now_is_below_the_floor(database: str) -> None:
    query(database, "CREATE TABLE t (k text PRIMARY KEY, v bigint)")
    one = staged(opened(sinks.postgres(database, "t", "k")), 0, kv("a", 1))
    new = opened(sinks.postgres(database, "t", "k", columns=["k"]), attempt=2)
    assert new.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT floor FROM weir.ledger") == [(0,)]


@pytest.mark.parametrize("key", [None, "k"], ids=["append", "upsert"])
def test_what_an_earlier_version_of_the_query_has_staged_is_delivered_with_its_columns(
    database: str, key: str | None
) -> None:
    query(database, "CREATE TABLE t (k text PRIMARY KEY, v int, w int DEFAULT 7, x int, weir_batch bigint)")
    old = opened(sinks.postgres(database, "t", key))
    one = staged(old, 0, kv("a", 1), kv("b", 2))
    changed = T.StructType([T.StructField("x", T.LongType()), T.StructField("k", T.StringType())])
    new = opened(sinks.postgres(database, "t", key), changed, attempt=2)
    assert new.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT k, v, w, x FROM t ORDER BY k") == [("a", 1, 7, None), ("b", 2, 7, None)]


def test_a_new_owner_takes_no_row_of_the_former_one_back(database: str) -> None:
    deliver(opened(sinks.postgres(database, "t", create=True)), 0, kv("a", 1))
    query(database, "DELETE FROM weir.ledger")
    new = sinks.postgres(database, "t")
    new.expect(KV)
    with pytest.raises(SinkMismatchError) as caught:
        new.open("other/query", "lineage", TOKEN)
    assert query(database, "SELECT * FROM weir.ledger") == [], "nothing was left behind"
    query(database, caught.value.hint.partition(": ")[2])
    new.open("other/query", "lineage", TOKEN)
    deliver(new, 0, kv("b", 2))
    assert new.rewind(BatchId(-1)) is Outcome.DONE_NOW
    assert query(database, "SELECT k, weir_batch FROM t") == [("a", None)]


# rows that are refused

CHECKED = (
    "CREATE TABLE t (k varchar(3) NOT NULL, v smallint CONSTRAINT positive CHECK (v > 0), weir_batch bigint, "
    "UNIQUE (k))"
)


@pytest.mark.parametrize(
    ("bad", "column", "value"),
    [
        (kv("long", 1), "k", '"long"'),
        (kv("c", 100_000), "v", "100000"),
        (kv(None, 1), "k", "null"),
        (kv("c", -1), "v", "-1"),
        (kv("a\0b", 1), "k", r'"a\\u0000b"'),
        (kv("a", 2), "k", '"a"'),
    ],
    ids=["too long", "out of range", "null", "check", "zero byte", "unique"],
)
def test_a_row_that_is_refused_fails_the_batch_or_goes_to_the_dead_letters(
    database: str, bad: Row, column: str, value: str
) -> None:
    query(database, CHECKED)
    good = [kv(f"x{number}", number + 1) for number in range(9)]
    rows = [kv("a", 1), *good[:5], bad, *good[5:]]
    sink = opened(sinks.postgres(database, "t"))
    with pytest.raises(RefusedRowError) as caught:
        sink.commit(staged(sink, 0, *rows))
    fields = caught.value.fields
    assert (fields["table"], fields["column"], fields["value"]) == ('"t"', column, value)
    assert "dead_letter" in caught.value.hint
    assert "x1" not in caught.value.text and '"v"' not in caught.value.text, "the row is not shown"
    assert query(database, "SELECT * FROM t") == []
    keeping = opened(sinks.postgres(database, "t", dead_letter="letters"), attempt=2)
    keeping.commit(staged(keeping, 0, *rows, attempt=2))
    assert len(query(database, "SELECT * FROM t")) == 10
    found = query(database, "SELECT query, batch, column_name, value, row->>'v' FROM letters")
    assert found == [("job/query", 0, column, value, str(bad["v"]))]
    assert query(database, "SELECT rows, refused FROM weir.delivered") == [(10, 1)]
    keeping.rewind(BatchId(-1))
    assert query(database, "SELECT * FROM letters") == []


def test_of_a_refused_row_an_error_shows_what_it_takes_to_find_it_and_the_dead_letter_all(
    database: str,
) -> None:
    query(database, "CREATE TABLE t (k text, v bigint CHECK (v > 0 AND k <> ''), weir_batch bigint)")
    secret = "secret " * 300
    row = kv(secret, -1)
    with pytest.raises(RefusedRowError) as caught:
        staged(opened(sinks.postgres(database, "t")), 0, row)
    assert len(caught.value.text) < 700
    assert caught.value.text.count("secret") < 10
    assert "violates check constraint" in caught.value.why
    sink = opened(sinks.postgres(database, "t", dead_letter="letters"), attempt=2)
    sink.commit(staged(sink, 0, row, attempt=2))
    assert query(database, "SELECT row->>'k', reason ~ 'Failing row' FROM letters") == [(secret, True)]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("array", [False, True], ids=["text", "array"])
def test_blanks_that_a_varchar_has_no_room_for_are_refused_like_all_else(
    database: str, delivery: Any, array: bool
) -> None:
    query(
        database,
        "CREATE DOMAIN three AS varchar(3); "
        f"CREATE TABLE t (k {'varchar(3)[]' if array else 'three'}, v int, weir_batch bigint)",
    )
    text = T.ArrayType(T.StringType()) if array else T.StringType()
    schema = T.StructType([T.StructField("k", text), T.StructField("v", T.LongType())])

    def row(text: str, v: int) -> Row:
        return {"k": [None, text] if array else text, "v": v}

    sink = opened(sinks.postgres(database, "t", delivery=delivery, dead_letter="letters"), schema)
    one = staged(sink, 0, row("é漢 ", 1), row("ab  ", 2), row("", 3), schema=schema)
    assert sink.commit(one) is Outcome.DONE_NOW
    found = query(database, "SELECT k, v FROM t ORDER BY v")
    assert found == [(row("é漢 ", 1)["k"], 1), (row("", 3)["k"], 3)]
    assert query(database, "SELECT reason, column_name, row->>'v' FROM letters") == [
        ("value too long for type character varying(3)", "k", "2")
    ]


@pytest.mark.parametrize(
    ("spark", "before", "after", "value"),
    [
        (T.DecimalType(10, 4), "numeric(10,4)", "numeric(10,2)", Decimal("1.2345")),
        (T.StringType(), "text", "varchar(3)", "ab  "),
        (T.TimestampType(), "timestamptz", "timestamp", datetime(2024, 3, 31, tzinfo=timezone.utc)),
        (T.DoubleType(), "float8", "float4", 0.1),
    ],
    ids=["rounded", "cut", "another zone", "precision"],
)
def test_a_column_that_is_altered_while_the_job_runs_changes_no_value(
    database: str, spark: T.DataType, before: str, after: str, value: Any
) -> None:
    query(database, f"CREATE TABLE t (x {before}, weir_batch bigint)")
    schema = T.StructType([T.StructField("x", spark)])
    sink = opened(sinks.postgres(database, "t"), schema)
    one = staged(sink, 0, {"x": value}, schema=schema)
    query(database, f"ALTER TABLE t ALTER x TYPE {after}")
    with pytest.raises(SinkMismatchError, match="would change rows") as caught:
        sink.commit(one)
    query(database, caught.value.hint.partition(";")[0])
    assert sink.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT x FROM t") == [(value,)]


def test_a_column_that_is_made_wider_while_the_job_runs_is_written_on(database: str) -> None:
    query(database, "CREATE TABLE t (k varchar(3), v int, weir_batch bigint)")
    sink = opened(sinks.postgres(database, "t"))
    one = staged(sink, 0, kv("a", 1), kv(None, None))
    query(database, "ALTER TABLE t ALTER v TYPE numeric(30, 2), ALTER k TYPE text")
    assert sink.commit(one) is Outcome.DONE_NOW
    deliver(sink, 1, kv("b", 2))
    assert query(database, "SELECT k, v FROM t ORDER BY k") == [("a", 1), ("b", 2), (None, None)]


def test_rows_that_a_trigger_keeps_out_are_not_counted_as_delivered(database: str) -> None:
    query(
        database,
        "CREATE TABLE t (k text, v bigint, weir_batch bigint); CREATE FUNCTION odd() RETURNS trigger AS "
        "'BEGIN IF NEW.v % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW; END' LANGUAGE plpgsql; "
        "CREATE TRIGGER odd BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION odd()",
    )
    deliver(opened(sinks.postgres(database, "t")), 0, *(kv("a", number) for number in range(10)))
    assert query(database, "SELECT count(*) FROM t") == [(5,)]
    assert query(database, "SELECT rows FROM weir.delivered") == [(5,)]


@pytest.mark.parametrize("key", [None, "k"], ids=["append", "upsert"])
@pytest.mark.parametrize(("bytes_", "column"), [(2_500, "k"), (10_000, "unknown")], ids=["a third", "a page"])
def test_a_text_too_long_for_its_index_is_a_refused_row(
    database: str, key: str | None, bytes_: int, column: str
) -> None:
    """More than a third of a page; more than a whole one, of which PostgreSQL does not say the index."""
    query(database, "CREATE TABLE t (k text, v bigint, weir_batch bigint); CREATE UNIQUE INDEX ON t (k)")
    long = random.Random(1).randbytes(bytes_).hex()  # does not become short by compression
    sink = opened(sinks.postgres(database, "t", key))
    with pytest.raises(RefusedRowError) as caught:
        sink.commit(staged(sink, 0, kv("a", 1), kv(long, 2), kv("b", 3)))
    assert caught.value.fields["column"] == column
    keeping = opened(sinks.postgres(database, "t", key, dead_letter="letters"), attempt=2)
    keeping.commit(staged(keeping, 0, kv("a", 1), kv(long, 2), kv("b", 3), attempt=2))
    assert query(database, "SELECT k FROM t ORDER BY k") == [("a",), ("b",)]
    assert query(database, "SELECT column_name, row->>'v' FROM letters") == [(column, "2")]


@pytest.mark.parametrize("key", [None, "k"], ids=["append", "upsert"])
def test_a_deferred_constraint_names_the_row_before_the_commit(database: str, key: str | None) -> None:
    query(
        database,
        "CREATE TABLE parents (v bigint PRIMARY KEY); INSERT INTO parents VALUES (1), (3); "
        "CREATE TABLE t (k text PRIMARY KEY, v bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED, "
        "weir_batch bigint)",
    )
    sink = opened(sinks.postgres(database, "t", key))
    with pytest.raises(RefusedRowError) as caught:
        sink.commit(staged(sink, 0, kv("a", 1), kv("b", 2), kv("c", 3)))
    assert (caught.value.fields["column"], caught.value.fields["value"]) == ("v", "2")
    keeping = opened(sinks.postgres(database, "t", key, dead_letter="letters"), attempt=2)
    keeping.commit(staged(keeping, 0, kv("a", 1), kv("b", 2), kv("c", 3), attempt=2))
    assert query(database, "SELECT k FROM t ORDER BY k") == [("a",), ("c",)]
    assert query(database, "SELECT column_name, value FROM letters") == [("v", "2")]


def test_refused_rows_that_are_staged_are_not_dropped_with_the_option(database: str) -> None:
    query(database, CHECKED)
    one = staged(opened(sinks.postgres(database, "t", dead_letter="letters")), 0, kv("a", 1), kv("b", -1))
    with pytest.raises(SinkMismatchError) as caught:
        opened(sinks.postgres(database, "t"), attempt=2).commit(one)
    assert "dead_letter" in caught.value.hint
    sink = opened(sinks.postgres(database, "t", dead_letter="letters"), attempt=3)
    assert sink.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT value FROM letters") == [("-1",)]


def test_many_refused_rows_are_each_found(database: str) -> None:
    query(database, CHECKED)
    sink = opened(sinks.postgres(database, "t", dead_letter="letters"))
    rows = [kv(f"{number:03}", -number if number % 7 == 0 else 1) for number in range(100)]
    deliver(sink, 0, *rows)
    assert len(query(database, "SELECT * FROM t")) == 85
    bad = query(database, "SELECT (row->>'v')::int FROM letters ORDER BY 1 DESC")
    assert [value for (value,) in bad] == [-number for number in range(0, 100, 7)]


def test_a_refused_row_among_many_batches_and_chunks_costs_no_other_row(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "CHUNK_ROWS", 10)
    query(database, CHECKED.replace(", UNIQUE (k)", ""))
    sink = opened(sinks.postgres(database, "t", dead_letter="letters"))
    rows = [kv("a", -1 if number in (0, 17, 29, 30, 99) else number) for number in range(1, 100)]
    deliver(sink, 0, *rows)
    found = [value for (value,) in query(database, "SELECT v FROM t ORDER BY v")]
    assert found == [number for number in range(1, 100) if number not in (17, 29, 30, 99)]
    assert len(query(database, "SELECT * FROM letters")) == 4


# what goes wrong outside


def no_secret(text: str) -> None:
    assert PASSWORD not in text and PASSWORD.replace("#", "%23") not in text


def test_the_password_is_in_no_text(database: str, postgres: PostgresServer) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    no_secret(sink.describe() + repr(sink) + repr(Address.parse(database)) + str(vars(sink)))
    wrong = postgres.url(password="Sesame#2")
    with pytest.raises(LoginRefusedError) as refused:
        opened(sinks.postgres(wrong, "t"))
    assert "Sesame" not in refused.value.text
    assert not refused.value.retry
    with pytest.raises(LoginRefusedError):
        opened(sinks.postgres(postgres.url("missing"), "t"))
    for broken in (
        "postgresql://u:p@Sesame#1@host:x/x",
        "postgresql://u:Se/same#1@h/db",
        "user=u password='Sesame",
    ):
        with pytest.raises(SinkMismatchError) as unreadable:
            sinks.postgres(broken, "t")
        assert "Se" not in unreadable.value.text
        assert unreadable.value.__cause__ is unreadable.value.__context__ is None


def test_a_database_that_is_down_is_an_error_that_a_retry_mends(postgres: PostgresServer) -> None:
    with pytest.raises(DatabaseError) as caught:
        opened(sinks.postgres(postgres.url(port=1), "t"))
    assert caught.value.retry
    no_secret(caught.value.text)


def test_a_server_that_vanishes_is_noticed_and_the_url_may_say_how_soon(database: str) -> None:
    for extra, idle, timeout in (("", 10, 60_000), ("?keepalives_idle=7&tcp_user_timeout=9000", 7, 9_000)):
        with (
            connect(Address.parse(database + extra), "look") as connection,
            socket.socket(fileno=os.dup(connection.fileno())) as opened_socket,
        ):
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            found = {one: opened_socket.getsockopt(socket.IPPROTO_TCP, one) for one in options}
        assert found == {
            socket.TCP_KEEPIDLE: idle,
            socket.TCP_KEEPCNT: 3,
            socket.TCP_USER_TIMEOUT: timeout,
        }


def test_a_lock_that_is_never_released_is_an_error_that_a_retry_mends(database: str) -> None:
    with Database(Address.parse(database)).transaction("look") as connection:
        assert connection.execute("SHOW lock_timeout").fetchone() == ("5min",)
    url = f"{database}?options=-c%20lock_timeout%3D300ms"
    sink = opened(sinks.postgres(url, "t", create=True))
    one = staged(sink, 0, kv("a", 1))
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE t IN SHARE MODE")
        with pytest.raises(DatabaseError, match="lock timeout") as caught:
            sink.commit(one)
    assert caught.value.retry
    assert sink.commit(one) is Outcome.DONE_NOW


def test_an_error_of_the_table_names_the_query(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    one = staged(sink, 0, kv("a", 1))
    query(database, "ALTER TABLE t DROP COLUMN v")
    with pytest.raises(SinkMismatchError) as caught:
        sink.commit(one)
    assert caught.value.what.startswith("the sink of query 'query' can't be used")


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    made = CuttingProxy(postgres.port)
    yield made
    made.close()


@pytest.mark.parametrize("upsert", [False, True], ids=["append", "upsert"])
@pytest.mark.parametrize("heard", [False, True], ids=["lost", "heard"])
def test_a_commit_whose_answer_is_lost_is_decided_by_the_ledger(
    database: str, proxy: CuttingProxy, upsert: bool, heard: bool
) -> None:
    through = database.rpartition("@")[0] + f"@127.0.0.1:{proxy.port}/" + database.rpartition("/")[2]
    sink = opened(sinks.postgres(through, "t", "k" if upsert else None, create=True))
    one = staged(sink, 0, kv("a", 1), kv("b", 2))
    proxy.cut_at(b"COMMIT", heard=heard)
    assert sink.commit(one) is Outcome.UNKNOWN
    assert proxy.cuts == 1
    assert len(query(database, "SELECT * FROM t")) == (2 if heard else 0)
    assert sink.commit(one) is (Outcome.ALREADY_DONE if heard else Outcome.DONE_NOW)
    assert [row[:2] for row in query(database, "SELECT * FROM t ORDER BY k")] == [("a", 1), ("b", 2)]


def test_a_connection_that_breaks_while_rows_are_copied_leaves_nothing_that_counts(
    database: str, proxy: CuttingProxy
) -> None:
    through = database.rpartition("@")[0] + f"@127.0.0.1:{proxy.port}/" + database.rpartition("/")[2]
    sink = opened(sinks.postgres(through, "t", create=True))
    proxy.cut_at(b"the word", heard=False)
    with pytest.raises(DatabaseError):
        staged(sink, 0, kv("a", 1), kv("b", 2), kv("the word", 3))
    deliver(sink, 0, kv("a", 1))
    assert query(database, "SELECT k, v FROM t") == [("a", 1)]


def test_what_is_staged_outlives_a_crash_of_the_server(database: str, postgres: PostgresServer) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    one = staged(sink, 0, kv("a", 1))
    postgres.kill()
    with pytest.raises(DatabaseError):
        sink.commit(one)
    postgres.start()
    assert sink.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT k, v FROM t") == [("a", 1)]


@pytest.fixture(scope="module")
def lazy() -> Iterator[PostgresServer]:
    """A server that writes only what a commit waits for; and by default none does."""
    bin = binaries()
    if bin is None:
        missing("there is no PostgreSQL on this machine")
    server = PostgresServer(bin, wal_writer_delay="10s", synchronous_commit="off")
    yield server
    server.close()


@pytest.mark.parametrize("recorded", [False, True], ids=["in front of the record", "behind the record"])
def test_no_setting_of_the_server_loses_what_is_staged(lazy: PostgresServer, recorded: bool) -> None:
    url, table = lazy.url(), f"t{recorded:d}"
    query(url, f"CREATE TABLE {table} (k text, v bigint, weir_batch bigint)")
    sink = opened(sinks.postgres(url, table))
    one = Staged(BatchId(0), TOKEN)
    sink.stage(LocalFrame(KV, [[kv("a", 1)], [kv("b", 2)]]), one.batch, one.token)  # type: ignore[arg-type]
    if recorded:
        sink.record(one)
    lazy.kill()
    lazy.start()
    if not recorded:
        sink.record(one)
    assert sink.commit(one) is Outcome.DONE_NOW
    lazy.kill()
    lazy.start()
    assert query(url, f"SELECT k, v FROM {table} ORDER BY k") == [("a", 1), ("b", 2)]


def test_a_user_without_rights_of_its_own_can_make_rows_durable(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE ROLE nobody_special; SET LOCAL ROLE nobody_special")
        connection.execute("SELECT pg_logical_emit_message(true, 'weir', '')")
        connection.rollback()


def test_what_waits_for_more_than_the_disk_goes_on_doing_so(database: str) -> None:
    for given, used in (("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")):
        address = Address.parse(f"{database}?options=-c%20synchronous_commit%3D{given}")
        with Database(address).transaction("look") as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == (used,)


def test_a_driver_that_is_frozen_in_a_commit_does_not_hold_its_successor_for_ever(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opened(sinks.postgres(database, "t", create=True))
    one = staged(old, 0, kv("a", 1))
    inside, let_go = threading.Event(), threading.Event()
    move = old._move

    def freeze(*args: Any) -> Moved:
        moved = move(*args)
        args[0].execute("SET LOCAL idle_in_transaction_session_timeout = '1s'")
        inside.set()
        let_go.wait(60)
        return moved

    monkeypatch.setattr(old, "_move", freeze)
    outcome: list[object] = []

    def commit() -> None:
        try:
            outcome.append(old.commit(one))
        except Exception as error:
            outcome.append(error)

    zombie = threading.Thread(target=commit)
    zombie.start()
    assert inside.wait(30)
    new = opened(sinks.postgres(database, "t"), attempt=2)
    let_go.set()
    zombie.join(30)
    assert isinstance(outcome[0], DatabaseError)
    assert query(database, "SELECT * FROM t") == []
    with pytest.raises(FencedError):
        old.commit(one)
    assert new.commit(one) is Outcome.DONE_NOW
    with Database(Address.parse(database)).transaction("look") as connection:
        asked = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert asked == (SETTINGS["idle_in_transaction_session_timeout"],)


def test_a_table_and_its_ledger_are_in_one_transaction(database: str) -> None:
    """A reader that sees a batch in the ledger sees its rows, and the other way round."""
    sink = opened(sinks.postgres(database, "t", create=True))
    stop, wrong = threading.Event(), []

    def read() -> None:
        with psycopg.connect(database) as connection:
            while not stop.is_set():
                text = "SELECT (SELECT last FROM weir.ledger), (SELECT coalesce(max(weir_batch), -1) FROM t)"
                found = connection.execute(text).fetchone()
                connection.rollback()
                if found is None or found[0] != found[1]:
                    wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    for batch in range(10):
        deliver(sink, batch, kv("a", batch))
    stop.set()
    reader.join()
    assert not wrong


def test_a_staging_that_a_stray_task_still_writes_to_does_not_hold_up_the_commit(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    one = staged(sink, 0, kv("a", 1))
    with psycopg.connect(database) as stray:
        stray.execute('INSERT INTO weir.s1_0_1_1 ("weir:task", k) VALUES (7, $$stray$$)')
        assert sink.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT k FROM t") == [("a",)]
    after = opened(sinks.postgres(database, "t"), attempt=2)
    after.discard(BatchId(0), [])
    assert query(database, "SELECT to_regclass('weir.s1_0_1_1')") == [(None,)]


def test_a_table_that_is_new_may_begin_with_a_later_batch_and_has_no_holes_behind_it(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    deliver(sink, 5, kv("a", 1))
    with pytest.raises(FencedError):
        sink.commit(staged(sink, 7, kv("c", 3)))
    deliver(sink, 6, kv("b", 2))
    assert query(database, "SELECT k, weir_batch FROM t ORDER BY k") == [("a", 5), ("b", 6)]


def test_times_are_those_of_the_frame_whatever_the_zones(database: str) -> None:
    schema = T.StructType([T.StructField("at", T.TimestampType())])
    moment = datetime(2024, 10, 27, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    sink = opened(
        sinks.postgres(f"{database}?options=-c%20timezone%3DAmerica/New_York", "t", create=True), schema
    )
    deliver(sink, 0, {"at": moment}, schema=schema)
    assert query(database, "SELECT at FROM t") == [(moment,)]
