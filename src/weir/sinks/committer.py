"""Commits staged batches once Spark has decided for them, in order, beside the running query.

One thread a query. It waits for `commits/<n>`, then has the sink commit; the next batch may already
run, and a bound holds it when the sink lags. What is not committed when the query ends is
left as it is: the next start decides about it from what is stored. Batches are dense, for every sink: one
that does not follow the last one is refused before Spark decides for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from weir import faults
from weir.clock import Deadline
from weir.errors import ExternalError, FencedError
from weir.ids import NO_BATCH, BatchId
from weir.protocol.ledger import Dense, Staged, decided_by
from weir.sinks import Outcome, StagingSink
from weir.sinks.contract import capabilities, until_known
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.attempts import Lease

_LOOK_FIRST, _LOOK_LAST = 0.002, 0.1
"""How often to look for the decision record: at first, and after a while."""


def check_dense(dense: Dense, batch: BatchId) -> None:
    """Raise `FencedError` unless the batch follows the last one; the next start delivers what is missing."""
    if (missing := dense.missing(batch)) is not None:
        by = f"another run (it decided batch {missing} after this run began)"
        raise FencedError(who=f"the run that is at batch {batch}", by=by)


class Committer:
    """The commits of one run of one query."""

    def __init__(
        self,
        sink: StagingSink,
        files: QueryFiles,
        lease: Lease,
        max_pending: int,
        failed: Callable[[Exception], None],
        last: BatchId,
        oldest: Callable[[], BatchId | None] = lambda: None,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._files = files
        self._lease = lease
        self._max_pending = max_pending
        self._failed = failed
        self._dense = Dense(last)
        self._oldest = oldest
        self._committed = committed
        self._forgotten = NO_BATCH
        self._pending: deque[Staged] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.refused: BatchId | None = None
        """The batch that the sink did not take, for which the run ends."""
        self._thread = threading.Thread(target=self._work, name="weir-committer", daemon=True)
        self._thread.start()

    def wait_for_room(self) -> None:
        """Hold the next batch while too many wait for the sink."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._pending) < self._max_pending)

    def check_next(self, batch: BatchId) -> None:
        """Raise `FencedError` unless this batch follows the last one: another run has decided for that."""
        check_dense(self._dense, batch)

    def submit(self, staged: Staged) -> None:
        """Take over a recorded staging; Spark is about to decide for it. Raises as `check_next` does."""
        with self._changed:
            self.check_next(staged.batch)
            self._dense = self._dense.then(staged.batch)
            self._pending.append(staged)
            self._changed.notify_all()

    def drain(self, deadline: Deadline) -> bool:
        """Wait until everything that Spark has committed is committed here too."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not self._open_work(), deadline.left())

    @property
    def undelivered(self) -> int:
        """How many batches Spark has committed that are not committed here."""
        with self._changed:
            return sum(self._files.committed(staged.batch) for staged in self._pending)

    def missing(self, upto: BatchId) -> int:
        """How many batches up to this one are not committed here; all of them are decided."""
        with self._changed:
            return sum(staged.batch <= upto for staged in self._pending)

    @property
    def closed(self) -> bool:
        """Whether nothing is committed here any more."""
        return self._closed

    def close(self, *, wait: bool = True) -> None:
        """End the thread; what is pending stays for the next start.

        Without `wait` a commit that is under way may still happen, or not.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def _open_work(self) -> bool:
        return bool(self._pending) and self._files.committed(self._pending[0].batch)

    def _work(self) -> None:
        delivering: BatchId | None = None
        try:
            while (staged := self._next()) is not None:
                if self._decided(staged):
                    delivering = staged.batch
                    self._commit(staged)
                    delivering = None
                    self._committed()
                    with self._changed:
                        self._pending.popleft()
                        self._changed.notify_all()
                    self._forget()
        except Exception as error:  # whatever it is, the query must not continue without it
            with self._changed:
                self._closed = True
                self.refused = delivering
                self._changed.notify_all()
            self._failed(error)

    def _forget(self) -> None:
        """Let the sink delete what it keeps for a rewind that no checkpoint asks for any more."""
        forget = capabilities(self._sink).forget
        upto = self._oldest() if forget is not None else None
        if forget is not None and upto is not None and upto > self._forgotten:
            with suppress(ExternalError):  # it is done with a later batch
                forget(upto)
                self._forgotten = upto

    def _next(self) -> Staged | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pending)
            return None if self._closed else self._pending[0]

    def _decided(self, staged: Staged) -> bool:
        pause = _LOOK_FIRST
        while not self._closed:
            if self._files.committed(staged.batch):
                # A zombie may have decided with its own state: then its staging counts, not ours.
                if not decided_by(staged, self._files.committed_state(staged.batch)):
                    by = f"another run (it decided batch {staged.batch})"
                    raise FencedError(who=f"run {staged.token}", by=by)
                return True
            with self._changed:
                self._changed.wait(pause)
            pause = min(pause * 1.5, _LOOK_LAST)
        return False

    def _commit(self, staged: Staged) -> None:
        faults.point("batch.committed")

        def commit() -> Outcome:
            self._lease.check()
            faults.point("sink.committing")
            return self._sink.commit(staged)

        until_known(commit, f"the sink did not confirm batch {staged.batch}", self._rest)

    def _rest(self, seconds: float) -> None:
        with self._changed:  # whoever is in a hurry wakes it
            self._changed.wait(seconds)
