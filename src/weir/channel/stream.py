"""A channel as a streaming frame: the neighbour of `env.stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.channel import reader
from weir.channel.event_time import CONTROL, continue_event_time, delays
from weir.channel.position import Mode
from weir.spark.planned_source import serve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def open_stream(
    spark: SparkSession,
    schema: StructType,
    location: str,
    query: str,
    checkpoints: str,
    mode: Mode = Mode.ALIGNED,
    max_segments: int | None = None,
) -> DataFrame:
    """The rows of a channel as a streaming frame, for one query, new at each call.

    `schema` is that of the frame that was cut, with Spark's marks of its event-time columns;
    `location` is the channel's folder, called like the channel; `query` is the checkpointLocation of
    the query that will read it, `checkpoints` the job's folder of checkpoints ("" for none).
    `max_segments` bounds a batch (0: no bound). Nothing is read yet: the channel need not exist.
    """
    from pyspark.sql.types import StructField, TimestampType  # noqa: PLC0415
    from pyspark.sql.types import StructType as Struct  # noqa: PLC0415

    from weir.channel.schema import readable  # noqa: PLC0415  loads pyspark

    event_time, rows = delays(schema), readable(schema)
    hidden = [StructField(CONTROL, TimestampType())] if event_time else []
    options = {
        "location": location,
        "query": query,
        "checkpoints": checkpoints,
        "mode": Mode(mode).value,
        "maxSegmentsPerTrigger": str(reader.MAX_SEGMENTS if max_segments is None else max_segments),
        "eventTime": "true" if event_time else "false",
    }
    serve(spark, reader.KIND, reader.ChannelReader)
    stream = spark.readStream.format(reader.FORMAT).schema(Struct(rows.fields + hidden)).options(**options)
    frame = stream.load()
    return continue_event_time(frame, event_time) if event_time else frame
