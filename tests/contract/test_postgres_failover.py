"""What a PostgreSQL server may lose that had confirmed it: a standby without it takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.test_postgres import KV, TOKEN, Row, kv, opened, query, staged
from tests.local_frame import LocalFrame
from tests.needed import missing
from tests.postgres_server import PostgresServer, binaries
from weir import sinks
from weir.errors import DatabaseError, LostStagingError, SinkMismatchError
from weir.ids import BatchId
from weir.protocol.ledger import Staged
from weir.sinks import Outcome
from weir.sinks.postgres import task as copying
from weir.sinks.postgres.sink import PostgresSink

ZERO = Staged(BatchId(0), TOKEN)
ROWS = [kv(f"{number:02}", number) for number in range(12)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    bin = binaries()
    if bin is None:
        missing("there is no PostgreSQL on this machine")
    made = PostgresServer(bin)
    yield made
    made.close()


@pytest.fixture
def empty(server: PostgresServer) -> str:
    """The url of a database without tables."""
    query(
        server.url(), "DROP SCHEMA IF EXISTS weir CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    )
    return server.url()


def stage(sink: PostgresSink, *rows: Row) -> None:
    sink.stage(LocalFrame(KV, [rows]), ZERO.batch, ZERO.token)  # type: ignore[arg-type]


def copies_after_chunk(monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[], Any]) -> None:
    """Chunks of a few rows, and something that happens when this one is committed."""
    monkeypatch.setattr(copying, "CHUNK_ROWS", 6)
    copy, done = copying.Task._copy_chunk, iter(range(1, 1_000))

    def counted(self: copying.Task, batches: Any) -> None:
        copy(self, batches)
        if next(done) == number:
            then()

    monkeypatch.setattr(copying.Task, "_copy_chunk", counted)


@pytest.mark.parametrize("how", ["append", "upsert", "at least once"])
def test_a_standby_that_lacks_rows_of_a_staging_gets_no_record_of_it(
    server: PostgresServer, empty: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options: dict[str, Any] = {"key": "k"} if how == "upsert" else {}
    options |= {"delivery": "at_least_once"} if how == "at least once" else {}
    sink = opened(sinks.postgres(empty, "t", create=True, **options))
    copies_after_chunk(monkeypatch, 1, server.copy)
    stage(sink, *ROWS)
    server.fail_over()
    with pytest.raises(DatabaseError, match="6 of the 12 rows") as caught:
        sink.record(ZERO)
    assert caught.value.retry
    assert query(empty, "SELECT * FROM weir.staged") == []
    again = opened(sinks.postgres(empty, "t", **options), attempt=2)
    assert again.commit(staged(again, 0, *ROWS, attempt=2)) is Outcome.DONE_NOW
    assert {k for (k,) in query(empty, "SELECT k FROM t")} == {row["k"] for row in ROWS}


def test_a_standby_that_lacks_refused_rows_gets_no_record_of_the_staging(
    server: PostgresServer, empty: str
) -> None:
    query(empty, "CREATE TABLE t (k text, v smallint CHECK (v >= 0), weir_batch bigint)")
    sink = opened(sinks.postgres(empty, "t", dead_letter="letters"))
    stage(sink, kv("a", 1), kv("b", -1))
    query(empty, "DELETE FROM weir.refused")
    server.copy()
    server.fail_over()
    with pytest.raises(DatabaseError, match="0 of the 1 refused rows"):
        sink.record(ZERO)


def test_a_task_that_a_pooler_carries_over_a_failover_does_not_count(
    server: PostgresServer, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler keeps the client's connection: the task copies on, to a server without its first rows."""
    sink = opened(sinks.postgres(empty, "t", create=True))
    copy = copying.Task._copy_chunk

    def carried(self: copying.Task, batches: Any) -> None:
        if not self.rows:
            server.copy()
        else:
            server.fail_over()
            assert self._connection is not None
            self._connection.close()
            self._connection = None
        copy(self, batches)

    monkeypatch.setattr(copying, "CHUNK_ROWS", 6)
    monkeypatch.setattr(copying.Task, "_copy_chunk", carried)
    stage(sink, *ROWS)
    with pytest.raises(DatabaseError, match="6 of the 12 rows"):
        sink.record(ZERO)


@pytest.mark.parametrize("key", [None, "k"], ids=["append", "upsert"])
def test_a_recorded_staging_that_lost_rows_is_not_delivered_in_part(database: str, key: str | None) -> None:
    sink = opened(sinks.postgres(database, "t", key, create=True))
    one = staged(sink, 0, *ROWS)
    query(database, "DELETE FROM weir.s1_0_1_1 WHERE v < 6")
    with pytest.raises(LostStagingError):
        sink.commit(one)
    assert query(database, "SELECT * FROM t") == []


@pytest.mark.parametrize("key", [None, "k"], ids=["append", "upsert"])
def test_a_recorded_staging_whose_table_is_gone_is_lost(database: str, key: str | None) -> None:
    sink = opened(sinks.postgres(database, "t", key, create=True))
    one = staged(sink, 0, *ROWS)
    query(database, "DROP TABLE weir.s1_0_1_1")
    with pytest.raises(LostStagingError):
        sink.commit(one)


@pytest.mark.parametrize("gone", ["TABLE weir.s1_0_1_1", "SCHEMA weir CASCADE"])
def test_a_staging_table_that_goes_while_it_is_filled_is_mended_by_a_retry(
    database: str, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    copies_after_chunk(monkeypatch, 1, lambda: query(database, f"DROP {gone}"))
    with pytest.raises(DatabaseError) as caught:
        stage(sink, *ROWS)
    assert caught.value.retry
    assert "a standby without it may have taken over" in caught.value.why


@pytest.mark.parametrize("gone", ["TABLE weir.s1_0_1_1", "SCHEMA weir CASCADE"])
def test_a_staging_table_that_is_gone_before_its_record_is_mended_by_a_retry(
    database: str, gone: str
) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    stage(sink, *ROWS)
    query(database, f"DROP {gone}")
    with pytest.raises(DatabaseError):
        sink.record(ZERO)
    again = opened(sinks.postgres(database, "t"), attempt=2)
    assert again.commit(staged(again, 0, *ROWS, attempt=2)) is Outcome.DONE_NOW


def test_a_table_of_the_user_that_is_gone_is_for_the_user_to_mend(database: str) -> None:
    sink = opened(sinks.postgres(database, "t", create=True))
    one = staged(sink, 0, *ROWS)
    query(database, "DROP TABLE t")
    with pytest.raises(SinkMismatchError, match="'query'") as caught:
        sink.commit(one)
    assert not caught.value.retry


def test_what_is_staged_is_delivered_after_the_delivery_was_changed(database: str) -> None:
    exact = opened(sinks.postgres(database, "t", create=True))
    one = staged(exact, 0, kv("a", 1))
    at_once = opened(sinks.postgres(database, "t", delivery="at_least_once"), attempt=2)
    assert at_once.commit(one) is Outcome.DONE_NOW
    two = staged(at_once, 1, kv("b", 2), attempt=2)
    exact = opened(sinks.postgres(database, "t"), attempt=3)
    assert exact.commit(two) is Outcome.DONE_NOW
    assert query(database, "SELECT k, weir_batch FROM t ORDER BY k") == [("a", 0), ("b", 1)]
    assert query(database, "SELECT relname FROM pg_class WHERE relname ~ '^s[0-9]+_[0-9]'") == []


def test_a_record_at_least_once_of_an_earlier_version_is_still_delivered(database: str) -> None:
    """It kept no table of what its tasks had copied."""
    sink = opened(sinks.postgres(database, "t", create=True, delivery="at_least_once"))
    one = staged(sink, 0, kv("a", 1))
    query(database, "DROP TABLE IF EXISTS weir.s1_0_1_1")
    again = opened(sinks.postgres(database, "t", delivery="at_least_once"), attempt=2)
    assert again.commit(one) is Outcome.DONE_NOW
    assert query(database, "SELECT rows FROM weir.delivered") == [(1,)]
