"""Jobs that read and write Kafka, in a live session, against a real broker."""

from __future__ import annotations

import itertools
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import weir
from tests.kafka_server import KafkaServer
from weir.driver.notebook import start
from weir.errors import BadOffsetsError, LostRecordsError, NotRewindableError, SinkMismatchError
from weir.restore.request import RestoreRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_names = itertools.count()


class Running:
    """A stateful job between two topics of its own."""

    def __init__(self, server: KafkaServer, folder: Path, **source: Any) -> None:
        name = f"job-{os.getpid()}-{next(_names)}"
        self.server = server
        self.read = server.topic(f"{name}-in", partitions=2)
        self.written = server.topic(f"{name}-out")
        self.source = source
        self.folder = folder

    def job(self) -> weir.Job:
        options = {
            "execution.checkpointing.dir": str(self.folder / "weir"),
            "execution.checkpointing.interval": "off",
        }
        job = weir.Job("kafka", **options)
        job.pipeline(self.pipeline)
        return job

    def pipeline(self, env: weir.Env) -> None:
        records = env.source("records", weir.sources.kafka(self.server.bootstrap, self.read, **self.source))
        counts = records.groupBy(F.col("value").cast("string").alias("word")).count()
        sink = weir.sinks.kafka(
            self.server.bootstrap,
            self.written,
            key="word",
            value=F.to_json(F.struct("word", "count")),
            headers={"kind": F.lit("count")},
        )
        env.sink("counts", counts, sink, output_mode="update")

    def add(self, *words: str) -> None:
        self.server.write(self.read, [word.encode() for word in words], key=lambda value: value)

    def seen(self) -> list[tuple[str, int]]:
        rows = [json.loads(value) for value in self.server.values(self.written)]
        return [(row["word"], row["count"]) for row in rows]


@pytest.mark.long
def test_a_job_between_two_topics_goes_back_only_when_duplicates_are_accepted(
    kafka: KafkaServer, spark_with_kafka: SparkSession, tmp_path: Path
) -> None:
    spark = spark_with_kafka
    running = Running(kafka, tmp_path, group="lookers")
    running.add("a", "b", "a")
    with running.job().start(spark) as run:
        run.process_all()
        cut = run.checkpoint()
        running.add("a")
        run.process_all()
        running.add("b", "c")
        run.process_all()
        lag = [batch.lag for batch in run.batches]
    assert {name for one in lag for name in one} == {f"{running.read}-0", f"{running.read}-1"}
    assert sum(lag[-1].values()) == 0
    seen = running.seen()
    assert dict(seen) == {"a": 3, "b": 2, "c": 1}
    first = kafka.read(running.written)[0]
    assert first.key().decode() == json.loads(first.value())["word"]
    assert first.headers() == [("kind", b"count")]
    assert told(kafka, "lookers", running.read) == 6, run.notes

    with pytest.raises(NotRewindableError) as refused:
        running.job().start(spark, f"chk-{cut}")
    assert "--accept-duplicates" in refused.value.hint
    assert running.seen() == seen

    with running.job().start(spark, f"chk-{cut}", accept_duplicates=True) as run:
        run.process_all()
    doubled = len(running.seen()) - len(seen)
    assert doubled == len(seen) - 2, "what was behind the checkpoint came again"
    assert [note for note in run.notes if f"with {doubled} records" in note], run.notes
    assert dict(running.seen()) == {"a": 3, "b": 2, "c": 1}


@pytest.mark.long
def test_a_source_goes_on_where_the_user_says(
    kafka: KafkaServer, spark_with_kafka: SparkSession, tmp_path: Path
) -> None:
    spark = spark_with_kafka
    running = Running(kafka, tmp_path, config={"client.id": "not-to-be-shown"})
    running.add("a", "b")
    with running.job().start(spark) as run:
        run.process_all()
        place = run.stop_with_savepoint(str(tmp_path / "saved"))
    last = max(message.timestamp()[1] for message in kafka.read(running.read))
    since = datetime.fromtimestamp((last + 1) / 1000, timezone.utc)
    running.add("a", "c")

    def refused(where: str) -> str:
        with pytest.raises(BadOffsetsError) as error:
            start(running.job(), spark, RestoreRequest(place, offsets={"counts/records": where}))
        return error.value.why

    assert "does not read other-0" in refused('{"other": {"0": 1}}')
    assert f"{running.read}-0 can be read from offset 0 to" in refused(json.dumps({running.read: {"0": 99}}))

    def counts(where: str, *more: str) -> dict[str, int]:
        """What the job has counted when it goes on from the savepoint so."""
        seen = len(running.seen())
        wanted = RestoreRequest(place, True, offsets={"counts/records": where})
        with start(running.job(), spark, wanted) as run:
            assert run.planned is not None and "not-to-be-shown" not in run.planned.text
            running.add(*more)
            run.process_all()
        return dict(running.seen()[seen:])

    at_start = json.dumps({running.read: {"0": -2, "1": -2}})
    assert counts("earliest") == {"a": 3, "b": 2, "c": 1}, "all again, on the state that was there"
    assert counts(at_start) == {"a": 3, "b": 2, "c": 1}
    assert counts(f"timestamp:{since.isoformat()}") == {"a": 2, "c": 1}
    assert counts("latest", "d") == {"d": 1}


@pytest.mark.long
def test_a_topic_that_lost_what_a_query_goes_on_with_is_refused(
    kafka: KafkaServer, spark_with_kafka: SparkSession, tmp_path: Path
) -> None:
    spark = spark_with_kafka
    running = Running(kafka, tmp_path)
    running.add("a", "b", "c")
    with running.job().start(spark) as run:
        run.process_all()
    before = running.seen()
    running.add("d", "e", "f", "g")
    kafka.forget(running.read)
    running.add("h")
    with pytest.raises(LostRecordsError) as refused:
        running.job().start(spark)
    assert not refused.value.retry and running.read in refused.value.why
    assert "lost_data='skip'" in refused.value.hint
    assert running.seen() == before

    running.source["lost_data"] = "skip"
    with running.job().start(spark) as run:
        run.process_all()
    assert dict(running.seen()) == dict(before) | {"h": 1}


def test_a_frame_that_has_no_bytes_for_kafka_is_refused_before_anything_runs(
    kafka: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    job = weir.Job("numbers", execution_checkpointing_dir=str(tmp_path))

    @job.pipeline
    def numbers(env: weir.Env) -> None:
        env.sink("numbers", env.source("rate", weir.sources.rate()), weir.sinks.kafka(kafka.bootstrap, "no"))

    with pytest.raises(SinkMismatchError) as refused:
        job.start(spark)
    assert "bigint" in refused.value.why and "to_json" in refused.value.hint


def told(server: KafkaServer, group: str, topic: str) -> int:
    """The sum of the offsets that a group has of a topic."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    admin = server.admin
    wanted = [TopicPartition(topic, number) for number in (0, 1)]
    asked = ConsumerGroupTopicPartitions(group, wanted)
    found = admin.list_consumer_group_offsets([asked])[group].result()
    return sum(one.offset for one in found.topic_partitions)
