"""A savepoint in the making: out of sight until it is complete, and gone when it fails.

On a file system it grows in a folder `.weir-savepoint-<name>-<token>` beside its place, is forced to
the disk, and gets its name by one rename. What a killed writer leaves is deleted by the next one,
when nobody holds its lock. In an object store (`object_store.py`) its files are put below its name, and the
manifest, put last, makes them a savepoint.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from weir import faults
from weir.clock import Clock
from weir.ids import BatchId
from weir.savepoint import object_store as in_store
from weir.savepoint.manifest import MANIFEST, SavedFile, Savepoint, encode
from weir.savepoint.object_store import InStore, TakingAttempt, taken
from weir.savepoint.place import SavepointPlace
from weir.spark.closure import closure
from weir.spark.logs import OperatorEntry
from weir.storage import files, open_store
from weir.storage.local import make_folders, sync_folder
from weir.storage.members import JOURNALS
from weir.storage.open import is_local, local_path

HIDDEN = ".weir-savepoint-"


class Writing(Protocol):
    """One savepoint in the making. `add` may be called from several threads at once."""

    at_once: int
    """How many threads are worth it."""

    def add(self, path: str, chunks: Iterable[bytes]) -> SavedFile:
        """Write a file, durably but for its name; what was there of it before is replaced."""

    def finish(self, savepoint: Savepoint) -> str:
        """Make it a savepoint, durably; returns its place. Raises `SavepointPlaceError` when one is there."""

    def give_up(self) -> None:
        """Delete what was written. Safe to repeat, and without effect after `finish`."""


def begin(target: str, savepoint_name: str, lineage: str, holder: TakingAttempt | None = None) -> Writing:
    """Begin a savepoint below the folder or URL `target`; sweeps what killed ones left there.

    Where a savepoint of another life of the job has the name, the lineage is made a part of it. `holder` is
    the attempt of a job that takes it, when it is one: a later one may then know that it is over.
    """
    if is_local(target):
        return _InFolder(Path(local_path(target)).absolute(), savepoint_name, lineage)
    return InStore(open_store(target), _names(savepoint_name, lineage), holder)


class _InFolder:
    at_once = 2  # more wait for each other: each file is forced to the disk

    def __init__(self, folder: Path, name: str, lineage: str) -> None:
        self._folder, self._names = folder, _names(name, lineage)
        self._made: set[Path] = set()
        self._lock = threading.Lock()
        self._over = False
        try:
            make_folders(folder)
            sweep(folder)
            if all((folder / taken_name).exists() for taken_name in self._names):
                raise taken(folder / self._names[-1])
            self._root, self._held = _hidden(folder, name)
        except OSError as error:
            raise files.failed("write a savepoint to", folder, error, str(folder)) from error
        faults.point("savepoint.begun")

    def add(self, path: str, chunks: Iterable[bytes]) -> SavedFile:
        target = self._root / path
        try:
            if target.parent not in self._made:
                target.parent.mkdir(parents=True, exist_ok=True)
                with self._lock:
                    self._made.update(files.up_to(target, self._root))
            size, digest = 0, hashlib.sha256()
            with open(target, "wb", buffering=0) as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    files.write_all(file.fileno(), chunk)
                os.fsync(file.fileno())
                files.uncache(file.fileno())
        except OSError as error:
            raise files.failed("copy to", target, error, str(self._folder)) from error
        return SavedFile(path=path, bytes=size, sha256=digest.hexdigest())

    def finish(self, savepoint: Savepoint) -> str:
        try:
            self.add(MANIFEST, [encode(savepoint)])
            files.sync_folders({self._root, *self._made})
            faults.point("savepoint.written")
            self._name()
            sync_folder(self._folder)
        except OSError as error:
            raise files.failed("finish the savepoint in", self._root, error, str(self._folder)) from error
        self._over = True
        os.close(self._held)
        faults.point("savepoint.taken")
        return str(self._root)

    def give_up(self) -> None:
        if not self._over:
            self._over = True
            shutil.rmtree(self._root, ignore_errors=True)
            os.close(self._held)

    def _name(self) -> None:
        for name in self._names:
            named = self._folder / name
            try:
                os.rename(self._root, named)
            except OSError:
                if not named.exists():
                    raise
            else:
                self._root = named
                return
        raise taken(self._folder / self._names[-1])


def sweep(folder: Path) -> list[str]:
    """Delete what killed writers have left in a folder; the names. A writer that lives is left alone."""
    swept = []
    for left in [path for path in folder.iterdir() if path.name.startswith(HIDDEN)]:
        with suppress(OSError):  # it is being finished or swept by another
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
                swept.append(left.name)
            finally:
                os.close(held)
    return swept


def delete(place: str) -> None:
    """Delete a savepoint: first it is none any more, then its files go. Safe to be killed in."""
    if is_local(place):
        folder = Path(local_path(place)).absolute()
        gone = folder.with_name(f"{HIDDEN}{folder.name}-{secrets.token_hex(6)}")
        try:
            os.rename(folder, gone)
            sync_folder(folder.parent)
            shutil.rmtree(gone)
        except OSError as error:
            raise files.failed("delete", folder, error, str(folder.parent)) from error
        return
    in_store.delete(open_store(place))


def _hidden(folder: Path, name: str) -> tuple[Path, int]:
    """A new folder out of sight, and the handle whose lock says that its writer lives."""
    while True:
        root = folder / f"{HIDDEN}{name}-{secrets.token_hex(6)}"
        root.mkdir()
        with suppress(FileNotFoundError):  # a sweep came in between
            held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(held, fcntl.LOCK_EX)
            if root.exists():
                return root, held
            os.close(held)


def _names(name: str, lineage: str) -> list[str]:
    return [name, f"{name}-{lineage[:8]}"]


# A new savepoint of an old one, in which the files of some queries are others.
#
# The old savepoint stays as it is. What is not rewritten is copied, and checked on the way.


def check_target(old: Savepoint, target: str, name: str) -> None:
    """Raise, before long work, when `remake` could not write there after it, or the name is taken."""
    begin(target, name, old.lineage).give_up()


def remake(
    place: SavepointPlace,
    described: Savepoint,
    target: str,
    name: str,
    made: Mapping[str, Path],
    since: float,
) -> str:
    """Write the savepoint that is `described`, without its files, below `target`; gives its place.

    `made` has for each query that was rewritten its folder, like a checkpointLocation; all other files of
    the queries and channels that it still has come from `place`. `since` is when it was asked for, on
    the monotonic clock. When it raises, nothing of the new savepoint is left.
    """
    writing = begin(target, name, described.lineage)
    try:
        kept = [file for file in place.read().files if _stays(file, described, made)]
        copied = files.parallel(lambda file: writing.add(file.path, place.chunks(file)), kept)
        written = [
            file
            for query, root in made.items()
            for file in _written(writing, described, query, root.absolute())
        ]
        complete = described.model_copy(
            update={
                "files": tuple(sorted((*copied, *written), key=lambda file: file.path)),
                "taken_at": Clock().now().isoformat(),
                "seconds": round(time.monotonic() - since, 3),
            }
        )
        return writing.finish(complete)
    finally:
        writing.give_up()


def _stays(file: SavedFile, described: Savepoint, made: Mapping[str, Path]) -> bool:
    kind, name, *_ = file.path.split("/")
    if kind == JOURNALS:
        return True
    return name in described.queries and not (kind == "queries" and name in made)


def _written(writing: Writing, described: Savepoint, query: str, root: Path) -> list[SavedFile]:
    def add(name: str) -> SavedFile:
        path = f"queries/{query}/{name}"
        edit = relative(path)
        content = files.pieces(root / name) if edit is None else [edit((root / name).read_bytes())]
        return writing.add(path, content)

    return files.parallel(add, closure(root, BatchId(described.queries[query].batch)).files)


_OPERATOR = re.compile(r"(queries/[^/]+)/state/\d+/_metadata/v2/\d+")


def relative(path: str) -> Callable[[bytes], bytes] | None:
    """What must become of a file of a savepoint: where Spark wrote a place in full, it is one below it.

    None for most.
    """
    found = _OPERATOR.fullmatch(path)
    if found is None:
        return None
    location = found[1]
    return lambda data: (
        OperatorEntry.parse(data).moved(location).data.replace(b'"file:queries/', b'"queries/')
    )
