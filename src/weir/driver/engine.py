"""What runs the queries of a job in one session: started, restarted one by one, ended together.

The same engine serves the supervised driver and a notebook; what differs is who holds the lease
and who gets the reports. It is made by `start.py`, complete, with the coordinator and the savepoints
that work beside the queries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weir.checkpoint.coordinator import Coordinator
from weir.clock import Deadline
from weir.config import Retention
from weir.driver.context import JobContext, as_weir
from weir.driver.progress import ProgressReports
from weir.driver.receivers import Receivers
from weir.driver.runs import BatchBrake, RunFactory
from weir.driver.savepoints import Savepoints, WantedSavepoint, failed_answer
from weir.driver.sink_start import SinkStart
from weir.driver.visible_output import VisibleOutput
from weir.errors import LiveFilesBehindError, NoSavepointError, NotDoneError, WeirError, error_form
from weir.ids import NO_BATCH, QueryName, Run
from weir.job.listeners import Listeners
from weir.job.query import QueryRun
from weir.protocol import messages as m
from weir.protocol.states import QueryState
from weir.savepoint.delivered import Delivered
from weir.spark.failure import from_exception

_BEGINS = 10.0
"""Seconds that the start of a query waits for the one before it; as long as Spark waits for a process."""
_BEGINNINGS = 4
"""How often a query begins that gets no Python process of Spark's, where nobody restarts it."""
_DRAIN = 10.0
"""How often a drain checks whether it was abandoned."""
_LOOK = 0.05


class Engine:
    """The queries of one attempt. Its methods are called from one thread; queries end in others."""

    def __init__(
        self,
        context: JobContext,
        factory: RunFactory,
        sinks: SinkStart,
        coordinator: Coordinator,
        savepoints: Savepoints,
        visible: VisibleOutput | None,
        receivers: Receivers,
        progress: ProgressReports,
        listeners: Listeners,
        delivered: Delivered,
        *,
        again: bool = False,
    ) -> None:
        """`visible` with `sink.commit: checkpoint`; `again`: the job has run under this supervisor before."""
        self._context = context
        self._queries = context.queries
        self._factory = factory
        self._sinks = sinks
        self._coordinator = coordinator
        self._savepoints = savepoints
        self._visible = visible
        self._receivers = receivers
        self._progress = progress
        self._listeners = listeners
        self._delivered = delivered
        self._again = again
        """What fails now has worked."""
        self._brake = BatchBrake(context, factory.live, coordinator)
        self._newest: QueryRun | None = None
        """The run that was started last; None while there is none."""
        self._finishing = False
        """A stop for good is under way: the job is over when that is."""

    @property
    def failed(self) -> WeirError | None:
        """Why the driver can't continue; None while it can."""
        return self._context.end.failed

    @property
    def over(self) -> threading.Event:
        """Set when every query has ended."""
        return self._context.end.over

    def begin(self, runs: Sequence[QueryRun], unstarted: Mapping[QueryName, Exception]) -> None:
        """Start the queries, in the order of the graph, and all that works beside them.

        Those that are `unstarted`, by now or when their output of an earlier attempt is committed, are
        reported as failed. A bounded one that reads streams waits for their end.
        """
        at_once = self._queries.begin(runs, self._factory.graph.inputs)
        if self._visible is not None:
            self._visible.begin()
        for run in runs:
            if run.name in unstarted:
                self._not_started(run, unstarted[run.name])
            elif run not in at_once:
                self._context.report(m.QueryMoved(run.name, run.token.run, QueryState.WAITING))
            elif self._may_start(run):
                self._start(run)
        self._coordinator.start()
        self._savepoints.start()
        if self._visible is not None:
            self._visible.started = True
            self._check_over()  # a short job may have ended meanwhile

    def restart(self, name: QueryName) -> None:
        """Start one failed query again, in the live session, as a new run; the others continue.

        A sink that is still away, or refuses its row again, is one more failure of this query alone.
        """
        self._again = True
        old = run = self._queries.run(name)
        if not self._may_start(old, again=True):
            return  # it was asked to end
        try:
            old.close()
            run = self._factory.make(name, Run(old.token.run + 1))
            elsewhere = self._sinks.delivered_elsewhere()
            with self._context.timed("reset sinks", name):
                if self._sinks.lost({name: self._sinks.fence(run)}):
                    raise LiveFilesBehindError(query=name, job=self._context.name)
                self._sinks.recover(run, elsewhere)
            self._delivered.follow(run)
            self._coordinator.replace(self._factory.vertex(run))
            if self._visible is not None:
                self._visible.permit()
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
        if ask.verb == "checkpoint":
            self._coordinator.wish(ask.request, bool(ask.arguments.get("full", False)))
            return
        if ask.verb == "savepoint":
            trigger = str(ask.arguments.get("trigger", "request"))
            self._savepoints.ask(WantedSavepoint.of(ask, trigger, self._context.clock))
            return
        if ask.verb == "stop":
            self._finishing = True
            threading.Thread(target=self._finish, args=(ask,), name="weir-stop", daemon=True).start()
            return
        try:
            if ask.verb != "configure":
                raise ValueError(f"a driver can't {ask.verb!r}")
            self._coordinator.configure(ask.arguments.get("settings", {}))
            self._context.report(m.Answered(ask.request, True, dict(ask.arguments)))
        except WeirError as error:
            body = {"reason": error.why or error.what, **error_form(error)}
            self._context.report(m.Answered(ask.request, False, body))

    def stop(self, seconds: float, *, cancelled: bool = False) -> None:
        """Let every running batch finish and commit, start no other; cut off what takes longer.

        Receivers end first: what they have received is in the journal, for the next start.
        """
        self._savepoints.halt()
        if self._visible is None:
            self._coordinator.stop(wait=False)
        self._end_queries(seconds)
        if self._visible is not None:
            self._visible.to_come(self._check_over)
            self._visible.stop()
        retention = self._context.settings.execution_checkpointing_externalized_checkpoint_retention
        delete = cancelled and retention is Retention.DELETE_ON_CANCELLATION
        self._coordinator.stop(wait=delete)
        self._savepoints.settle()
        if delete:
            self._coordinator.delete_all()
        self._listeners.stop()
        self._check_over()

    def _end_queries(self, seconds: float) -> None:
        self._receivers.ask_to_end()
        deadline = Deadline(self._context.clock, self._context.clock.monotonic() + seconds)
        runs = self._queries.to_end()
        for run in runs:
            run.ask_to_end()
        for run in runs:
            if not run.end(deadline):
                self._context.report(m.CutOff(run.name, seconds, run.output.undelivered))
                run.cut_off()
        self._receivers.end(deadline)

    def _finish(self, ask: m.Ask) -> None:
        """End the job for good: drain, end the queries, take a savepoint of exactly what is committed.

        What fails before the queries are asked to end leaves the job as it is. Runs in a thread of its
        own; a cancel may come meanwhile.
        """
        given, ended = ask.arguments, False
        body: dict[str, Any] = {}
        wanted = WantedSavepoint.of(ask, "stop", self._context.clock) if given.get("savepoint") else None
        try:
            if wanted is not None:
                # A drain waits for a query that starts again; without one, its sink may lack batches.
                down = self._queries.down()
                if down and (self._queries.failed() or not given.get("drain")):
                    raise NoSavepointError(
                        job=self._context.name,
                        reason=down,
                        todo=f"'weir status {self._context.name}' shows it",
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
            self._context.report(m.Answered(ask.request, True, body))
        except Exception as error:
            self._context.report(m.Answered(ask.request, False, {**failed_answer(error), "ended": ended}))
        finally:
            self._finishing = False
            self._check_over()

    def _drain(self, halted: Callable[[], bool]) -> None:
        """Wait until all that the sources hold is committed everywhere; a query may fail and restart."""
        self._receivers.ask_to_end()
        self._receivers.end_within(_DRAIN)
        while not halted():
            done = self.work_off(Deadline(self._context.clock, self._context.clock.monotonic() + _DRAIN))
            if failed := self._queries.failed():
                raise NotDoneError(
                    what=f"job {self._context.name!r} can't be drained",
                    why=f"query {failed[0]} has FAILED and can't process its remaining input",
                    hint="fix that query and start the job again, or stop it without --drain",
                )
            if done and not self._queries.any_restarts:
                return
            threading.Event().wait(_LOOK)

    def work_off(self, deadline: Deadline) -> bool:
        """Wait until all that the sources hold now is committed everywhere; False when it took too long."""
        return all(run.work_off(deadline) for run in self._queries.runs())

    def settle(self) -> None:
        """After the end: wait a moment for the progress of the last batches, which comes later."""
        self._coordinator.stop(wait=False)
        self._savepoints.settle()
        if self._visible is not None:
            self._visible.stop()
        self._listeners.stop()
        for run in self._queries.runs():
            self._progress.wait_for(run.name, run.files.last_committed(), seconds=2.0)
        self.settle_groups()
        self._receivers.end_within(2.0)

    def settle_groups(self) -> None:
        """Wait a moment until Kafka's consumer groups have what was read last."""
        self._factory.groups.settle(seconds=2.0)

    def _may_start(self, run: QueryRun, *, again: bool = False) -> bool:
        """Whether the query of a run may start, or start `again` after it; then it is STARTING."""
        if not self._queries.starts(run.name):
            return False
        self._context.report(m.QueryMoved(run.name, run.token.run + again, QueryState.STARTING))
        return True

    def _start(self, run: QueryRun) -> None:
        """Start the Spark query of a run; it is STARTING. One query after the other: each starts Python
        processes, and Spark gives those ten seconds to answer."""
        if self._newest is not None:
            self._newest.wait_until_begun(_BEGINS)
        self._context.lease.check()
        if not self._queries.take(run):
            self._check_over()
            return
        last, planned = run.files.last_committed(), run.files.last_planned()
        self._progress.watch(run.name, run.token.run)
        try:
            began = partial(self._progress.started, run.name)
            beginnings = 1 if self._context.supervised else _BEGINNINGS
            run.start(self._brake, began, self._ended, beginnings)
        except Exception as error:
            self._not_started(run, error)
            return
        self._newest = run
        self._queries.running(run)
        self._context.report(m.QueryStarted(run.name, run.token.run, last, planned))

    def _not_started(self, run: QueryRun, error: Exception) -> None:
        """A query could not be started: one more failure of it, or, where nobody starts it again, of all."""
        run.close()
        if not self._context.supervised:
            raise error
        after = self._queries.not_started(run)
        # Of a job that has run before, what Spark refuses may be an outage in other words: it is tried again.
        failure = from_exception(self._named(error, run), self._context.name, planning=not self._again)
        self._context.report(m.QueryFailed(run.name, run.token.run, run.failed_at(), failure, started=False))
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
            after = self._queries.ended(run.name, failed=error is not None)
            if error is not None:
                self._coordinator.query_failed(run.name)
                failure = from_exception(self._named(error, run), self._context.name)
                self._context.report(m.QueryFailed(run.name, run.token.run, run.failed_at(), failure))
            if after is QueryState.ENDED:
                last = run.last_committed()
                batch = NO_BATCH if last is None else last
                self._context.report(m.QueryEnded(run.name, run.token.run, batch))
                for ready in self._queries.ready():
                    if self._may_start(ready):
                        self._start(ready)
            self._check_over()
        except Exception as broke:
            self._context.end.give_up(as_weir(broke))

    def _check_over(self) -> None:
        over = self._queries.all_over and not self._finishing
        if over and not (self._visible and self._visible.to_come(self._check_over)):
            self._context.end.over.set()
        if self._context.end.over.is_set():
            self._receivers.ask_to_end()
