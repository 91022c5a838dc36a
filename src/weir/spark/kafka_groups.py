"""Offsets that Spark's Kafka source has read, told to a consumer group: for others who look there.

Spark itself never commits to a group, and nothing of a job ever reads what is told here. Offsets are told
by Kafka's own Java client, which came with the source, so that the source's settings fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.spark.kafka_client import KafkaAdmin, KafkaStream, kafka_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
            why = _why(str(error))
            self._say(f"group {group.name} of Kafka could not be told what was read: {why}; the job goes on")


def _why(text: str) -> str:
    """What Kafka said: py4j's first line only tells the call, and a future wraps the cause."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("An error occurred while calling")] or lines
    return (
        said[0].removeprefix("java.util.concurrent.ExecutionException: ") if said else "no reason was given"
    )


def commit(spark: SparkSession, group: Group, offsets: Offsets) -> None:
    """Tell the group; raises when Kafka refuses, as it does while the group has consumers of its own."""
    with KafkaAdmin(spark, group.loader, group.client) as kafka:
        told = kafka.jvm.java.util.HashMap()
        for topic, partitions in offsets.items():
            for number, offset in partitions.items():
                told.put(kafka.partition(topic, int(number)), kafka.new(_OFFSET, int(offset)))
        kafka.wait(kafka.admin.alterConsumerGroupOffsets(group.name, told).all())
