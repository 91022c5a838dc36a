"""What the pipeline function gets: the session, and the verbs that make queries of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from weir.channel.position import Mode
from weir.channel.stream import open_stream
from weir.channel.writer import ChannelWriter
from weir.errors import PipelineError
from weir.ids import JobName, QueryName, SourceName, query_name, source_name
from weir.sinks import NativeSink, PlacedSink, StagingSink
from weir.sinks.contract import capabilities
from weir.sinks.user_state import State, States, UserStateSink
from weir.sources import ReceivingSource, Source
from weir.sources.contract import Place
from weir.spark import frame_plan as writers
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.paths import Live

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

_OUTPUT_MODES = ("append", "update", "complete")
_TRIGGERS: dict[str, type] = {"processingTime": str, "availableNow": bool, "once": bool}
_WITHOUT_BATCHES = {"continuous", "realTime"}


@dataclass(frozen=True)
class QuerySpec:
    """Either a frame with a sink, or a writer of Spark's."""

    name: QueryName
    sink: StagingSink | NativeSink | None
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None
    output_mode: str = "append"
    trigger: dict[str, Any] = field(default_factory=dict)
    at_most_once: bool = False
    """A batch that was planned and not committed is skipped at the next start."""
    sources: Mapping[str, DataFrame] = field(default_factory=dict)
    """What the author named with `env.source`, as it was loaded for this query."""

    @property
    def plan(self) -> DataFrame:
        """The frame whose plan the query runs."""
        frame: DataFrame = self.frame if self.frame is not None else self.writer._df  # type: ignore[union-attr]
        return frame

    @property
    def bounded(self) -> bool:
        """Whether the query ends by itself, with what is there when it starts."""
        if self.writer is not None:
            return writers.is_bounded(self.writer)
        return bool(self.trigger.keys() & {"availableNow", "once"})

    @property
    def user_state(self) -> UserStateSink | None:
        """The author's own state that goes with each batch, when there is some."""
        return self.sink if isinstance(self.sink, UserStateSink) else None

    @property
    def channel(self) -> ChannelWriter | None:
        """The channel that the query writes, when it is a stream."""
        return self.sink if isinstance(self.sink, ChannelWriter) else None


class Env:
    """One evaluation of a pipeline function.

    `reader` is the query that it is evaluated for: the channel readers in its frames are that
    query's own. Without one the evaluation only learns the graph.
    """

    def __init__(
        self,
        job: JobName,
        spark: SparkSession,
        live: Live,
        reader: QueryName | None = None,
        mode: Mode = Mode.ALIGNED,
    ) -> None:
        self._job = job
        self._spark = spark
        self._live = live
        self._reader = reader
        self._mode = mode
        self.sources: dict[str, DataFrame] = {}
        """What each source was loaded as, by the name that the author gave it."""
        self.states = States(reader)
        self.receiving: dict[SourceName, ReceivingSource] = {}
        self.queries: dict[QueryName, QuerySpec] = {}

    @property
    def spark(self) -> SparkSession:
        """The real session; any Spark source may be loaded from it."""
        return self._spark

    def source(self, name: str, source: Source | ReceivingSource | DataFrame) -> DataFrame:
        """Name a source: one of weir's, or any streaming frame that was loaded from Spark."""
        source_name(name)
        if name in self.sources:
            raise self._refused(f"two sources have the name {name!r}", "rename one of them")
        frame = self._load(name, source)
        if not getattr(frame, "isStreaming", False):
            raise self._refused(
                f"source {name!r} is not a stream", "load it with spark.readStream, not with spark.read"
            )
        self.sources[name] = frame
        return frame

    def sink(
        self,
        name: str,
        frame: DataFrame | DataStreamWriter,
        sink: StagingSink | NativeSink | PlacedSink | None = None,
        *,
        output_mode: str = "append",
        trigger: dict[str, Any] | None = None,
        at_most_once: bool = False,
    ) -> None:
        """Make a query: a frame with a weir sink, or an unstarted writer as Spark users have it.

        `trigger` is Spark's: `{"processingTime": "5 seconds"}`, `{"availableNow": True}`; without
        one the next batch starts as soon as there is data. `at_most_once`: a batch that was planned and
        not committed when the driver died is skipped and not run again; for queries without state alone,
        and for sources that can't be replayed.
        """
        query = self._new(name, output_mode, trigger)
        self._check_sink(query, sink)
        if at_most_once and not isinstance(sink, StagingSink | PlacedSink):
            raise self._refused(
                f"query {name!r} is at most once, and its sink writes whenever Spark runs a batch",
                "use a sink of weir's that stages: files, kafka, postgres",
            )
        if at_most_once and capabilities(sink).at_once:
            raise self._refused(
                f"query {name!r} is at most once, and its sink writes inside the batch: "
                "a task that Spark runs again writes its rows again",
                "leave delivery='at_least_once' out of the sink",
            )
        if sink is None:
            self._add_writer(query, frame)
        else:
            frame = self._streaming(name, frame)
            if (check := capabilities(sink).check) is not None:
                check(query, frame, output_mode)
            if isinstance(sink, PlacedSink):
                sink = sink.at(self._live.sink(query), QueryFiles.of(self._live, query))
            self.queries[query] = QuerySpec(
                query,
                sink,
                frame=frame,
                output_mode=output_mode,
                trigger=trigger or {},
                at_most_once=at_most_once,
            )

    def stream(
        self,
        name: str,
        frame: DataFrame,
        *,
        output_mode: str = "append",
        trigger: dict[str, Any] | None = None,
    ) -> DataFrame:
        """Cut the graph here: the frame is computed once, by a query of its own, into a channel.

        Returns the rows of the channel as a streaming frame, which any number of sinks and streams
        may read; event time continues across the cut.
        """
        query = self._new(name, output_mode, trigger)
        if output_mode == "complete":
            raise self._refused(
                f"stream {name!r} has output mode complete: each batch would pass all its rows on again",
                "use output_mode='update', which passes on the rows that changed",
            )
        frame = self._streaming(name, frame)
        location = self._live.channel(query)
        writer = ChannelWriter(query, location, self._live.query(query))
        self.queries[query] = QuerySpec(
            query, writer, frame=frame, output_mode=output_mode, trigger=trigger or {}
        )
        reading = self._live.query(self._reader) if self._reader else ""
        return open_stream(self._spark, frame.schema, location, reading, self._live.checkpoints, self._mode)

    def state(self, name: str, query: str, initial: Any = None) -> State:
        """Small state of the author's own, kept with each batch of one query: any JSON, at most 1 MB.

        Its `value` is read and assigned inside the batches of that query, on the driver.
        """
        return self.states.add(name, query, initial)

    def _new(self, name: str, output_mode: object, trigger: object) -> QueryName:
        query = query_name(name)
        if query in self.queries:
            both = "streams" if isinstance(self.queries[query].sink, ChannelWriter) else "queries"
            raise self._refused(f"two {both} have the name {name!r}", "rename one of them")
        if output_mode not in _OUTPUT_MODES:
            raise self._refused(
                f"query {name!r} has output_mode={output_mode!r}, which Spark does not know",
                f"use one of {', '.join(map(repr, _OUTPUT_MODES))}",
            )
        self._check_trigger(query, trigger)
        return query

    def _check_trigger(self, query: QueryName, trigger: object) -> None:
        if trigger is None:
            return
        todo = 'use {"processingTime": "5 seconds"} or {"availableNow": True}, or leave trigger= out'
        given = trigger if isinstance(trigger, dict) else {}
        for refused in _WITHOUT_BATCHES & set(given):
            raise self._without_batches(query, refused)
        if len(given) != 1 or not all(
            isinstance(value, _TRIGGERS.get(key, ())) and value for key, value in given.items()
        ):
            raise self._refused(f"query {query!r} has trigger={trigger!r}, which is not one of Spark's", todo)

    def _check_sink(self, query: QueryName, sink: object) -> None:
        if sink is None or isinstance(sink, StagingSink | NativeSink | PlacedSink):
            return
        raise self._refused(
            f"the sink of query {query!r} is {sink!r}, which is not a sink",
            f"to write files there: env.sink({query!r}, frame, weir.sinks.files({sink!r}))"
            if isinstance(sink, str)
            else "use one of weir.sinks, such as weir.sinks.files(path)",
        )

    def _without_batches(self, query: QueryName, trigger: str) -> PipelineError:
        return self._refused(
            f"query {query!r} asks for the trigger {trigger!r}, which commits no batches",
            "use processingTime or availableNow",
        )

    def _streaming(self, name: str, frame: object) -> DataFrame:
        if not getattr(frame, "isStreaming", False):
            raise self._refused(
                f"the frame of query {name!r} is not a stream", "build it from env.source(...)"
            )
        return cast("DataFrame", frame)

    def _load(self, name: str, source: Source | ReceivingSource | DataFrame) -> DataFrame:
        if isinstance(source, ReceivingSource):  # first: it has all that a Source has
            key = source_name(name)
            self.receiving[key] = source
            return source.load(self._spark, Place.of(self._live, key))
        return source.load(self._spark) if isinstance(source, Source) else source

    def _add_writer(self, query: QueryName, writer: object) -> None:
        if not hasattr(writer, "queryName"):
            raise self._refused(
                f"query {query!r} has neither a sink nor is it a writer",
                "pass env.sink(name, frame, sink), or env.sink(name, frame.writeStream...)",
            )
        given = cast("DataStreamWriter", writer)
        if trigger := writers.trigger_without_batches(given):
            raise self._without_batches(query, trigger)
        if location := writers.option_of(given, writers.CHECKPOINT_LOCATION):
            raise self._refused(
                f"query {query!r} has a {writers.CHECKPOINT_LOCATION} of its own, {location}. weir keeps the "
                "query's progress in its own directory: it would read everything from the beginning",
                f"leave the option {writers.CHECKPOINT_LOCATION} out, and let the source begin where that "
                "checkpoint ends (for Kafka: startingOffsets)",
            )
        if (called := writers.option_of(given, "queryName")) not in ("", query):
            raise self._refused(
                f"query {query!r} has the queryName {called!r}: a query has one name, which weir needs",
                f"leave .queryName({called!r}) out, or use env.sink({called!r}, ...)",
            )
        if writers.option_of(given, writers.ASYNC_PROGRESS).lower() == "true":
            raise self._refused(
                f"query {query!r} has {writers.ASYNC_PROGRESS}, with which Spark does not record every "
                "batch: a checkpoint could not know what was done",
                f"leave the option {writers.ASYNC_PROGRESS} out",
            )
        self.queries[query] = QuerySpec(query, None, writer=given)

    def _refused(self, reason: str, todo: str) -> PipelineError:
        return PipelineError(job=self._job, reason=reason, todo=todo)
