"""Spark's own StateRewriter, which writes the state of a query again, called through py4j.

It reads every store of every operator that is described at the place to write to, hands each to a
function as a frame `partition_key, key_bytes, value_bytes, column_family_name`, and writes what that
gives back: partition i of the frame becomes state partition i. The class is private to Spark, and the
same in 4.2 and 4.3; a test per Spark version pins it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import java_gateway
from pyspark.sql import DataFrame, SparkSession

from weir.ids import BatchId
from weir.spark.logs import StateIds

Transform = Callable[[int, str, DataFrame], DataFrame]
"""Gets operator, store and the frame of its state; gives a frame of the same schema."""


def rewrite(
    spark: SparkSession, read: Path, write: Path, batch: BatchId, transform: Transform, to: BatchId
) -> StateIds | None:
    """Write the state of a batch at `read` as that of the batch `to` at `write`; format 2 gives ids.

    `write` must have the batch in its offset log, with the settings to write with, and the metadata and
    schemas of its operators; what it has of state is not looked at.
    """
    jvm: Any = spark._jvm
    session = spark._jsparkSession
    java_gateway.ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    function = _Function(spark, transform)
    option = jvm.scala.Option
    rewriter = jvm.org.apache.spark.sql.execution.streaming.state.StateRewriter(
        session,
        int(batch),
        int(to),
        f"file:{write}",
        session.sessionState().newHadoopConf(),
        option.apply(f"file:{read}"),
        option.apply(function),
        option.empty(),
    )
    try:
        ids = rewriter.run()
    except Exception:
        if function.failed is not None:
            raise function.failed from None
        raise
    return _ids(ids.get()) if ids.isDefined() else None


class _Function:
    """A function of Scala's that Python answers. It is called in the driver alone, once a store."""

    def __init__(self, spark: SparkSession, transform: Transform) -> None:
        self._spark = spark
        self._transform = transform
        self.failed: BaseException | None = None

    def apply(self, given: Any) -> Any:
        try:
            options = given.queryExecution().analyzed().collectLeaves().apply(0).options()
            operator, store = int(options.get("operatorId")), str(options.get("storeName"))
            return self._transform(operator, store, DataFrame(given, self._spark))._jdf
        except BaseException as error:
            self.failed = error
            raise

    def toString(self) -> str:
        return "weir's transformation of state"

    class Java:
        implements = ["scala.Function1"]


def _ids(found: Any) -> StateIds:
    ids: StateIds = {}
    entries = found.iterator()
    while entries.hasNext():
        entry = entries.next()
        ids[str(entry._1())] = [list(stores) for stores in entry._2()]
    return ids
