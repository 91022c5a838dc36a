"""Python data sources of weir's own, made known to Spark's sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_known: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a data source known to a session. Safe to repeat; Spark itself warns of a second time."""
    names = _known.setdefault(spark, set())
    if source.name() in names:
        return
    # Spark looks for the name in the thread's active session, and refuses it if that one has it.
    jvm: Any = spark.sparkContext._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        spark.dataSource.register(source)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
    names.add(source.name())
