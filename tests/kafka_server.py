"""A real Apache Kafka broker of one node, on free ports of the loopback.

Its jars, and those of Spark's Kafka source, come by Maven coordinates (`maven.py`). Killed and started again
the broker has the same address and the same data.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.loopback import free_ports
from tests.maven import Coordinates, fetched

VERSION = "4.3.1"
CONNECTOR = [
    Coordinates("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Coordinates("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Coordinates("org.apache.kafka", "kafka-clients", "3.9.2"),
    Coordinates("org.apache.commons", "commons-pool2", "2.13.0"),
]
"""Parts of Spark's Kafka source that work together, and that a repository has which lags behind PyPI."""
CLUSTER = "d2Vpci10ZXN0cy1rYWZrYQ"
JVM = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START = 60.0
_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=200
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.io.buffer.size=65536
"""


def jars() -> Path:
    """The folder with the broker's jars; fetched when they are not there yet."""
    return fetched(
        f"kafka-{VERSION}", [Coordinates("org.apache.kafka", "kafka_2.13", VERSION)], transitive=True
    )


def connector() -> list[str]:
    """The jars of Spark's Kafka source, as paths; fetched when they are not there yet."""
    folder = fetched("connector-4.2.0", CONNECTOR)
    return sorted(str(path) for path in folder.glob("*.jar"))


class KafkaServer:
    """One broker. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._jars = jars()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log = open(folder / "broker.log", "ab")  # noqa: SIM115  closed with the broker
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self._config = folder / "server.properties"
        self._config.write_text(_CONFIG.format(port=port, controller=controller, data=folder / "data"))
        self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._config)).wait(START)

    def __enter__(self) -> KafkaServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    def start(self) -> None:
        """Start it, with the data that it had, and wait until it answers."""
        self._process = self._java("kafka.Kafka", str(self._config))
        until = time.monotonic() + START
        while time.monotonic() < until:
            try:
                self.admin.list_topics(timeout=1)
                self._begin_transactions()
                return
            except Exception:
                assert self._process.poll() is None, (self._folder / "broker.log").read_text()
        raise AssertionError(f"the broker does not answer after {START:g} s")

    def _begin_transactions(self) -> None:
        """Its coordinator loads what it knew; until then no transaction can begin."""
        from confluent_kafka import Producer

        own = {"bootstrap.servers": self.bootstrap, "transactional.id": "ready", "log_level": 0}
        Producer(own).init_transactions(START)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it hang: connections stay open and nothing is answered any more when this returns."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        until = time.monotonic() + 30
        while not all(_stopped(task) for task in Path(f"/proc/{self._process.pid}/task").iterdir()):
            assert time.monotonic() < until, "a thread of the broker does not stop"
            time.sleep(0.002)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def admin(self) -> Any:
        """A client; keep it until its answers are there."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic; its name."""
        from confluent_kafka.admin import NewTopic

        given = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=given)
        admin = self.admin
        admin.create_topics([new])[name].result()
        return name

    def write(self, topic: str, values: Sequence[bytes], key: Callable[[bytes], bytes] | None = None) -> None:
        """Append records, without a transaction."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 5})
        for value in values:
            producer.produce(topic, value, key(value) if key else None)
            producer.poll(0)
        assert producer.flush(START) == 0

    def read(self, topic: str, *, committed: bool = True) -> list[Any]:
        """All messages of a topic, partition by partition, as a reader of committed ones sees them."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        found: list[Any] = []
        try:
            numbers = sorted(consumer.list_topics(topic, timeout=START).topics[topic].partitions)
            for number in numbers:
                consumer.assign([TopicPartition(topic, number, 0)])
                until = time.monotonic() + START
                while time.monotonic() < until:
                    message = consumer.poll(0.5)
                    if message is None:
                        continue
                    if (error := message.error()) is None:
                        found.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        break
                else:
                    raise AssertionError(f"{topic}-{number} has no end")
            return found
        finally:
            consumer.close()

    def forget(self, topic: str) -> None:
        """Delete all records of a topic, as its retention would."""
        from confluent_kafka import TopicPartition

        admin = self.admin
        numbers = admin.list_topics(topic, timeout=START).topics[topic].partitions
        ends = [TopicPartition(topic, number, self.end(topic, number)) for number in numbers]
        for done in admin.delete_records(ends).values():
            done.result()

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset behind the last record or marker, of open transactions too."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        newest: Any = OffsetSpec
        one = TopicPartition(topic, partition)
        admin = self.admin
        return int(admin.list_offsets({one: newest.latest()})[one].result().offset)

    def values(self, topic: str, *, committed: bool = True) -> list[bytes]:
        return [message.value() for message in self.read(topic, committed=committed)]

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["java", *JVM, "-cp", f"{self._jars}/*", *arguments]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)


def _stopped(task: Path) -> bool:
    """Whether a thread stands still, which on a busy machine takes a moment after the signal."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
