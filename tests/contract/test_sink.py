"""One suite for every exactly-once sink: the guarantees that are written on `StagingSink`.

A new sink adds a `Case`: how to open it on the same target again, and what its readers see.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.kafka_server import KafkaServer
from tests.kafka_unreliable import UnreliableBroker
from tests.local_frame import LocalFrame
from tests.unreliable_database import UnreliableDatabase
from weir import sinks
from weir.errors import ExternalError, FencedError, LostStagingError, SinkMismatchError
from weir.ids import NO_BATCH, Attempt, BatchId, QueryName, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks import Outcome, StagingSink
from weir.sinks.files import FilesSink
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_broker import Broker, KafkaBroker
from weir.sinks.kafka_records import KafkaColumns
from weir.sinks.postgres.database import Address
from weir.sinks.postgres.sink import PostgresSink
from weir.sinks.user_state import States, Values
from weir.storage import Store
from weir.storage.local import LocalStore
from weir.storage.unreliable import UnreliableStore

OWNER, LINEAGE = "job/query", "lineage"


@dataclass
class Case:
    """One sink on one target."""

    frame: Callable[[tuple[int, ...]], Any]
    """A frame with these values in the column `value`, in several partitions."""
    make: Callable[[], StagingSink]
    """A new sink object on the same target, as a new run would have it."""
    make_failing: Callable[[int], StagingSink]
    """The same behind a transport that fails by seed."""
    read: Callable[[], list[int]]
    """What a reader sees: the values, in the order of their batches."""
    rewindable: bool = True
    """Whether what was delivered can be taken back."""

    def opened(self, attempt: int, run: int = 1) -> StagingSink:
        sink = self.make()
        sink.open(OWNER, LINEAGE, token(attempt, run))
        return sink

    def stage(self, sink: StagingSink, batch: int, attempt: int, *values: int) -> Staged:
        staged = Staged(BatchId(batch), token(attempt))
        sink.stage(self.frame(values), staged.batch, staged.token)
        sink.record(staged)
        return staged


def token(attempt: int, run: int = 1) -> Token:
    return Token(Attempt(attempt), Run(run))


@pytest.fixture(
    params=[
        pytest.param("parquet", marks=pytest.mark.spark),
        pytest.param("json", marks=pytest.mark.spark),
        pytest.param("parquet with user state", marks=pytest.mark.spark),
        pytest.param("kafka", marks=pytest.mark.spark),
        "postgres append",
        "postgres upsert",
    ]
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    kind, _, detail = request.param.partition(" ")
    if kind == "postgres":
        return postgres_case(request.getfixturevalue("database"), upsert=detail == "upsert")
    if kind == "kafka":
        return kafka_case(request.getfixturevalue("kafka"), request.getfixturevalue("spark"), tmp_path)
    return files_case(request.getfixturevalue("spark"), tmp_path, kind, with_state=bool(detail))


def postgres_case(url: str, *, upsert: bool) -> Case:
    schema = T.StructType([T.StructField("value", T.IntegerType())])
    key = "value" if upsert else None

    def make(seed: int | None = None) -> PostgresSink:
        sink = sinks.postgres(url, "out", key, create=True)
        if seed is not None:
            sink._database = UnreliableDatabase(Address.parse(url), seed)
        sink.expect(schema)
        return sink

    def read() -> list[int]:
        order = "value" if upsert else "weir_batch, value"
        with psycopg.connect(url) as connection:
            if connection.execute("SELECT to_regclass('out')").fetchone() == (None,):
                return []
            found = connection.execute(f"SELECT value FROM out ORDER BY {order}".encode()).fetchall()
        return [value for (value,) in found]

    def frame(values: tuple[int, ...]) -> LocalFrame:
        rows = [{"value": value} for value in values]
        return LocalFrame(schema, [rows[::2], rows[1::2]], tries=2)

    return Case(frame, make, make, read)


def files_case(spark: Any, tmp_path: Path, form: str, *, with_state: bool) -> Case:
    path = str(tmp_path / "out")
    values = Values(LocalStore(tmp_path / "generation"), QueryName("query"))

    def perhaps_with_state(sink: StagingSink) -> StagingSink:
        states = States(QueryName("query"))
        if with_state:
            states.add("n", "query", 0)
        return states.around(QueryName("query"), sink, values)

    def read() -> list[int]:
        found: list[int] = []
        for file in sinks.committed_files(path):
            found += sorted(r.value for r in spark.read.schema("value int").format(form).load(file).collect())
        return found

    def failing(seed: int) -> StagingSink:
        return perhaps_with_state(FilesSink(path, form, {}, UnreliableStore(LocalStore(path), seed)))

    return Case(partial(frame_of, spark), lambda: perhaps_with_state(sinks.files(path, form)), failing, read)


def frame_of(spark: Any, values: tuple[int, ...]) -> Any:
    return spark.createDataFrame([(v,) for v in values], "value int").repartition(2)


def kafka_case(server: KafkaServer, spark: Any, folder: Path) -> Case:
    topic = server.topic(f"contract-{folder.parent.name}-{folder.name}")
    columns = KafkaColumns(None, F.col("value").cast("string"), None)

    def made(seed: int | None = None) -> StagingSink:
        broker: Broker = KafkaBroker(server.bootstrap, topic, f"{topic}.weir-ledger", {}, patience=10.0)
        store: Store = LocalStore(folder)
        if seed is not None:
            broker, store = UnreliableBroker(broker, seed), UnreliableStore(store, seed)
        return KafkaSink(topic, columns, broker, store)

    def read() -> list[int]:
        return [int(value) for value in server.values(topic)]

    return Case(partial(frame_of, spark), made, made, read, rewindable=False)


def test_what_is_staged_is_seen_only_after_its_commit_and_as_a_whole(case: Case) -> None:
    sink = case.opened(1)
    staged = case.stage(sink, 0, 1, 1, 2, 3)
    assert case.read() == []
    assert sink.commit(staged) is Outcome.DONE_NOW
    assert sorted(case.read()) == [1, 2, 3]


def test_a_commit_that_is_repeated_changes_nothing(case: Case) -> None:
    sink = case.opened(1)
    staged = case.stage(sink, 0, 1, 1, 2)
    sink.commit(staged)
    assert sink.commit(staged) is Outcome.ALREADY_DONE
    assert case.opened(2).commit(staged) is Outcome.ALREADY_DONE
    assert sorted(case.read()) == [1, 2]


def test_a_batch_without_rows_counts_too(case: Case) -> None:
    sink = case.opened(1)
    assert sink.commit(case.stage(sink, 0, 1)) is Outcome.DONE_NOW
    assert case.opened(2).open(OWNER, LINEAGE, token(2)).last == 0
    assert case.read() == []


def test_the_next_attempt_finds_what_was_staged_and_commits_it(case: Case) -> None:
    staged = case.stage(case.opened(1), 0, 1, 7)
    after = case.make()
    assert after.open(OWNER, LINEAGE, token(2)).last == NO_BATCH
    assert list(after.staged()) == [staged]
    after.discard(BatchId(0), [staged])
    assert after.commit(staged) is Outcome.DONE_NOW
    assert case.read() == [7]


def test_discarded_stagings_are_gone_and_delivered_ones_stay(case: Case) -> None:
    sink = case.opened(1)
    sink.commit(case.stage(sink, 0, 1, 1))
    lost = case.stage(sink, 1, 1, 2)
    later = case.stage(sink, 2, 1, 3)
    after = case.opened(2)
    after.discard(BatchId(1), [])
    assert case.read() == [1]
    assert list(after.staged()) == [later]
    with pytest.raises(LostStagingError):
        after.commit(lost)


def test_a_start_that_slept_removes_nothing_of_a_newer_run(case: Case) -> None:
    old, newer = case.opened(1), case.opened(2)
    staged = case.stage(newer, 0, 2, 1)
    with suppress(FencedError):
        old.discard(BatchId(0), [])
    assert newer.commit(staged) is Outcome.DONE_NOW
    assert case.read() == [1]


def test_a_lower_token_can_neither_commit_nor_record_nor_open(case: Case) -> None:
    old = case.opened(1)
    staged = case.stage(old, 0, 1, 1)
    case.opened(2)
    with pytest.raises(FencedError):
        old.commit(staged)
    with pytest.raises(FencedError):
        old.record(Staged(BatchId(1), token(1)))
    with pytest.raises(FencedError):
        case.make().open(OWNER, LINEAGE, token(1))
    assert case.read() == []


def test_runs_of_one_attempt_fence_each_other(case: Case) -> None:
    old = case.opened(1, run=1)
    staged = case.stage(old, 0, 1, 1)
    case.opened(1, run=2)
    with pytest.raises(FencedError):
        old.commit(staged)


def test_output_of_others_is_refused(case: Case) -> None:
    case.opened(1)
    with pytest.raises(SinkMismatchError) as caught:
        case.make().open("other/query", LINEAGE, token(2))
    assert "'job/query'" in caught.value.why
    with pytest.raises(SinkMismatchError):
        case.make().open(OWNER, "files that were made anew", token(2))


def test_rewind_takes_back_whole_batches_and_their_numbers_can_be_used_again(case: Case) -> None:
    sink = case.opened(1)
    for batch in range(3):
        sink.commit(case.stage(sink, batch, 1, batch))
    after = case.opened(2)
    assert after.rewind(BatchId(0)) is Outcome.DONE_NOW
    assert after.rewind(BatchId(0)) is Outcome.ALREADY_DONE
    assert case.read() == ([0] if case.rewindable else [0, 1, 2])
    assert after.commit(case.stage(after, 1, 2, 10)) is Outcome.DONE_NOW
    assert case.read() == ([0, 10] if case.rewindable else [0, 1, 2, 10])


@pytest.mark.parametrize("seed", range(5))
def test_through_a_failing_transport_every_batch_arrives_once(case: Case, seed: int) -> None:
    def until_known(step: Callable[[], object]) -> None:
        for _ in range(200):
            try:
                if step() is not Outcome.UNKNOWN:
                    return
            except ExternalError:
                continue
        raise AssertionError("the seed never lets it through")

    sink = case.make_failing(seed)
    until_known(lambda: sink.open(OWNER, LINEAGE, token(1)))
    for batch in range(3):
        staged = Staged(BatchId(batch), token(1))
        frame = case.frame((batch,))
        until_known(lambda one=staged, frame=frame: sink.stage(frame, one.batch, one.token))  # type: ignore[misc]
        until_known(lambda staged=staged: sink.record(staged))  # type: ignore[misc]
        until_known(lambda staged=staged: sink.commit(staged))  # type: ignore[misc]
    assert case.read() == [0, 1, 2]
