"""Files (Parquet, JSON, CSV, ORC, text): readers see whole batches, each once.

    <path>/_weir/log/<number>.json            the ledger: one entry a batch
    <path>/_weir/staged/<batch>-<token>.json  stagings that are recorded
    <path>/_weir/about.json                   format, options, partition columns and schema, for readers
    <path>/data/<batch>-<token>/part-*        the files themselves, written once, never moved

Spark writes the files straight to where they stay; the ledger entry makes them visible. Paths in
the ledger are relative, so the folder can be moved. Read it with `read_files` or `committed_files`: a
reader that lists `data/` would see stagings too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.errors import FencedError, LostStagingError, OutcomeUnknownError, SinkMismatchError
from weir.ids import Attempt, BatchId, QueryName, Run, Token
from weir.job.sinks.contract import Outcome
from weir.job.sinks.staging import StagedFiles, folder_of
from weir.protocol import ledger
from weir.protocol.ledger import Ledger, Staged
from weir.storage import DenseLog, Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "json", "csv", "orc", "text")
_LOG = "_weir/log"
_STAGED = "_weir/staged"
ABOUT = "_weir/about.json"


def files(
    path: str, format: str = "parquet", *, partition_by: str | Sequence[str] = (), **options: str
) -> FilesSink:
    """Write each batch to files below `path`, exactly once; `options` are Spark's for the format.

    With `partition_by` the files of a batch lie in a folder for each value of these columns.
    """
    if format not in FORMATS:
        raise SinkMismatchError(
            query="?",
            path=path,
            reason=f"there is no file format {format!r}",
            todo=f"use one of {', '.join(FORMATS)}",
        )
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return FilesSink(path, format, options, partition_by=columns)


def committed_files(path: str) -> list[str]:
    """The files below `path` that count, in the order of their batches."""
    store = open_store(path)
    batches = ledger.visible(DenseLog(store, _LOG).read_new())
    return [f"{store.url}/{name}" for batch in batches for name in batch.body["files"]]


class FilesSink:
    """See the module's docstring; keeps the contract of `StagingSink`."""

    def __init__(
        self,
        path: str,
        format: str,
        options: dict[str, str],
        store: Store | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self._path = path
        self._format = format
        self._options = options
        self._partition_by = partition_by
        self._about: bytes | None = None
        """What readers are to be told, and are not yet."""
        self._store = store or open_store(path)
        self._log = DenseLog(self._store, _LOG)
        self._staging = StagedFiles(self._store, _STAGED)
        self._lock = threading.Lock()  # the batch records in one thread, the committer commits in another
        self._ledger = Ledger()
        self._delivered: dict[BatchId, str] = {}
        self._token = Token(Attempt(0), Run(0))

    def describe(self) -> str:
        return f"{self._format} files in {self._path}"

    def open(self, owner: str, lineage: str, token: Token) -> Ledger:
        self._token = token
        self._catch_up()
        if not self._ledger.owner:
            self._append(ledger.opened(owner, lineage))
        self._check_owner(owner, lineage)
        self._append(ledger.fence(token))
        return self._ledger

    def check(self, query: QueryName, frame: DataFrame) -> None:
        """Raise `SinkMismatchError` when the frame does not have the columns to partition by."""
        missing = [name for name in self._partition_by if name not in frame.columns]
        if missing or (self._partition_by and len(frame.columns) == len(set(self._partition_by))):
            reason = f"it has no column {missing[0]!r}" if missing else "no column would be left in the files"
            todo = f"partition by some of {', '.join(frame.columns)}"
            raise SinkMismatchError(query=query, path=self._path, reason=reason, todo=todo)

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        about = {
            "format": self._format,
            "options": self._options,
            "partition_by": list(self._partition_by),
            "schema": frame.schema.jsonValue(),
        }
        self._about = json.dumps(about).encode()
        self._staging.write(frame, self._format, self._options, batch, token, self._partition_by)

    def record(self, staged: Staged) -> None:
        self._catch_up()
        if self._about is not None and self._store.get(ABOUT) != self._about:
            self._store.put(ABOUT, self._about)
        self._about = None
        self._staging.record(staged, self._staging.written(staged))

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        self._catch_up()
        outcome = Outcome.ALREADY_DONE
        if self._ledger.last < staged.batch:
            names = self._staging.files_of(staged)
            if names is None:
                raise LostStagingError(batch=staged.batch, query=self._ledger.owner, path=self.describe())
            body = {"folder": folder_of(staged.batch, staged.token), "files": names}
            try:
                self._append(ledger.delivered(staged.batch, self._token, body))
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
            outcome = Outcome.DONE_NOW
            faults.point("sink.committed")
        self._staging.forget(staged)
        return outcome

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        kept = {folder_of(s.batch, s.token) for s in keep} | set(self._delivered.values())
        self._staging.discard(upto, kept)

    def rewind(self, to: BatchId) -> Outcome:
        self._catch_up()
        if self._ledger.last <= to:
            return Outcome.ALREADY_DONE
        try:
            self._append(ledger.rewound(to, self._token))
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def _catch_up(self) -> None:
        with self._lock:
            for entry in self._log.read_new():
                self._take(entry)
        if self._ledger.fence > self._token:
            raise self._fenced()

    def _append(self, entry: dict[str, Any]) -> None:
        with self._lock:
            if not self._log.append(entry, self._take):
                raise self._fenced()
            self._take(entry)

    def _take(self, entry: dict[str, Any]) -> bool:
        """Take an entry into account; False once it fences us."""
        before, self._ledger = self._ledger, ledger.apply(self._ledger, entry)
        if self._ledger.last > before.last:
            self._delivered[self._ledger.last] = entry["body"]["folder"]
        for batch in range(self._ledger.last + 1, before.last + 1):
            self._delivered.pop(BatchId(batch), None)
        return self._ledger.fence <= self._token

    def _fenced(self) -> FencedError:
        fence = self._ledger.fence
        return FencedError(who=f"attempt {self._token}", by=f"attempt {fence}", attempt=fence.attempt)

    def _check_owner(self, owner: str, lineage: str) -> None:
        if self._ledger.owner != owner:
            reason = f"it holds the output of {self._ledger.owner!r}"
            todo = "give this query a folder of its own"
        elif self._ledger.lineage != lineage:
            reason = "it was written by live files that are gone; a fresh start would skip or double batches"
            todo = "bring the job's directory back, or give this query a new folder"
        else:
            return
        raise SinkMismatchError(query=owner.split("/", 1)[1], path=self._path, reason=reason, todo=todo)
