"""Files of any size on a file system: link them, copy them, compute their checksums.

For the files of checkpoints, which may be too big for a `Store`. A target appears complete or not at all:
a link is atomic, a copy is written beside it and renamed. A new name is certain to survive a power loss
only after `sync_folders`; the content of a copy always is.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeVar

from weir.errors import BadValueError, StorageError
from weir.storage.local import reason, sync_folder, walk
from weir.storage.open import is_local, local_path
from weir.storage.store import Store

_CHUNK = 1 << 20
_THREADS = 8
_ALONE = 0.02
"""Work that takes fewer seconds than this needs no threads."""
_LOWER = 10
"""What is added to the niceness of a thread that gives way: it gets about a tenth of a core under load."""
_NO_LINKS = {
    *(errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP),
}
"""The file system has no hard links, not between these two places, or not one more of this file."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Sum:
    """Size and CRC-32 of a file."""

    bytes: int
    crc: int


def folder_of(store: Store) -> Path:
    """The store's root as a folder; raises `BadValueError` when it is none."""
    if not is_local(store.url):
        raise BadValueError(
            key="execution.checkpointing.dir",
            value=store.url,
            origin="the settings",
            reason="checkpoints of a job link and copy Spark's files: they need a directory of a file system",
        )
    return Path(local_path(store.url))


class NotPlainError(OSError):
    """A link, pipe or device where a file should be: a manifest never means one."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, NOT_PLAIN, str(path))


NOT_PLAIN = "is not a regular file"


def size_of(path: Path) -> int:
    """The size of a regular file; raises `NotPlainError` for anything else that is there."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise NotPlainError(path)
    return status.st_size


def opened(path: Path) -> FileIO:
    """A regular file, to be read; raises `NotPlainError` for anything else, and never waits for a writer."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link, a socket or a device
            raise NotPlainError(path) from error
        raise
    file = FileIO(handle)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise NotPlainError(path)
    return file


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a regular file, piece by piece."""
    with opened(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def checksum(path: Path, expected: int | None = None) -> Sum:
    """The sum of a regular file; raises `FileNotFoundError` when it does not exist.

    A file of another size than the expected one is not read: its sum has its size and no CRC.
    """
    if expected is not None and (actual := size_of(path)) != expected:
        return Sum(actual, -1)
    size = crc = 0
    for chunk in pieces(path):
        crc = zlib.crc32(chunk, crc)
        size += len(chunk)
    return Sum(size, crc)


def settled(path: Path) -> Sum:
    """The sum of a file whose content is on the disk when this returns, whoever wrote it."""
    sync(path)
    return checksum(path)


def sync(path: Path) -> None:
    """Force a file's content to the disk, whoever wrote it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sum_of(data: bytes) -> Sum:
    return Sum(len(data), zlib.crc32(data))


def link(source: Path, target: Path) -> bool:
    """Make the target a link to the source, or a copy where there are no links.

    False when the target existed already. The target's folder must exist.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():
            return False
        copy(source, target)
    return True


def copy(source: Path, target: Path) -> Sum:
    """Copy the content, durably, whatever the target was; its folder must exist."""
    temporary = beside(target)
    try:
        size = crc = 0
        with opened(source) as old, open(temporary, "xb", buffering=0) as new:
            while chunk := old.read(_CHUNK):
                crc = zlib.crc32(chunk, crc)
                size += len(chunk)
                write_all(new.fileno(), chunk)
            os.fsync(new.fileno())
        if (arrived := temporary.stat().st_size) != size:
            raise OSError(errno.EIO, f"{arrived} of {size} bytes arrived")
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return Sum(size, crc)


def write(target: Path, data: bytes) -> None:
    """Write the content, durably, whatever the target was; its folder must exist."""
    write_pieces(target, (data,))


def write_pieces(target: Path, pieces: Iterable[bytes]) -> None:
    """The same with content that comes piece by piece; when that raises, nothing was written."""
    temporary = beside(target)
    try:
        with open(temporary, "xb", buffering=0) as file:
            for piece in pieces:
                write_all(file.fileno(), piece)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def put(target: Path, data: bytes) -> None:
    """Write a file of a folder that is not complete yet; `publish` makes it durable."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def publish(folder: Path, name: Path) -> None:
    """Give a complete folder its name, durably: what is in it is on the disk before."""
    made = [folder / path for path in below(folder)]
    parallel(sync, made)
    sync_folders({above for path in made for above in up_to(path, folder)})
    os.rename(folder, name)
    sync_folders([name.parent])


def beside(path: Path) -> Path:
    """A temporary name; `is_temporary` recognizes one that was left over."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def sync_folders(folders: Iterable[Path]) -> None:
    """Force the names in these folders to the disk, side by side: one journal commit serves many."""
    parallel(sync_folder, sorted(set(folders)))


def up_to(path: Path, top: Path) -> Iterator[Path]:
    """The folders above a path, up to and including `top`."""
    for folder in path.parents:
        yield folder
        if folder == top:
            return


def below(top: Path) -> list[str]:
    """The names of all files below a folder, in order; none when it does not exist."""
    files = []
    try:
        for folder, names in walk(top):
            inner = os.path.relpath(folder, top)
            files += [name if inner == "." else f"{inner}/{name}" for name in names]
    except OSError as error:
        raise failed("list", top, error, str(top)) from error
    return sorted(files)


def remove_empty(top: Path) -> None:
    """Remove the empty folders below a folder, and it itself when it is empty."""
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):  # not empty, or somebody was faster
            os.rmdir(folder)


def uncache(handle: int) -> None:
    """Remove what was written and forced to the disk from the cache, where the system can.

    For what nobody reads soon: in the cache it would displace what the queries read.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # a hint, and no more
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def parallel(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    at_once: int = _THREADS,
    give_way: bool = False,
) -> list[Result]:
    """Do the same with each item, at most `at_once` at a time; their results, in order.

    One after the other as long as that is quick: threads that force small files to a disk side by side
    cost three times as much CPU, and end later. The first failure is raised when no thread is at work any
    more; what had not begun by then is not done. With `give_way`, mostly in CPU time that is free otherwise.
    """
    todo = list(items)
    done: list[Result] = []
    if not give_way:
        until = time.monotonic() + _ALONE
        while len(done) < len(todo) and (time.monotonic() < until or len(done) == len(todo) - 1):
            done.append(work(todo[len(done)]))
    if len(done) == len(todo):
        return done
    with ThreadPoolExecutor(
        min(at_once, len(todo) - len(done)),
        thread_name_prefix="weir-files",
        initializer=_give_way if give_way else None,
    ) as pool:
        return done + list(pool.map(work, todo[len(done) :]))


def _give_way() -> None:
    """Lower the priority of this thread, which only Linux has one of its own for."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):  # where that is not allowed, it works as others do
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _LOWER)


def failed(verb: str, path: Path | str, error: OSError, root: str) -> StorageError:
    """The error of weir for an error of the file system."""
    return StorageError(verb=verb, path=str(path), reason=reason(error), root=root)


def write_all(handle: int, chunk: bytes) -> None:
    """Write every byte; a file system may take fewer at a time."""
    view = memoryview(chunk)
    while view:
        view = view[os.write(handle, view) :]
