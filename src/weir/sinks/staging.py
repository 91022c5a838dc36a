"""Files that Spark writes inside a batch, where they stay; they count only once a log names them.

    data/<batch>-<attempt>-<run>-<session>/part-*        the files
    <records>/<batch>-<attempt>-<run>-<session>.json     stagings that are recorded: complete and durable

Those of an earlier weir have no session in their names.

The core that `files.py` and the channels share. Every step is safe to repeat.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir import faults
from weir.errors import LostStagingError, StorageError
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.storage import Store, sums
from weir.storage.local import reason, sync_folder, walk
from weir.storage.open import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


DATA = "data"
_NAME = re.compile(r"\d+-\d+-\d+(-\w*)?", re.ASCII)
"""Of what a run has of a batch."""


@dataclass(frozen=True)
class StagingRecord:
    """What is durable of one staging, beside its files."""

    files: tuple[Any, ...]
    state_ids: tuple[str, ...]


class StagedFiles:
    """The stagings of one sink, by any run."""

    def __init__(self, store: Store, records: str, data: str = DATA) -> None:
        self._store = store
        self._records = records
        self._data = data
        self._complete: dict[str, frozenset[str]] = {}
        """The files that Spark had written when it ended, by folder, until they are recorded."""

    def folder_of(self, batch: BatchId, token: Token) -> str:
        """Where the run with this token stages the batch."""
        return folder_of(batch, token, self._data)

    def write(
        self,
        frame: DataFrame,
        format: str,
        options: Mapping[str, str],
        batch: BatchId,
        token: Token,
        partition_by: Sequence[str] = (),
    ) -> None:
        """Evaluate the batch once and write it to its folder."""
        folder, over = self.folder_of(batch, token), threading.Event()
        faults.watch("batch.writing", lambda: any(self._store.list(folder)), over)
        try:
            writer = frame.write.format(format).options(**options).mode("errorifexists")
            writer = writer.partitionBy(*partition_by) if partition_by else writer
            writer.save(f"{self._store.url}/{folder}")
        finally:
            over.set()
        self.completed(batch, token)

    def completed(self, batch: BatchId, token: Token) -> None:
        """Remember the files of a staging, now that all of them are written."""
        folder = self.folder_of(batch, token)
        self._complete[folder] = frozenset(self._parts(folder))

    def written(self, staged: Staged) -> list[str]:
        """The keys of the files of a staging; once for each.

        Raises `StorageError` when a file is gone since Spark wrote it: somebody put the folder back to an
        older state, or deleted it. A record of what is left would deliver the batch without its rows.
        """
        folder = self.folder_of(staged.batch, staged.token)
        files = self._parts(folder)
        if gone := self._complete.pop(folder, frozenset()).difference(files):
            why = f"{len(gone)} of the files that batch {staged.batch} has just written are gone"
            raise StorageError(verb="record", path=min(gone), reason=why, root=self._store.url)
        return files

    def _parts(self, folder: str) -> list[str]:
        return [key for key in self._store.list(folder) if "/part-" in key]

    def sync(self, staged: Staged) -> None:
        """Force the files of a staging to the disk."""
        sync_files(self._store, self.folder_of(staged.batch, staged.token))

    def record(self, staged: Staged, files: Sequence[Any]) -> None:
        """Make the complete staging durable; `files` comes back from `files_of`."""
        body = {"files": list(files), "state_ids": list(staged.state_ids)}
        self._store.create(self._key(staged), sums.add(json.dumps(body).encode()))

    def recorded(self) -> list[Staged]:
        """Everything that is recorded and was neither forgotten nor discarded.

        A damaged record is among them, without state ids: only `files_of` needs to read it.
        """
        stagings = []
        for key in records_in(self._store, self._records):
            record = read_record(self._store.get(key) or b"")
            ids = record.state_ids if record is not None else ()
            stagings.append(Staged(*parse_name(key.rsplit("/", 1)[1].removesuffix(".json")), ids))
        return stagings

    def is_recorded(self, staged: Staged) -> bool:
        """Whether the staging is there, whatever its record says."""
        return self._store.exists(self._key(staged))

    def files_of(self, staged: Staged, query: str, sink: str) -> tuple[Any, ...]:
        """What was recorded; raises `LostStagingError` when it is not there or damaged.

        The error names the query whose batch it is, and what describes its sink.
        """
        key = self._key(staged)
        data = self._store.get(key)
        if data is None:
            raise LostStagingError(batch=staged.batch, query=query, path=sink)
        record = read_record(data)
        if record is None:
            damaged = f"{self._store.url}/{key}, which can't be read"
            raise LostStagingError(batch=staged.batch, query=query, path=damaged)
        return record.files

    def forget(self, staged: Staged) -> None:
        """Delete the record of a staging that a log now names."""
        self._store.delete(self._key(staged))

    def delete(self, staged: Staged) -> None:
        """Delete a staging that was delivered elsewhere. Killed in between, `discard` does the rest."""
        self.forget(staged)
        for key in list(self._store.list(self.folder_of(staged.batch, staged.token))):
            self._store.delete(key)

    def discard(self, upto: BatchId, token: Token, kept: Collection[str]) -> None:
        """Delete every staging up to this batch, recorded or not, whose folder is not kept.

        Only those of runs up to this token: a start that slept in here would take what a newer run has
        delivered after a rewind for dead.
        """

        # A name says which run of which batch it is, so it is the same one in whichever folder it lies.
        names = {folder.partition("/")[2] for folder in kept}

        def dead(name: str) -> bool:
            if not _NAME.fullmatch(name):
                return False  # no run has made it
            batch, by = parse_name(name)
            return name not in names and batch <= upto and by <= token

        for data in {self._data, DATA}:  # an earlier weir may have staged elsewhere
            for key in list(self._store.list(data)):
                if dead(key.split("/")[1]):
                    self._store.delete(key)
        for key in list(records_in(self._store, self._records)):
            if dead(key.rsplit("/", 1)[1].removesuffix(".json")):
                self._store.delete(key)

    def _key(self, staged: Staged) -> str:
        return f"{self._records}/{name_of(staged.batch, staged.token)}.json"


def read_record(data: bytes) -> StagingRecord | None:
    """What a record says; None when it is damaged.

    Records are created complete, so what is missing was lost later.
    """
    try:
        body = json.loads(sums.strip(data))
        return StagingRecord(tuple(body["files"]), tuple(body["state_ids"]))
    except (ValueError, KeyError, TypeError):
        return None


def sync_files(store: Store, folder: str) -> None:
    """Force the files in a folder to the disk, where that is one of this machine: Spark does not."""
    if not is_local(store.url):
        return
    root = Path(local_path(store.url))
    folders = set[Path]()
    try:
        for inner, names in walk(root / folder):
            parts = [Path(inner) / name for name in names if name.startswith("part-")]
            for path in parts:
                sync_folder(path)  # a file is forced as a folder is
            folders.update(Path(inner).relative_to(root).parents if parts else ())
            folders.update([Path(inner).relative_to(root)] if parts else ())
        for one in folders:
            sync_folder(root / one)
    except OSError as error:
        raise StorageError(verb="sync", path=folder, reason=reason(error), root=store.url) from error


def remove_files(store: Store, keys: Sequence[str]) -> None:
    """Delete files, with what Spark keeps beside them on a local disk, and folders that are empty then.

    Safe to repeat.
    """
    for key in keys:
        store.delete(key)
    if not is_local(store.url):
        return
    root = Path(local_path(store.url))
    try:
        for key in keys:
            path = root / key
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        for above in sorted({above for key in keys for above in Path(key).parents}, reverse=True):
            if len(above.parts) > 1 and (root / above).is_dir() and not any((root / above).iterdir()):
                (root / above).rmdir()
    except OSError as error:
        raise StorageError(verb="delete", path=str(root), reason=reason(error), root=store.url) from error


def folder_of(batch: BatchId, token: Token, data: str = DATA) -> str:
    """Where the run with this token stages the batch, below the folder of all stagings."""
    return f"{data}/{name_of(batch, token)}"


def name_of(batch: BatchId, token: Token) -> str:
    """The name of what a run has of a batch."""
    return f"{batch:09d}-{run_name(token)}"


def run_name(token: Token) -> str:
    """A token as names of files have it."""
    return f"{token.attempt}-{token.run}" + (f"-{token.session}" if token.session else "")


def records_in(store: Store, folder: str) -> Iterator[str]:
    """The keys in a folder that are called `<batch>-<token>.json`; other files are passed over."""
    for key in store.list(folder):
        name = key.removeprefix(f"{folder}/")
        if name.endswith(".json") and _NAME.fullmatch(name.removesuffix(".json")):
            yield key


def parse_name(name: str) -> tuple[BatchId, Token]:
    """The batch and the run of such a name."""
    batch, _, run = name.partition("-")
    return BatchId(int(batch)), parse_run(run)


def parse_run(name: str) -> Token:
    """The token of such a name; without a session where an earlier weir wrote it."""
    attempt, run, *session = name.split("-", 2)
    return Token(Attempt(int(attempt)), Run(int(run)), *session)
