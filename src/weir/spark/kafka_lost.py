"""Records that a query goes on with and that Kafka no longer has: found before the query starts.

Spark finds out too, in a task, whose error does not always reach the driver as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.errors import LostRecordsError
from weir.spark.kafka_client import KafkaAdmin, KafkaStream, kafka_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_records(frame: DataFrame, offsets: Iterable[Mapping[str, Any]]) -> None:
    """Raise `LostRecordsError` when a topic does not have what follows these offsets.

    `offsets` are those of all sources behind the last committed batch. What can't be asked now is not
    checked: Spark will say so.
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
                first, behind = kafka.ends(topic, int(number))
                if first > position:
                    yield f"{topic}-{number} begins with offset {first}, the query goes on with {position}"
                elif behind < position:
                    yield f"{topic}-{number} ends at offset {behind}, the query has read up to {position}"
