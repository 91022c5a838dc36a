"""Offsets that Spark's Kafka source has read, told to a consumer group: for others who look there.

Spark itself never commits to a group, and nothing of a job ever reads what is told here. Offsets are told
by Kafka's own Java client, which came with the source, so that the source's settings fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "weir.group"
"""The option of a source that names its group. Spark ignores it."""
_RELATION = "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2"
_SECONDS = 30

Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition, as Spark's progress has them."""


@dataclass(frozen=True)
class Group:
    """A consumer group that wants to know what a query has read."""

    name: str
    source: str
    """How Spark describes the source."""
    client: Mapping[str, str] = field(repr=False)
    loader: Any = field(default=None, repr=False, compare=False)
    """Where Java's classes of Kafka's are; the source's own are of it."""


def groups_of(frame: DataFrame) -> list[Group]:
    """The groups that the sources of a frame name. Nothing is evaluated."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getName() == _RELATION and leaf.extraOptions().get(GROUP):
            loader = leaf.table().getClass().getClassLoader()
            found.append(group_of(dict(leaf.extraOptions().asCaseSensitiveMap()), loader))
    return found


def group_of(options: Mapping[str, str], loader: Any) -> Group:
    """The group that the options of a Kafka source name."""
    names = options.get("subscribe")
    pattern = options.get("subscribePattern")
    read = f"Subscribe[{', '.join(names.split(','))}]" if names else f"SubscribePattern[{pattern}]"
    client = {key.removeprefix("kafka."): value for key, value in options.items() if key.startswith("kafka.")}
    client.pop("isolation.level", None)
    return Group(options[GROUP], f"KafkaV2[{read}]", client, loader)


class GroupCommits:
    """Tells groups what was read, in a thread of its own; only the newest counts. Failures are said once."""

    def __init__(self, spark: SparkSession, say: Callable[[str], None]) -> None:
        self._spark = spark
        self._say = say
        self._said: set[str] = set()
        self._groups: dict[str, list[Group]] = {}
        self._wanted: dict[str, tuple[Group, Offsets]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, query: str, groups: list[Group]) -> None:
        """From now on these groups want to know what the query has read."""
        self._groups[query] = groups

    def read(self, query: str, progress: Mapping[str, Any]) -> None:
        """A batch of the query was committed by Spark, with this progress."""
        for source in progress.get("sources", []):
            for group in self._groups.get(query, []):
                if source.get("description") == group.source and source.get("endOffset"):
                    with self._changed:
                        self._wanted[f"{group.name} {group.source}"] = (group, source["endOffset"])
                        self._changed.notify_all()
        if self._wanted and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="weir-kafka-groups", daemon=True)
            self._thread.start()

    def settle(self, seconds: float) -> None:
        """Wait until all was told, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._wanted))
                key, (group, offsets) = next(iter(self._wanted.items()))
            try:
                commit(self._spark, group, offsets)
            except Exception as error:  # the group is for others to look at: the job goes on
                self._note(group, error)
            with self._changed:
                if self._wanted[key][1] is offsets:
                    del self._wanted[key]
                self._changed.notify_all()

    def _note(self, group: Group, error: Exception) -> None:
        if group.name not in self._said:
            self._said.add(group.name)
            why = str(error).strip().partition("\n")[0]
            self._say(f"group {group.name} of Kafka could not be told what was read: {why}; the job goes on")


def commit(spark: SparkSession, group: Group, offsets: Offsets) -> None:
    """Tell the group; raises when Kafka refuses, as it does while the group has consumers of its own."""
    kafka = _Java(spark, group.loader)
    admin = kafka.static(
        "org.apache.kafka.clients.admin.Admin", "create", "java.util.Map", dict(group.client)
    )
    try:
        entries = kafka.jvm.java.util.HashMap()
        for topic, partitions in offsets.items():
            for number, offset in partitions.items():
                place = kafka.new("org.apache.kafka.common.TopicPartition", topic, int(number))
                entries.put(
                    place, kafka.new("org.apache.kafka.clients.consumer.OffsetAndMetadata", int(offset))
                )
        unit = kafka.jvm.java.util.concurrent.TimeUnit.SECONDS
        admin.alterConsumerGroupOffsets(group.name, entries).all().get(_SECONDS, unit)
    finally:
        admin.close()


class _Java:
    """Classes that came with the source; they are not where py4j looks by itself."""

    def __init__(self, spark: SparkSession, loader: Any) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._gateway = gateway
        self.jvm = gateway.jvm
        self._loader = loader

    def new(self, name: str, *arguments: Any) -> Any:
        """An object, by the first constructor of so many arguments."""
        made = self._loader.loadClass(name).getConstructors()
        constructor = next(one for one in made if one.getParameterCount() == len(arguments))
        return constructor.newInstance(self._array("java.lang.Object", arguments))

    def static(self, name: str, method: str, kind: str, argument: Mapping[str, str]) -> Any:
        """Call a static method with one map."""
        kinds = self._array("java.lang.Class", [self.jvm.java.lang.Class.forName(kind)])
        given = self.jvm.java.util.HashMap()
        for key, value in argument.items():
            given.put(key, value)
        found = self._loader.loadClass(name).getMethod(method, kinds)
        return found.invoke(None, self._array("java.lang.Object", [given]))

    def _array(self, kind: str, values: Any) -> Any:
        what = self.jvm
        for part in kind.split("."):
            what = getattr(what, part)
        array = self._gateway.new_array(what, len(values))
        for number, value in enumerate(values):
            array[number] = value
        return array
