"""Topics of Kafka's, read by Spark's own Kafka source.

What was read is in Spark's offset log, so a restore sets the offsets back with everything else; Kafka's
consumer groups have no say in it. The package of the source is fetched when a job first needs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.sources.native import check_options
from weir.spark.kafka_client import GROUP, provide_kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "kafka"
_MORE = frozenset(
    {
        *("maxTriggerDelay", "minOffsetsPerTrigger", "maxRecordsPerPartition", "groupIdPrefix"),
        *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    }
)
"""Options of Spark's that have no argument of their own."""
_OWN = frozenset({"bootstrap.servers", "group.id", "auto.offset.reset", "enable.auto.commit"})


def kafka(
    bootstrap: str,
    topics: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    starting: str | Mapping[str, Mapping[int, int]] = "earliest",
    max_records: int | None = None,
    min_partitions: int | None = None,
    headers: bool = False,
    lost_data: str = "fail",
    group: str | None = None,
    config: Mapping[str, str] | None = None,
    **options: str,
) -> KafkaSource:
    """The records of topics (one, several, or all that fit a pattern), as Spark's Kafka source has them.

    Columns: `key` and `value` (binary), `topic`, `partition`, `offset`, `timestamp`, and `headers` when
    asked for. Only records of committed transactions are read. `starting` says where a query begins that
    has read nothing yet: "earliest", "latest", or offsets by topic and partition. `max_records` bounds a
    batch. A topic that has lost records which a query goes on with is refused, unless `lost_data` is
    "skip". `group` names a consumer group that is told after each batch what was read, for others to look
    at; the job itself never asks it. `config` is for Kafka's Java client: security, timeouts.
    """
    if (topics is None) == (pattern is None):
        raise ValueError("a Kafka source has either topics or a pattern")
    names = [topics] if isinstance(topics, str) else list(topics or ())
    if topics is not None and (not names or any(not name or "," in name for name in names)):
        raise ValueError(f"these are not topic names: {topics!r}")
    if isinstance(starting, str) and starting not in ("earliest", "latest"):
        raise ValueError(f"starting is 'earliest', 'latest' or offsets by topic, not {starting!r}")
    if lost_data not in ("fail", "skip"):
        raise ValueError(f"lost_data is 'fail' or 'skip', not {lost_data!r}")
    for name, value in (("max_records", max_records), ("min_partitions", min_partitions)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value!r}")
    client = {key.removeprefix("kafka."): str(value) for key, value in (config or {}).items()}
    if own := sorted(_OWN & set(client)):
        raise ValueError(f"{own[0]} is Spark's to set; leave it out of config=")
    check_options("Kafka sources", options, _MORE)
    given = {
        "subscribe" if pattern is None else "subscribePattern": ",".join(names)
        if pattern is None
        else pattern,
        "startingOffsets": starting if isinstance(starting, str) else _offsets(starting),
        "failOnDataLoss": str(lost_data == "fail").lower(),
        "includeHeaders": str(headers).lower(),
        "kafka.isolation.level": "read_committed",
        **{f"kafka.{key}": value for key, value in client.items()},
        "kafka.bootstrap.servers": bootstrap,
        **options,
    }
    if max_records is not None:
        given["maxOffsetsPerTrigger"] = str(max_records)
    if min_partitions is not None:
        given["minPartitions"] = str(min_partitions)
    if group is not None:
        given[GROUP] = group
    return KafkaSource(given)


@dataclass(frozen=True)
class KafkaSource:
    """See `kafka`; keeps the contract of `Source`."""

    options: dict[str, Any] = field(repr=False)

    def load(self, spark: SparkSession) -> DataFrame:
        provide_kafka(spark)
        return spark.readStream.format(FORMAT).options(**self.options).load()


def _offsets(starting: Mapping[str, Mapping[int, int]]) -> str:
    return json.dumps(
        {topic: {str(p): offset for p, offset in parts.items()} for topic, parts in starting.items()}
    )
