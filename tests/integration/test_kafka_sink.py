"""The Kafka sink against a real broker, without Spark: what is staged is written here.

Each test has a topic of its own; who kills the broker starts it again.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kafka_server import KafkaServer
from tests.kafka_unreliable import UnreliableBroker
from weir import faults, sinks
from weir.errors import (
    BrokerError,
    ExternalError,
    FencedError,
    LostStagingError,
    RecordRefusedError,
    SinkMismatchError,
    TopicError,
)
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks import Outcome
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_broker import Broker, KafkaBroker, KafkaEntry, KafkaRecord
from weir.sinks.kafka_records import KafkaColumns
from weir.sinks.staging import folder_of
from weir.storage.local import LocalStore

pytestmark = pytest.mark.spark

OWNER, LINEAGE = "job/query", "lineage"
_topics = itertools.count()


def token(attempt: int, run: int = 1) -> Token:
    return Token(Attempt(attempt), Run(run))


@dataclass
class Target:
    """One topic, and the folder in which its batches are staged."""

    server: KafkaServer
    topic: str
    folder: Path

    @property
    def ledger(self) -> str:
        return f"{self.topic}.weir-ledger"

    def broker(self, patience: float = 10.0, **config: Any) -> KafkaBroker:
        given = {key.replace("_", "."): value for key, value in config.items()}
        return KafkaBroker(self.server.bootstrap, self.topic, self.ledger, given, patience=patience)

    def sink(self, broker: Broker | None = None) -> KafkaSink:
        columns = KafkaColumns(None, "value", None)
        return KafkaSink(self.topic, columns, broker or self.broker(), LocalStore(self.folder))

    def opened(self, attempt: int, broker: Broker | None = None) -> KafkaSink:
        """A sink that is open; a broker that was just started may need a while for its transactions."""
        sink, limit = self.sink(broker), time.monotonic() + 30
        while True:
            try:
                sink.open(OWNER, LINEAGE, token(attempt))
                return sink
            except BrokerError:
                if time.monotonic() > limit:
                    raise

    def stage(self, sink: KafkaSink, batch: int, attempt: int, values: Iterable[str]) -> Staged:
        staged = Staged(BatchId(batch), token(attempt))
        folder = self.folder / folder_of(staged.batch, staged.token)
        folder.mkdir(parents=True)
        rows = [value.encode() for value in values]
        for number, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            table = pa.table({"key": pa.array(part, pa.binary()), "value": pa.array(part, pa.binary())})
            pq.write_table(table, folder / f"part-{number:05d}.parquet")
        sink.record(staged)
        return staged

    def seen(self) -> list[str]:
        return [value.decode() for value in self.server.values(self.topic)]


@pytest.fixture
def target(kafka: KafkaServer, tmp_path: Path) -> Target:
    return Target(kafka, kafka.topic(f"sink-{os.getpid()}-{next(_topics)}"), tmp_path / "staging")


def commit(sink: KafkaSink, staged: Staged) -> Outcome:
    """As the committer does it."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        with suppress(ExternalError):
            if (outcome := sink.commit(staged)) is not Outcome.UNKNOWN:
                return outcome
    raise AssertionError("it never came through")


def test_a_batch_is_in_the_topic_once_and_in_order(target: Target) -> None:
    sink = target.opened(1)
    for batch in range(3):
        staged = target.stage(sink, batch, 1, [f"{batch}-{n}" for n in range(100)])
        assert sink.commit(staged) is Outcome.DONE_NOW
        assert sink.commit(staged) is Outcome.ALREADY_DONE
    assert target.seen() == [f"{batch}-{n}" for batch in range(3) for n in range(100)]
    assert [key for key in LocalStore(target.folder).list("") if not key.startswith("fences/")] == []


def test_keys_and_headers_arrive(target: Target) -> None:
    sink = target.opened(1)
    staged = Staged(BatchId(0), token(1))
    folder = target.folder / folder_of(staged.batch, staged.token)
    folder.mkdir(parents=True)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"v", None], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], None], kind),
        }
    )
    pq.write_table(table, folder / "part-0.parquet")
    sink.record(staged)
    sink.commit(staged)
    found = [(m.key(), m.value(), m.headers()) for m in target.server.read(target.topic)]
    assert found == [(b"k", b"v", [("h", b"1"), ("i", None)]), (None, None, None)]


@pytest.mark.long  # a thread of librdkafka's may abort the whole test process: seen once
@pytest.mark.parametrize("seed", range(3))
def test_through_a_failing_transport_every_batch_arrives_once(target: Target, seed: int) -> None:
    broker = UnreliableBroker(target.broker(), seed, failing=0.4)
    sink = target.sink(broker)
    for _ in range(20):
        try:
            sink.open(OWNER, LINEAGE, token(1))
            break
        except ExternalError:
            continue
    for batch in range(4):
        commit(sink, target.stage(sink, batch, 1, [f"{batch}-{n}" for n in range(10)]))
    assert broker.breaks, "the seed breaks nothing"
    assert target.seen() == [f"{batch}-{n}" for batch in range(4) for n in range(10)]


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(target: Target) -> None:
    class Silent(UnreliableBroker):
        def send(self, records: Any, entry: Any) -> None:
            self._inner.send(records, entry)
            if not self.breaks and b'"last": 0' in entry.state:
                self.breaks.append("answer lost")
                raise BrokerError(bootstrap="?", verb="take a batch", reason="no answer")

    sink = target.opened(1, Silent(target.broker(), 0, failing=0))
    staged = target.stage(sink, 0, 1, ["a", "b"])
    with pytest.raises(BrokerError):
        sink.commit(staged)
    assert sink.commit(staged) is Outcome.ALREADY_DONE
    assert target.seen() == ["a", "b"]


def test_an_older_driver_that_wakes_up_is_refused_and_disturbs_nobody(target: Target) -> None:
    old = target.opened(1)
    staged = target.stage(old, 0, 1, ["old"])
    new = target.opened(2)
    with pytest.raises(FencedError):
        old.commit(staged)
    with pytest.raises(FencedError):
        old.record(Staged(BatchId(1), token(1)))
    assert new.commit(target.stage(new, 0, 2, ["new"])) is Outcome.DONE_NOW
    assert target.seen() == ["new"]


def test_an_older_driver_in_the_middle_of_its_transaction_is_refused(target: Target) -> None:
    successor: list[KafkaSink] = []

    class Overtaken(UnreliableBroker):
        def send(self, records: Iterable[KafkaRecord], entry: Any) -> None:
            def sending() -> Iterator[KafkaRecord]:
                yield from records
                if b'"last": 0' in entry.state:
                    successor.append(target.opened(2))

            self._inner.send(sending(), entry)

    old = target.opened(1, Overtaken(target.broker(), 0))
    staged = target.stage(old, 0, 1, ["a"])
    with pytest.raises(FencedError):
        old.commit(staged)
    assert target.seen() == []
    assert successor[0].commit(staged) is Outcome.DONE_NOW
    assert target.seen() == ["a"]


def test_a_newer_driver_goes_on_after_an_older_one_took_its_producer(target: Target) -> None:
    """An older one may fence between the newer one's fence and its announcement; then it is refused."""
    old, new = target.opened(1), target.opened(2)
    target.broker().fence()
    with pytest.raises(FencedError):
        old.commit(target.stage(new, 0, 2, ["a"]))
    assert commit(new, Staged(BatchId(0), token(2))) is Outcome.DONE_NOW
    assert target.seen() == ["a"]


def test_a_transaction_that_outlives_its_timeout_is_sent_again(target: Target) -> None:
    waited: list[bool] = []

    class Slow(UnreliableBroker):
        def send(self, records: Iterable[KafkaRecord], entry: Any) -> None:
            self._inner.send(self._slowly(records) if not waited else records, entry)

        def _slowly(self, records: Iterable[KafkaRecord]) -> Iterator[KafkaRecord]:
            for record in records:
                yield record
                if not waited:
                    until(lambda: target.server.end(target.topic) == 2)  # the record, and the abort's marker
                    waited.append(True)

    broker = target.broker(transaction_timeout_ms=1500, linger_ms=0)
    sink = target.opened(1, Slow(broker, 0))
    assert commit(sink, target.stage(sink, 0, 1, ["a", "b", "c", "d"])) is Outcome.DONE_NOW
    assert waited
    assert target.seen() == ["a", "b", "c", "d"]


def until(what: Callable[[], bool], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, f"not within {seconds:g} s"
        time.sleep(0.05)


@pytest.mark.long
def test_a_broker_that_is_down_at_the_start_is_an_error_that_a_retry_mends(
    target: Target, tmp_path: Path
) -> None:
    target.server.kill()
    try:
        with pytest.raises(BrokerError) as caught:
            target.sink(target.broker(patience=1.0)).open(OWNER, LINEAGE, token(1))
        assert caught.value.retry
        assert target.server.bootstrap in caught.value.what
        assert "refused" in caught.value.why.lower()
    finally:
        target.server.start()
    sink = target.opened(2)
    assert sink.commit(target.stage(sink, 0, 2, ["a"])) is Outcome.DONE_NOW


@pytest.mark.long
def test_a_broker_that_is_down_between_stage_and_commit(target: Target) -> None:
    sink = target.opened(1, target.broker(patience=1.0))
    staged = target.stage(sink, 0, 1, ["a", "b"])
    target.server.kill()
    try:
        with pytest.raises(BrokerError):
            sink.commit(staged)
        with pytest.raises(BrokerError):
            sink.commit(staged)
        later = target.stage(sink, 1, 1, ["c"])  # a batch can be staged meanwhile
    finally:
        target.server.start()
    assert commit(sink, staged) is Outcome.DONE_NOW
    assert commit(sink, later) is Outcome.DONE_NOW
    assert target.seen() == ["a", "b", "c"]


@pytest.mark.long
def test_a_broker_that_is_killed_in_the_middle_of_a_transaction(target: Target) -> None:
    killed: list[bool] = []

    class Dying(UnreliableBroker):
        def send(self, records: Iterable[KafkaRecord], entry: Any) -> None:
            def sending() -> Iterator[KafkaRecord]:
                for number, record in enumerate(records):
                    if number == 3 and not killed:
                        until(lambda: target.server.end(target.topic) == 3)
                        target.server.kill()
                        killed.append(True)
                    yield record

            self._inner.send(sending(), entry)

    sink = target.opened(1, Dying(target.broker(patience=1.0, linger_ms=0), 0))
    staged = target.stage(sink, 0, 1, "abcdef")
    try:
        with pytest.raises(BrokerError):
            sink.commit(staged)
        assert killed
    finally:
        target.server.start()
    assert commit(sink, staged) is Outcome.DONE_NOW
    assert target.seen() == list("abcdef")
    assert len(target.server.values(target.topic, committed=False)) > 6, "nothing was ever half sent"


def test_a_broker_that_hangs_in_the_commit(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had received it does when it wakes up: the commit happened, and nobody was told."""
    hung: list[bool] = []

    def hang(name: str) -> None:
        if name == "kafka.sent" and armed and not hung:
            target.server.pause()
            hung.append(True)

    armed: list[bool] = []
    monkeypatch.setattr(faults, "point", hang)
    sink = target.opened(1, target.broker(patience=2.0))
    staged = target.stage(sink, 0, 1, ["a", "b"])
    armed.append(True)
    try:
        assert sink.commit(staged) is Outcome.UNKNOWN
    finally:  # others need the broker, too
        target.server.resume()
    assert hung
    assert commit(sink, staged) in (Outcome.ALREADY_DONE, Outcome.DONE_NOW)
    assert target.seen() == ["a", "b"]


def test_output_of_others_is_refused_and_they_go_on(target: Target) -> None:
    sink = target.opened(1)
    with pytest.raises(SinkMismatchError) as caught:
        target.sink().open("other/query", LINEAGE, token(2))
    assert "'job/query'" in caught.value.why and "ledger=" in caught.value.hint
    with pytest.raises(SinkMismatchError):
        target.sink().open(OWNER, "files that were made anew", token(2))
    assert sink.commit(target.stage(sink, 0, 1, ["a"])) is Outcome.DONE_NOW


def test_what_was_sent_above_a_batch_is_counted(target: Target) -> None:
    sink = target.opened(1)
    for batch in range(3):
        commit(sink, target.stage(sink, batch, 1, [str(n) for n in range(10 + batch)]))
    after = target.opened(2)
    assert [after.records_above(BatchId(n)) for n in (-1, 0, 1, 2)] == [33, 23, 12, 0]
    assert after.rewind(BatchId(0)) is Outcome.DONE_NOW
    assert after.rewind(BatchId(0)) is Outcome.ALREADY_DONE
    assert after.records_above(BatchId(0)) == 0
    assert commit(after, target.stage(after, 1, 2, ["again"])) is Outcome.DONE_NOW
    assert after.records_above(BatchId(0)) == 1
    assert len(target.seen()) == 34
    assert after.records_above(BatchId(7)) is None


def test_a_topic_that_is_not_there_is_refused_or_made(target: Target) -> None:
    name = f"{target.topic}-more"

    def opened(partitions: int | None) -> None:
        broker = KafkaBroker(target.server.bootstrap, name, f"{name}-l", {}, partitions, patience=10.0)
        target.sink(broker).open(OWNER, LINEAGE, token(1))

    with pytest.raises(TopicError) as caught:
        opened(None)
    assert "partitions=" in caught.value.hint
    opened(3)
    topics = target.server.admin.list_topics(timeout=10).topics
    assert len(topics[name].partitions) == 3
    assert len(topics[f"{name}-l"].partitions) == 1


def test_a_ledger_that_would_forget_is_refused(target: Target) -> None:
    target.server.topic(target.ledger, cleanup_policy="delete")
    with pytest.raises(TopicError) as caught:
        target.opened(1)
    assert "cleanup.policy=delete" in caught.value.why


def test_a_ledger_that_was_deleted_is_not_taken_for_a_new_one(target: Target) -> None:
    sink = target.opened(1)
    commit(sink, target.stage(sink, 0, 1, ["a"]))
    admin = target.server.admin
    admin.delete_topics([target.ledger], operation_timeout=30)[target.ledger].result()
    with pytest.raises(SinkMismatchError) as caught:
        target.opened(2)
    assert "its ledger is empty" in caught.value.why and "new name" in caught.value.hint


def test_a_setting_that_the_client_does_not_know_is_the_authors_to_mend(target: Target) -> None:
    with pytest.raises(TopicError) as caught:
        target.opened(1, target.broker(compresion_type="lz4"))
    assert "compresion.type" in caught.value.why and "config=" in caught.value.hint
    with pytest.raises(TopicError):  # known, and not to be had together
        target.opened(1, target.broker(transaction_timeout_ms=1000, message_timeout_ms=5000))


def test_a_record_that_is_too_large_is_refused_and_nothing_of_its_batch_is_seen(target: Target) -> None:
    sink = target.opened(1)
    staged = target.stage(sink, 0, 1, ["a", "b" * 2_000_000])
    with pytest.raises(RecordRefusedError) as caught:
        sink.commit(staged)
    assert not caught.value.retry and "message.max.bytes" in caught.value.hint
    assert target.seen() == []
    after = target.opened(2)
    after.discard(BatchId(0), [])
    with pytest.raises(LostStagingError):
        after.commit(staged)


def test_a_transaction_that_failed_is_aborted_at_once(target: Target) -> None:
    """Readers of committed records would wait for its end, else until its timeout."""
    broker = target.broker(transaction_timeout_ms=600_000, linger_ms=0)
    sink = target.opened(1, broker)
    staged = target.stage(sink, 0, 1, ["a", "b"])
    before = target.server.end(target.topic)

    def broken() -> Iterator[KafkaRecord]:
        yield KafkaRecord(b"a", b"a", None)
        until(lambda: target.server.end(target.topic) > before)  # the broker has it
        raise BrokerError(bootstrap="?", verb="take a batch", reason="it is to fail")

    with pytest.raises(BrokerError, match="it is to fail"):
        broker.send(broken(), KafkaEntry(b"0", b"{}"))
    until(lambda: target.server.end(target.topic) == before + 2, seconds=10)  # the record, and the marker
    assert target.seen() == []
    assert commit(target.opened(2), staged) is Outcome.DONE_NOW
    assert target.seen() == ["a", "b"]


def test_a_file_that_is_gone_is_not_sent_as_nothing(target: Target) -> None:
    sink = target.opened(1)
    staged = target.stage(sink, 0, 1, ["a", "b"])
    next((target.folder / "data").rglob("part-00001*")).unlink()
    with pytest.raises(LostStagingError):
        sink.commit(staged)
    assert target.seen() == []


def test_a_ledger_of_many_entries_is_read_from_its_end(target: Target) -> None:
    sink = target.opened(1)
    for batch in range(60):
        commit(sink, target.stage(sink, batch, 1, []))
    after = target.sink()
    assert after.open(OWNER, LINEAGE, token(2)).last == 59
    assert sink.open(OWNER, LINEAGE, token(3)).last == 59


def test_settings_that_are_weirs_are_refused_and_secrets_are_not_told(target: Target) -> None:
    with pytest.raises(SinkMismatchError) as caught:
        sinks.kafka("b:1", "t", config={"transactional.id": "mine"})
    assert "transactional.id" in caught.value.why
    secret = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    sink = sinks.kafka(target.server.bootstrap, "t", config={**secret, "sasl.password": "hunter2"})
    broker = KafkaBroker(sink.bootstrap, sink.topic, sink.ledger, sink.config, patience=1.0)
    with pytest.raises(BrokerError) as failed:
        broker.prepare()
    assert "hunter2" not in f"{sink!r} {sink.describe()} {failed.value.text}"


POINTS = ["kafka.fenced#1", "kafka.sent#1", "kafka.sent#3", "sink.committed#1"]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_of_the_sink_changes_nothing(target: Target, point: str) -> None:
    """Three batches are staged; a process that delivers them is killed, and a second one goes on."""
    sink = target.opened(1)
    staged = [target.stage(sink, batch, 1, [f"{batch}-{n}" for n in range(20)]) for batch in range(3)]
    deliver(target, attempt=2, batches=len(staged), fault=point)
    deliver(target, attempt=3, batches=len(staged))
    assert target.seen() == [f"{batch}-{n}" for batch in range(3) for n in range(20)]


def test_an_older_process_that_wakes_up_in_its_transaction_is_refused(target: Target) -> None:
    sink = target.opened(1)
    for batch in range(3):
        target.stage(sink, batch, 1, [f"{batch}-{n}" for n in range(20)])
    with deliverer(target, attempt=2, batches=3, fault="kafka.sent#3:stop") as old:
        until(lambda: psutil.Process(old.pid).status() == psutil.STATUS_STOPPED)
        deliver(target, attempt=3, batches=3)
        old.send_signal(signal.SIGCONT)
        _, said = old.communicate(timeout=60)
    assert old.returncode == 1 and "FencedError" in said.splitlines()[-1], said
    assert target.seen() == [f"{batch}-{n}" for batch in range(3) for n in range(20)]


@pytest.mark.long
@pytest.mark.seeds
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(200))
def test_kills_anywhere_change_nothing(target: Target, seed: int) -> None:
    """Processes deliver one after the other, each killed at a point that the seed draws, but the last."""
    draw = random.Random(seed)
    batches, rows = draw.randint(1, 6), draw.randint(0, 50)
    sink = target.opened(1)
    for batch in range(batches):
        target.stage(sink, batch, 1, [f"{batch}-{n}" for n in range(rows)])
    kills = draw.randint(1, 4)
    for attempt in range(2, kills + 2):
        point = draw.choice(["kafka.fenced", "kafka.sent", "sink.committed"])
        with deliverer(target, attempt, batches, f"{point}#{draw.randint(1, 3)}:kill") as process:
            _, said = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), said
    deliver(target, attempt=kills + 2, batches=batches)
    assert target.seen() == [f"{batch}-{n}" for batch in range(batches) for n in range(rows)]


def deliver(target: Target, attempt: int, batches: int, fault: str = "") -> None:
    """A process opens the sink and commits the staged batches that the ledger does not have."""
    with deliverer(target, attempt, batches, f"{fault}:kill" if fault else "") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if fault else 0), said


@contextmanager
def deliverer(target: Target, attempt: int, batches: int, fault: str) -> Iterator[subprocess.Popen[str]]:
    what = f"{target.server.bootstrap} {target.topic} {target.folder} {attempt} {batches}"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_DELIVER)],
        env={**os.environ, "WEIR_FAULTS": fault, "TARGET": what},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


_DELIVER = """
import os
from weir.ids import Attempt, BatchId, Run, Token
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_broker import KafkaBroker
from weir.sinks.kafka_records import KafkaColumns
from weir.protocol.ledger import Staged
from weir.storage.local import LocalStore

bootstrap, topic, folder, attempt, batches = os.environ["TARGET"].split()
broker = KafkaBroker(bootstrap, topic, topic + ".weir-ledger", {})
sink = KafkaSink(topic, KafkaColumns(None, "value", None), broker, LocalStore(folder))
last = sink.open("job/query", "lineage", Token(Attempt(int(attempt)), Run(1))).last
for batch in range(last + 1, int(batches)):
    sink.commit(Staged(BatchId(batch), Token(Attempt(1), Run(1))))
"""
