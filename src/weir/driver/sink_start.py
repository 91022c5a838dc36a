"""The sinks of a job at a start: looked at, fenced, recovered; one query at a time may fail there alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from weir.checkpoint.coordinator import Coordinator
from weir.checkpoint.manifest import Manifest
from weir.driver.context import JobContext, as_weir
from weir.errors import (
    ExternalError,
    FencedError,
    NoCheckpointError,
    PipelineError,
    SinkTakenError,
    WeirError,
)
from weir.ids import NO_BATCH, BatchId, CheckpointId, JobName, QueryName
from weir.job.query import QueryRun
from weir.job.spec import QuerySpec
from weir.protocol.states import QueryState
from weir.restore.go_live import check_ahead, unasked_limit
from weir.restore.point import newest
from weir.restore.query_damage import Damage
from weir.sinks.contract import shows_at_once
from weir.sinks.fence import Knows
from weir.sinks.held_commit import Permit, Together
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.failure import from_exception
from weir.storage import generation
from weir.storage.attempts import AttemptLock, KnownAttempts
from weir.storage.generation import Origin
from weir.storage.paths import Live

Answer = TypeVar("Answer")


class SinkStart:
    """What a start, or the restart of one query, does with the sinks."""

    def __init__(self, context: JobContext, live: Live, origin: Origin) -> None:
        self._context = context
        self._live = live
        self._origin = origin

    def look(self, run: QueryRun) -> BatchId:
        """The newest batch that the sink of a run holds; raises as `fence` does, and fences nobody."""
        return self._ask(run, run.output.look)

    def fence(self, run: QueryRun) -> BatchId:
        """The same; from now on no earlier writer can write there."""
        return self._ask(run, run.output.open)

    def delivered_elsewhere(self) -> Mapping[QueryName, BatchId]:
        """Up to which batch queries with a new sink were delivered before, elsewhere."""
        context = self._context
        return generation.delivered_elsewhere(context.store, context.name, self._live.generation)

    def recover(self, run: QueryRun, elsewhere: Mapping[QueryName, BatchId]) -> None:
        """Deliver what Spark has committed and the sink has not, and discard the rest."""
        run.output.recover(elsewhere.get(run.name, NO_BATCH), self._context.note)

    def lost(self, delivered: Mapping[QueryName, BatchId]) -> list[Damage]:
        """Batches that a sink holds and the live files know nothing of, where a checkpoint has the query.

        Raises `OutputAheadError` when they are more than a crash explains. What no checkpoint knows of is
        refused when the sink is recovered: to restore one would rewind all that the query has delivered.
        """
        live = self._live
        point = newest(live.store, live.job)
        known = {name: QueryFiles.of(live, name).last_committed() for name in delivered}
        lost = {
            name: last
            for name, last in delivered.items()
            if last > known[name] and point is not None and name in point.queries
        }
        check_ahead(live, lost, known, unasked_limit(self._context.settings))
        generation.note_ahead(live.store, live.job, live.generation, {})
        return [
            Damage(name, f"commits/{last}", "is lost: its output was delivered")
            for name, last in lost.items()
        ]

    def _ask(self, run: QueryRun, step: Callable[[str, str, Knows], BatchId]) -> BatchId:
        context, origin = self._context, self._origin
        began_as = origin.forked_from if run.spec.channel is not None else ""
        try:
            owner = origin.owners.get(run.name, run.name)  # it may have had another name
            knows = KnownAttempts(context.store, context.name)
            return step(f"{began_as or context.name}/{owner}", origin.lineage, knows)
        except FencedError as error:
            opened = AttemptLock(context.store, context.name, context.clock).newest()
            own, taken = context.lease.attempt, error.fields.get("attempt", 0)
            if run.spec.sink is None or (opened and opened.attempt > own) or taken <= own:
                raise
            path = run.spec.sink.describe()
            raise SinkTakenError(query=run.name, path=path, attempt=taken, own=own) from error


class Isolation:
    """Lets a query whose sink is away, or refuses a row, fail alone, so that the others start."""

    def __init__(
        self, context: JobContext, unstarted: dict[QueryName, Exception], *, alone: bool, again: bool
    ) -> None:
        """`alone`: a query may fail alone; `again`: the job has run before, so what fails now has worked."""
        self._context = context
        self._unstarted = unstarted
        self._alone = alone
        self._again = again

    def each(self, runs: Sequence[QueryRun], step: Callable[[QueryRun], Answer]) -> dict[QueryName, Answer]:
        """Take a step with every run that has not failed; what it gave, of those that did not fail now."""
        answers: dict[QueryName, Answer] = {}
        for run in (one for one in runs if one.name not in self._unstarted):
            try:
                answers[run.name] = step(run)
            except Exception as error:
                if not self._alone or self._ends_the_start(run, error):
                    raise
                self._unstarted[run.name] = error
        return answers

    def _ends_the_start(self, run: QueryRun, error: Exception) -> bool:
        """Whether what went wrong with one query ends the start of all of them.

        A channel is in the job's own directory, which all of them need. A sink that another directory's job
        has taken means that this whole job runs elsewhere.
        """
        if isinstance(error, SinkTakenError):
            return True
        failure = from_exception(error, self._context.name, planning=not self._again)
        return run.spec.channel is not None or failure.redeploy or (not failure.retry and not self._again)


# With `sink.commit: checkpoint`: when the output of a job is seen, and how the last of it is.
#
# Each completed checkpoint is a permit for the sinks (`sinks/held_commit.py`). A job that ends takes a
# last checkpoint of exactly what it has committed; it is over when that is shown.


_LAST = 60.0
"""Seconds that the end of a job waits for its sinks; what is not shown then, the next start shows."""


def check_can_be_held(job: JobName, spec: QuerySpec) -> None:
    """Raise `PipelineError` for a query whose output can't be held back until a checkpoint."""
    if spec.user_state is not None:
        reason = "has user state, which is kept with the delivery of each batch"
        todo = "leave sink.commit at 'batch' for this job"
    elif shows_at_once(spec.sink):
        reason = "has a sink that shows the rows of a batch at once"
        todo = "use files, or postgres or kafka in exactly_once, or leave sink.commit at 'batch'"
    else:
        return
    why = f"query {spec.name!r} {reason}, and sink.commit is 'checkpoint'"
    raise PipelineError(job=job, reason=why, todo=todo)


class Refusals:
    """What follows when the output of a checkpoint can't be committed. Called from any thread."""

    def __init__(self, context: JobContext, unstarted: dict[QueryName, Exception]) -> None:
        """`unstarted` are the queries that can't start, and why."""
        self._context = context
        self._unstarted = unstarted

    def failed(self, name: QueryName, error: Exception) -> None:
        """The query of that output is started again, or all of the job."""
        queries = self._context.queries
        state = queries.state(name)
        if state in (QueryState.CREATED, QueryState.WAITING) and self._context.supervised:
            self._unstarted[name] = error  # of an earlier attempt: the query is not started, and reported
        elif state in (QueryState.STARTING, QueryState.RUNNING):
            queries.run(name).fail(error)
        elif state is not QueryState.RESTARTING:  # the next run of that brings the permit again
            self._context.end.give_up(as_weir(error))


class VisibleOutput:
    """The visible output of one attempt. For any thread."""

    def __init__(
        self,
        job: JobName,
        together: Together,
        coordinator: Coordinator,
        give_up: Callable[[WeirError], None],
    ) -> None:
        self._together = together
        self._job = job
        self._give_up = give_up
        self.started = False
        """Set when the coordinator works: before that no last checkpoint can be taken."""
        self._coordinator = coordinator
        self._last: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Before any query runs: what the newest checkpoint permits, and a crash has left, is committed."""
        self.permit()
        self._together.settle(_LAST)

    def permit(self) -> None:
        """Let every sink commit up to the newest checkpoint; returns at once. Safe to repeat."""
        newest = self._coordinator.newest()
        if newest is not None:
            cuts = {QueryName(name): BatchId(cut.batch) for name, cut in newest.queries.items()}
            oldest = {name: self._coordinator.oldest_cut(name) for name in cuts}
            known = {name: batch for name, batch in oldest.items() if batch is not None}
            self._together.permit(Permit(CheckpointId(newest.id), cuts, known))

    def completed(self, _id: CheckpointId) -> None:
        """A checkpoint is complete."""
        self.permit()

    def to_come(self, then: Callable[[], None]) -> bool:
        """When every query has ended: whether output is still to be shown; `then` is called after that.

        What can't be shown keeps the job from ending well: it was given up by then.
        """
        with self._lock:
            if not self.started:
                return self._together.undelivered()
            if self._last is None and self._together.undelivered():
                self._last = threading.Thread(target=self._show_the_rest, name="weir-last", daemon=True)
                self._last.start()
                threading.Thread(target=self._after, args=(self._last, then), daemon=True).start()
            return self._last is not None and (self._last.is_alive() or self._together.undelivered())

    def stop(self) -> None:
        """End; what is not shown stays for the next start. Safe to repeat."""
        if self._last is not None:
            self._last.join()
        self._together.stop()

    def _show_the_rest(self) -> None:
        asked: Future[tuple[Manifest | None, str]] = Future()
        self._coordinator.rest()
        self._coordinator.final_cut(lambda manifest, reason: asked.set_result((manifest, reason)))
        manifest, reason = asked.result()
        if manifest is None:
            self._give_up(NoCheckpointError(job=self._job, reason=f"the last one of an ended job: {reason}"))
            return
        self._coordinator.release(CheckpointId(manifest.id))
        if not self._together.settle(_LAST):
            self._give_up(ExternalError(what=f"the sinks have not committed the last batches in {_LAST:g} s"))

    def _after(self, last: threading.Thread, then: Callable[[], None]) -> None:
        last.join()
        then()
