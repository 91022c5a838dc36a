"""Sources of Spark's own under a name: what is checked before Spark sees it."""

from __future__ import annotations

from typing import Any

import pytest

from weir import sources
from weir.driver.progress import lag
from weir.spark import kafka_offsets
from weir.spark.kafka_client import Group, GroupCommits, KafkaStream, group_of


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"format": "parquett", "schema": "a int"}, "parquett"),
        ({"format": "json"}, "needs a schema"),
        ({"format": "json", "schema": "a int", "multiline": True, "mutliLine": True}, "'multiLine'"),
        ({"format": "json", "schema": "a int", "cleanSource": "delete"}, "older checkpoint"),
        ({"format": "text", "maxFilesPerTrigger": 1}, "max_files="),
        ({"format": "text", "max_files": 1, "max_bytes": 1}, "not by both"),
        ({"format": "text", "max_files": 0}, "max_files must be 1 or more"),
    ],
)
def test_files_whose_options_do_not_fit_are_refused(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        sources.files("in", **given)


def test_files_get_their_options_as_spark_spells_them() -> None:
    source = sources.files("in", "csv", "a int", max_files=2, header=True, sep=";")
    any_age = {"maxFileAge": "36500d"}
    assert source.options == {"header": "true", "sep": ";", "maxFilesPerTrigger": "2"} | any_age
    assert sources.files("in", "text", maxfileage="1d").options == {"maxfileage": "1d"}
    assert (source.format, source.path, source.schema) == ("csv", "in", "a int")


def test_a_rate_is_a_rate() -> None:
    source = sources.rate(100, ramp_up_seconds=5, partitions=2)
    assert source.options == {"rowsPerSecond": "100", "rampUpTime": "5s", "numPartitions": "2"}
    for given in ({"rows_per_second": 0}, {"ramp_up_seconds": -1}, {"partitions": 0}):
        with pytest.raises(ValueError, match="must be"):
            sources.rate(**given)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "either topics or a pattern"),
        ({"topics": "a", "pattern": "b.*"}, "either topics or a pattern"),
        ({"topics": ["a", ""]}, "not topic names"),
        ({"topics": "a,b"}, "not topic names"),
        ({"topics": "a", "starting": "begin"}, "'earliest', 'latest'"),
        ({"topics": "a", "lost_data": "ignore"}, "'fail' or 'skip'"),
        ({"topics": "a", "max_records": 0}, "max_records must be 1"),
        ({"topics": "a", "config": {"group.id": "g"}}, "group.id is Spark's to set"),
        ({"topics": "a", "minOffsetPerTrigger": "5"}, "'minOffsetsPerTrigger'"),
    ],
)
def test_kafka_whose_options_do_not_fit_is_refused(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        sources.kafka("b:1", **given)


def test_kafka_reads_only_what_is_committed_and_fails_when_data_is_lost() -> None:
    source = sources.kafka(
        "b:1",
        ["a", "b"],
        starting={"a": {0: 5}},
        max_records=10,
        headers=True,
        config={"kafka.security.protocol": "SSL", "ssl.key.password": "hunter2"},
        maxTriggerDelay="1s",
    )
    assert source.options == {
        "subscribe": "a,b",
        "startingOffsets": '{"a": {"0": 5}}',
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.key.password": "hunter2",
        "kafka.bootstrap.servers": "b:1",
        "maxTriggerDelay": "1s",
        "maxOffsetsPerTrigger": "10",
    }
    assert "hunter2" not in repr(source)
    assert sources.kafka("b:1", pattern="a.*", lost_data="skip").options["failOnDataLoss"] == "false"


def test_lag_is_told_for_each_partition_and_for_kafka_alone() -> None:
    kafka = {
        "description": "KafkaV2[Subscribe[a]]",
        "endOffset": {"a": {"0": 7, "1": 5}},
        "latestOffset": {"a": {"0": 10, "1": 5, "2": 4}},
    }
    files = {"description": "FileStreamSource[in]", "endOffset": {"logOffset": 1}, "latestOffset": None}
    assert lag({"sources": [kafka, files]}) == {"a-0": 3, "a-1": 0, "a-2": 4}
    assert lag({"sources": [files]}) == {}
    assert lag({}) == {}


@pytest.mark.parametrize("name", ["failOnDataLoss", "failondataloss"])
@pytest.mark.parametrize("value", ["false", "False"])
def test_who_goes_on_without_lost_records_may_spell_it_as_spark_lets_him(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    stream = KafkaStream({name: value, "subscribe": "t"}, None)
    monkeypatch.setattr(kafka_offsets, "kafka_streams", lambda frame: [stream])
    frame: Any = None  # nobody asks it
    kafka_offsets.check_records(frame, [{"t": {"0": 5}}])


def test_a_group_is_told_of_its_source_however_its_options_are_written() -> None:
    stream = KafkaStream({"weir.group": "lag", "Subscribe": "a, b"}, None)
    assert group_of(stream).source == "KafkaV2[Subscribe[a, b]]"


def test_what_kafka_says_of_a_group_is_said_once() -> None:
    said: list[str] = []
    session: Any = None
    commits = GroupCommits(session, said.append)
    error = Exception(
        "An error occurred while calling o42.get.\n: java.util.concurrent.ExecutionException: "
        "org.apache.kafka.common.errors.UnknownMemberIdException: The coordinator is not aware.\n"
        "\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)"
    )
    for _ in range(2):
        commits._note(Group("lag", "s", {}), error)
    assert len(said) == 1 and "UnknownMemberIdException: The coordinator is not aware" in said[0]
