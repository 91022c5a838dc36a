"""With `sink.commit: checkpoint`: when the output of a job is seen, and how the last of it is.

Each completed checkpoint is a permit for the sinks (`job/together.py`). A job that ends takes a last
checkpoint of exactly what it has committed; it is over when that is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from weir.checkpoint.coordinator import Coordinator
from weir.checkpoint.manifest import Manifest
from weir.errors import ExternalError, NoCheckpointError, PipelineError, WeirError
from weir.ids import BatchId, CheckpointId, JobName, QueryName
from weir.job.graph import QuerySpec
from weir.job.sinks.contract import shows_at_once
from weir.job.together import Permit, Together
from weir.lease import Lease

_LAST = 60.0
"""Seconds that the end of a job waits for its sinks; what is not shown then, the next start shows."""


class Shown:
    """The visible output of one attempt. For any thread."""

    def __init__(
        self,
        job: JobName,
        lease: Lease,
        failed: Callable[[QueryName, Exception], None],
        give_up: Callable[[WeirError], None],
    ) -> None:
        self.together = Together(lease, failed)
        self._job = job
        self._give_up = give_up
        self.started = False
        """Set when the coordinator works: before that no last checkpoint can be taken."""
        self._coordinator: Coordinator | None = None
        self._last: threading.Thread | None = None
        self._lock = threading.Lock()

    def check(self, spec: QuerySpec) -> None:
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
        raise PipelineError(job=self._job, reason=why, todo=todo)

    def begin(self, coordinator: Coordinator) -> None:
        """Before any query runs: what the newest checkpoint permits, and a crash has left, is committed."""
        self._coordinator = coordinator
        self.permit()
        self.together.settle(_LAST)

    def permit(self) -> None:
        """Let every sink commit up to the newest checkpoint; returns at once. Safe to repeat."""
        assert self._coordinator is not None
        newest = self._coordinator.newest()
        if newest is not None:
            cuts = {QueryName(name): BatchId(cut.batch) for name, cut in newest.queries.items()}
            oldest = {name: self._coordinator.oldest_cut(name) for name in cuts}
            known = {name: batch for name, batch in oldest.items() if batch is not None}
            self.together.permit(Permit(CheckpointId(newest.id), cuts, known))

    def to_come(self, then: Callable[[], None]) -> bool:
        """When every query has ended: whether output is still to be shown; `then` is called behind it.

        What can't be shown keeps the job from ending well: it was given up by then.
        """
        with self._lock:
            if not self.started:
                return self.together.undelivered()
            if self._last is None and self.together.undelivered():
                self._last = threading.Thread(target=self._show_the_rest, name="weir-last", daemon=True)
                self._last.start()
                threading.Thread(target=self._after, args=(self._last, then), daemon=True).start()
            return self._last is not None and (self._last.is_alive() or self.together.undelivered())

    def stop(self) -> None:
        """End; what is not shown stays for the next start. Safe to repeat."""
        if self._last is not None:
            self._last.join()
        self.together.stop()

    def _show_the_rest(self) -> None:
        assert self._coordinator is not None
        asked: Future[tuple[Manifest | None, str]] = Future()
        self._coordinator.rest()
        self._coordinator.final_cut(lambda manifest, reason: asked.set_result((manifest, reason)))
        manifest, reason = asked.result()
        if manifest is None:
            self._give_up(NoCheckpointError(job=self._job, reason=f"the last one of an ended job: {reason}"))
            return
        self._coordinator.release(CheckpointId(manifest.id))
        if not self.together.settle(_LAST):
            self._give_up(ExternalError(what=f"the sinks have not committed the last batches in {_LAST:g} s"))

    def _after(self, last: threading.Thread, then: Callable[[], None]) -> None:
        last.join()
        then()
