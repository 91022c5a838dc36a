"""Records handed over to a producer of confluent-kafka, which sends them in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from confluent_kafka import Producer

Headers = list[tuple[str, str | bytes | None]]

PRODUCER: Mapping[str, Any] = {
    "partitioner": "murmur2_random",  # a key goes where Kafka's Java clients would send it
    "linger.ms": 20,  # a flush does not wait for it
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 200_000,
    "compression.type": "lz4",
    "delivery.report.only.error": True,
}
"""Settings of every producer, below the author's."""
_POLL_EVERY = 1000


class Record(NamedTuple):
    """One record to send."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None


class Sending:
    """The queue of one producer. Without any progress for `patience` seconds it raises what `stuck` gives."""

    def __init__(self, producer: Producer, patience: float, stuck: Callable[[], Exception]) -> None:
        self._producer = producer
        self._patience = patience
        self._stuck = stuck
        self._waiting = 0
        self._since = 0.0

    def put(self, topic: str, records: Iterable[Record]) -> None:
        """Hand records over; waits for room when the queue is full."""
        produce, poll = self._producer.produce, self._producer.poll
        for number, (key, value, headers) in enumerate(records):
            if number % _POLL_EVERY == 0:
                poll(0)
            try:
                if headers is None:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, headers=headers)
            except BufferError:
                self._put_later(topic, Record(key, value, headers))

    def flush(self) -> None:
        """Wait until everything was sent, or was given up."""
        self._begin()
        while self._producer.flush(0.2):
            self._check()

    def _put_later(self, topic: str, record: Record) -> None:
        self._begin()
        while True:
            self._producer.poll(0.01)
            try:
                self._producer.produce(topic, record.value, record.key, headers=record.headers)
                return
            except BufferError:
                self._check()

    def _begin(self) -> None:
        self._waiting, self._since = len(self._producer), time.monotonic()

    def _check(self) -> None:
        now, waiting = time.monotonic(), len(self._producer)
        if waiting != self._waiting:
            self._waiting, self._since = waiting, now
        elif now - self._since > self._patience:
            raise self._stuck()
