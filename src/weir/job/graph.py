"""The graph of a job: which queries it has, and how each is made.

The pipeline function is evaluated once to learn the graph, and once more for each query, which
gets frames of its own (design section 3). It must therefore only build frames; a query that it
starts by itself is refused. So is an exactly-once query over a source that can't be replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.errors import PipelineError, WeirError
from weir.ids import JobName, QueryName, SourceName
from weir.job.sinks import StagingSink
from weir.spark import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from weir.job.env import Env, PlaceOf
    from weir.job.sinks import NativeSink
    from weir.job.sources import ReceivingSource

Pipeline = Callable[["Env"], None]


@dataclass(frozen=True)
class QuerySpec:
    """One query as the author described it: either a frame with a sink, or a writer of Spark's."""

    name: QueryName
    sink: StagingSink | NativeSink | None
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None
    output_mode: str = "append"
    trigger: dict[str, Any] = field(default_factory=dict)

    @property
    def plan(self) -> DataFrame:
        """The frame whose plan the query runs."""
        frame: DataFrame = self.frame if self.frame is not None else self.writer._df  # type: ignore[union-attr]
        return frame


@dataclass(frozen=True)
class Receiving:
    """A source with a receiver, and the queries that read it."""

    name: SourceName
    source: ReceivingSource
    readers: list[QueryName]


@dataclass(frozen=True)
class Graph:
    """What a job consists of, in the author's order."""

    queries: list[QueryName]
    receiving: list[Receiving]
    """Only sources that some query reads."""


def learn(job: JobName, pipeline: Pipeline, spark: SparkSession, place: PlaceOf) -> Graph:
    """Evaluate the pipeline once, to learn which queries and receiving sources it has."""
    env = _evaluate(job, pipeline, spark, place)
    if not env.queries:
        raise PipelineError(
            job=job,
            reason="it has no sink, so there is nothing to run",
            todo="call env.sink(name, frame, sink)",
        )
    streams = {name: plan.streams(spec.plan) for name, spec in env.queries.items()}
    for name, spec in env.queries.items():
        if isinstance(spec.sink, StagingSink) and any(stream.sparks_socket for stream in streams[name]):
            raise _not_replayable(job, name)
    receiving = []
    for key, source in env.receiving.items():
        readers = [name for name in streams if any(s.location == place(key).url for s in streams[name])]
        receiving += [Receiving(key, source, readers)] if readers else []
    return Graph(list(env.queries), receiving)


def build(
    job: JobName, pipeline: Pipeline, spark: SparkSession, place: PlaceOf, query: QueryName
) -> QuerySpec:
    """Evaluate the pipeline for one query, which gets frames of its own."""
    specs = _evaluate(job, pipeline, spark, place).queries
    if query not in specs:
        raise PipelineError(
            job=job,
            reason=f"query {query!r} was there when the graph was learnt and is not there now",
            todo="let the pipeline function build the same graph every time",
        )
    return specs[query]


def _not_replayable(job: JobName, query: QueryName) -> PipelineError:
    return PipelineError(
        job=job,
        reason=f"query {query!r} is exactly once and reads Spark's socket, which can't be replayed: "
        "lines that a batch had read when the driver died would be lost",
        todo="use weir.sources.socket(host, port), which journals what it receives",
    )


def _evaluate(job: JobName, pipeline: Pipeline, spark: SparkSession, place: PlaceOf) -> Env:
    from weir.job.env import Env  # noqa: PLC0415  env needs QuerySpec

    before = {query.runId for query in spark.streams.active}
    env = Env(job, spark, place)
    _call(job, pipeline, env)
    started = [query for query in spark.streams.active if query.runId not in before]
    for query in started:
        query.stop()
    if started:
        raise PipelineError(
            job=job,
            reason=f"it started the query {started[0].name or started[0].id!r} by itself, past weir",
            todo="hand the frame, or the unstarted writer, to env.sink(...) and leave out .start()",
        )
    return env


def _call(job: JobName, pipeline: Pipeline, env: Env) -> None:
    """Call the author's function; what it raises is the author's to mend, and no retry helps."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415

    try:
        pipeline(env)
    except Exception as error:
        spark_failed = isinstance(error, PySparkException) and not isinstance(error, AnalysisException)
        if spark_failed or isinstance(error, (WeirError, OSError, Py4JError)):
            raise
        raise PipelineError(
            job=job,
            reason=f"it raised {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            todo=f"mend the function; 'weir logs {job}' has the stack",
        ) from error
