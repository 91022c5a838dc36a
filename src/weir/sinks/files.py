"""Files (Parquet, JSON, CSV, ORC, text): readers see complete batches, each once.

    <path>/_weir/log/<number>.json            the ledger: one entry a batch; see `files_ledger.py`
    <path>/_weir/snapshots/<number>.json      what its entries below this number say together
    <path>/_weir/staged/<batch>-<token>.json  stagings that are recorded
    <path>/_weir/about.json                   format, options, partition columns and schema, for readers
    <path>/_data/<batch>-<token>/part-*       the files themselves, written once, never moved
    <path>/_merged/<...>/part-*               small files made into large ones; see `compaction.py`

A token is `<attempt>-<run>-<session>` in names. Spark writes the files straight to where they stay; the
ledger entry makes them visible. Paths in the ledger are relative, so the folder can be moved. Read it with
`read_files` or `committed_files`: a plain reader of the folder sees nothing. An earlier weir wrote to `data/`
and `merged/`; what its ledger names counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weir import faults
from weir.errors import OutcomeUnknownError, SinkMismatchError
from weir.ids import BatchId, CheckpointId, QueryName, Token
from weir.protocol import ledger
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.compaction import Merger, SparkMerger, Upkeep
from weir.sinks.contract import Outcome
from weir.sinks.fence import Knows, anyone, check_owner
from weir.sinks.files_ledger import ABOUT, FilesLedger, describe, described, log_of
from weir.sinks.staging import StagedFiles
from weir.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMATS = ("parquet", "json", "csv", "orc", "text")
EXACT = ("parquet", "orc")
"""What is read from these is what was written, whatever the options."""
_STAGED = "_weir/staged"
_DATA = "_data"
"""Spark, Hive and Arrow pass over folders that begin so: who lists the folder sees nothing, not too much."""
_UNITS = {"kb": 2**10, "mb": 2**20, "gb": 2**30}


def files(
    path: str,
    format: str = "parquet",
    *,
    partition_by: str | Sequence[str] = (),
    compact: str | None = None,
    **options: str,
) -> FilesSink:
    """Write each batch to files below `path`, exactly once; `options` are Spark's for the format.

    With `partition_by` the files of a batch lie in a folder for each value of these columns. With
    `compact="128 mb"` small files of old batches are merged into files of about that size, beside the
    batches; for Parquet and ORC in output mode append. The output can then be rewound to a retained
    checkpoint, but not to a savepoint that is older than all of them.
    """
    if format not in FORMATS:
        raise _refused(path, f"there is no file format {format!r}", f"use one of {', '.join(FORMATS)}")
    target = _bytes(path, compact) if compact is not None else None
    if target is not None and format not in EXACT:
        reason = f"{format} files may not read back as they were written, so they can't be merged"
        raise _refused(path, reason, "leave out compact, or write Parquet or ORC")
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return FilesSink(path, format, options, partition_by=columns, compact=target)


def committed_files(path: str) -> list[str]:
    """The files below `path` that count, in the order of their batches."""
    store = open_store(path)
    return [f"{store.url}/{name}" for name in log_of(store).catch_up().in_order()]


class FilesSink:
    """See the module's docstring; keeps the contract of `StagingSink`."""

    def __init__(
        self,
        path: str,
        format: str,
        options: dict[str, str],
        store: Store | None = None,
        partition_by: tuple[str, ...] = (),
        compact: int | None = None,
        merger: Merger | None = None,
    ) -> None:
        self._path = path
        self._format = format
        self._options = options
        self._partition_by = partition_by
        self._compact = compact
        self._output_mode = ""
        self._schema: StructType | None = None
        """The frame's, known before the sink is opened."""
        self._about: bytes | None = None
        """What readers need to know, and is not written yet."""
        self._store = store or open_store(path)
        self._staging = StagedFiles(self._store, _STAGED, _DATA)
        self._ledger = FilesLedger(self._store, self.describe)
        self._spark = SparkMerger(self._store.url, format, options)
        self._upkeep = Upkeep(self._ledger, self._store, merger or self._spark, compact)

    def describe(self) -> str:
        return f"{self._format} files in {self._path}"

    def expect(self, schema: StructType) -> None:
        self._schema = schema

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        about = self._store.get(ABOUT)
        return self._ledger.look(owner, token, knows, lambda now: self._check(now, about, owner, lineage))

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        about = self._store.get(ABOUT)
        opened = self._ledger.open(
            owner, lineage, token, knows, lambda now: self._check(now, about, owner, lineage)
        )
        if about is None and self._schema is not None:
            # A reader of a query that has had no rows yet finds no rows, and not an error.
            self._store.put(ABOUT, self._describe_files(self._schema))
        return opened

    def check(self, query: QueryName, frame: DataFrame, output_mode: str) -> None:
        """Raise `SinkMismatchError` when the frame does not have the columns to partition by.

        Also in output mode complete, and when files are to be merged of which the newest row counts.
        """
        if output_mode == "complete":
            reason = "in output mode complete each batch has the complete result, and files are only added"
            todo = 'use output_mode="update", and read it with weir.read_files(path).latest(KEY)'
            raise SinkMismatchError(query=query, path=self._path, reason=reason, todo=todo)
        self._output_mode = output_mode
        if self._compact is not None and output_mode != "append":
            reason = f"in output mode {output_mode} the batch of a row matters, and a merge loses it"
            todo = "leave out compact, or use output mode append"
            raise SinkMismatchError(query=query, path=self._path, reason=reason, todo=todo)
        missing = [name for name in self._partition_by if name not in frame.columns]
        if missing or (self._partition_by and len(frame.columns) == len(set(self._partition_by))):
            reason = f"it has no column {missing[0]!r}" if missing else "no column would be left in the files"
            todo = f"partition by some of {', '.join(frame.columns)}"
            raise SinkMismatchError(query=query, path=self._path, reason=reason, todo=todo)

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        self._about = self._describe_files(frame.schema)
        self._spark.spark = frame.sparkSession
        self._staging.write(frame, self._format, self._options, batch, token, self._partition_by)

    def _describe_files(self, schema: StructType) -> bytes:
        about = {
            "format": self._format,
            "options": self._options,
            "partition_by": list(self._partition_by),
            "output_mode": self._output_mode,
            "schema": schema.jsonValue(),
        }
        return describe(about)

    def record(self, staged: Staged) -> None:
        self._ledger.read()
        if self._about is not None and self._store.get(ABOUT) != self._about:
            self._store.put(ABOUT, self._about)
        self._about = None
        self._staging.sync(staged)  # its entry in the ledger will be durable, so its rows must be
        self._staging.record(staged, self._staging.written(staged))

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        return self._commit(staged, {})

    def commit_at(self, staged: Staged, checkpoint: CheckpointId) -> Outcome:
        return self._commit(staged, {"checkpoint": checkpoint})

    def _commit(self, staged: Staged, more: Mapping[str, int]) -> Outcome:
        now = self._ledger.read()
        outcome = Outcome.ALREADY_DONE
        if now.last < staged.batch:
            names = self._staging.files_of(staged, now.owner, self.describe())
            body = {
                "folder": self._staging.folder_of(staged.batch, staged.token),
                "files": list(names),
                **more,
            }
            try:
                self._ledger.append(ledger.delivered(staged.batch, self._ledger.token, body))
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
            outcome = Outcome.DONE_NOW
            faults.point("sink.committed")
        self._staging.forget(staged)
        self._upkeep.committed()
        return outcome

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        now = self._ledger.contents()
        kept = {self._staging.folder_of(one.batch, one.token) for one in keep}
        kept |= {"/".join(name.split("/")[:2]) for name in (*now.files, *now.replaced)}
        self._staging.discard(upto, self._ledger.token, kept)
        self._upkeep.discard()

    def rewind(self, to: BatchId) -> Outcome:
        if self._ledger.read().last <= to:
            return Outcome.ALREADY_DONE
        try:
            self._ledger.rewind(to)
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def forget(self, upto: BatchId) -> None:
        self._upkeep.forget(upto)

    def _check_columns(self, data: bytes, schema: StructType, owner: str) -> None:
        """Refuse CSV columns that are not those of before, with new ones at the end at most.

        CSV is read by position: rows of before would be read into the wrong columns.
        """
        if self._format != "csv":
            return
        about = described(self._store, data)
        if about["format"] != "csv":
            return
        before, now = (
            [(one["name"], one["type"]) for one in fields if one["name"] not in self._partition_by]
            for fields in (about["schema"]["fields"], schema.jsonValue()["fields"])
        )
        if now[: len(before)] == before:
            return
        was, wants = (", ".join(f"{name} {type}" for name, type in columns) for columns in (before, now))
        raise SinkMismatchError(
            query=owner.split("/", 1)[1],
            path=self._path,
            reason=f"CSV is read by position: its files have the columns {was}, and the query has {wants}",
            todo="keep these columns in their order, with new ones at the end, or use a new folder",
        )

    def _check(self, now: Ledger, about: bytes | None, owner: str, lineage: str) -> None:
        check_owner(now, owner, lineage, path=self._path, place="folder")
        if about is not None and self._schema is not None:
            self._check_columns(about, self._schema, owner)


def _bytes(path: str, size: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*(kb|mb|gb)\s*", size.lower(), re.ASCII)
    if not match or not int(match[1]):
        raise _refused(path, f"compact={size!r} is not a size", 'write a whole number with a unit: "128 mb"')
    return int(match[1]) * _UNITS[match[2]]


def _refused(path: str, reason: str, todo: str) -> SinkMismatchError:
    return SinkMismatchError(query="?", path=path, reason=reason, todo=todo)
