"""The writing end of a channel: a sink that keeps the contract of `StagingSink`.

Spark writes Parquet inside the batch; the segment is entered in the log only when Spark's
`commits/<n>` is there, so a batch that ran twice appears once, with the output of the run that
committed. Barriers go into the same log, behind the newest segment. One object serves the batch,
the committer and the coordinator from their own threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.channel.event_time import carried_watermark
from weir.channel.log import (
    Barrier,
    ChannelLog,
    Entry,
    Fence,
    Segment,
    SegmentFile,
    Tail,
    apply,
    counts,
    decode,
    encode,
)
from weir.errors import (
    FencedError,
    IllegalMoveError,
    LostStagingError,
    OutcomeUnknownError,
    SinkMismatchError,
)
from weir.ids import Attempt, BatchId, CheckpointId, Run, Token
from weir.job.sinks.contract import Outcome
from weir.job.sinks.staging import StagedFiles, folder_of
from weir.protocol.ledger import Ledger, Staged
from weir.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STAGED = "staged"
_OPTIONS = {"compression": "snappy"}


@dataclass(frozen=True)
class Cut:
    """Where a barrier stands in the log, and the last batch before it."""

    entry: int
    batch: BatchId


class ChannelWriter:
    """The channel at `location`, written by the query whose checkpointLocation is `query`."""

    def __init__(self, name: str, location: str, query: str, store: Store | None = None) -> None:
        self.name = name
        self._location = location
        self._query = open_store(query)
        self._store = store or open_store(location)
        self._staging = StagedFiles(self._store, _STAGED)
        self._lock = threading.RLock()
        self._log: ChannelLog | None = None
        self._tail = Tail()
        self._cuts: dict[CheckpointId, Cut] = {}
        self._folders: set[str] = set()
        self._token = Token(Attempt(0), Run(0))

    def describe(self) -> str:
        return f"channel {self.name} in {self._location}"

    def open(self, owner: str, lineage: str, token: Token) -> Ledger:
        self._token = token
        self._catch_up()
        self._check_owner(owner, lineage)
        self._append(lambda: Fence(token, self._tail.last, owner, lineage))
        return Ledger(owner, lineage, self._tail.fence, self._tail.last)

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        self._staging.write(frame, "parquet", _OPTIONS, batch, token)

    def record(self, staged: Staged) -> None:
        from weir.channel.parquet import describe  # noqa: PLC0415  loads pyarrow

        self._catch_up()
        keys = self._staging.written(staged)
        files = [describe(f"{self._store.url}/{key}", key.rsplit("/", 1)[1]) for key in keys]
        self._staging.record(staged, [vars(file) for file in files if file.rows])

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        self._catch_up()
        outcome = Outcome.ALREADY_DONE
        if self._tail.last < staged.batch:
            segment = self._segment(staged)
            try:
                if self._append(lambda: segment if self._tail.last < segment.batch else None):
                    outcome = Outcome.DONE_NOW
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
            faults.point("sink.committed")
        self._staging.forget(staged)
        return outcome

    def append_barrier(self, checkpoint: CheckpointId) -> Cut:
        """Append the barrier of a checkpoint behind the newest segment; safe to repeat.

        A barrier that is there already is not appended again. Raises `FencedError` when a higher
        token was announced, and `IllegalMoveError` when a later checkpoint's barrier is there.
        """
        self._catch_up()
        self._append(lambda: self._barrier(checkpoint))
        return self._cuts[checkpoint]

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        self._staging.discard(upto, self._folders | {folder_of(s.batch, s.token) for s in keep})

    def rewind(self, to: BatchId) -> Outcome:
        """Nothing can be taken back from readers: a rollback restores the log in a new generation."""
        self._catch_up()
        if self._tail.last <= to:
            return Outcome.ALREADY_DONE
        raise IllegalMoveError(machine=self.describe(), event=f"rewind to {to}", state=str(self._tail.last))

    def _segment(self, staged: Staged) -> Segment:
        recorded = self._staging.files_of(staged)
        if recorded is None:
            raise LostStagingError(batch=staged.batch, query=self._tail.owner, path=self.describe())
        files = tuple(SegmentFile(**file) for file in recorded)
        watermark = carried_watermark(self._query, staged.batch)
        return Segment(staged.batch, self._token, folder_of(staged.batch, staged.token), files, watermark)

    def _barrier(self, checkpoint: CheckpointId) -> Barrier | None:
        if checkpoint in self._cuts:
            return None
        if checkpoint < self._tail.barrier:
            raise IllegalMoveError(
                machine=self.describe(), event=f"barrier {checkpoint}", state=f"barrier {self._tail.barrier}"
            )
        return Barrier(checkpoint, self._tail.last, self._token)

    def _catch_up(self) -> None:
        with self._lock:
            if self._log is None:
                self._log = ChannelLog(self._store)
            for stored in self._log.read_new():
                self._take(stored)
            self._check_fence()

    def _append(self, make: Callable[[], Entry | None]) -> bool:
        """Append what `make` makes of the tail that it will stand behind; False when that is nothing."""
        with self._lock:
            assert self._log is not None
            while (entry := make()) is not None:
                stored = encode(entry)
                if self._log.append(stored, partial(self._still, self._tail)):
                    self._take(stored)
                    return True
                self._check_fence()
            return False

    def _still(self, tail: Tail, stored: Mapping[str, Any]) -> bool:
        """Take an entry of another into account; False when the tail is another for it."""
        self._take(stored)
        return self._tail == tail

    def _take(self, stored: Mapping[str, Any]) -> None:
        assert self._log is not None
        entry = decode(stored)
        if counts(self._tail, entry):
            if isinstance(entry, Segment):
                self._folders.add(entry.folder)
            elif isinstance(entry, Barrier):
                self._cuts[entry.checkpoint] = Cut(self._log.next_number - 1, entry.batch)
        self._tail = apply(self._tail, entry)

    def _check_fence(self) -> None:
        if self._tail.fence > self._token:
            raise FencedError(who=f"attempt {self._token}", by=f"attempt {self._tail.fence}")

    def _check_owner(self, owner: str, lineage: str) -> None:
        if not self._tail.owner or (self._tail.owner, self._tail.lineage) == (owner, lineage):
            return
        raise SinkMismatchError(
            query=owner.split("/", 1)[1],
            path=self._location,
            reason=f"the channel was written by {self._tail.owner!r} with other live files",
            todo="bring the job's directory back as a whole, or give the stream a new name",
        )
