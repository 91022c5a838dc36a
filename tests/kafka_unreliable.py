"""Kafka behind a transport that fails by seed: "did it happen" and "did it answer" are drawn apart."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from weir.errors import BrokerError, OutcomeUnknownError
from weir.sinks.kafka_broker import Broker, KafkaEntry, KafkaRecord


class UnreliableBroker:
    """Passes everything on to a real one, or fails to, or fails to say so.

    A transaction may also break off in the middle: then it stays open until somebody fences it.
    """

    def __init__(self, inner: Broker, seed: int, failing: float = 0.3) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self.failing = failing
        self.breaks: list[str] = []
        """What was made to happen to transactions."""

    @property
    def ledger_topic(self) -> str:
        return self._inner.ledger_topic

    def prepare(self) -> None:
        self._inner.prepare()

    def fence(self) -> None:
        if self._random.random() < self.failing:
            if self._random.random() < 0.5:
                self._inner.fence()
            raise BrokerError(bootstrap="?", verb="take over the producer", reason="drawn by seed")
        self._inner.fence()

    def entries(self, newest: bool) -> Sequence[KafkaEntry]:
        return self._inner.entries(newest)

    def send(self, records: Iterable[KafkaRecord], entry: KafkaEntry) -> None:
        if self._random.random() >= self.failing:
            self._inner.send(records, entry)
            return
        how = self._random.choice(["answer lost", "not sent, no answer", "not sent", "broken off"])
        self.breaks.append(how)
        if how == "answer lost":
            self._inner.send(records, entry)
        if how == "broken off":
            self._inner.send(_broken(records), entry)
        if how == "not sent":
            raise BrokerError(bootstrap="?", verb="take a batch", reason="drawn by seed")
        raise OutcomeUnknownError(verb="commit to", path="?", reason="drawn by seed")


def _broken(records: Iterable[KafkaRecord]) -> Iterator[KafkaRecord]:
    yield from records
    raise BrokerError(bootstrap="?", verb="take a batch", reason="drawn by seed")
