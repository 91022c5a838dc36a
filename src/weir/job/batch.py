"""The path of one batch: it passes the gate, is staged, recorded, and submitted to what delivers it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from weir import faults
from weir.ids import BatchId, QueryName, Token
from weir.job.env import QuerySpec
from weir.protocol.ledger import Staged
from weir.sinks import StagingSink
from weir.sinks.committer import Committer
from weir.sinks.contract import capabilities
from weir.sinks.held_commit import HeldCommitter
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.attempts import Lease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StoppingError(Exception):
    """A batch that began after the job was asked to end; it was not run."""


class BatchHost(Protocol):
    """The job around a run, as its batches need it. Called from threads of the run."""

    def hold(self, spec: QuerySpec, batch: BatchId, over: Callable[[], bool]) -> None:
        """Called before a batch; returns when it may begin, at once when `over` says so."""

    def oldest_cut(self, query: QueryName) -> BatchId | None:
        """The oldest batch that a checkpoint may lead back to; None when that is not known."""

    def delivered(self) -> None:
        """The sink of a query has taken a batch; returns at once."""


class BatchGate:
    """What every batch of a run passes; closed when the run is to end. For any thread."""

    def __init__(self) -> None:
        self.newest: BatchId | None = None
        """The batch that is running, or ran last."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._inside = False

    def close(self) -> None:
        """No batch passes any more; one that has passed is not disturbed."""
        self._closed.set()

    def enter(self, batch: BatchId) -> None:
        """A batch begins; `StoppingError` when the gate is closed."""
        self.newest = batch
        faults.point("batch.planned")
        with self._lock:
            if self._closed.is_set():
                raise StoppingError(f"batch {batch} was planned after the end was asked for")
            self._inside = True

    def leave(self) -> None:
        """The batch is over, however it ended."""
        self._inside = False

    def close_if_empty(self, idle: Callable[[], bool]) -> bool:
        """Close it unless a batch is inside, or the query is not `idle`; then it is as it was before.

        True when it is closed, and nothing runs.
        """
        with self._lock:
            if self._inside:
                return False
            was_closed = self._closed.is_set()
            self._closed.set()
        if idle():
            return True
        if not was_closed:
            self._closed.clear()
        return False


@dataclass(frozen=True)
class BatchPath:
    """How the batches of one run go to its sink. One batch at a time, in Spark's thread."""

    spec: QuerySpec
    sink: StagingSink
    committer: Committer | HeldCommitter
    files: QueryFiles
    token: Token
    lease: Lease
    host: BatchHost
    skipped: BatchId | None
    """A batch that is not to be delivered."""
    ending: Callable[[], bool]
    """Whether the run is to end: then no batch is held up."""

    def run(self, frame: DataFrame, batch: BatchId) -> None:
        """Stage a batch and record it; when this returns, Spark decides."""
        self.committer.check_next(batch)  # before user state is read, which would be of an older batch
        self.committer.wait_for_room()
        self.host.hold(self.spec, batch, self.ending)
        self.lease.check()
        before, over = self.files.state_ids(batch), threading.Event()
        faults.watch("batch.state", lambda: self.files.uploading(batch), over)
        try:
            self.sink.stage(self._delivered_of(frame, batch), batch, self.token)
        finally:
            over.set()
        faults.point("batch.written")
        self.lease.check()
        staged = Staged(batch, self.token, tuple(sorted(self.files.state_ids(batch) - before)))
        self.sink.record(staged)
        faults.point("batch.staged")
        self.committer.submit(staged)

    def _delivered_of(self, frame: DataFrame, batch: BatchId) -> DataFrame:
        """What of the batch is to be delivered: all of it, or nothing."""
        if batch != self.skipped:
            return frame
        if (skip := capabilities(self.sink).skip) is not None:
            skip(batch)
        return frame.limit(0)
