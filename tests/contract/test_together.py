"""`sink.commit: checkpoint`: the tables of one database are seen in one step, others say what they show."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pyspark.sql import types as T

from tests.cutting_proxy import CuttingProxy
from tests.local_frame import LocalFrame
from tests.played_files import PlayedFiles
from tests.postgres_server import PostgresServer
from weir import sinks
from weir.clock import Clock
from weir.errors import FencedError
from weir.ids import Attempt, BatchId, CheckpointId, QueryName, Run, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import Outcome, StagingSink
from weir.sinks.files_ledger import ABOUT
from weir.sinks.held_commit import HeldCommitter, Permit, Together
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_broker import KafkaEntry, KafkaRecord
from weir.sinks.kafka_records import KafkaColumns
from weir.sinks.postgres.sink import PostgresSink
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.attempts import Lease
from weir.storage.local import LocalStore

SCHEMA = T.StructType([T.StructField("value", T.LongType())])
NAMES = (QueryName("left"), QueryName("right"))


class Decided:
    """Files of a query whose every batch Spark has committed, without state."""

    def committed(self, batch: BatchId) -> bool:
        return True

    def committed_state(self, batch: BatchId) -> frozenset[str]:
        return frozenset()


class Job:
    """Two queries with a table each, in one database."""

    def __init__(self, url: str, attempt: int = 1) -> None:
        self.url = url
        self.token = Token(Attempt(attempt), Run(1))
        self.errors: list[tuple[str, Exception]] = []
        self.together = Together(
            Lease(Attempt(attempt), 1000, Clock()), lambda name, error: self.errors.append((name, error))
        )
        self.sinks: dict[QueryName, PostgresSink] = {}
        self.held: dict[QueryName, HeldCommitter] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: QueryName, run: int = 1) -> None:
        sink = sinks.postgres(self.url, name, "value" if name == "right" else None, create=True)
        sink.expect(SCHEMA)
        ledger = sink.open(f"job/{name}", "lineage", Token(self.token.attempt, Run(run)))
        held = held_by(sink, ledger)
        self.sinks[name], self.held[name] = sink, held
        self.together.add(name, held)

    def batch(self, name: QueryName, number: int, *values: int) -> None:
        one = Staged(BatchId(number), self.token)
        frame = LocalFrame(SCHEMA, [[{"value": value} for value in values]])
        self.sinks[name].stage(frame, one.batch, one.token)  # type: ignore[arg-type]
        self.sinks[name].record(one)
        self.held[name].submit(one)

    def checkpoint(self, id: int, left: int, right: int) -> None:
        cuts = dict(zip(NAMES, (BatchId(left), BatchId(right)), strict=True))
        self.together.permit(Permit(CheckpointId(id), cuts, {}))
        assert self.together.settle(60)


def held_by(sink: StagingSink, ledger: Ledger) -> HeldCommitter:
    """As a start makes it, for which Spark has decided for everything that is staged."""
    staged = sink.staged()
    last = max([ledger.last, *(one.batch for one in staged)])
    return HeldCommitter(sink, cast(QueryFiles, Decided()), staged, last)


def seen(connection: psycopg.Connection[Any]) -> list[Any]:
    """Both tables in one snapshot, and the checkpoints that their ledgers name."""
    found = connection.execute(
        'SELECT (SELECT count(*) FROM "left"), (SELECT count(*) FROM "right"), '
        "(SELECT array_agg(DISTINCT coalesce(checkpoint, 0)) FROM weir.ledger)"
    ).fetchone()
    connection.rollback()
    return list(found or ())


@pytest.fixture
def job(database: str) -> Job:
    return Job(database)


def test_a_reader_never_sees_one_table_ahead_of_the_other(job: Job) -> None:
    stop, wrong, views = threading.Event(), [], set()

    def read() -> None:
        with psycopg.connect(job.url) as connection:
            while not stop.is_set():
                left, right, checkpoints = seen(connection)
                views.add(left)
                if left != right or len(checkpoints) != 1:
                    wrong.append((left, right, checkpoints))

    reader = threading.Thread(target=read)
    reader.start()
    for round in range(8):  # the left one in two batches, the right one in one
        job.batch(NAMES[0], 2 * round, 10 * round, 10 * round + 1)
        job.batch(NAMES[0], 2 * round + 1, 10 * round + 2)
        job.batch(NAMES[1], round, *(10 * round + i for i in range(3)))
        job.checkpoint(round + 1, 2 * round + 1, round)
    stop.set()
    reader.join()
    assert not wrong
    assert not job.errors
    assert not job.together.undelivered()
    with psycopg.connect(job.url) as connection:
        assert seen(connection) == [24, 24, [8]]


def test_what_is_behind_the_cut_waits_for_the_next_checkpoint_and_outlives_the_driver(job: Job) -> None:
    for batch in range(3):
        job.batch(NAMES[0], batch, batch)
        job.batch(NAMES[1], batch, batch)
    job.checkpoint(1, 0, 1)
    with psycopg.connect(job.url) as connection:
        assert seen(connection)[:2] == [1, 2]
        job.together.stop()
        after = Job(job.url, attempt=2)
        assert after.together.undelivered()
        after.checkpoint(1, 0, 1)
        assert seen(connection)[:2] == [1, 2]
        after.checkpoint(2, 2, 2)
        assert seen(connection)[:2] == [3, 3]
        assert not after.together.undelivered()


def test_when_one_is_fenced_none_is_committed(job: Job) -> None:
    job.batch(NAMES[0], 0, 1)
    job.batch(NAMES[1], 0, 1)
    Job(job.url, attempt=2)
    job.checkpoint(1, 0, 0)
    assert sorted(name for name, _ in job.errors) == ["left", "right"]
    assert all(isinstance(error, FencedError) for _, error in job.errors)
    with psycopg.connect(job.url) as connection:
        assert seen(connection)[:2] == [0, 0]


def test_a_query_that_is_down_holds_the_others_of_its_database_until_it_runs_again(job: Job) -> None:
    job.batch(NAMES[0], 0, 1)
    job.batch(NAMES[1], 0, 1)
    job.held[NAMES[0]].close()
    job.checkpoint(1, 0, 0)
    with psycopg.connect(job.url) as connection:
        assert seen(connection)[:2] == [0, 0]
        job.start(NAMES[0], run=2)
        job.checkpoint(1, 0, 0)
        assert seen(connection)[:2] == [1, 1]
    assert not job.errors


def test_a_lost_answer_is_asked_for_again(postgres: PostgresServer, database: str) -> None:
    proxy = CuttingProxy(postgres.port)
    through = database.rpartition("@")[0] + f"@127.0.0.1:{proxy.port}/" + database.rpartition("/")[2]
    job = Job(through)
    job.batch(NAMES[0], 0, 1)
    job.batch(NAMES[1], 0, 1, 2)
    proxy.cut_at(b"COMMIT", heard=True)
    job.checkpoint(1, 0, 0)
    assert proxy.cuts == 1 and not job.errors
    proxy.close()
    with psycopg.connect(database) as connection:
        assert seen(connection) == [1, 2, [1]]


class PlayedBroker:
    """A topic of which only the ledger is kept."""

    def __init__(self, ledger_topic: str = "topic.weir-ledger") -> None:
        self.ledger_topic = ledger_topic
        self.ledger: list[KafkaEntry] = []

    def prepare(self) -> None: ...
    def fence(self) -> None: ...
    def entries(self, newest: bool) -> Sequence[KafkaEntry]:
        return self.ledger

    def send(self, records: Iterable[KafkaRecord], entry: KafkaEntry) -> None:
        self.ledger.append(entry)

    def said(self) -> list[tuple[int, int | None]]:
        """Each entry's newest batch, and its checkpoint."""
        states = [json.loads(entry.state) for entry in self.ledger]
        return [(state["last"], state.get("checkpoint")) for state in states]


class Alone:
    """One query, with a sink of no group, without Spark."""

    def __init__(self, sink: StagingSink) -> None:
        self.sink = sink
        self.errors: list[Exception] = []
        self.together = Together(Lease(Attempt(1), 1000, Clock()), lambda _, error: self.errors.append(error))
        self.token = Token(Attempt(0), Run(0))
        self.start(1)

    def start(self, attempt: int) -> None:
        self.token = Token(Attempt(attempt), Run(1))
        self.held = held_by(self.sink, self.sink.open("job/left", "lineage", self.token))
        self.together.add(NAMES[0], self.held)

    def batches(self, *numbers: int) -> None:
        for number in numbers:
            one = Staged(BatchId(number), self.token)
            if isinstance(self.sink, PlayedFiles):
                self.sink.write(one, 1)
            self.sink.record(one)
            self.held.submit(one)

    def checkpoint(self, id: int, cut: int) -> None:
        self.together.permit(Permit(CheckpointId(id), {NAMES[0]: BatchId(cut)}, {}))
        assert self.together.settle(60)
        assert not self.errors


def test_files_say_which_checkpoint_their_readers_see(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(ABOUT, b"{}")
    job = Alone(PlayedFiles(store))

    def seen() -> tuple[int, int | None]:
        found = sinks.read_files(str(tmp_path))
        return len(found.files), found.checkpoint

    assert seen() == (0, None)
    job.batches(0, 1, 2)
    job.checkpoint(1, 1)
    assert seen() == (2, 1)
    job.checkpoint(2, 2)
    job.checkpoint(3, 2)  # with nothing new
    assert seen() == (3, 2)
    job.batches(3, 4)
    views = []
    commit = job.sink.commit

    def commit_and_look(staged: Staged) -> Outcome:
        outcome = commit(staged)
        views.append(seen())
        return outcome

    job.sink.commit = commit_and_look  # type: ignore[method-assign]
    job.checkpoint(4, 4)
    assert views == [(4, None)], "between two checkpoints it is neither of them"
    assert seen() == (5, 4)
    job.sink.rewind(BatchId(1))
    assert seen() == (2, 1)


def test_a_crash_between_the_batches_of_a_checkpoint_leaves_its_name_to_the_last_of_them(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    store.put(ABOUT, b"{}")
    job = Alone(PlayedFiles(store))
    job.batches(0, 1)
    job.sink.commit(Staged(BatchId(0), job.token))
    assert sinks.read_files(str(tmp_path)).checkpoint is None
    job.start(2)
    job.checkpoint(1, 1)
    assert sinks.read_files(str(tmp_path)).checkpoint == 1


def test_the_ledger_of_a_topic_says_which_checkpoint_was_sent(tmp_path: Path) -> None:
    broker = PlayedBroker()
    job = Alone(KafkaSink("topic", KafkaColumns(None, "value", None), broker, LocalStore(tmp_path)))
    job.batches(0, 1, 2)
    job.checkpoint(1, 1)
    assert broker.said() == [(-1, None), (0, None), (1, 1)]
    job.start(2)
    assert broker.said()[-1] == (1, 1), "the newest entry tells the whole state"
    job.checkpoint(2, 2)
    assert broker.said()[-1] == (2, 2)
    job.sink.rewind(BatchId(1))
    assert broker.said()[-1] == (1, None), "what was sent stays sent"


def test_the_ledger_of_a_topic_of_before_there_were_checkpoints_in_it_is_read(tmp_path: Path) -> None:
    broker = PlayedBroker()
    old = {"owner": "job/left", "lineage": "lineage", "attempt": 1, "run": 1, "last": 4, "records": 9}
    broker.ledger.append(KafkaEntry(b"4", json.dumps(old).encode()))
    Alone(KafkaSink("topic", KafkaColumns(None, "value", None), broker, LocalStore(tmp_path)))
    assert broker.said() == [(4, None), (4, None)]
