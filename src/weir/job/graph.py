"""The graph of a job: which queries it has, and how each is made.

The pipeline function is evaluated once to learn the graph, and once more for each query, which
gets frames of its own (docs/design.md, section 3). It must therefore only build frames; a query that it
starts by itself is refused. So is an exactly-once query over a source that can't be replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from weir.channel.position import Mode
from weir.errors import PipelineError
from weir.ids import JobName, QueryName, SourceName
from weir.job.env import Env, QuerySpec
from weir.sinks import StagingSink
from weir.sinks.user_state import Values
from weir.sources.contract import Place
from weir.spark import failure
from weir.spark import frame_plan as plan
from weir.spark.frame_plan import none_started, output_mode_of, planned
from weir.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.sources import ReceivingSource
    from weir.storage.paths import Live

Pipeline = Callable[[Env], None]

alone = threading.RLock()
"""Held where a pipeline function is called and where weir starts a query: else the one that begins again
by itself while another is built would be taken for a query that the pipeline has started."""


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
    """A stream comes before its readers: no frame can be read before it is made."""
    receiving: list[Receiving]
    """Only sources that some query reads."""
    inputs: dict[QueryName, tuple[QueryName, ...]]
    """For each query the streams whose channels it reads, each once."""
    doubts: list[str] = field(default_factory=list)
    """What is exactly once only if a source that weir does not know can be replayed, as messages."""
    fixed: frozenset[QueryName] = frozenset()
    """The queries whose sources all begin in the same place, whenever they begin: files and channels."""


def learn(job: JobName, pipeline: Pipeline, spark: SparkSession, live: Live) -> Graph:
    """Evaluate the pipeline once, to learn its queries, the channels between them and its receivers."""
    env = _evaluate(job, pipeline, spark, live)
    if not env.queries:
        raise PipelineError(
            job=job,
            reason="it has no sink, so there is nothing to run",
            todo="call env.sink(name, frame, sink)",
        )
    streams = {name: plan.streams(spec.plan) for name, spec in env.queries.items()}
    for name, spec in env.queries.items():
        _check_replay(job, spec, streams[name])
    receiving = []
    for key, source in env.receiving.items():
        url = Place.of(live, key).url
        readers = [name for name in streams if any(s.location == url for s in streams[name])]
        receiving += [Receiving(key, source, readers)] if readers else []
    inputs = {name: _inputs(read, env, live) for name, read in streams.items()}
    _check_ends(job, env.queries, inputs)
    channels = {live.channel(name) for name in env.queries}
    fixed = frozenset(
        name for name, read in streams.items() if all(s.is_files or s.location in channels for s in read)
    )
    return Graph(list(env.queries), receiving, inputs, _doubts(env.queries, streams), fixed)


def _check_replay(job: JobName, spec: QuerySpec, streams: Sequence[plan.FrameStream]) -> None:
    """Refuse what an exactly-once query, or one with state, can't be made of."""
    lossy = any(stream.replay is plan.Replayable.NO for stream in streams) and not spec.at_most_once
    mode = spec.output_mode if spec.writer is None else output_mode_of(spec.writer)
    exact = lossy and isinstance(spec.sink, StagingSink)
    stateful = not exact and (lossy or spec.at_most_once) and planned(spec.plan, mode).shape.operators
    if exact or (stateful and lossy):
        what = "is exactly once" if exact else "has state"
        raise PipelineError(
            job=job,
            reason=f"query {spec.name!r} {what} and reads Spark's socket, which can't be replayed: "
            "lines that a batch had read when the driver died would be lost",
            todo="use weir.sources.socket(host, port), which journals what it receives",
        )
    if any(stream.cleans for stream in streams):
        raise PipelineError(
            job=job,
            reason=f"query {spec.name!r} reads files with Spark's option cleanSource, which removes them "
            "after they are read: they are missing when the job is rewound to an older checkpoint",
            todo="leave cleanSource out, and delete files when no checkpoint needs them any more",
        )
    if stateful:
        raise PipelineError(
            job=job,
            reason=f"query {spec.name!r} is at most once and has state: a skipped batch would be missing "
            "from the state for good, and later results would be wrong, not only incomplete",
            todo="leave at_most_once out, or keep the state in another query",
        )


def _check_ends(
    job: JobName, queries: Mapping[QueryName, QuerySpec], inputs: Mapping[QueryName, Sequence[QueryName]]
) -> None:
    """Refuse a stream that nobody reads, and a bounded query that waits for an endless one."""
    for name in (name for name, spec in queries.items() if spec.channel):
        if not any(name in read for read in inputs.values()):
            raise PipelineError(
                job=job,
                reason=f"stream {name!r} is read nowhere, so its channel would only grow",
                todo="read the frame that env.stream(...) returns, or leave the stream out",
            )
    for name, spec in queries.items():
        endless = next((stream for stream in inputs[name] if not queries[stream].bounded), None)
        if spec.bounded and endless is not None:
            raise PipelineError(
                job=job,
                reason=f"query {name!r} is bounded, so it begins when its streams have ended, "
                f"and stream {endless!r} never ends",
                todo="give the stream the trigger availableNow too, or the query another one",
            )


def _doubts(
    queries: Mapping[QueryName, QuerySpec], streams: Mapping[QueryName, Sequence[plan.FrameStream]]
) -> list[str]:
    doubts = [
        f"query {name} reads Spark's socket, which can't be replayed: lines are lost at each restart; "
        "use weir.sources.socket(host, port)"
        for name in queries
        if any(stream.replay is plan.Replayable.NO for stream in streams[name])
    ]
    return doubts + [
        f"query {name} is exactly once only if {stream.table} can be replayed, which weir does not know"
        for name, spec in queries.items()
        for stream in streams[name]
        if isinstance(spec.sink, StagingSink) and stream.replay is plan.Replayable.UNKNOWN
    ]


def build(
    job: JobName,
    pipeline: Pipeline,
    spark: SparkSession,
    live: Live,
    query: QueryName,
    reads: tuple[QueryName, ...],
    mode: Mode,
) -> QuerySpec:
    """Evaluate the pipeline for one query, which gets frames of its own; `reads` is as it was learnt."""
    env = _evaluate(job, pipeline, spark, live, query, mode)
    specs = env.queries
    if query not in specs:
        raise _not_the_same(job, f"query {query!r} was in the graph at first and is missing now")
    if (now := _inputs(plan.streams(specs[query].plan), env, live)) != reads:
        before, after = (", ".join(names) or "none" for names in (reads, now))
        raise _not_the_same(job, f"query {query!r} read the streams {before} at first, and {after} now")
    spec = replace(specs[query], sources=env.sources)
    if isinstance(spec.sink, StagingSink):
        values = Values(open_store(live.root), query)
        return replace(spec, sink=env.states.around(query, spec.sink, values))
    return spec


def _inputs(streams: Sequence[plan.FrameStream], env: Env, live: Live) -> tuple[QueryName, ...]:
    """The streams of the job that are among these, each once."""
    channels = {live.channel(name): name for name, spec in env.queries.items() if spec.channel}
    return tuple(dict.fromkeys(channels[s.location] for s in streams if s.location in channels))


def _not_the_same(job: JobName, reason: str) -> PipelineError:
    return PipelineError(
        job=job, reason=reason, todo="let the pipeline function build the same graph every time"
    )


def _evaluate(
    job: JobName,
    pipeline: Pipeline,
    spark: SparkSession,
    live: Live,
    reader: QueryName | None = None,
    mode: Mode = Mode.ALIGNED,
) -> Env:
    env = Env(job, spark, live, reader, mode)
    with alone:
        before = {query.runId for query in spark.streams.active}
        with none_started(partial(_started_by_itself, job)):
            _call(job, pipeline, env)
        started = [query for query in spark.streams.active if query.runId not in before]
    for query in started:
        query.stop()
    if started:
        raise _started_by_itself(job, "start")
    streams = [name for name, spec in env.queries.items() if spec.channel]
    env.states.check({name: spec.sink for name, spec in env.queries.items()}, streams)
    return env


def _started_by_itself(job: JobName, method: str) -> PipelineError:
    return PipelineError(
        job=job,
        reason=f"it calls .{method}() on a writer, which starts the query without weir",
        todo=f"give the frame, or the unstarted writer, to env.sink(...) and leave out .{method}()",
    )


def _call(job: JobName, pipeline: Pipeline, env: Env) -> None:
    """Call the author's function; what it raises is the author's to fix, and no retry helps.

    Only a dead JVM, and disks and servers that do not answer, are not.
    """
    try:
        pipeline(env)
    except Exception as error:
        if not failure.is_authors(error):
            raise
        what, todo = failure.slip_of(error)
        stack = f"'weir logs {job}' has the stack"
        raise PipelineError(
            job=job,
            reason=f"it raised {what}",
            todo=f"{todo}; {stack}" if todo else f"fix the function; {stack}",
        ) from error
