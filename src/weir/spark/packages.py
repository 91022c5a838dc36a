"""Packages of Spark's own that it ships apart, added to a running session when a job first needs one.

Spark resolves them by their Maven coordinates, into its own cache, as `spark.jars.packages` would; so a job
needs no setting, in a notebook neither. Where the package is there already nothing happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.errors import PreflightError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA = "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}"
KAFKA_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_METRICS = "org.apache.spark.sql.execution.ui.SQLAppStatusListener"
"""Does not look among added jars for the source's own metrics, and would say so in every batch."""


def provide_kafka(spark: SparkSession) -> None:
    """Make Spark's Kafka source known to the session. Safe to repeat."""
    if loadable(spark, KAFKA_CLASS):
        return
    coordinates = coordinates_of(spark, KAFKA)
    if why := _add(spark, coordinates):
        raise PreflightError(
            what=f"the package {coordinates} can't be fetched",
            why=why,
            todo="put its jars on Spark's path with spark.jars, or name a repository that has it with "
            "spark.jars.repositories or spark.jars.ivySettings",
        )
    _quieten(spark, _METRICS)


def _quieten(spark: SparkSession, logger: str) -> None:
    """Let a logger of Spark's say errors alone."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)


def _add(spark: SparkSession, coordinates: str) -> str:
    """Add a package; why that failed, or ""."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        spark.sql(f"ADD JAR ivy://{coordinates}")
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage())
    except (PySparkException, Py4JError) as error:
        return str(error).strip().partition("\n")[0]
    return "" if loadable(spark, KAFKA_CLASS) else "its jars were added, and Spark does not find its classes"


def coordinates_of(spark: SparkSession, form: str) -> str:
    """The coordinates of a package that fits the running Spark."""
    jvm: Any = spark.sparkContext._jvm
    scala = ".".join(str(jvm.scala.util.Properties.versionNumberString()).split(".")[:2])
    return form.format(scala=scala, spark=spark.version)


def loadable(spark: SparkSession, name: str) -> bool:
    """Whether Spark finds this class where it looks for sources."""
    from py4j.protocol import Py4JError  # noqa: PLC0415

    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, True, False)
    except Py4JError:
        return False
    return True
