"""The files that a committed batch needs to be started from again, and nothing else.

Committed batch N has state version N + 1 in every store. Its closure is found from names,
`offsets/<N>`, `commits/<N>`, the snapshot zips and (state format 2) the changelog headers; every
file in it is immutable. Maintenance may take a file away between listing and use: then `GoneError`
is raised, and the closure of a newer batch is taken instead. The facts are proven in the project's
experiments on Spark 4.3 (117 of 117 copies restarted exactly).

The same reading shows whether a list of files is all that a batch needs (`missing`): that of a folder, or
that of a manifest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from weir.ids import BatchId
from weir.spark.checkpoint_files import HASHMAP
from weir.spark.logs import (
    NO_OFFSET,
    PARTITIONS,
    PROVIDER,
    CommitEntry,
    FileEntry,
    OffsetEntry,
    OperatorEntry,
    StateIds,
    file_entries,
    is_compaction,
    log_offset,
    schema_files,
    store_folder,
)
from weir.spark.zips import lineage, members
from weir.storage.members import is_safe

_READ_FILE = {"path", "timestamp", "batchId"}
"""What an entry of a file source's log has of each file."""


class GoneError(Exception):
    """A file of the closure vanished under the reader; take that of a newer batch."""

    why = "Spark purged it before it was kept (raise spark.sql.streaming.minBatchesToRetain)"


@dataclass(frozen=True)
class Closure:
    """The files of one batch, relative to the checkpointLocation, in a fixed order."""

    batch: BatchId
    files: tuple[str, ...]
    foreign: frozenset[str] = frozenset()
    """Those of them in `sources` that are not of the log of a file source.

    A source may write anything there, so only the source itself can tell whether they are intact.
    """


class Tree(Protocol):
    """The files of a checkpointLocation, wherever they are."""

    def names(self, folder: str) -> list[str]:
        """What is directly below a folder, without hidden ones; none when it is not there."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of this name."""

    def open(self, path: str) -> BinaryIO:
        """A file's content; raises `FileNotFoundError`."""


class Folder:
    """A checkpointLocation on a file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(f"{self._root}/{folder}") if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{self._root}/{path}")

    def open(self, path: str) -> BinaryIO:
        return open(f"{self._root}/{path}", "rb")


class Listed:
    """Files as a manifest lists them; `read` opens one of them."""

    def __init__(self, files: Iterable[str], read: Callable[[str], BinaryIO]) -> None:
        self._files = frozenset(files)
        self._read = read
        self._folders: dict[str, dict[str, None]] = {}
        for file in self._files:
            folder, _, name = file.rpartition("/")
            self._folders.setdefault(folder, {})[name] = None
            while folder:
                folder, _, name = folder.rpartition("/")
                self._folders.setdefault(folder, {})[name] = None

    def names(self, folder: str) -> list[str]:
        return sorted(self._folders.get(folder, ()))

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._folders

    def open(self, path: str) -> BinaryIO:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._read(path)


def closure(root: Path, batch: BatchId) -> Closure:
    """The closure of a committed batch of the query whose checkpointLocation is `root`.

    Raises `GoneError`, and `ValueError` for what is damaged.
    """
    return _of(Folder(root), batch)


def missing(tree: Tree, batch: BatchId) -> str | None:
    """The first file that a committed batch needs and that is not there; None when all are.

    Raises `ValueError` for what is damaged.
    """
    try:
        return next((name for name in _of(tree, batch).files if not tree.exists(name)), None)
    except GoneError as error:
        return str(error)


def missing_input(root: Path, batch: BatchId) -> str | None:
    """The first entry of a file source's log that a planned batch reads and that is not there."""
    try:
        for _ in _ClosureReader(Folder(root), batch, planned=True).sources():
            pass
    except GoneError as error:
        return str(error)
    return None


def _of(tree: Tree, batch: BatchId) -> Closure:
    try:
        reader = _ClosureReader(tree, batch)
        names = tuple(dict.fromkeys(reader.files()))
    except (KeyError, IndexError, TypeError, AttributeError) as error:  # JSON, but not what Spark writes
        raise ValueError(f"its description lacks {error}") from error
    for name in names:  # what Spark's files say of each other may be anybody's, in a restored job
        if not is_safe(name):
            raise ValueError(f"{name!r} is named, which is not a file of a query")
    return Closure(batch, names, frozenset(reader.foreign))


class _ClosureReader:
    def __init__(self, tree: Tree, batch: BatchId, *, planned: bool = False) -> None:
        self.foreign: set[str] = set()
        """See `Closure.foreign`; complete when the files have been read to their end."""
        self._tree = tree
        self._batch = batch
        self._offsets = OffsetEntry.parse(self._data(f"offsets/{batch}"))
        self._conf = self._offsets.conf
        self._ids: StateIds = {} if planned else CommitEntry.parse(self._data(f"commits/{batch}")).state_ids

    def files(self) -> Iterator[str]:
        yield "metadata"
        yield f"offsets/{self._batch}"
        yield f"commits/{self._batch}"
        if self._batch > 0:
            yield f"offsets/{self._batch - 1}"
        yield from self.sources()
        for operator in sorted(self._numbers("state"), key=int):
            yield from self._operator(operator)

    def sources(self) -> Iterator[str]:
        """The logs of sources; raises `GoneError` for an entry that a file source needs and has not."""
        ends = dict(self._offsets.ends())
        folders = sorted(self._tree.names("sources"))
        shared = {name for name in ends if name.isdigit()} != {name for name in folders if name.isdigit()}
        for source, end in ends.items():
            last = log_offset(end)
            needed = last is not None and last >= 0
            if needed and source not in folders and (source == "0" or not source.isdigit()):
                raise GoneError(f"sources/{source}")
        for source in folders:
            own = ends.get(source, NO_OFFSET)
            last = log_offset(own)
            certain = not (shared and source.isdigit())
            lines = [own]
            if not certain:
                # A frame that is used twice has two lines in the offset log and one folder, so the folders
                # after it have lower numbers than their lines. Too much of a log does no harm, too little
                # loses its files: the furthest line that may be this folder's counts.
                lines = [end for name, end in ends.items() if int(name) >= int(source)]
                last = max((one for one in map(log_offset, lines) if one is not None), default=last)
            known = self._is_file_log(source, lines)
            entries = self._tree.names(f"sources/{source}")
            names = _source_log(entries, last) if known else sorted(entries)
            if known and last is not None:
                _check_dense(source, names, last if certain else None)
            for name in names:
                path = f"sources/{source}/{name}"
                if not (known and file_entries([name])):
                    self.foreign.add(path)
                yield path

    def _is_file_log(self, source: str, ends: list[str]) -> bool:
        """Whether a folder is the log of a file source, where each of these may be the source's end offset.

        The offsets decide, because entries may be damaged. Where they leave it open, one intact entry does.
        """
        of_files = [log_offset(end) is not None for end in ends]
        if all(of_files):
            return bool(of_files)
        if not any(of_files) and NO_OFFSET not in ends:
            return False
        names = file_entries(self._tree.names(f"sources/{source}")).values()
        return any(self._names_read_files(f"sources/{source}/{name}") for name in names)

    def _names_read_files(self, path: str) -> bool:
        try:
            with self._tree.open(path) as file:
                entry = FileEntry.parse(file.readline() + file.readline())
            return entry.known and any(one.keys() >= _READ_FILE for one in entry.files)
        except (FileNotFoundError, IsADirectoryError, ValueError, AttributeError):
            return False

    def _operator(self, operator: str) -> Iterator[str]:
        folder = f"state/{operator}"
        metadata = self._metadata(folder)
        yield metadata
        stores = OperatorEntry.parse(self._data(metadata)).stores
        for store in stores:
            yield from schema_files(store, folder)
        for partition in self._partitions(operator, stores):
            for number, store in enumerate(stores):
                yield from self._store(operator, partition, number, store["storeName"])

    def _partitions(self, operator: str, stores: list[dict[str, Any]]) -> range:
        """All that the operator has. A global aggregate and a limit have one, whatever the metadata says."""
        ids = self._ids.get(operator)
        if ids is not None:
            return range(len(ids))
        recorded = max(
            (int(store["numPartitions"]) for store in stores if "numPartitions" in store), default=1
        )
        highest = max(map(int, self._numbers(f"state/{operator}")), default=0)
        return range(int(self._conf.get(PARTITIONS, recorded)) if highest else 1)

    def _metadata(self, folder: str) -> str:
        if self._tree.exists(f"{folder}/_metadata/metadata"):
            return f"{folder}/_metadata/metadata"
        usable = [b for b in map(int, self._numbers(f"{folder}/_metadata/v2")) if b <= self._batch]
        if not usable:
            raise GoneError(f"{folder}/_metadata")
        return f"{folder}/_metadata/v2/{max(usable)}"

    def _store(self, operator: str, partition: int, number: int, name: str) -> Iterator[str]:
        folder = store_folder(operator, partition, name)
        names = set(self._tree.names(folder))
        ids = self._ids.get(operator)
        for file in self._versions(folder, names, ids[partition][number] if ids else None):
            yield f"{folder}/{file}"
            if f"{file}.crc" in names:
                yield f"{folder}/{file}.crc"
        if self._tree.exists(f"{folder}/_metadata/schema"):
            yield f"{folder}/_metadata/schema"

    def _versions(self, folder: str, names: set[str], uid: str | None) -> Iterator[str]:
        """The files with which version batch + 1 of one store can be loaded."""
        version = self._batch + 1
        if self._conf[PROVIDER] == HASHMAP:
            start = newest_snapshot(names, "snapshot", version)
            yield from [f"{start}.snapshot"] if start else []
            yield from (f"{v}.delta" for v in range(start + 1, version + 1))
        elif uid is None:
            start = newest_snapshot(names, "zip", version)
            yield from self._zip(folder, f"{start}.zip") if start else []
            yield from (f"{v}.changelog" for v in range(start + 1, version + 1))
        elif f"{version}_{uid}.zip" in names:
            yield from self._zip(folder, f"{version}_{uid}.zip")
        else:
            ids = self._lineage(f"{folder}/{version}_{uid}.changelog") | {version: uid}
            start = max((v for v, u in ids.items() if f"{v}_{u}.zip" in names), default=0)
            if not start and (oldest := min(ids)) > 1:  # the snapshot that its lineage begins with is gone
                raise GoneError(f"{folder}/{oldest}_{ids[oldest]}.zip")
            yield from self._zip(folder, f"{start}_{ids[start]}.zip") if start else []
            yield from (f"{v}_{ids[v]}.changelog" for v in range(start + 1, version + 1))

    def _zip(self, folder: str, name: str) -> Iterator[str]:
        yield name
        try:
            with self._tree.open(f"{folder}/{name}") as file:
                yield from members(file)
        except FileNotFoundError as error:
            raise GoneError(f"{folder}/{name}") from error
        except ValueError as error:
            raise ValueError(f"{folder}/{name}: {error}") from error

    def _lineage(self, path: str) -> dict[int, str]:
        try:
            with self._tree.open(path) as file:
                return lineage(file)
        except FileNotFoundError as error:
            raise GoneError(path) from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _data(self, path: str) -> bytes:
        try:
            with self._tree.open(path) as file:
                return file.read()
        except FileNotFoundError as error:
            raise GoneError(path) from error

    def _numbers(self, folder: str) -> list[str]:
        return [name for name in self._tree.names(folder) if name.isdigit()]


def newest_snapshot(names: Iterable[str], ending: str, limit: int) -> int:
    """The newest version up to a limit of which there is a snapshot, `<version>.<ending>`; 0 without one."""
    matches = (re.fullmatch(rf"(\d+)\.{ending}", name) for name in names)
    return max((int(match[1]) for match in matches if match and int(match[1]) <= limit), default=0)


def _source_log(names: list[str], last: int | None) -> list[str]:
    """A file source's log up to its end offset, where it has one, from its newest compaction.

    Entries after the end were planned and not committed: with them the first batch after a
    restore would take more than the batch that it repeats.
    """
    numbered = file_entries(names)
    usable = {number: name for number, name in numbered.items() if last is None or number <= last}
    first = max((number for number, name in usable.items() if is_compaction(name)), default=-1)
    others = [name for name in names if name not in numbered.values()]
    return [usable[number] for number in sorted(usable) if number >= first] + sorted(others)


def _check_dense(source: str, names: list[str], last: int | None) -> None:
    """Raise `GoneError` for a hole between the newest compaction (or the beginning) and the last entry."""
    numbered = file_entries(names)
    first = next((number for number, name in sorted(numbered.items()) if is_compaction(name)), 0)
    for number in range(first, (max(numbered, default=-1) if last is None else last) + 1):
        if number not in numbered:
            raise GoneError(f"sources/{source}/{number}")
