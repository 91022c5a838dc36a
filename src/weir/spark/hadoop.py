"""Hadoop's configuration, without what makes it heavy and tells nobody anything.

Spark copies it several times for each batch and sends it to each task that writes a file. It has 1,100
entries, and Hadoop compresses for every single one the name of the file that it came from: a quarter of the
CPU time of a small batch (`docs/decisions/0026-a-light-hadoop-configuration.md`). Values are never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONFIGURATION = "org.apache.hadoop.conf.Configuration"
_YARN = "yarn-default.xml"


def lighten(spark: SparkSession, *, yarn: bool) -> bool:
    """Take out of the session's Hadoop configuration where each entry came from, and YARN's own defaults.

    `yarn` says whether those are needed: they are, wherever the job may talk to YARN. What somebody has
    set is kept in any case. False when this Hadoop has it elsewhere: then Spark works as it did, more
    slowly. Safe to repeat. A class that is loaded later and brings default values of its own makes Hadoop
    read everything again, the light parts too.
    """
    jvm: Any = spark._jvm
    configuration = spark._jsc.hadoopConfiguration()
    try:
        spark._jsparkSession.sessionState()  # these two load such classes
        jvm.org.apache.hadoop.mapred.JobConf()
        if not yarn:
            defaults = jvm.org.apache.hadoop.conf.Configuration(False)
            defaults.addResource(_YARN)
            properties = _method(jvm, "getProps")
            entries = properties.invoke(configuration, None).entrySet()
            entries.removeAll(properties.invoke(defaults, None).entrySet())
        sources = _class(jvm).getDeclaredField("updatingResource")
        sources.setAccessible(True)
        sources.set(configuration, None)
    except Py4JError:
        return False
    return True


def _method(jvm: Any, name: str) -> Any:
    method = _class(jvm).getDeclaredMethod(name, None)
    method.setAccessible(True)
    return method


def _class(jvm: Any) -> Any:
    return jvm.java.lang.Class.forName(_CONFIGURATION)
