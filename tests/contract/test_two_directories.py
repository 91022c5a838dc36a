"""Two directories of one job write into one sink: one goes on, the other is refused before it writes.

They come from one savepoint, or one is a copy of the other. Files and Kafka are played, PostgreSQL is real.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from tests.contract.test_together import PlayedBroker
from tests.local_frame import LocalFrame
from tests.played_files import PlayedFiles
from weir import sinks
from weir.clock import ManualClock
from weir.errors import FencedError, LedgerWentBackError, SinkTakenError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token, job_name
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import Outcome, StagingSink
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_records import KafkaColumns
from weir.sinks.postgres.sink import PostgresSink
from weir.storage.attempts import AttemptLock, KnownAttempts
from weir.storage.local import LocalStore
from weir.storage.object_store import ObjectStore

JOB = job_name("job")
SCHEMA = T.StructType([T.StructField("value", T.IntegerType())])


class Directory:
    """One directory of the job, under a supervisor of its own."""

    def __init__(self, session: str, attempts: ObjectStore | None = None) -> None:
        self.session = session
        self.attempts = attempts or ObjectStore("memory://")

    def copied(self, session: str) -> Directory:
        attempts = ObjectStore("memory://")
        for key in self.attempts.list(""):
            attempts.put(key, self.attempts.get(key) or b"")
        return Directory(session, attempts)

    def attempt(self, above: int = 0) -> Token:
        lock = AttemptLock(self.attempts, JOB, ManualClock())
        return Token(lock.acquire(self.session, 0.0, lambda *_: None, above), Run(1), self.session)

    def start(self, sink: StagingSink, above: int = 0) -> tuple[Token, Ledger]:
        token = self.attempt(above)
        return token, sink.open("job/query", "lineage", token, KnownAttempts(self.attempts, JOB))


@pytest.fixture(params=["files", "kafka", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StagingSink]:
    """Makes sinks on one target."""
    if request.param == "files":
        store = ObjectStore("memory://")
        return lambda: PlayedFiles(store)
    if request.param == "kafka":
        broker, folder = PlayedBroker(), LocalStore(tmp_path)
        return lambda: KafkaSink("topic", KafkaColumns(None, "value", None), broker, folder)
    url = request.getfixturevalue("database")
    return lambda: table(url)


def table(database: str) -> PostgresSink:
    sink = sinks.postgres(database, "out", create=True)
    sink.expect(SCHEMA)
    return sink


def deliver(sink: StagingSink, batch: int, token: Token) -> Outcome:
    staged = Staged(BatchId(batch), token)
    if isinstance(sink, PlayedFiles):
        sink.write(staged, 1)
    elif isinstance(sink, PostgresSink):
        frame: Any = LocalFrame(SCHEMA, [[{"value": batch}]])
        sink.stage(frame, staged.batch, token)
    sink.record(staged)
    return sink.commit(staged)


def test_of_two_restores_of_one_savepoint_the_second_is_refused(make: Callable[[], StagingSink]) -> None:
    saved, sink = Directory("original"), make()
    token, _ = saved.start(sink)
    deliver(sink, 0, token)
    one, two = Directory("one"), Directory("two")
    here = make()
    token, found = one.start(here, above=1)
    assert token.attempt == 2 and found.last == 0
    deliver(here, 1, token)
    for _ in range(3):  # whatever its number is by then
        with pytest.raises(SinkTakenError, match="--take-over 2"):
            two.start(make(), above=1)
    assert deliver(here, 2, token) is Outcome.DONE_NOW
    taken, found = two.start(make(), above=1002)
    assert taken.attempt > 1002 and found.last == 2, "the user has said that the other is over"
    with pytest.raises(FencedError):
        deliver(here, 3, token)
    with pytest.raises(SinkTakenError):
        one.start(make())


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_directory_whose_copy_has_the_sink_is_refused_however_often_it_starts(
    make: Callable[[], StagingSink], restarts: int
) -> None:
    original, sink = Directory("original"), make()
    token, _ = original.start(sink)
    deliver(sink, 0, token)
    copy, there = original.copied("copy"), make()
    new, _ = copy.start(there)
    with pytest.raises(FencedError):
        deliver(sink, 1, token)
    for _ in range(restarts):  # drivers that die before they come to the sink
        original.attempt()
    with pytest.raises(SinkTakenError):
        original.start(make())
    assert deliver(there, 1, new) is Outcome.DONE_NOW
    assert copy.start(make())[1].last == 1


def test_a_copy_is_refused_when_the_original_has_started_again(make: Callable[[], StagingSink]) -> None:
    original = Directory("original")
    original.start(make())
    copy = original.copied("copy")
    sink = make()
    token, _ = original.start(sink)
    with pytest.raises(SinkTakenError):
        copy.start(make())
    assert deliver(sink, 0, token) is Outcome.DONE_NOW


def test_a_fence_of_an_earlier_weir_is_of_anybody(make: Callable[[], StagingSink]) -> None:
    sink = make()
    sink.open("job/query", "lineage", Token(Attempt(1), Run(1)))
    deliver(sink, 0, Token(Attempt(1), Run(1)))
    assert Directory("new").start(make(), above=1)[1].last == 0


def announce(database: str, token: Token, session: str | None = None) -> None:
    """The fence of another version: of one without sessions, or of the first one that had them."""
    import psycopg

    stored = "" if session is None else f", session = '{session}'"
    with psycopg.connect(database) as connection:
        connection.execute(
            f"UPDATE weir.ledger SET attempt = {token.attempt}, run = {token.run}{stored}".encode()
        )


def test_a_session_that_an_earlier_version_left_in_the_ledger_is_of_an_older_fence(database: str) -> None:
    """An upgrade, a downgrade and an upgrade: the earlier version announces itself by its numbers alone."""
    here, sink = Directory("here"), table(database)
    deliver(sink, 0, here.start(sink)[0])
    here.session = "earlier"
    announce(database, here.attempt())
    here.session = "again"
    sink = table(database)
    token, found = here.start(sink)
    assert found.last == 0
    assert deliver(sink, 1, token) is Outcome.DONE_NOW
    with pytest.raises(SinkTakenError):
        Directory("elsewhere").start(table(database))


def test_a_session_that_was_stored_without_numbers_still_counts(database: str) -> None:
    here, sink = Directory("here"), table(database)
    token, _ = here.start(sink)
    announce(database, token, token.session)
    assert deliver(sink, 0, token) is Outcome.DONE_NOW
    with pytest.raises(SinkTakenError):
        Directory("elsewhere").start(table(database))
    assert here.start(table(database))[1].last == 0


def test_files_that_were_put_back_under_a_running_job_are_an_error() -> None:
    store = ObjectStore("memory://")
    sink = PlayedFiles(store)
    token, _ = Directory("here").start(sink)
    deliver(sink, 0, token)
    newest = max(store.list("_weir/log"))
    deliver(sink, 1, token)
    for key in list(store.list("_weir/log")):
        if key > newest:
            store.delete(key)
    with pytest.raises(LedgerWentBackError, match="ends with batch 0"):
        deliver(sink, 2, token)


def test_a_table_whose_ledger_went_back_under_a_running_job_is_an_error(database: str) -> None:
    """Also to the state before its first batch, in which any batch may be the first."""
    import psycopg

    sink = table(database)
    token, _ = Directory("here").start(sink)
    deliver(sink, 0, token)
    deliver(sink, 1, token)
    with psycopg.connect(database) as connection:
        connection.execute(f"UPDATE weir.ledger SET last = {NO_BATCH}".encode())
    with pytest.raises(LedgerWentBackError, match="ends with batch -1"):
        deliver(sink, 2, token)
