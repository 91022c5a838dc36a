"""Where in its topics a Kafka source resumes, when a user asks for earliest, latest, a time or offsets.

Kafka is asked by its own Java client with the source's settings, which are shown nowhere. What is
answered are offsets, as Spark writes them: they mean the same whenever the query really starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from weir.errors import BrokerError, LostRecordsError
from weir.protocol.offsets import OffsetChoice, SourcePosition, Word, kafka_offsets
from weir.spark.kafka_client import KafkaAdmin, KafkaStream, Partition, kafka_streams

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import DataFrame, SparkSession


_EARLIEST, _LATEST = -2, -1
"""As Spark's `startingOffsets` has them."""
_SAFE = "org.apache.kafka.common.errors."
"""Errors of brokers: their texts name topics and calls, and never a setting."""


def position(spark: SparkSession, stream: KafkaStream, choice: OffsetChoice) -> SourcePosition:
    """Where the source resumes; raises `BadOffsetsError`, and `BrokerError` when Kafka gives no answer."""
    with _asking(stream), KafkaAdmin(spark, stream.loader, stream.client) as kafka:
        partitions = kafka.partitions(stream)
        if not partitions:
            raise choice.refused("Kafka has no topic that the source reads")
        first = kafka.offsets(partitions, "earliest", stream.isolation)
        last = kafka.offsets(partitions, "latest", stream.isolation)
        if choice.word is Word.EARLIEST:
            return SourcePosition(f"resumes at {_text(first)}, the earliest", _text(first))
        if choice.word is Word.LATEST:
            return SourcePosition(f"resumes at {_text(last)}, the latest", _text(last))
        if choice.word is Word.SINCE:
            since = kafka.offsets(partitions, choice.since_ms, stream.isolation)
            offsets = {one: offset if offset >= 0 else last[one] for one, offset in since.items()}
            assert choice.since is not None
            note = f"resumes at {_text(offsets)}, with what has come since {choice.since.isoformat()}"
            return SourcePosition(note, _text(offsets))
        return _given(choice, first, last)


def _given(
    choice: OffsetChoice, first: Mapping[Partition, int], last: Mapping[Partition, int]
) -> SourcePosition:
    """The offsets that the user gave, checked: each is one that the partition can resume at."""
    chosen: dict[Partition, int] = {}
    for topic, numbers in kafka_offsets(choice).items():
        for number, offset in numbers.items():
            one = (topic, number)
            if one not in first:
                known = ", ".join(f"{topic}-{number}" for topic, number in sorted(first))
                raise choice.refused(f"the source does not read {topic}-{number}; it reads {known}")
            chosen[one] = {_EARLIEST: first[one], _LATEST: last[one]}.get(offset, offset)
            if not first[one] <= chosen[one] <= last[one]:
                reason = f"{topic}-{number} can be read from offset {first[one]} to {last[one]}"
                raise choice.refused(f"{reason}, and not at {offset}")
    others = tuple(sorted(one for one in first if one not in chosen))
    left = "; its other partitions stay where they were" if others else ""
    return SourcePosition(f"resumes at {_text(chosen)}{left}", _text(chosen), others=others)


def _text(offsets: Mapping[Partition, int]) -> str:
    """As Spark writes it."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics, separators=(",", ":"))


@contextmanager
def _asking(stream: KafkaStream) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    try:
        yield
    except Py4JJavaError as error:
        bootstrap = stream.client.get("bootstrap.servers", "")
        raise BrokerError(bootstrap=bootstrap, verb="report its offsets", reason=_words(error)) from None


def _words(error: Py4JJavaError) -> str:
    """What a broker reported; of anything else only its kind, because its text may have a setting in it."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    kind = str(cause.getClass().getName())
    return f"{kind.rsplit('.', 1)[-1]}: {cause.getMessage()}" if kind.startswith(_SAFE) else kind


# Records that a query resumes with and that Kafka no longer has: found before the query starts.
#
# Spark finds out too, in a task, whose error does not always reach the driver as what it is.


def check_records(frame: DataFrame, offsets: Iterable[Mapping[str, Any]]) -> None:
    """Raise `LostRecordsError` when a topic does not have what follows these offsets.

    `offsets` are those of all sources after the last committed batch. What can't be asked now is not
    checked: Spark will report it.
    """
    streams = [one for one in kafka_streams(frame) if one.option("failondataloss").lower() != "false"]
    positions = [one for one in offsets if one and all(isinstance(value, dict) for value in one.values())]
    for stream in streams:
        if wanted := _of(stream, positions):
            lost = next(_lost(frame, stream, wanted), None)
            if lost is not None:
                raise LostRecordsError(reason=lost)


def _of(stream: KafkaStream, positions: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The positions in the topics of a source."""
    names = [name.strip() for name in stream.option("subscribe").split(",") if name.strip()]
    return {
        topic: partitions
        for one in positions
        for topic, partitions in one.items()
        if not names or topic in names
    }


def _lost(frame: DataFrame, stream: KafkaStream, wanted: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    with suppress(Py4JError), KafkaAdmin(frame.sparkSession, stream.loader, stream.client) as kafka:
        for topic, partitions in wanted.items():
            for number, position in partitions.items():
                first, end = kafka.ends(topic, int(number))
                if first > position:
                    yield f"{topic}-{number} begins with offset {first}, the query resumes with {position}"
                elif end < position:
                    yield f"{topic}-{number} ends at offset {end}, the query has read up to {position}"
