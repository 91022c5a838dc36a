"""Kafka's own Java client, which comes with Spark's Kafka source: the source's settings, its own loader.

Also how a session gets that source, and how consumer groups learn what it has read. py4j does not by itself
find classes of jars that were added later, so they are made by reflection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weir.errors import PreflightError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_RELATION = "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2"
_KAFKA = "org.apache.spark.sql.kafka010."
_SECONDS = 20
_ADMIN = "org.apache.kafka.clients.admin."
_LIMITS = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}

Partition = tuple[str, int]
"""A topic and a number."""


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

    @property
    def isolation(self) -> str:
        """Which records count, as Kafka's clients name it; it decides where a topic ends."""
        return self.options.get("kafka.isolation.level", "read_uncommitted")

    def option(self, name: str) -> str:
        """An option of Spark's, however it was written; "" without it."""
        return next((value for key, value in self.options.items() if key.lower() == name), "")


def kafka_streams(frame: DataFrame) -> list[KafkaStream]:
    """The Kafka sources that a frame reads. Nothing is evaluated."""
    # not `fingerprints.leaves`, which loads pydantic: a process that plans a source has no need of it
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    streams = (kafka_stream(leaves.apply(number)) for number in range(leaves.size()))
    return [one for one in streams if one is not None]


def kafka_stream(leaf: Any) -> KafkaStream | None:
    """A leaf of a plan as a Kafka source; None when it is none."""
    if leaf.getClass().getName() != _RELATION:
        return None
    kind = leaf.table().getClass()
    if not kind.getName().startswith(_KAFKA):
        return None
    return KafkaStream(dict(leaf.extraOptions().asCaseSensitiveMap()), kind.getClassLoader())


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
        create = self._loader.loadClass(f"{_ADMIN}Admin").getMethod("create", kinds)
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
        """An object, by the first constructor of this many arguments."""
        constructors = self._loader.loadClass(name).getConstructors()
        constructor = next(one for one in constructors if one.getParameterCount() == len(arguments))
        return constructor.newInstance(self._array("java.lang.Object", arguments))

    def ends(self, topic: str, number: int) -> tuple[int, int]:
        """The first offset that a partition has, and the one after its last."""
        one = (topic, number)
        return self.offsets([one], "earliest")[one], self.offsets([one], "latest")[one]

    def partitions(self, stream: KafkaStream) -> list[Partition]:
        """The partitions that a source reads, as they are now."""
        if assigned := stream.option("assign"):
            return [(topic, number) for topic, numbers in json.loads(assigned).items() for number in numbers]
        topics = self.jvm.java.util.ArrayList()
        if named := stream.option("subscribe"):
            for topic in named.split(","):
                topics.add(topic.strip())
        else:
            pattern = self.jvm.java.util.regex.Pattern.compile(stream.option("subscribepattern"))
            for topic in self.wait(self.admin.listTopics().names()):
                if pattern.matcher(topic).matches():
                    topics.add(topic)
        found = self.wait(self.admin.describeTopics(topics).allTopicNames())
        return [(topic, int(one.partition())) for topic in found for one in found[topic].partitions()]

    def offsets(
        self, partitions: Iterable[Partition], which: str | int, isolation: str = "read_uncommitted"
    ) -> dict[Partition, int]:
        """Of each partition the earliest or latest offset, or the first one of a time in ms; -1 for none."""
        spec = self._loader.loadClass(f"{_ADMIN}OffsetSpec")
        if isinstance(which, int):
            method = spec.getMethod(
                "forTimestamp", self._array("java.lang.Class", [self.jvm.java.lang.Long.TYPE])
            )
            asked = method.invoke(None, self._array("java.lang.Object", [which]))
        else:
            method = spec.getMethod(which, self._array("java.lang.Class", []))
            asked = method.invoke(None, self._array("java.lang.Object", []))
        places = {one: self.partition(*one) for one in partitions}
        wanted = self.jvm.java.util.HashMap()
        for place in places.values():
            wanted.put(place, asked)
        levels = self._loader.loadClass("org.apache.kafka.common.IsolationLevel")
        options = self.new(f"{_ADMIN}ListOffsetsOptions", levels.getField(isolation.upper()).get(None))
        found = self.admin.listOffsets(wanted, options)
        return {one: int(self.wait(found.partitionResult(place)).offset()) for one, place in places.items()}

    def _array(self, kind: str, values: Any) -> Any:
        what = self.jvm
        for part in kind.split("."):
            what = getattr(what, part)
        array = self._gateway.new_array(what, len(values))
        for number, value in enumerate(values):
            array[number] = value
        return array


# Spark's Kafka source, which Spark ships apart: added to a running session when a job first needs it.
#
# Spark resolves the package by its Maven coordinates, into its own cache, as `spark.jars.packages` would; so
# neither a job file nor a notebook needs a setting.


_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}"
_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_METRICS = "org.apache.spark.sql.execution.ui.SQLAppStatusListener"
"""Does not look among added jars for the source's own metrics, and would report that in every batch."""


def provide_kafka(spark: SparkSession) -> None:
    """Make Spark's Kafka source known to the session; nothing happens where it is. Safe to repeat."""
    if _has_kafka(spark):
        return
    jvm: Any = spark.sparkContext._jvm
    scala = ".".join(str(jvm.scala.util.Properties.versionNumberString()).split(".")[:2])
    coordinates = _PACKAGE.format(scala=scala, spark=spark.version)
    if why := _add(spark, coordinates):
        raise PreflightError(
            what=f"the package {coordinates} can't be fetched",
            why=why,
            todo="put its jars on Spark's path with spark.jars, or name a repository that has it with "
            "spark.jars.repositories or spark.jars.ivySettings",
        )
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_METRICS, log4j.Level.ERROR)


def _add(spark: SparkSession, coordinates: str) -> str:
    """Add the package; why that failed, or ""."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        spark.sql(f"ADD JAR ivy://{coordinates}")
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage())
    except (PySparkException, Py4JError) as error:
        return str(error).strip().partition("\n")[0]
    return "" if _has_kafka(spark) else "its jars were added, and Spark does not find its classes"


def _has_kafka(spark: SparkSession) -> bool:
    """Whether Spark finds the source where it looks for sources."""
    from py4j.protocol import Py4JError  # noqa: PLC0415

    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(_PROVIDER, True, False)
    except Py4JError:
        return False
    return True


# Offsets that Spark's Kafka source has read, reported to a consumer group: for others who look there.
#
# Spark itself never commits to a group, and nothing of a job ever reads what is reported here. Offsets are
# reported by Kafka's own Java client, which came with the source, so that the source's settings fit.


GROUP = "weir.group"
"""The option of a source that names its group. Spark ignores it."""
_OFFSET = "org.apache.kafka.clients.consumer.OffsetAndMetadata"

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
    return [group_of(stream) for stream in kafka_streams(frame) if stream.options.get(GROUP)]


def group_of(stream: KafkaStream) -> Group:
    """The group that a source names."""
    names, pattern = stream.option("subscribe"), stream.option("subscribepattern")
    read = (
        f"Subscribe[{', '.join(name.strip() for name in names.split(','))}]"
        if names
        else f"SubscribePattern[{pattern}]"
    )
    return Group(stream.options[GROUP], f"KafkaV2[{read}]", stream.client, stream.loader)


class GroupCommits:
    """Reports to groups what was read, in its own thread: only the newest counts. A failure is shown once."""

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
        """Wait until all was reported, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._wanted))
                key, (group, offsets) = next(iter(self._wanted.items()))
            try:
                commit(self._spark, group, offsets)
            except Exception as error:  # the group is for others to look at: the job continues
                self._note(group, error)
            with self._changed:
                if self._wanted[key][1] is offsets:
                    del self._wanted[key]
                self._changed.notify_all()

    def _note(self, group: Group, error: Exception) -> None:
        if group.name not in self._said:
            self._said.add(group.name)
            why = _why(str(error))
            self._say(
                f"Kafka group {group.name} could not be updated with the offsets that were read: {why}; "
                "the job continues"
            )


def _why(text: str) -> str:
    """What Kafka reported: py4j's first line only names the call, and a future wraps the cause."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    reported = [line for line in lines if not line.startswith("An error occurred while calling")] or lines
    return (
        reported[0].removeprefix("java.util.concurrent.ExecutionException: ")
        if reported
        else "no reason was given"
    )


def commit(spark: SparkSession, group: Group, offsets: Offsets) -> None:
    """Report to the group; raises when Kafka refuses, as it does while the group has consumers of its own."""
    with KafkaAdmin(spark, group.loader, group.client) as kafka:
        read = kafka.jvm.java.util.HashMap()
        for topic, partitions in offsets.items():
            for number, offset in partitions.items():
                read.put(kafka.partition(topic, int(number)), kafka.new(_OFFSET, int(offset)))
        kafka.wait(kafka.admin.alterConsumerGroupOffsets(group.name, read).all())
