"""Data sources in Python, made known to Spark's sessions; of weir's own only that of `weir.testing`."""

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
        kind = jvm.org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource
        made = kind(_for_several_threads(spark, source))
        spark._jsparkSession.dataSource().registerPython(source.name(), made)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
    names.add(source.name())


def _for_several_threads(spark: SparkSession, source: type[DataSource]) -> Any:
    """The class as Spark takes it, with a map of the environment that several queries may write to at once.

    As of Spark 4.3 every streaming reader puts its variables into the one map of the class when it starts,
    and every task takes that map along. Two that start at once can leave a plain map with a wrong size;
    from then on no task of any reader can be read back (`OptionalDataException`), while the JVM lives.
    """
    from pyspark.sql.udf import _wrap_function  # noqa: PLC0415

    jvm: Any = spark.sparkContext._jvm
    plain: Any = _wrap_function(spark.sparkContext, source)
    return jvm.org.apache.spark.api.python.SimplePythonFunction(
        plain.command(),
        jvm.java.util.concurrent.ConcurrentHashMap(plain.envVars()),
        plain.pythonIncludes(),
        plain.pythonExec(),
        plain.pythonVer(),
        plain.broadcastVars(),
        plain.accumulator(),
    )
