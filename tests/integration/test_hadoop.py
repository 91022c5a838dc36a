"""Hadoop's configuration is light, and says what it said before; weir's data sources bear several queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from weir.spark.data_sources import register
from weir.spark.session import lighten_hadoop
from weir.testing.script import FORMAT, ScriptDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def jvm(spark: SparkSession) -> Any:
    return spark._jvm


def entries(configuration: Any) -> dict[str, str]:
    found, rest = {}, configuration.iterator()
    while rest.hasNext():
        entry = rest.next()
        found[entry.getKey()] = entry.getValue()
    return found


def sent(spark: SparkSession, configuration: Any) -> tuple[Any, int]:
    """A configuration as a task gets it, and how many bytes it took."""
    jvm: Any = spark._jvm
    serializer = jvm.org.apache.spark.serializer.JavaSerializer(spark._jsc.sc().conf()).newInstance()
    kind = jvm.scala.reflect.ClassTag.Any()
    written = serializer.serialize(jvm.org.apache.spark.util.SerializableConfiguration(configuration), kind)
    return serializer.deserialize(written, kind).value(), written.limit()


def test_only_sources_and_the_defaults_of_yarn_are_gone(spark: SparkSession) -> None:
    ours = spark._jsc.hadoopConfiguration()
    ours.set("yarn.resourcemanager.address", "somebody:1")
    ours.reloadConfiguration()
    whole = entries(ours)
    try:
        assert ours.getPropertySources("fs.s3a.impl")
        assert lighten_hadoop(spark, yarn=False)
        light = entries(ours)
    finally:
        ours.unset("yarn.resourcemanager.address")
    gone = whole.keys() - light.keys()
    assert len(gone) > 400
    assert all(key.startswith("yarn.") for key in gone)
    assert light == {key: value for key, value in whole.items() if key not in gone}
    assert light["yarn.resourcemanager.address"] == "somebody:1"
    assert not ours.getPropertySources("fs.s3a.impl")


def test_a_task_gets_the_same_values_in_half_the_bytes(spark: SparkSession, jvm: Any) -> None:
    light = spark._jsparkSession.sessionState().newHadoopConf()
    got, size = sent(spark, light)
    assert entries(got) == entries(light)
    assert size < sent(spark, jvm.org.apache.hadoop.conf.Configuration())[1] / 2


def test_a_job_that_may_talk_to_yarn_keeps_its_defaults(spark: SparkSession, jvm: Any) -> None:
    ours = spark._jsc.hadoopConfiguration()
    ours.reloadConfiguration()
    try:
        assert lighten_hadoop(spark, yarn=True)
        assert ours.get("yarn.resourcemanager.port") == jvm.org.apache.hadoop.conf.Configuration().get(
            "yarn.resourcemanager.port"
        )
        assert sum(key.startswith("yarn.") for key in entries(ours)) > 400
    finally:
        lighten_hadoop(spark, yarn=False)


def test_several_queries_may_start_on_one_data_source_at_once(spark: SparkSession, jvm: Any) -> None:
    """Each puts variables into the map that the tasks of all take along."""
    register(spark, ScriptDataSource)
    registered = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(FORMAT)
    shared = registered.dataSourceCls().envVars()
    assert shared.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
    assert registered.createPythonFunction(b"").envVars().equals(shared)
