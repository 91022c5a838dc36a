"""With `sink.commit: checkpoint`: when the output of a job is seen, and how the last of it is.

Each completed checkpoint is a permit for the sinks (`sinks/held_commit.py`). A job that ends takes a
last checkpoint of exactly what it has committed; it is over when that is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from weir.checkpoint.coordinator import Coordinator
from weir.checkpoint.manifest import Manifest
from weir.driver.context import JobContext, as_weir
from weir.errors import ExternalError, NoCheckpointError, PipelineError, WeirError
from weir.ids import BatchId, CheckpointId, JobName, QueryName
from weir.job.env import QuerySpec
from weir.protocol.states import QueryState
from weir.sinks.contract import shows_at_once
from weir.sinks.held_commit import Permit, Together

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

        What can't be shown keeps the job from ending well: it has failed by then.
        """
        with self._lock:
            if not self.started:
                return self._together.undelivered()
            if self._last is None and self._together.undelivered():
                self._last = threading.Thread(target=self._show_the_rest, name="weir-last", daemon=True)
                self._last.start()
                threading.Thread(target=self._call_after, args=(self._last, then), daemon=True).start()
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

    def _call_after(self, last: threading.Thread, then: Callable[[], None]) -> None:
        last.join()
        then()
