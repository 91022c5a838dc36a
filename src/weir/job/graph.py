"""The graph of a job: which queries it has, and how each is made.

The pipeline function is evaluated once to learn the graph, and once more for each query, which
gets frames of its own (design section 3). It must therefore only build frames; a query that it
starts by itself is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.errors import PipelineError, WeirError
from weir.ids import JobName, QueryName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from weir.job.env import Env
    from weir.job.sinks import NativeSink, StagingSink

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


def learn(job: JobName, pipeline: Pipeline, spark: SparkSession) -> list[QueryName]:
    """Evaluate the pipeline once: the names of its queries, in the author's order."""
    specs = _evaluate(job, pipeline, spark)
    if not specs:
        raise PipelineError(
            job=job,
            reason="it has no sink, so there is nothing to run",
            todo="call env.sink(name, frame, sink)",
        )
    return list(specs)


def build(job: JobName, pipeline: Pipeline, spark: SparkSession, query: QueryName) -> QuerySpec:
    """Evaluate the pipeline for one query, which gets frames of its own."""
    specs = _evaluate(job, pipeline, spark)
    if query not in specs:
        raise PipelineError(
            job=job,
            reason=f"query {query!r} was there when the graph was learnt and is not there now",
            todo="let the pipeline function build the same graph every time",
        )
    return specs[query]


def _evaluate(job: JobName, pipeline: Pipeline, spark: SparkSession) -> dict[QueryName, QuerySpec]:
    from weir.job.env import Env  # noqa: PLC0415  env needs QuerySpec

    before = {query.runId for query in spark.streams.active}
    env = Env(job, spark)
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
    return env.queries


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
