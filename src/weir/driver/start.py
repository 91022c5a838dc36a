"""The start of a job's queries, as a straight list of steps:

1. `open`: what the job resumes from: its live files, or the point that is wanted (`restore/walk.py`);
2. `learn`: the graph, and a run of every query in it (`runs.py`);
3. `look`: every sink is asked what it holds. What can refuse this start is found here, before the first
   sink is fenced: whoever writes there continues;
4. `fence`: from now on no earlier writer can deliver. The question is asked again: more may be there;
5. `go live`, in a restore: the sinks are rewound, and then the new generation is the live one;
6. `recover`: what Spark has committed and a sink has not is delivered, the rest is discarded;
7. the receivers listen;
8. the coordinator learns the checkpoints, and aborts those that were begun;
9. the engine is complete, and starts the queries (`engine.py`).

When step 3 or 4 finds output that the live files know nothing of, they are repaired: a restore is written
down, and the list begins again. Each step is timed and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weir.checkpoint.actions import Outside
from weir.checkpoint.coordinator import Coordinator
from weir.config import SinkCommit
from weir.driver.context import JobContext
from weir.driver.engine import Engine
from weir.driver.progress import ProgressReports
from weir.driver.receivers import Receivers
from weir.driver.runs import LearntJob, learn
from weir.driver.savepoints import CutFacts, SavepointHost, Savepoints
from weir.driver.sink_start import Isolation, SinkStart
from weir.driver.visible_output import Refusals, VisibleOutput
from weir.ids import BatchId, CheckpointId, QueryName
from weir.job.listeners import Listeners
from weir.job.query import QueryRun
from weir.restore.fetch import Opened
from weir.restore.go_live import Claim
from weir.restore.query_damage import Damage
from weir.restore.request import RestoreRequest
from weir.restore.walk import Restoring
from weir.savepoint.delivered import Delivered
from weir.sinks.held_commit import Together
from weir.spark.kafka_client import GroupCommits
from weir.storage import generation
from weir.storage.paths import Live

_PURGE = "spark.sql.streaming.minBatchesToRetain"


def start(context: JobContext, wanted: RestoreRequest | None = None, *, again: bool = False) -> Engine:
    """Start the job from its live files or the point that is wanted; what runs it.

    What is wanted is planned first (`RestorePlanError`): then nothing was written. In a restore every sink
    must be there. Without one, a supervised query whose sink is away, or refuses a row, is reported as
    failed, and the others start. What no retry can fix is raised, before any query runs, unless the job has
    run before (`again`): then that query alone fails.
    """
    listeners, receivers = Listeners(context.job, context.listener_failed), Receivers(context.clock)
    engine = None
    try:
        ready = _sinks_ready(context, wanted, receivers, again=again)
        engine = _assemble(context, ready, listeners, receivers, again=again)
        engine.begin(ready.learnt.runs, ready.unstarted)
    except BaseException:
        if not context.supervised:  # else the process ends with this
            _undo(engine, receivers, listeners)
        raise
    return engine


def _undo(engine: Engine | None, receivers: Receivers, listeners: Listeners) -> None:
    """End what a start that failed has begun; `engine` as soon as it is complete."""
    if engine is not None:
        engine.stop(0)
        return
    receivers.ask_to_end()
    receivers.end_within(0)
    listeners.stop()


@dataclass(frozen=True)
class _Ready:
    """Steps 1 to 6 are done: the sinks have all that is decided, and no one else writes there."""

    live: Live
    learnt: LearntJob
    sinks: SinkStart
    together: Together | None
    """With `sink.commit: checkpoint`."""
    delivered: Delivered
    groups: GroupCommits
    unstarted: dict[QueryName, Exception]
    """Queries that can't start, and why."""


def _sinks_ready(
    context: JobContext, wanted: RestoreRequest | None, receivers: Receivers, *, again: bool
) -> _Ready:
    """Steps 1 to 6, from the first one again after a repair."""
    unstarted: dict[QueryName, Exception] = {}
    groups = GroupCommits(context.spark, context.note)
    together = None
    if context.settings.sink_commit is SinkCommit.CHECKPOINT:
        together = Together(context.lease, Refusals(context, unstarted).failed)
    restoring = Restoring(
        context.job,
        context.spark,
        context.config,
        context.store,
        context.mode,
        context.lease,
        context.report,
        context.clock,
    )
    while True:
        with context.timed("load"):
            opened = restoring.open(wanted)
        with restoring.underway(opened):
            learnt = learn(context, opened, groups, together)
            restoring.check_fork(learnt.origin, [run.spec for run in learnt.runs])
            # Output that is shown together is shown by all of them, or not at all.
            alone = context.supervised and opened.manifest is None and together is None
            isolation = Isolation(context, unstarted, alone=alone, again=again)
            sinks = SinkStart(context, opened.live, learnt.origin)
            if opened.manifest is not None:
                lost = _restore(context, restoring, opened, learnt, sinks, receivers)
            else:
                lost = _resume(learnt, sinks, isolation)
        if not lost:
            break
        restoring.repair(lost)
        wanted = None
        unstarted.clear()
    limit = context.settings.execution_checkpointing_timeout.total_seconds()
    delivered = Delivered(context.name, limit, context.clock)
    _recover(context, learnt, sinks, isolation, delivered)
    return _Ready(opened.live, learnt, sinks, together, delivered, groups, unstarted)


def _resume(learnt: LearntJob, sinks: SinkStart, isolation: Isolation) -> list[Damage]:
    """Steps 3 and 4 over the live files; the output that they know nothing of."""
    looked = isolation.each(learnt.runs, sinks.look)
    if lost := sinks.lost(looked):
        return lost
    isolation.each(learnt.runs, lambda run: run.output.known(looked[run.name]))
    return sinks.lost(isolation.each(learnt.runs, sinks.fence))


def _restore(
    context: JobContext,
    restoring: Restoring,
    opened: Opened,
    learnt: LearntJob,
    sinks: SinkStart,
    receivers: Receivers,
) -> list[Damage]:
    """Steps 3 to 5 of a restore: every sink must be there, and nothing counts as lost."""
    runs = learnt.runs
    looked: dict[QueryName, BatchId] = {run.name: sinks.look(run) for run in runs}
    receivers.check(learnt.factory.graph, opened.live, context.lease)
    restoring.check_sinks(opened, runs, looked)
    delivered = {run.name: sinks.fence(run) for run in runs}
    with context.timed("rewind sinks"):
        restoring.go_live(opened, runs, delivered)
    return []


def _recover(
    context: JobContext, learnt: LearntJob, sinks: SinkStart, isolation: Isolation, delivered: Delivered
) -> None:
    """Step 6."""
    elsewhere = sinks.delivered_elsewhere()

    def recover(run: QueryRun) -> None:
        with context.timed("reset sinks", run.name):
            sinks.recover(run, elsewhere)

    recovered = isolation.each(learnt.runs, recover)
    for run in learnt.runs:
        if run.name in recovered:
            delivered.follow(run)


def _assemble(
    context: JobContext, ready: _Ready, listeners: Listeners, receivers: Receivers, *, again: bool
) -> Engine:
    """Steps 7 and 8, and all that works beside the queries; none of them runs yet."""
    learnt, factory = ready.learnt, ready.learnt.factory
    if factory.graph.receiving:
        with context.timed("reset sources"):
            receivers.start(factory.graph, ready.live, context.lease)
    completed = CompletedCheckpoints()
    coordinator = _coordinate(context, learnt, completed, listeners)
    coordinator.prepare()
    receivers.trim_by(coordinator.offsets)
    visible = None
    if ready.together is not None:
        visible = VisibleOutput(context.name, ready.together, coordinator, context.end.give_up)
        completed.follow(visible.completed)
    retained = context.settings.execution_checkpointing_num_retained
    awaited = partial(generation.awaited, context.store, context.name)
    claim = Claim(learnt.origin, retained, awaited, context.report)
    completed.follow(claim.completed, listeners.completed)
    progress = ProgressReports(context.spark, context.report, ready.groups.read, factory.entries_beyond)
    savepoints = _save(
        context, learnt, coordinator, ready.delivered, CutFacts(factory, progress, learnt.source)
    )
    progress.follow(coordinator.batch, savepoints.batch)
    return Engine(
        context,
        factory,
        ready.sinks,
        coordinator,
        savepoints,
        visible,
        receivers,
        progress,
        listeners,
        ready.delivered,
        again=again,
    )


class CompletedCheckpoints:
    """Who hears that a checkpoint is complete, in order; all are known before the first one is taken."""

    def __init__(self) -> None:
        self._followers: list[Callable[[CheckpointId], None]] = []

    def follow(self, *followers: Callable[[CheckpointId], None]) -> None:
        self._followers += followers

    def completed(self, id: CheckpointId) -> None:
        for follower in self._followers:
            follower(id)


def _coordinate(
    context: JobContext, learnt: LearntJob, completed: CompletedCheckpoints, listeners: Listeners
) -> Coordinator:
    queries = context.queries
    return Coordinator(
        learnt.factory.live,
        [learnt.factory.vertex(run) for run in learnt.runs],
        learnt.origin,
        context.spark.version,
        context.settings,
        int(context.spark.conf.get(_PURGE) or 100),
        context.lease,
        Outside(
            report=context.report,
            running=queries.none_down,
            down=queries.down,
            standing=queries.standing,
            completed=completed.completed,
            aborted=listeners.aborted,
            give_up=context.end.give_up,
        ),
        context.clock,
    )


def _save(
    context: JobContext, learnt: LearntJob, coordinator: Coordinator, delivered: Delivered, facts: CutFacts
) -> Savepoints:
    return Savepoints(
        context.store,
        context.name,
        learnt.origin.lineage,
        context.settings,
        SavepointHost(
            report=context.report,
            hold=coordinator.hold,
            final_cut=coordinator.final_cut,
            release=coordinator.release,
            delivered=delivered.wait,
            facts=facts.of,
        ),
        context.clock,
    )
