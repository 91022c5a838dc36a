"""All queries of a job in one session: started, watched, restarted one by one, ended together.

The same engine serves the supervised driver and a notebook; what differs is who holds the lease
and who is told. Steps of a start, each timed and reported: load (a restore) -> graph -> reset sinks
-> reset sources -> start queries. The coordinator takes its checkpoints beside them, and savepoints
are made of those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.channel.position import Mode
from weir.channel.pressure import Pressure
from weir.channel.schema import settle
from weir.checkpoint import damage, restore
from weir.checkpoint.coordinator import Coordinator
from weir.checkpoint.damage import Damage
from weir.checkpoint.flight import Outside
from weir.checkpoint.manifest import Manifest, QueryCut
from weir.checkpoint.restore import From
from weir.checkpoint.vertex import Vertex, no_files
from weir.clock import Clock, Deadline
from weir.config import CheckpointingMode, Config, Retention, SinkCommit
from weir.driver import ahead, savepoints
from weir.driver.about import learnt, saved_sink, source_of
from weir.driver.claim import Claim
from weir.driver.delivered import Delivered
from weir.driver.opening import Opened
from weir.driver.progress import ProgressReports
from weir.driver.queries import Queries
from weir.driver.receivers import Receivers
from weir.driver.replan import Shapes
from weir.driver.restoring import Restoring
from weir.driver.savepoints import Savepoints, Wanted, words
from weir.driver.shown import Shown
from weir.driver.timed import Timed
from weir.errors import (
    FencedError,
    InternalError,
    LiveFilesBehindError,
    NoSavepointError,
    NotDoneError,
    PinnedStateError,
    SinkTakenError,
    WeirError,
)
from weir.ids import NO_BATCH, BatchId, CheckpointId, JobName, QueryName, Run, Token
from weir.job import graph
from weir.job.listeners import Listeners
from weir.job.query import QueryRun
from weir.lease import Lease
from weir.protocol import messages as m
from weir.protocol.states import QueryState
from weir.savepoint.take import Facts, QueryFacts
from weir.spark import session
from weir.spark.failure import from_exception
from weir.spark.kafka_groups import GroupCommits, groups_of
from weir.spark.kafka_lost import check_records
from weir.storage import Store, generations, open_store
from weir.storage.attempts import AttemptLock, KnownAttempts
from weir.storage.generations import Origin, open_origin
from weir.storage.open import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job

Report = Callable[[m.Message], None]

_PURGE = "spark.sql.streaming.minBatchesToRetain"
_HOLD = 0.05
_BEGINS = 10.0
"""Seconds that the start of a query waits for the one before it; as long as Spark waits for a process."""
_DRAIN = 10.0
"""So often a drain looks whether it was given up."""


class Engine:
    """The queries of one attempt. Its methods are called from one thread; queries end in others."""

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        config: Config,
        store: Store,
        lease: Lease,
        report: Report,
        clock: Clock,
        gave_up: Callable[[WeirError], None] = lambda _error: None,
        *,
        supervised: bool = False,
    ) -> None:
        self._job = job
        self._name: JobName = job.name
        self._spark = spark
        self._config = config
        self._store = store
        self._lease = lease
        self._report = report
        self._clock = clock
        self._gave_up = gave_up
        """Told, besides `failed`, that the driver as a whole can't go on; from any thread."""
        self._supervised = supervised
        """Somebody starts a failed query again; else what fails at the start is raised."""
        self._again = False
        """The job has run before, under this supervisor: what fails now has worked."""
        self._newest: QueryRun | None = None
        """The run that was started last."""
        self._queries = Queries()
        limit = config.settings.execution_checkpointing_timeout.total_seconds()
        self._delivered = Delivered(self._name, limit, clock)
        self._receivers = Receivers(clock)
        self._specs: dict[QueryName, graph.QuerySpec] = {}
        self._groups = GroupCommits(spark, self._note)
        self._source = source_of(job)
        self._listeners = Listeners(job, self._listener_failed)
        self._coordinator: Coordinator | None = None
        self._savepoints: Savepoints | None = None
        self._unshown: dict[QueryName, Exception] = {}
        """Queries that can't start, and why."""
        self._finishing = False
        """A stop for good is under way: the job is over when that is."""
        self._shown: Shown | None = None
        """With `sink.commit: checkpoint`."""
        self.failed: WeirError | None = None
        """Why the driver as a whole can't go on."""
        self.over = threading.Event()
        """Set when every query has ended."""

    def start(self, wanted: From | None = None, *, again: bool = False) -> None:
        """Open the live files, or the point that is wanted; learn the graph, reset sinks, start it all.

        What is wanted is planned first (`RestorePlanError`): then nothing was written. In a restore every
        sink must be there. Without one, a supervised query whose sink is away, or refuses a row, is reported
        as failed, and the others start. What no retry can fix is raised, before any query runs, unless the
        job has run before (`again`): then that query alone fails.
        """
        self._again = again
        restoring = Restoring(
            self._job,
            self._spark,
            self._config,
            self._store,
            self._mode,
            self._lease,
            self._report,
            self._clock,
        )
        with self._timed("load"):
            opened = restoring.open(wanted)
        self._live = opened.live
        if self._shown is None and self._config.settings.sink_commit is SinkCommit.CHECKPOINT:
            self._shown = Shown(self._name, self._lease, self._not_delivered, self._give_up)
        with restoring.underway(opened):
            runs = self._make_runs(opened)
            restoring.check_fork(self._origin, self._specs.values())
            failed: dict[QueryName, Exception] = {}
            # Output that is shown together is shown by all of them, or not at all.
            isolate = self._supervised and opened.manifest is None and self._shown is None
            delivered: dict[QueryName, BatchId] = {}
            for run in runs:
                try:
                    delivered[run.name] = self._open_sink(run)
                except Exception as error:
                    if not isolate or self._ends_the_start(run, error, again):
                        raise
                    failed[run.name] = error
            if opened.manifest is not None:
                self._receivers.check(self._graph, self._live, self._lease)
                with self._timed("rewind sinks"):
                    restoring.go_live(opened, runs, delivered)
        if opened.manifest is None and (lost := self._lost(delivered)):
            restoring.repair(lost)
            self.start(again=again)
            return
        elsewhere = generations.delivered_elsewhere(self._store, self._name, self._live.generation)
        for run in (one for one in runs if one.name not in failed):
            try:
                with self._timed("reset sinks", run.name):
                    run.recover(elsewhere.get(run.name, NO_BATCH), self._note)
            except Exception as error:
                if not isolate or self._ends_the_start(run, error, again):
                    raise
                failed[run.name] = error
                continue
            self._delivered.follow(run)
        if self._graph.receiving:
            with self._timed("reset sources"):
                self._receivers.start(self._graph, self._live, self._lease, self._retained)
        retained = self._config.settings.execution_checkpointing_num_retained
        self._claim = Claim(
            self._origin, retained, lambda: generations.awaited(self._store, self._name), self._report
        )
        self._coordinator = self._coordinate(runs)
        self._coordinator.prepare()
        begin = self._queries.begin(runs, self._graph.inputs)
        self._unshown = failed
        if self._shown is not None:
            self._shown.begin(self._coordinator)
        self._savepoints = self._save(self._coordinator)
        self._progress = ProgressReports(
            self._spark, self._progressed, self._groups.read, self._entries_beyond
        )
        for run in runs:
            if run.name in failed:
                self._not_started(run, failed[run.name])
            elif run not in begin:
                self._report(m.QueryMoved(run.name, run.token.run, QueryState.WAITING))
            elif self._may_start(run):
                self._start(run)
        self._coordinator.start()
        self._savepoints.start()
        if self._shown is not None:
            self._shown.started = True
            self._check_over()  # a short job may have ended meanwhile

    def _make_runs(self, opened: Opened) -> list[QueryRun]:
        """Learn the graph, and make a run of every query in it."""
        with self._timed("graph"):
            self._graph = graph.learn(self._name, self._job.function, self._spark, self._live)
            names = self._graph.queries
            for text in self._graph.doubts:
                self._note(text)
            self._origin = self._open_origin(names)
            runs = [self._build(name, Run(1)) for name in names]
            self._source = source_of(self._job)  # all that the pipeline imports is loaded by now
            damage.check_returned(self._store, self._name, self._live.generation, names)
            shapes = Shapes(self._live, self._lease.attempt, self._source)
            shapes.settle([run.spec for run in runs], opened.replan)
        self._report(m.GraphLearnt([learnt(self._specs[name], self._graph) for name in names]))
        faults.point("start.graph")
        return runs

    def _ends_the_start(self, run: QueryRun, error: Exception, again: bool) -> bool:
        """Whether what went wrong with one query ends the start of all of them.

        A channel is in the job's own directory, which all of them need. A sink that another directory's job
        has taken means that this whole job runs elsewhere.
        """
        if isinstance(error, SinkTakenError):
            return True
        failure = from_exception(error, self._name, planning=not again)
        return run.spec.channel is not None or failure.redeploy or (not failure.retry and not again)

    def restart(self, name: QueryName) -> None:
        """Start one failed query again, in the live session, as a new run; the others go on.

        A sink that is still away, or refuses its row again, is one more failure of this query alone.
        """
        assert self._coordinator is not None
        self._again = True
        old = run = self._queries.run(name)
        if not self._may_start(old, again=True):
            return  # it was told to end
        try:
            old.close()
            run = self._build(name, Run(old.token.run + 1))
            elsewhere = generations.delivered_elsewhere(self._store, self._name, self._live.generation)
            with self._timed("reset sinks", name):
                if self._lost({name: self._open_sink(run)}):
                    raise LiveFilesBehindError(query=name, job=self._name)
                run.recover(elsewhere.get(name, NO_BATCH), self._note)
            self._delivered.follow(run)
            self._coordinator.replace(self._vertex(run))
            if self._shown is not None:
                self._shown.permit()
        except Exception as error:
            self._not_started(run, error)
            return
        self._start(run)

    def give_up(self, name: QueryName, reason: str) -> None:
        """A failed query is not started again. What it has staged stays for the next start of the job."""
        if self._queries.give_up(name, reason):
            self._queries.run(name).close()
            self._check_over()

    def ask(self, ask: m.Ask) -> None:
        """Do what a user asked of the running job; the answer is reported."""
        assert self._coordinator is not None and self._savepoints is not None
        if ask.verb == "checkpoint":
            self._coordinator.wish(ask.request, bool(ask.arguments.get("full", False)))
            return
        if ask.verb == "savepoint":
            trigger = str(ask.arguments.get("trigger", "request"))
            self._savepoints.ask(Wanted.of(ask, trigger, self._clock))
            return
        if ask.verb == "stop":
            self._finishing = True
            threading.Thread(target=self._finish, args=(ask,), name="weir-stop", daemon=True).start()
            return
        try:
            if ask.verb != "configure":
                raise ValueError(f"a driver can't {ask.verb!r}")
            self._coordinator.configure(ask.arguments.get("settings", {}))
            self._report(m.Answered(ask.request, True, dict(ask.arguments)))
        except WeirError as error:
            body = {"reason": error.why or error.what, "what": error.what, "hint": error.hint}
            self._report(m.Answered(ask.request, False, body))

    def fail(self, error: WeirError) -> None:
        """Let no query go on: each fails with this error, and its running batch is thrown away.

        Returns at once, from any thread. Safe to repeat.
        """
        for run in self._queries.to_fail():
            threading.Thread(target=run.fail, args=(error,), name="weir-fail", daemon=True).start()

    def stop(self, seconds: float, *, cancelled: bool = False) -> None:
        """Let every running batch finish and commit, start no other; cut off what takes longer.

        Receivers end first: what they have received is in the journal, for the next start.
        """
        if self._savepoints is not None:
            self._savepoints.halt()
        if self._coordinator is not None and self._shown is None:
            self._coordinator.stop(wait=False)
        self._end_queries(seconds)
        if self._shown is not None:
            self._shown.to_come(self._check_over)
            self._shown.stop()
        retention = self._config.settings.execution_checkpointing_externalized_checkpoint_retention
        delete = cancelled and retention is Retention.DELETE_ON_CANCELLATION
        if self._coordinator is not None:
            self._coordinator.stop(wait=delete)
        if self._savepoints is not None:
            self._savepoints.settle()
        if delete and self._coordinator is not None:
            self._coordinator.delete_all()
        self._listeners.stop()
        self._check_over()

    def _end_queries(self, seconds: float) -> None:
        self._receivers.ask_to_end()
        deadline = Deadline(self._clock, self._clock.monotonic() + seconds)
        runs = self._queries.to_end()
        for run in runs:
            run.ask_to_end()
        for run in runs:
            if not run.end(deadline):
                self._report(m.CutOff(run.name, seconds, run.undelivered))
                run.cut_off()
        self._receivers.end(deadline)

    def _finish(self, ask: m.Ask) -> None:
        """End the job for good: drain, end the queries, take a savepoint of exactly what is committed.

        What fails before the queries are asked to end leaves the job as it is. Runs in a thread of its
        own; a cancel may come meanwhile.
        """
        assert self._coordinator is not None and self._savepoints is not None
        given, ended = ask.arguments, False
        body: dict[str, Any] = {}
        wanted = Wanted.of(ask, "stop", self._clock) if given.get("savepoint") else None
        try:
            if wanted is not None:
                # A drain waits for a query that starts again; without one, its sink may lack batches.
                down = self._queries.down()
                if down and (self._queries.failed() or not given.get("drain")):
                    raise NoSavepointError(
                        job=self._name, reason=down, todo=f"'weir status {self._name}' shows it"
                    )
                self._savepoints.check(wanted)
            if given.get("drain"):
                self._savepoints.progress(ask.request, "drain")
                self._drain(self._savepoints.halted)
            self._savepoints.progress(ask.request, "end")
            self._coordinator.rest()
            ended = True
            self._end_queries(float(given.get("seconds", 0.0)))
            if wanted is not None:
                body = self._savepoints.take_final(wanted)
            self._report(m.Answered(ask.request, True, body))
        except Exception as error:
            self._report(m.Answered(ask.request, False, {**words(error), "ended": ended}))
        finally:
            self._finishing = False
            self._check_over()

    def _drain(self, halted: Callable[[], bool]) -> None:
        """Wait until all that the sources hold is committed everywhere; a query may fail and restart."""
        self._receivers.ask_to_end()
        self._receivers.end_within(_DRAIN)
        while not halted():
            done = self.work_off(Deadline(self._clock, self._clock.monotonic() + _DRAIN))
            if failed := self._queries.failed():
                raise NotDoneError(
                    what=f"job {self._name!r} can't be drained",
                    why=f"query {failed[0]} has FAILED, and its input can't be worked off",
                    hint="fix that query and start the job again, or stop it without --drain",
                )
            if done and not self._queries.any_restarts:
                return
            threading.Event().wait(_HOLD)

    def work_off(self, deadline: Deadline) -> bool:
        """Wait until all that the sources hold now is committed everywhere; False when it took too long."""
        return all(run.work_off(deadline) for run in self._queries.runs())

    def settle(self) -> None:
        """After the end: wait a moment for the progress of the last batches, which comes later."""
        if self._coordinator is not None:
            self._coordinator.stop(wait=False)
        if self._savepoints is not None:
            self._savepoints.settle()
        if self._shown is not None:
            self._shown.stop()
        self._listeners.stop()
        for run in self._queries.runs():
            self._progress.wait_for(run.name, run.files.last_committed(), seconds=2.0)
        self.settle_groups()
        self._receivers.end_within(2.0)

    def settle_groups(self) -> None:
        """Wait a moment until Kafka's consumer groups were told what was read last."""
        self._groups.settle(seconds=2.0)

    def _retained(self, name: QueryName) -> list[str] | None:
        return self._coordinator.offsets(name) if self._coordinator is not None else None

    def _may_start(self, run: QueryRun, *, again: bool = False) -> bool:
        """Whether the query of a run may start, or start `again` after it; then it is STARTING."""
        if not self._queries.starts(run.name):
            return False
        self._report(m.QueryMoved(run.name, run.token.run + again, QueryState.STARTING))
        return True

    def _start(self, run: QueryRun) -> None:
        """Start the Spark query of a run; it is STARTING. One query after the other: each starts Python
        processes, and Spark gives those ten seconds to answer."""
        if self._newest is not None:
            self._newest.wait_until_begun(_BEGINS)
        self._lease.check()
        if not self._queries.take(run):
            self._check_over()
            return
        last, planned = run.files.last_committed(), run.files.last_planned()
        self._progress.watch(run.name, run.token.run)
        try:
            run.start(lambda run_id: self._progress.started(run.name, run_id), self._ended)
        except Exception as error:
            self._not_started(run, error)
            return
        self._newest = run
        self._queries.running(run)
        self._report(m.QueryStarted(run.name, run.token.run, last, planned))

    def _not_started(self, run: QueryRun, error: Exception) -> None:
        """A query could not be started: one more failure of it, or, where nobody starts it again, of all."""
        run.close()
        if not self._supervised:
            raise error
        after = self._queries.not_started(run)
        # Of a job that has run before, what Spark refuses may be an outage in other words: it is tried again.
        failure = from_exception(self._named(error, run), self._name, planning=not self._again)
        self._report(m.QueryFailed(run.name, run.token.run, run.failed_at(), failure, started=False))
        if after is QueryState.ENDED:
            self._check_over()

    def _named(self, error: Exception, run: QueryRun) -> Exception:
        """A sink does not always know whose it is."""
        if isinstance(error, WeirError) and error.fields.get("query") == "?":
            return type(error)(**{**error.fields, "query": run.name}).with_traceback(error.__traceback__)
        return error

    def _ended(self, run: QueryRun, error: Exception | None) -> None:
        """Called from the query's own thread, once; what goes wrong here ends the driver, not the thread."""
        try:
            self._take_end(run, error)
        except Exception as broke:
            self._give_up(_as_weir(broke))

    def _take_end(self, run: QueryRun, error: Exception | None) -> None:
        after = self._queries.ended(run.name, failed=error is not None)
        if error is not None:
            if self._coordinator is not None:
                self._coordinator.query_failed(run.name)
            failure = from_exception(self._named(error, run), self._name)
            self._report(m.QueryFailed(run.name, run.token.run, run.failed_at(), failure))
        if after is QueryState.ENDED:
            last = run.last_committed()
            self._report(m.QueryEnded(run.name, run.token.run, NO_BATCH if last is None else last))
            for ready in self._queries.ready():
                if self._may_start(ready):
                    self._start(ready)
        self._check_over()

    def _check_over(self) -> None:
        over = self._queries.all_over and not self._finishing
        if over and not (self._shown and self._shown.to_come(self._check_over)):
            self.over.set()
        if self.over.is_set():
            self._receivers.ask_to_end()

    def _not_delivered(self, name: QueryName, error: Exception) -> None:
        """A checkpoint's output can't be committed: its query is started again, or all of the job."""
        state = self._queries.state(name)
        if state in (QueryState.CREATED, QueryState.WAITING) and self._supervised:
            self._unshown[name] = error  # of an earlier attempt: the query is not started, and reported
        elif state in (QueryState.STARTING, QueryState.RUNNING):
            self._queries.run(name).fail(error)
        elif state is not QueryState.RESTARTING:  # the next run of that brings the permit again
            self._give_up(_as_weir(error))

    def _build(self, name: QueryName, number: Run) -> QueryRun:
        reads = self._graph.inputs[name]
        spec = graph.build(self._name, self._job.function, self._spark, self._live, name, reads, self._mode)
        if spec.channel is not None:
            settle(open_store(self._live.channel(name)), name, spec.plan.schema)
        if self._shown is not None:
            self._shown.check(spec)
        self._specs[name] = spec
        self._groups.watch(name, groups_of(spec.plan))
        check_records(spec.plan, self._live.files(name).committed_offsets())
        return QueryRun(
            spec,
            self._live.files(name),
            Token(self._lease.attempt, number, self._lease.session),
            self._lease,
            self._config.settings.sink_max_pending_batches,
            self._hold_of(spec),
            lambda: self._coordinator.oldest_cut(name) if self._coordinator is not None else None,
            self._shown.together if self._shown is not None and spec.channel is None else None,
            lambda: self._coordinator.nudge() if self._coordinator is not None else None,
        )

    def _hold_of(self, spec: graph.QuerySpec) -> Callable[[BatchId, Callable[[], bool]], None]:
        """What a batch of this query waits for: its slowest reader, and a purge that came too near."""
        rest = threading.Event()

        def hold(batch: BatchId, over: Callable[[], bool]) -> None:
            pressure = self._pressure(spec)
            while pressure is not None and pressure.full() and not over():
                self._lease.check()
                rest.wait(_HOLD)
            if self._coordinator is not None:
                self._coordinator.before_batch(spec.name, batch, over)

        return hold

    def _pressure(self, spec: graph.QuerySpec) -> Pressure | None:
        """Of a stream; a reader that waits for its end must not hold it up."""
        if spec.channel is None:
            return None
        readers = [self._live.files(name) for name in self._queries.follow(spec.name)]
        return Pressure(spec.channel, readers, self._config.settings.channel_max_segments_ahead)

    @property
    def _mode(self) -> Mode:
        """What the readers of channels do at a barrier."""
        settings = self._config.settings
        if settings.execution_checkpointing_mode is CheckpointingMode.AT_LEAST_ONCE:
            return Mode.AT_LEAST_ONCE
        first_aligned = bool(settings.execution_checkpointing_aligned_checkpoint_timeout)
        unaligned = settings.execution_checkpointing_unaligned_enabled and not first_aligned
        return Mode.UNALIGNED if unaligned else Mode.ALIGNED

    # checkpoints

    def _coordinate(self, runs: list[QueryRun]) -> Coordinator:
        return Coordinator(
            self._live,
            [self._vertex(run) for run in runs],
            self._origin,
            self._spark.version,
            self._config.settings,
            int(self._spark.conf.get(_PURGE) or 100),
            self._lease,
            Outside(
                report=self._report,
                running=self._queries.none_down,
                down=self._queries.down,
                standing=self._queries.standing,
                completed=self._completed,
                aborted=self._listeners.aborted,
                give_up=self._give_up,
            ),
            self._clock,
        )

    def _save(self, coordinator: Coordinator) -> Savepoints:
        return Savepoints(
            self._store,
            self._name,
            self._origin.lineage,
            self._config.settings,
            savepoints.Outside(
                report=self._report,
                hold=coordinator.hold,
                final_cut=coordinator.final_cut,
                release=coordinator.release,
                delivered=self._delivered.wait,
                facts=self._facts,
            ),
            self._clock,
        )

    def _facts(self, manifest: Manifest, wanted: Wanted) -> Facts:
        """What the files of a checkpoint do not tell."""
        return Facts(
            trigger=wanted.trigger,
            by=wanted.by,
            since=wanted.since,
            job_file=self._source.name,
            job_version=self._source.version,
            queries={name: self._query_facts(QueryName(name), cut) for name, cut in manifest.queries.items()},
        )

    def _query_facts(self, name: QueryName, cut: QueryCut) -> QueryFacts:
        spec = self._specs[name]
        seen = self._progress.seen(name, cut.batch, seconds=1.0)
        return QueryFacts(
            sink=saved_sink(spec),
            output_mode=spec.output_mode if spec.writer is None else "",
            sources=seen.sources,
            rows=seen.state_rows,
        )

    def _entries_beyond(self, channel: str, entry: int) -> int:
        """How many entries a channel has that a reader at this position has not read."""
        spec = self._specs.get(QueryName(channel))
        written = spec.channel.end if spec is not None and spec.channel is not None else entry
        return max(0, written - entry)

    def _vertex(self, run: QueryRun) -> Vertex:
        state = run.spec.user_state
        return Vertex(
            run.name,
            run.files,
            Path(local_path(self._live.query(run.name))),
            self._graph.inputs[run.name],
            run.spec.channel,
            rewindable=run.rewindable,
            user_state=state.files_of if state is not None else no_files,
            fixed=run.name in self._graph.fixed,
        )

    def _give_up(self, error: WeirError) -> None:
        self.failed = error
        self._gave_up(error)

    def _completed(self, id: CheckpointId) -> None:
        if self._shown is not None:
            self._shown.permit()
        self._claim.completed(id)
        self._listeners.completed(id)

    def _listener_failed(self, name: str, error: BaseException) -> None:
        self._note(f"listener {name} raised {type(error).__name__}: {error}; the job goes on")

    def _note(self, text: str) -> None:
        self._report(m.Noted(text))

    def _progressed(self, message: m.BatchCommitted | m.QueryIdle) -> None:
        if isinstance(message, m.BatchCommitted) and self._coordinator is not None:
            self._coordinator.batch(message)
            if self._savepoints is not None:
                self._savepoints.batch(message)
        self._report(message)

    def _open_sink(self, run: QueryRun) -> BatchId:
        began_as = self._origin.forked_from if run.spec.channel is not None else ""
        try:
            owner = self._origin.owners.get(run.name, run.name)  # it may have had another name
            knows = KnownAttempts(self._store, self._name)
            return run.open(f"{began_as or self._name}/{owner}", self._origin.lineage, knows)
        except FencedError as error:
            newest, own = AttemptLock(self._store, self._name, self._clock).newest(), self._lease.attempt
            taken = error.fields.get("attempt", 0)
            if run.spec.sink is None or (newest and newest.attempt > own) or taken <= own:
                raise
            path = run.spec.sink.describe()
            raise SinkTakenError(query=run.name, path=path, attempt=taken, own=own) from error

    def _lost(self, delivered: Mapping[QueryName, BatchId]) -> list[Damage]:
        """Batches that a sink holds and the live files know nothing of, where a checkpoint has the query.

        Raises `OutputAheadError` when they are more than a crash explains. What no checkpoint knows of is
        refused when the sink is recovered: to restore one would rewind all that the query has delivered.
        """
        live = self._live
        point = restore.newest(self._store, self._name)
        known = {name: live.files(name).last_committed() for name in delivered}
        lost = {
            name: last
            for name, last in delivered.items()
            if last > known[name] and point is not None and name in point.queries
        }
        ahead.check(live, lost, known, ahead.limit(self._config.settings))
        generations.note_ahead(live.store, live.job, live.generation, {})
        return [
            Damage(name, f"commits/{last}", "is lost: its output was delivered")
            for name, last in lost.items()
        ]

    def _open_origin(self, names: list[QueryName]) -> Origin:
        settings = self._config.settings
        asked = session.asked_parallelism(self._config)
        origin = open_origin(
            self._store,
            self._name,
            self._live.generation,
            backend=settings.state_backend_type.value,
            parallelism=asked or session.default_parallelism(self._spark, self._config),
            spark=self._spark.version,
            clock=self._clock,
        )
        parallelism = asked or origin.parallelism
        for name in names:
            self._refuse_what_spark_ignores(name, settings.state_backend_type.value, parallelism)
        session.set_state(self._spark, self._config, parallelism)
        return origin

    def _refuse_what_spark_ignores(self, name: QueryName, backend: str, parallelism: int) -> None:
        files = self._live.files(name)
        pinned = files.pinned()
        if pinned is None or not files.stateful():
            return
        for setting, live, asked in (
            ("state.backend.type", pinned.backend, backend),
            ("parallelism.default", pinned.partitions, parallelism),
        ):
            if live != asked:
                raise PinnedStateError(query=name, setting=setting, live=live, asked=asked)

    def _timed(self, step: str, query: str = "") -> Timed:
        return Timed(self._report, self._clock, step, query)


def _as_weir(error: Exception) -> WeirError:
    return error if isinstance(error, WeirError) else InternalError(what=f"{type(error).__name__}: {error}")
