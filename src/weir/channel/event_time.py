"""Event time goes on across the cut.

A reader's watermark must be the writer's: rows that the writer filtered out moved it too, and of
two joined streams the slower one holds it. So the rows of a channel do not move it at all: each
batch brings the writer's watermark in a hidden column, in a row of its own if need be, and the
event-time columns only get back the mark by which Spark's operators know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.ids import BatchId
from weir.spark.logs import CommitEntry, OffsetEntry
from weir.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

DELAY = "spark.watermarkDelayMs"
"""Spark's own mark of an event-time column, in the metadata of the analyzed frame."""
CONTROL = "__weir_watermark"
"""The hidden column: null in rows of the stream, the watermark in a control row."""


def delays(schema: StructType) -> dict[str, int]:
    """The event-time columns of a frame, each with the author's delay in milliseconds."""
    return {field.name: int(field.metadata[DELAY]) for field in schema.fields if DELAY in field.metadata}


def continue_event_time(frame: DataFrame, wanted: dict[str, int]) -> DataFrame:
    """Declare the watermark on what the reader gives, and take out the control rows behind it."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    # Not a plain "is null": Catalyst would push that, and the author's own predicates, below the
    # watermark, where the control row must still be. Nothing passes a nondeterministic predicate.
    rows_only = F.expr(f"spark_partition_id() >= if(`{CONTROL}` is null, 0, 2147483647)")
    marked = frame.withWatermark(CONTROL, "0 seconds").where(rows_only)
    columns = []
    for field in frame.schema.fields:
        if field.name in wanted:
            metadata: dict[str, Any] = field.metadata | {DELAY: wanted[field.name]}
            columns.append(F.col(f"`{field.name}`").alias(field.name, metadata=metadata))
        elif field.name != CONTROL:
            columns.append(F.col(f"`{field.name}`"))
    return marked.select(*columns)


def carried_watermark(query: Store, batch: BatchId) -> int | None:
    """The watermark that a segment carries; `query` is the writing query's checkpointLocation.

    A stateless query: what Spark's decision record gives to the next batch. A query with state
    emits what the watermark that its batch ran with has closed; if its segment carried a later
    one, its own rows would be late at the reader. (Spark follows with a batch without data, which
    runs with the later one.)
    """
    stateful = next(query.list("state/0/_metadata"), None) is not None
    data = query.get(f"{'offsets' if stateful else 'commits'}/{batch}")
    if not data:
        return None
    return OffsetEntry.parse(data).watermark_ms if stateful else CommitEntry.parse(data).watermark_ms or None
