"""Kafka as the sink needs it: fence, read the ledger to its end, send one transaction. On confluent-kafka.

The ledger is a topic of its own with one partition, compacted. Only one transactional id ever writes to
it, the ledger's own, so whoever has called `fence` last is the only writer; and after `fence` no
transaction of an earlier one is open any more: the broker has committed or aborted it before it answers.
Nothing here depends on a transaction's timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from weir import faults
from weir.errors import BrokerError, OutcomeUnknownError, PreflightError, RecordRefusedError, TopicError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient


# Records handed over to a producer of confluent-kafka, which sends them in the background.


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


class KafkaRecord(NamedTuple):
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

    def put(self, topic: str, records: Iterable[KafkaRecord]) -> None:
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
                self._put_later(topic, KafkaRecord(key, value, headers))

    def flush(self) -> None:
        """Wait until everything was sent, or has failed."""
        self._begin()
        while self._producer.flush(0.2):
            self._check()

    def _put_later(self, topic: str, record: KafkaRecord) -> None:
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


OWN = frozenset(
    {"bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "isolation.level", "group.id"}
)
"""Settings of the client that weir sets itself."""

_TRANSACTION: Mapping[str, Any] = {"transaction.timeout.ms": 300_000}
_LOOK_BACK = 100
_ABORT = 5.0
"""Seconds that the end of a failed transaction is waited for."""
Client = TypeVar("Client")


@dataclass(frozen=True)
class KafkaEntry:
    """One entry of the ledger: all of the sink's state. Of several with one key the last stays."""

    key: bytes
    state: bytes


class ProducerFencedError(Exception):
    """Another producer with the ledger's transactional id was made since `fence`."""


class Broker(Protocol):
    """What the sink asks of Kafka. One thread; each verb is safe to repeat."""

    @property
    def ledger_topic(self) -> str:
        """The name of the ledger."""

    def prepare(self) -> None:
        """See to it that topic and ledger are there; raise `TopicError` when they can't be used."""

    def fence(self) -> None:
        """Become the only writer; what others had begun is committed or aborted when this returns."""

    def entries(self, newest: bool) -> Sequence[KafkaEntry]:
        """The ledger's entries that count, in order; with `newest` some from its end, one at least.

        Right after `fence` all of them; before it, one that was sent a moment ago may be missing.
        """

    def send(self, records: Iterable[KafkaRecord], entry: KafkaEntry) -> None:
        """Send the records and the entry in one transaction.

        Raises `ProducerFencedError` when somebody else is the writer, `OutcomeUnknownError` when it may
        have happened, and anything else when it has not. After an error `fence` must come first.
        """


def check_installed() -> None:
    """Raise when the client is missing."""
    if find_spec("confluent_kafka") is None:
        raise PreflightError(
            what="the package confluent-kafka is not installed",
            why="the Kafka sink sends with it",
            todo="pip install 'weir[kafka]'",
        )


class KafkaBroker:
    """The real thing."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        ledger: str,
        config: Mapping[str, Any],
        partitions: int | None = None,
        patience: float = 30.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._ledger = ledger
        self._config = config
        self._partitions = partitions
        self._patience = patience
        """Seconds without an answer, or without any progress, after which a call fails."""
        self._producer: Producer | None = None
        self._said = ""
        """What the client reported last of its connections."""

    @property
    def ledger_topic(self) -> str:
        return self._ledger

    # the verbs

    def prepare(self) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        admin = self._made(AdminClient, self._client())
        topics = self._topics(admin)
        if self._topic not in topics:
            if self._partitions is None:
                raise TopicError(
                    topic=self._topic,
                    reason=f"it does not exist on {self._bootstrap}",
                    todo="create it, or let weir create it with a number of partitions: partitions=3",
                )
            self._create(admin, self._topic, self._partitions, {})
        if self._ledger not in topics:
            self._create(
                admin, self._ledger, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
            )
        self._check_ledger(admin)

    def fence(self) -> None:
        from confluent_kafka import KafkaException, Producer  # noqa: PLC0415

        self._producer = None
        config = {
            **self._client(),
            **PRODUCER,
            **_TRANSACTION,
            **self._config,
            "transactional.id": f"weir.{self._ledger}",
        }
        producer = self._made(Producer, config)
        try:
            producer.init_transactions(self._patience)
        except KafkaException as error:
            producer.poll(0)
            raise self._failed("take over the producer", error) from error
        self._producer = producer
        faults.point("kafka.fenced")

    def entries(self, newest: bool) -> Sequence[KafkaEntry]:
        from confluent_kafka import Consumer, KafkaException, TopicPartition  # noqa: PLC0415

        config = {
            **self._client(),
            "group.id": f"weir.{self._ledger}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,  # the end is reported only after it
        }
        consumer = self._made(Consumer, config)
        partition = TopicPartition(self._ledger, 0)
        try:
            low, high = consumer.get_watermark_offsets(partition, self._patience)
            end = high if self._producer is not None else 0  # others may have a transaction open
            back = _LOOK_BACK if newest else high
            while True:
                partition.offset = max(low, high - back)
                consumer.assign([partition])
                read = self._read(consumer, end)
                if read or partition.offset == low:
                    return read
                back *= 10
        except KafkaException as error:
            raise self._failed("read the ledger", error) from error
        finally:
            consumer.close()

    def send(self, records: Iterable[KafkaRecord], entry: KafkaEntry) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        producer, self._producer = self._producer, None
        if producer is None:
            raise BrokerError(bootstrap=self._bootstrap, verb="send", reason="it has not been fenced")
        try:
            producer.begin_transaction()
            sending = Sending(producer, self._patience, self._stuck)
            sending.put(self._topic, records)
            sending.put(self._ledger, [KafkaRecord(entry.key, entry.state, None)])
            sending.flush()
        except KafkaException as error:
            self._abort(producer)
            raise self._not_sent(error) from error
        except BaseException:
            self._abort(producer)
            raise
        faults.point("kafka.sent")
        try:
            producer.commit_transaction(self._patience)
        except KafkaException as error:
            kind: KafkaError = error.args[0]
            if kind.txn_requires_abort() or _fenced(kind):
                self._abort(producer)
                raise self._not_sent(error) from error
            raise OutcomeUnknownError(
                verb="commit to", path=f"topic {self._topic}", reason=self._why(kind)
            ) from error
        self._producer = producer

    def _abort(self, producer: Producer) -> None:
        """End a transaction that failed: readers of committed records wait for its end.

        Where that fails as well, its timeout or the next `fence` ends it.
        """
        from confluent_kafka import KafkaException  # noqa: PLC0415

        with suppress(KafkaException):
            producer.abort_transaction(min(self._patience, _ABORT))

    # the client

    def _client(self) -> dict[str, Any]:
        """The settings of every client of ours."""
        return {
            "log_level": 0,  # what goes wrong is raised; the client would repeat each failed connection
            **self._config,
            "bootstrap.servers": self._bootstrap,
            "error_cb": self._heard,
        }

    def _made(self, kind: Callable[[dict[str, Any]], Client], config: dict[str, Any]) -> Client:
        """A client; what it does not take of the author's settings is the author's to fix."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            return kind(config)
        except KafkaException as error:
            raise TopicError(
                topic=self._topic,
                reason=f"Kafka's client does not take its settings: {error.args[0].str()}",
                todo="fix config=, which takes librdkafka's names, not Java's: "
                "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md",
            ) from error

    def _heard(self, error: KafkaError) -> None:
        self._said = error.str()

    def _topics(self, admin: AdminClient) -> Mapping[str, Any]:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            topics: Mapping[str, Any] = admin.list_topics(timeout=self._patience).topics
            return topics
        except KafkaException as error:
            admin.poll(0)  # it has more to say of its connections
            raise self._failed("list its topics", error) from error

    def _create(self, admin: AdminClient, name: str, partitions: int, config: dict[str, str]) -> None:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415

        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=config)
        try:
            admin.create_topics([new], request_timeout=self._patience)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._failed(f"create topic {name}", error) from error
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            topics = self._topics(admin)
            if name in topics and topics[name].partitions:
                return
            time.sleep(0.05)
        raise BrokerError(bootstrap=self._bootstrap, verb=f"create topic {name}", reason="it does not appear")

    def _check_ledger(self, admin: AdminClient) -> None:
        """A ledger whose entries are deleted by age would delete what it recorded."""
        from confluent_kafka import KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import ConfigResource, ResourceType  # noqa: PLC0415

        resource = ConfigResource(ResourceType.TOPIC, self._ledger)
        asked = admin.describe_configs([resource], request_timeout=self._patience)[resource]
        try:
            policy = asked.result()["cleanup.policy"].value
        except KafkaException as error:
            raise self._failed("describe the ledger", error) from error
        if policy != "compact":
            raise TopicError(
                topic=self._ledger,
                reason=f"it is the sink's ledger, and cleanup.policy={policy} would delete what it recorded",
                todo="set cleanup.policy=compact on it, or name another with ledger=",
            )

    def _read(self, consumer: Consumer, end: int) -> list[KafkaEntry]:
        """From where the consumer is assigned up to the end, which is there at least."""
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

        entries: list[KafkaEntry] = []
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                entries.append(KafkaEntry(message.key() or b"", message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                return entries
            elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
        raise BrokerError(bootstrap=self._bootstrap, verb="read the ledger", reason=self._said or "no answer")

    def _stuck(self) -> BrokerError:
        reason = self._said or "no answer"
        return BrokerError(bootstrap=self._bootstrap, verb="take records", reason=reason)

    # what went wrong

    def _not_sent(self, error: Exception) -> Exception:
        from confluent_kafka import KafkaError  # noqa: PLC0415

        kind: KafkaError = error.args[0]
        if _fenced(kind):
            return ProducerFencedError(kind.str())
        if kind.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG):
            return RecordRefusedError(topic=self._topic, reason=kind.str())
        return self._failed("take a batch", error)

    def _failed(self, verb: str, error: Exception) -> BrokerError:
        return BrokerError(bootstrap=self._bootstrap, verb=verb, reason=self._why(error.args[0]))

    def _why(self, kind: KafkaError) -> str:
        return f"{kind.str()}; {self._said}" if self._said and self._said not in kind.str() else kind.str()


def _fenced(kind: KafkaError) -> bool:
    from confluent_kafka import KafkaError  # noqa: PLC0415

    codes = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    return kind.fatal() or kind.code() in (*codes, KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._FATAL)
