"""What the pipeline function gets: the session, and the verbs that make the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from weir.errors import PipelineError
from weir.ids import JobName, QueryName, SourceName, query_name, source_name
from weir.job.graph import QuerySpec
from weir.job.sinks import NativeSink, StagingSink
from weir.job.sources import Place, ReceivingSource, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter


PlaceOf = Callable[[SourceName], Place]


class Env:
    """One evaluation of a pipeline function."""

    def __init__(self, job: JobName, spark: SparkSession, place: PlaceOf | None = None) -> None:
        self._job = job
        self._spark = spark
        self._place = place
        self._sources: set[str] = set()
        self.receiving: dict[SourceName, ReceivingSource] = {}
        self.queries: dict[QueryName, QuerySpec] = {}

    @property
    def spark(self) -> SparkSession:
        """The real session; any Spark source may be loaded from it."""
        return self._spark

    def source(self, name: str, source: Source | ReceivingSource | DataFrame) -> DataFrame:
        """Name a source: one of weir's, or any streaming frame that was loaded from Spark."""
        if name in self._sources:
            raise self._refused(f"two sources have the name {name!r}", "rename one of them")
        self._sources.add(name)
        frame = self._load(name, source)
        if not getattr(frame, "isStreaming", False):
            raise self._refused(
                f"source {name!r} is not a stream", "load it with spark.readStream, not with spark.read"
            )
        return frame

    def sink(
        self,
        name: str,
        frame: DataFrame | DataStreamWriter,
        sink: StagingSink | NativeSink | None = None,
        *,
        output_mode: str = "append",
        trigger: dict[str, Any] | None = None,
    ) -> None:
        """Make a query: a frame with a weir sink, or an unstarted writer as Spark users have it.

        `trigger` is Spark's: `{"processingTime": "5 seconds"}`, `{"availableNow": True}`; without
        one the next batch starts as soon as there is data.
        """
        query = query_name(name)
        if query in self.queries:
            raise self._refused(f"two queries have the name {name!r}", "rename one of them")
        trigger = trigger or {}
        if set(trigger) & {"continuous", "realTime"}:
            raise self._refused(
                f"query {name!r} asks for the trigger {next(iter(trigger))!r}, which commits no batches",
                "use processingTime or availableNow",
            )
        if sink is None:
            self._add_writer(query, frame)
        elif not getattr(frame, "isStreaming", False):
            raise self._refused(
                f"the frame of query {name!r} is not a stream", "build it from env.source(...)"
            )
        else:
            self.queries[query] = QuerySpec(
                query, sink, frame=cast("DataFrame", frame), output_mode=output_mode, trigger=trigger
            )

    def _load(self, name: str, source: Source | ReceivingSource | DataFrame) -> DataFrame:
        if isinstance(source, ReceivingSource):  # first: it has all that a Source has
            assert self._place is not None, "a pipeline with a receiving source is evaluated for an engine"
            key = source_name(name)
            self.receiving[key] = source
            return source.load(self._spark, self._place(key))
        return source.load(self._spark) if isinstance(source, Source) else source

    def _add_writer(self, query: QueryName, writer: object) -> None:
        if not hasattr(writer, "queryName"):
            raise self._refused(
                f"query {query!r} has neither a sink nor is it a writer",
                "pass env.sink(name, frame, sink), or env.sink(name, frame.writeStream...)",
            )
        self.queries[query] = QuerySpec(query, None, writer=cast("DataStreamWriter", writer))

    def _refused(self, reason: str, todo: str) -> PipelineError:
        return PipelineError(job=self._job, reason=reason, todo=todo)
