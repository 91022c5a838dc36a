"""A function of the author's as a sink: `weir.sinks.function(fn)`.

    <job>/sinks/<query>/log/<number>.json                        the ledger, dense, its head deleted
    <job>/sinks/<query>/staged/<batch>-<token>.json              calls that returned, and are recorded
    <job>/sinks/<query>/marks/<batch>-<digest>.json              parts that are done: `function_ledger.py`

The function is called inside the batch, so what it does has happened before Spark decides: at least
once. The ledger says up to which batch the calls were of batches that Spark committed, which is what
a start must know. It lies beside the generations: like the ledger of any other sink it is rewound by
a rollback, and not replaced. Every entry has the complete state of the sink after it, so only the
newest are kept.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.errors import (
    JobConnectionError,
    LostStagingError,
    OutcomeUnknownError,
    PipelineError,
    SinkMismatchError,
    UserCodeError,
    WeirError,
)
from weir.ids import BatchId, Token
from weir.protocol.ledger import Ledger, Staged, by, token_of
from weir.sinks.contract import Outcome
from weir.sinks.fence import FencedLog, Knows, SinkFence, anyone, decode_ledger, encode_ledger
from weir.sinks.staging import StagedFiles, folder_of
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.outage import failed_connection
from weir.storage import Store, open_store
from weir.storage.folded_log import NewestLog
from weir.storage.log import Entry, lost, newest_number, numbered, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# What the function of a function sink may ask for: a key, a token, and marks of what it has done already.
#
# <job>/sinks/<query>/marks/<batch>-<digest>.json    a part of a batch that is done
#
# The digest is of the batch's key and of the part. The key holds the id that Spark knows the query by,
# which a restore changes: after one the same number stands for other rows, and no mark from before it is
# found.


_MARKS = "marks"


@dataclass(frozen=True)
class BatchLedger:
    """The third argument of a sink's function, for one call. For any thread; not on executors."""

    key: str
    """Names this batch, of this query, for other systems: the same when the batch runs again, and never that
    of other rows, not even after a restore. An idempotency key.
    """
    token: Token
    """Attempt and run of this call, which only grow: of two callers the greater one is right."""
    _batch: BatchId = field(repr=False)
    _store: Store = field(repr=False)
    _check: Callable[[], object] = field(repr=False)

    def done(self, part: str) -> bool:
        """Whether this part of the batch was marked, by this call or by an earlier one of the same batch."""
        return self._store.exists(self._mark(part))

    def mark(self, part: str) -> None:
        """Record, durably, that this part is done; any text of yours names it. Safe to repeat.

        A crash between doing a part and marking it repeats that part. Raises `FencedError` in a run that
        was replaced by another.
        """
        self._check()
        body = {"key": self.key, "part": part, **by(self.token)}
        self._store.create(self._mark(part), json.dumps(body).encode())

    def _mark(self, part: str) -> str:
        digest = hashlib.sha256(json.dumps([self.key, part]).encode()).hexdigest()
        return f"{_MARKS}/{self._batch:09d}-{digest}.json"


def delete_marks(store: Store, token: Token, upto: BatchId | None = None) -> None:
    """Delete the marks of batches up to this one, or of all; those of newer runs stay. Safe to repeat."""
    for key in list(store.list(_MARKS)):
        batch = key.removeprefix(f"{_MARKS}/").partition("-")[0]
        if not batch.isdecimal():  # no call has made it
            continue
        data = store.get(key) if upto is None or int(batch) <= upto else None
        if data is not None and _is_of(data, token):
            store.delete(key)


def _is_of(data: bytes, token: Token) -> bool:
    """Whether a mark is of this run or an older one; nobody knows of a damaged one, so it stays."""
    try:
        return token_of(json.loads(data)) <= token
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


BatchFunction = Callable[["DataFrame", int], Any] | Callable[["DataFrame", int, BatchLedger], Any]

KEPT = 100
"""How many entries of the ledger are kept; one is needed."""
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
    frame of a stateful query must be evaluated completely, or the state of the rest would be lost: a
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
    """What the function has done can't be undone."""
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
        self._fence = SinkFence(self.describe)
        # the batch records in one thread, the committer commits in another
        self._log = NewestLog(self._store, _LOG, Ledger, _decode)
        self._held = FencedLog(self._log, self._fence, lambda now: now)
        self._skipped: BatchId | None = None

    def describe(self) -> str:
        return f"function {getattr(self._fn, '__qualname__', repr(self._fn))}"

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        return self._held.look(owner, token, knows, partial(self._check_owner, owner, lineage))

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        def announced(now: Ledger) -> Entry:
            return _encode(replace(now, owner=owner, lineage=lineage, fence=token))

        check = partial(self._check_owner, owner, lineage)
        ledger = self._held.open(owner, token, knows, check, announced)
        self._expire()
        return ledger

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        if batch == self._skipped:
            return
        ledger = []
        if self._with_ledger:
            id = self._files.query_id() if self._files is not None else ""
            key = f"{self._ledger.owner}/{id}/{batch}"
            ledger = [BatchLedger(key, token, batch, self._store, self._held.read)]
        try:
            self._fn(frame, batch, *ledger)
        except (WeirError, PySparkException, Py4JError, OSError):
            raise  # distinguished by their types
        except Exception as error:
            job, query = self._ledger.owner.split("/", 1)
            name = type(error).__name__
            if failed_connection("".join(traceback.format_exception(error))):
                raise JobConnectionError(error=name, message=f"{name}: {error}") from error
            raise UserCodeError(error=name, query=query, batch=batch, message=str(error), job=job) from error
        self._check_complete(batch)

    def skip(self, batch: BatchId) -> None:
        """The function is not called with this batch."""
        self._skipped = batch

    def record(self, staged: Staged) -> None:
        self._held.read()
        self._staging.record(staged, [])

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        self._held.read()
        outcome = Outcome.ALREADY_DONE
        if self._ledger.last < staged.batch:
            if not self._staging.is_recorded(staged):
                raise LostStagingError(batch=staged.batch, query=self._ledger.owner, path=self._location)
            try:
                self._held.append(lambda now: _encode(replace(now, last=max(now.last, staged.batch))))
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
            outcome = Outcome.DONE_NOW
            faults.point("sink.committed")
        self._staging.forget(staged)
        if self._with_ledger:
            delete_marks(self._store, self._fence.token, staged.batch)
        self._expire()
        return outcome

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        kept = {folder_of(one.batch, one.token) for one in keep}
        self._staging.discard(upto, self._fence.token, kept)
        delete_marks(self._store, self._fence.token, upto)

    def rewind(self, to: BatchId) -> Outcome:
        """Enter that the batches above `to` come again; what the function did stays done."""
        self._held.read()
        delete_marks(self._store, self._fence.token)
        if self._ledger.last <= to:
            return Outcome.ALREADY_DONE
        self._fence.rewinds(to)
        try:
            self._held.append(lambda now: _encode(replace(now, last=min(now.last, to), rewound=True)))
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def _check_complete(self, batch: BatchId) -> None:
        """Refuse a batch whose state is not written: with some backends Spark would commit it."""
        left_out = self._files.state_left_out(batch) if self._files is not None else []
        if left_out:
            job, query = self._ledger.owner.split("/", 1)
            raise PipelineError(
                job=job,
                reason=f"the function of query {query!r} has evaluated only a part of batch {batch}, "
                f"and the state of the rest ({len(left_out)} partitions) would be lost",
                todo="evaluate the complete frame first: frame.persist(); frame.count()",
            )

    @property
    def _ledger(self) -> Ledger:
        return self._held.state

    def _expire(self) -> None:
        with self._held.lock:
            self._log.expire(KEPT)

    def _check_owner(self, owner: str, lineage: str, now: Ledger) -> None:
        self._fence.check(now)  # of two reasons the fence is the more urgent one
        if (now.owner, now.lineage) == (owner, lineage):
            return
        raise SinkMismatchError(
            query=owner.split("/", 1)[1],
            path=self._location,
            reason=f"the ledger was written by {now.owner!r} with other live files",
            todo="restore the complete job directory, or give the query a new name",
        )


def read_ledger(store: Store) -> Ledger:
    """What the newest entry of a function sink's ledger says; an empty one without entries.

    Raises `LostLedgerError` when it is damaged.
    """
    newest = newest_number(store, _LOG)
    key = numbered(_LOG, newest)
    data = store.get(key) if newest >= 0 else None
    if data is None:
        return Ledger()
    try:
        return _decode(parse(store, key, data))
    except (KeyError, TypeError, ValueError) as error:
        raise lost(store, key, "can't be read") from error


def recorded_batches(store: Store) -> set[BatchId]:
    """The batches of which a call has returned and is recorded."""
    return {one.batch for one in StagedFiles(store, _STAGED).recorded()}


def _takes_ledger(fn: BatchFunction) -> bool:
    """Whether the function has a third positional parameter for it; one of its own with a default is none."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some functions of C have no signature
        return False
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    third = by_place[2] if len(by_place) > 2 else None
    return third is not None and (third.name == "ledger" or third.default is inspect.Parameter.empty)


def _encode(ledger: Ledger) -> dict[str, Any]:
    return {**encode_ledger(ledger), "rewound": ledger.rewound}


def _decode(entry: dict[str, Any]) -> Ledger:
    rewound = bool(entry.get("rewound", False))  # an earlier weir did not record it
    return replace(decode_ledger(entry), rewound=rewound)
