"""Kafka's own Java client, which came with Spark's Kafka source: the source's settings, its own loader.

py4j does not find classes of jars that were added later by itself, so they are made by reflection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RELATION = "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2"
_KAFKA = "org.apache.spark.sql.kafka010."
_SECONDS = 20
_LIMITS = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}


@dataclass(frozen=True)
class KafkaStream:
    """A Kafka source in the plan of a frame."""

    options: Mapping[str, str] = field(repr=False)
    loader: Any = field(repr=False, compare=False)
    """Where Java's classes of Kafka's are."""

    @property
    def client(self) -> dict[str, str]:
        """The settings of a client that reaches the same brokers."""
        given = {k.removeprefix("kafka."): v for k, v in self.options.items() if k.startswith("kafka.")}
        return {key: value for key, value in given.items() if key != "isolation.level"}


def kafka_streams(frame: DataFrame) -> list[KafkaStream]:
    """The Kafka sources that a frame reads. Nothing is evaluated."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getName() == _RELATION:
            kind = leaf.table().getClass()
            if kind.getName().startswith(_KAFKA):
                options = dict(leaf.extraOptions().asCaseSensitiveMap())
                found.append(KafkaStream(options, kind.getClassLoader()))
    return found


class KafkaAdmin:
    """An admin client. Use as a context manager; what Kafka refuses is raised as py4j raises it."""

    def __init__(self, spark: SparkSession, loader: Any, client: Mapping[str, str]) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._gateway = gateway
        self._loader = loader
        self.jvm = gateway.jvm
        given = self.jvm.java.util.HashMap()
        for key, value in {**_LIMITS, **client}.items():
            given.put(key, value)
        kinds = self._array("java.lang.Class", [self.jvm.java.lang.Class.forName("java.util.Map")])
        create = self._loader.loadClass("org.apache.kafka.clients.admin.Admin").getMethod("create", kinds)
        self.admin = create.invoke(None, self._array("java.lang.Object", [given]))

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.admin.close()

    def wait(self, future: Any) -> Any:
        """The answer."""
        return future.get(_SECONDS, self.jvm.java.util.concurrent.TimeUnit.SECONDS)

    def partition(self, topic: str, number: int) -> Any:
        return self.new("org.apache.kafka.common.TopicPartition", topic, number)

    def new(self, name: str, *arguments: Any) -> Any:
        """An object, by the first constructor of so many arguments."""
        made = self._loader.loadClass(name).getConstructors()
        constructor = next(one for one in made if one.getParameterCount() == len(arguments))
        return constructor.newInstance(self._array("java.lang.Object", arguments))

    def ends(self, topic: str, number: int) -> tuple[int, int]:
        """The first offset that a partition has, and the one behind its last."""
        return self._offset(topic, number, "earliest"), self._offset(topic, number, "latest")

    def _offset(self, topic: str, number: int, which: str) -> int:
        spec = self._loader.loadClass("org.apache.kafka.clients.admin.OffsetSpec")
        asked = spec.getMethod(which, self._array("java.lang.Class", []))
        place, wanted = self.partition(topic, number), self.jvm.java.util.HashMap()
        wanted.put(place, asked.invoke(None, self._array("java.lang.Object", [])))
        return int(self.wait(self.admin.listOffsets(wanted).partitionResult(place)).offset())

    def _array(self, kind: str, values: Any) -> Any:
        what = self.jvm
        for part in kind.split("."):
            what = getattr(what, part)
        array = self._gateway.new_array(what, len(values))
        for number, value in enumerate(values):
            array[number] = value
        return array
