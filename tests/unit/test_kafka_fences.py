"""A Kafka query that changes its topic in its own directory: fences are kept for each ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_together import PlayedBroker
from weir.errors import FencedError, SinkMismatchError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import Outcome
from weir.sinks.kafka import KafkaSink
from weir.sinks.kafka_records import KafkaColumns
from weir.storage.local import LocalStore


class Query:
    """One query with the folder that it stages in."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.attempt = 0

    def start(self, broker: PlayedBroker) -> tuple[KafkaSink, Token, Ledger]:
        self.attempt += 1
        token = Token(Attempt(self.attempt), Run(1), "session")
        sink = KafkaSink(broker.ledger_topic, KafkaColumns(None, "value", None), broker, self.store)
        return sink, token, sink.open("job/query", "lineage", token)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def deliver(sink: KafkaSink, batch: int, token: Token) -> Outcome:
    staged = Staged(BatchId(batch), token)
    sink.record(staged)
    return sink.commit(staged)


def test_a_query_gets_another_topic_and_later_its_old_one_again(query: Query) -> None:
    old, new = PlayedBroker("old.weir-ledger"), PlayedBroker("new.weir-ledger")
    sink, token, _ = query.start(old)
    deliver(sink, 0, token)
    sink, token, ledger = query.start(new)
    assert ledger.last == NO_BATCH
    deliver(sink, 0, token)
    deliver(sink, 1, token)
    assert query.start(old)[2].last == 0
    assert query.start(new)[2].last == 1


def test_a_driver_that_stages_for_the_old_topic_is_fenced_by_one_with_the_new_one(query: Query) -> None:
    sink, token, _ = query.start(PlayedBroker("old.weir-ledger"))
    query.start(PlayedBroker("new.weir-ledger"))
    with pytest.raises(FencedError):
        sink.record(Staged(BatchId(0), token))


def test_a_ledger_that_was_emptied_is_refused_also_after_another_one_was_used(query: Query) -> None:
    query.start(PlayedBroker("old.weir-ledger"))
    query.start(PlayedBroker("new.weir-ledger"))
    with pytest.raises(SinkMismatchError, match="its ledger is empty"):
        query.start(PlayedBroker("old.weir-ledger"))


def test_a_fence_of_an_earlier_version_may_be_of_any_ledger_until_a_start_has_replaced_it(
    query: Query,
) -> None:
    old = PlayedBroker("old.weir-ledger")
    query.start(old)
    for key in list(query.store.list("fences")):
        query.store.delete(key)
    query.store.create("fences/1-1-session", b"")
    with pytest.raises(SinkMismatchError, match="its ledger is empty"):
        query.start(PlayedBroker("new.weir-ledger"))
    query.start(old)
    assert query.start(PlayedBroker("new.weir-ledger"))[2].last == NO_BATCH
