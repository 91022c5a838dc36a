"""From the author's pipeline to runs: the graph is learnt, and a run is made of every query in it.

A run is made again, with a higher number, when its query is restarted; `BatchBrake` is what the batches of
all of them ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weir import faults
from weir.channel.backpressure import Pressure
from weir.channel.schema import settle
from weir.checkpoint.coordinator import Coordinator
from weir.checkpoint.vertex import Vertex, no_files
from weir.driver.context import JobContext
from weir.driver.visible_output import check_can_be_held
from weir.errors import PinnedStateError
from weir.ids import BatchId, QueryName, Run, Token
from weir.job import graph
from weir.job.env import QuerySpec
from weir.job.graph import Graph
from weir.job.query import QueryRun
from weir.protocol import messages as m
from weir.restore import damage
from weir.restore.fetch import Opened
from weir.restore.plan import Shapes
from weir.savepoint.about import JobSource, learnt, source_of
from weir.sinks.held_commit import Together
from weir.spark import session
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.kafka_client import GroupCommits, groups_of
from weir.spark.kafka_offsets import check_records
from weir.storage import open_store
from weir.storage.generation import Origin, open_origin
from weir.storage.open import local_path
from weir.storage.paths import Live

_HOLD = 0.05
"""How often a batch that waits for its slowest reader looks."""


class RunFactory:
    """Makes the runs of the queries of a graph, and knows the newest description of each."""

    def __init__(
        self,
        context: JobContext,
        live: Live,
        found: Graph,
        groups: GroupCommits,
        together: Together | None,
    ) -> None:
        """`together` with `sink.commit: checkpoint`."""
        self.live = live
        self.graph = found
        self.groups = groups
        self.specs: dict[QueryName, QuerySpec] = {}
        self._context = context
        self._together = together

    def make(self, name: QueryName, number: Run, spec: QuerySpec | None = None) -> QueryRun:
        """A run of one query, not started; the pipeline is evaluated for it unless its `spec` is there."""
        context, live, files = self._context, self.live, QueryFiles.of(self.live, name)
        if spec is None:
            reads, pipeline = self.graph.inputs[name], context.job.function
            spec = graph.build(context.name, pipeline, context.spark, live, name, reads, context.mode)
        if spec.channel is not None:
            settle(open_store(live.channel(name)), name, spec.plan.schema)
        if self._together is not None:
            check_can_be_held(context.name, spec)
        self.specs[name] = spec
        self.groups.watch(name, groups_of(spec.plan))
        check_records(spec.plan, files.committed_offsets())
        token = Token(context.lease.attempt, number, context.lease.session)
        pending = context.settings.sink_max_pending_batches
        held = self._together if spec.channel is None else None
        return QueryRun(spec, files, token, context.lease, pending, held)

    def vertex(self, run: QueryRun) -> Vertex:
        """The query of a run, as the coordinator sees it."""
        state = run.spec.user_state
        return Vertex(
            run.name,
            run.files,
            Path(local_path(self.live.query(run.name))),
            self.graph.inputs[run.name],
            run.spec.channel,
            rewindable=run.output.rewindable,
            user_state=state.files_of if state is not None else no_files,
            fixed=run.name in self.graph.fixed,
        )

    def entries_beyond(self, channel: str, entry: int) -> int:
        """How many entries a channel has that a reader at this position has not read."""
        spec = self.specs.get(QueryName(channel))
        written = spec.channel.end if spec is not None and spec.channel is not None else entry
        return max(0, written - entry)


class BatchBrake:
    """What the batches of all runs wait for, ask and report: see `weir.job.batch.BatchHost`."""

    def __init__(self, context: JobContext, live: Live, coordinator: Coordinator) -> None:
        self._context = context
        self._live = live
        self._coordinator = coordinator

    def hold(self, spec: QuerySpec, batch: BatchId, over: Callable[[], bool]) -> None:
        """Wait for the slowest reader, and for a snapshot that a purge has come too near to."""
        if spec.channel is not None:
            # only those that go along with the stream: one that waits for its end must not hold it up
            readers = [QueryFiles.of(self._live, name) for name in self._context.queries.follow(spec.name)]
            pressure = Pressure(spec.channel, readers, self._context.settings.channel_max_segments_ahead)
            rest = threading.Event()
            while pressure.full() and not over():
                self._context.lease.check()
                rest.wait(_HOLD)
        self._coordinator.before_batch(spec.name, batch, over)

    def oldest_cut(self, query: QueryName) -> BatchId | None:
        return self._coordinator.oldest_cut(query)

    def delivered(self) -> None:
        self._coordinator.nudge()


@dataclass(frozen=True)
class LearntJob:
    """The job as its pipeline describes it, with a run of each query that is not started."""

    factory: RunFactory
    runs: list[QueryRun]
    """In the order of the graph."""
    origin: Origin
    source: JobSource


def learn(context: JobContext, opened: Opened, groups: GroupCommits, together: Together | None) -> LearntJob:
    """Learn the graph, and make a run of every query in it."""
    with context.timed("graph"):
        live = opened.live
        # The plan of a restore has evaluated the pipeline already.
        found = opened.learnt or graph.learn(context.name, context.job.function, context.spark, live)
        names = found.queries
        for text in found.doubts:
            context.note(text)
        origin = _open_origin(context, live, names)
        factory = RunFactory(context, live, found, groups, together)
        runs = [factory.make(name, Run(1), opened.spec(name)) for name in names]
        source = source_of(context.job)  # all that the pipeline imports is loaded by now
        damage.check_returned(context.store, context.name, live.generation, names)
        Shapes(live, context.lease.attempt, source).settle([run.spec for run in runs], opened.replan)
    context.report(m.GraphLearnt([learnt(factory.specs[name], found) for name in names]))
    faults.point("start.graph")
    return LearntJob(factory, runs, origin, source)


def _open_origin(context: JobContext, live: Live, names: list[QueryName]) -> Origin:
    settings = context.settings
    asked = session.asked_parallelism(context.config)
    origin = open_origin(
        context.store,
        context.name,
        live.generation,
        backend=settings.state_backend_type.value,
        parallelism=asked or session.default_parallelism(context.spark, context.config),
        spark=context.spark.version,
        clock=context.clock,
    )
    parallelism = asked or origin.parallelism
    for name in names:
        _refuse_what_spark_ignores(live, name, settings.state_backend_type.value, parallelism)
    session.set_state(context.spark, context.config, parallelism)
    return origin


def _refuse_what_spark_ignores(live: Live, name: QueryName, backend: str, parallelism: int) -> None:
    files = QueryFiles.of(live, name)
    pinned = files.pinned()
    if pinned is None or not files.stateful():
        return
    for setting, pinned_to, asked in (
        ("state.backend.type", pinned.backend, backend),
        ("parallelism.default", pinned.partitions, parallelism),
    ):
        if pinned_to != asked:
            raise PinnedStateError(query=name, setting=setting, live=pinned_to, asked=asked)
