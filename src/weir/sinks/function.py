"""A function of the author's as a sink: `weir.sinks.function(fn)`.

    <job>/sinks/<query>/log/<number>.json                        the ledger, dense, its head deleted
    <job>/sinks/<query>/staged/<batch>-<token>.json              calls that returned, and are recorded
    <job>/sinks/<query>/marks/<batch>-<digest>.json              parts that are done: `function_ledger.py`

The function is called inside the batch, so what it does has happened before Spark decides: at least
once. The ledger says up to which batch the calls were of batches that Spark committed, which is what
a start must know. It lies beside the generations: like the ledger of any other sink it is rewound by
a rollback, and not replaced. Every entry tells the whole state of the sink behind it, so only the
newest are kept.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.errors import (
    LostStagingError,
    OutcomeUnknownError,
    PipelineError,
    SinkMismatchError,
    UserCodeError,
    WeirError,
)
from weir.ids import BatchId, Token
from weir.job.sinks.contract import Outcome
from weir.job.sinks.fence import Knows, SinkFence, anyone
from weir.job.sinks.function_ledger import BatchLedger, forget_marks
from weir.job.sinks.staging import StagedFiles, folder_of
from weir.protocol.ledger import Ledger, Staged, by, token_of
from weir.spark.layout import QueryFiles
from weir.storage import DenseLog, Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchFunction = Callable[["DataFrame", int], Any] | Callable[["DataFrame", int, BatchLedger], Any]

KEPT = 100
"""So many entries of the ledger are kept; one is needed."""
_LOG = "log"
_STAGED = "staged"


def function(fn: BatchFunction) -> Function:
    """Call `fn(frame, batch)` on the driver with each batch: its rows, and its number from 0.

    At least once: a batch that runs again, after a crash or a rollback, is handed to the function
    again, with the same number. So what the function does outside of weir must bear repetition
    (overwrite, merge by a key, remember the number), or it happens twice. `env.state` is exempt: its
    values count once. A zombie driver may still be inside a call when its successor makes the same one.

    `fn(frame, batch, ledger)` gets a `BatchLedger` too: `ledger.key` names the batch for other systems, the
    same whenever it runs again; `ledger.token` only grows; and a part that `ledger.mark(part)` was called for
    is `ledger.done(part)` when the batch runs again. A crash between doing a part and marking it repeats
    that part, and the rows must be the same both times: for sources that are read again alike, and no chance.

    Each evaluation of the frame computes the batch once more; persist it where there are several. The
    frame of a stateful query must be evaluated as a whole, or the state of the rest would be lost: a
    function that looks at a part only (`take`, `first`, or nothing) is refused.
    """
    return Function(fn)


@dataclass(frozen=True)
class Function:
    """A function as the author gives it; the job gives it a folder for its ledger."""

    fn: BatchFunction

    def at(self, location: str, files: QueryFiles) -> FunctionSink:
        """The sink, with its ledger in this folder, of the query with these files."""
        return FunctionSink(self.fn, location, files)


class FunctionSink:
    """See the module's docstring; keeps the contract of `StagingSink`, but for what the function does."""

    rewindable = False
    """What the function has done can't be taken back."""
    at_once = True
    """The function is called inside the batch."""
    ledger_in_job = True
    """The ledger is lost with the job's directory, and what the function did is not."""

    def __init__(
        self,
        fn: BatchFunction,
        location: str,
        files: QueryFiles | None = None,
        store: Store | None = None,
    ) -> None:
        self._fn: Callable[..., Any] = fn
        self._with_ledger = _takes_ledger(fn)
        self._files = files
        self._location = location
        self._store = store or open_store(location)
        self._staging = StagedFiles(self._store, _STAGED)
        self._lock = threading.RLock()  # the batch records in one thread, the committer commits in another
        self._log = DenseLog(self._store, _LOG)
        self._ledger = Ledger()
        self._fence = SinkFence(self.describe)
        self._skipped: BatchId | None = None

    def describe(self) -> str:
        return f"function {getattr(self._fn, '__qualname__', repr(self._fn))}"

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        with self._lock:
            self._fence.begin(owner, token, knows)
            self._catch_up()
            self._check_owner(owner, lineage)
            self._append(lambda now: replace(now, owner=owner, lineage=lineage, fence=token))
            self._fence.announced(self._ledger.last)
            self._forget()
            return self._ledger

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        if batch == self._skipped:
            return
        try:
            self._fn(frame, batch, *([self._batch_ledger(batch, token)] if self._with_ledger else []))
        except (WeirError, PySparkException, Py4JError, OSError):
            raise  # told apart by their types
        except Exception as error:
            job, query = self._ledger.owner.split("/", 1)
            name = type(error).__name__
            raise UserCodeError(error=name, query=query, batch=batch, message=str(error), job=job) from error
        self._check_whole(batch)

    def skip(self, batch: BatchId) -> None:
        """The function is not called with this batch."""
        self._skipped = batch

    def record(self, staged: Staged) -> None:
        self._catch_up()
        self._staging.record(staged, [])

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        self._catch_up()
        outcome = Outcome.ALREADY_DONE
        if self._ledger.last < staged.batch:
            if not self._staging.is_recorded(staged):
                raise LostStagingError(batch=staged.batch, query=self._ledger.owner, path=self._location)
            try:
                self._append(lambda now: replace(now, last=max(now.last, staged.batch)))
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
            outcome = Outcome.DONE_NOW
            faults.point("sink.committed")
        self._staging.forget(staged)
        if self._with_ledger:
            forget_marks(self._store, self._fence.token, staged.batch)
        self._forget()
        return outcome

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        kept = {folder_of(one.batch, one.token) for one in keep}
        self._staging.discard(upto, self._fence.token, kept)
        forget_marks(self._store, self._fence.token, upto)

    def rewind(self, to: BatchId) -> Outcome:
        """Enter that the batches above `to` come again; what the function did stays done."""
        self._catch_up()
        forget_marks(self._store, self._fence.token)
        if self._ledger.last <= to:
            return Outcome.ALREADY_DONE
        self._fence.rewinds(to)
        try:
            self._append(lambda now: replace(now, last=min(now.last, to), rewound=True))
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def _batch_ledger(self, batch: BatchId, token: Token) -> BatchLedger:
        id = self._files.query_id() if self._files is not None else ""
        key = f"{self._ledger.owner}/{id}/{batch}"
        return BatchLedger(key, token, batch, self._store, self._catch_up)

    def _check_whole(self, batch: BatchId) -> None:
        """Refuse a batch whose state is not written: with some backends Spark would commit it."""
        left_out = self._files.state_left_out(batch) if self._files is not None else []
        if left_out:
            job, query = self._ledger.owner.split("/", 1)
            raise PipelineError(
                job=job,
                reason=f"the function of query {query!r} has evaluated only a part of batch {batch}, "
                f"and the state of the rest ({len(left_out)} partitions) would be lost",
                todo="evaluate the whole frame first: frame.persist(); frame.count()",
            )

    def _catch_up(self) -> None:
        with self._lock:
            while self._is_behind():
                for entry in self._log.read_new():
                    self._ledger = _decode(entry)
            self._fence.check(self._ledger)

    def _is_behind(self) -> bool:
        """Whether entries are there that were not read; then the newest is read next, which tells all.

        One by one would not do: the entries behind the last one that was read may be deleted by now.
        """
        newest = max((_number(key) for key in self._store.list(_LOG)), default=-1)
        if newest == self._log.next_number - 1:
            return False
        if newest < self._log.next_number:  # it was put back to an older state
            self._ledger = Ledger()
        self._log = DenseLog(self._store, _LOG, first=max(newest, 0))
        return True

    def _append(self, make: Callable[[Ledger], Ledger]) -> None:
        """Append what `make` makes of the ledger that it will stand behind."""
        with self._lock:
            while True:
                new = make(self._ledger)
                if self._log.append(_encode(new), partial(self._still, self._ledger)):
                    self._ledger = new
                    self._fence.entered(new.last)
                    if not self._is_behind():
                        return
                    # Others were quicker, or we slept, and took a number that was free again: it is void.
                    self._catch_up()
                self._fence.check(self._ledger)

    def _still(self, before: Ledger, entry: dict[str, Any]) -> bool:
        """Take an entry of another into account; False when the ledger is another for it."""
        self._ledger = _decode(entry)
        return self._ledger == before

    def _forget(self) -> None:
        """Delete the entries that are too old, from the newest of them down to one that is gone."""
        with self._lock:
            number = self._log.next_number - KEPT - 1
            while number >= 0 and self._store.exists(_key(number)):
                self._store.delete(_key(number))
                number -= 1

    def _check_owner(self, owner: str, lineage: str) -> None:
        if not self._ledger.owner or (self._ledger.owner, self._ledger.lineage) == (owner, lineage):
            return
        raise SinkMismatchError(
            query=owner.split("/", 1)[1],
            path=self._location,
            reason=f"the ledger was written by {self._ledger.owner!r} with other live files",
            todo="bring the job's directory back as a whole, or give the query a new name",
        )


def _takes_ledger(fn: BatchFunction) -> bool:
    """Whether the function has a third positional parameter for it; one of its own with a default is none."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some functions of C don't tell
        return False
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    third = by_place[2] if len(by_place) > 2 else None
    return third is not None and (third.name == "ledger" or third.default is inspect.Parameter.empty)


def _key(number: int) -> str:
    return f"{_LOG}/{number:09d}.json"


def _number(key: str) -> int:
    return int(key.rsplit("/", 1)[1].removesuffix(".json"))


def _encode(ledger: Ledger) -> dict[str, Any]:
    told = {"owner": ledger.owner, "lineage": ledger.lineage, **by(ledger.fence), "last": ledger.last}
    return {**told, "rewound": ledger.rewound}


def _decode(entry: dict[str, Any]) -> Ledger:
    rewound = bool(entry.get("rewound", False))  # an earlier weir did not record it
    return Ledger(entry["owner"], entry["lineage"], token_of(entry), BatchId(entry["last"]), rewound=rewound)
