"""A scratch directory for each driver: what Spark, its JVM and RocksDB write that need not survive.

    <tmp>/weir-<uid>/<name>/     tmp/ (TMPDIR, java.io.tmpdir), local/ (Spark's local directories)
    <tmp>/weir-<uid>/<name>/about.json   its process group, the supervisor, and directories elsewhere

It is deleted with its driver. A supervisor that was killed leaves it: then the next start of any job of
this user deletes it, or `weir clean`. Never that of a driver that lives: supervisor and driver hold a lock
on it as long as one of them lives, in whatever process namespace, and the JVM, which does not inherit the
lock, is found by its process group. The directory itself is locked, not a file in it, which a cleaner of
/tmp could delete; systemd-tmpfiles leaves a locked directory alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.storage.process import boot, group_lives

VARIABLE = "WEIR_SCRATCH"
"""Tells a driver where its scratch directory is."""
_TMP, _LOCAL, _ABOUT = "tmp", "local", "about.json"
_UNFINISHED = 600.0
"""Seconds after which a directory that was never finished counts as left over."""


class Scratch:
    """The scratch directory of one driver, held by this process."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.handle = handle
        """The lock: the driver inherits it."""

    @classmethod
    def make(cls) -> Scratch:
        """A new one; raises `OSError` where there is no room."""
        path = Path(tempfile.mkdtemp(prefix="", dir=root()))
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_SH)  # shared: NFS grants an exclusive lock only on what can be written
        for name in (_TMP, _LOCAL):
            (path / name).mkdir()
        return cls(path, handle)

    def environment(self) -> dict[str, str]:
        """What the driver is started with."""
        return {VARIABLE: str(self.path), "TMPDIR": str(self.path / "tmp")}

    def belongs_to(self, group: int) -> None:
        """Record whose it is, for whoever finds it later."""
        with suppress(OSError):
            about = {"group": group, "boot": boot(), "supervisor": os.getpid()}
            (self.path / _ABOUT).write_text(json.dumps(about))

    @contextmanager
    def unless_started(self) -> Iterator[None]:
        """Delete it when the driver for which it was made could not be started."""
        try:
            yield
        except BaseException:
            self.delete()
            raise

    def delete(self) -> None:
        """Its driver has ended: delete it, in a thread of its own. Safe to repeat."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
            threading.Thread(target=remove, args=(self.path,), name="weir-scratch").start()


@dataclass(frozen=True)
class ScratchLeftover:
    """A scratch directory that no living process uses."""

    path: Path
    elsewhere: tuple[Path, ...]
    """Directories of it on other disks."""

    @property
    def bytes(self) -> int:
        return sum(_size(folder) for folder in (self.path, *self.elsewhere))


def root() -> Path:
    """Where the scratch directories of this user are. In a directory that is nobody else's."""
    folder = Path(tempfile.gettempdir()) / f"weir-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")  # as anybody can make it in /tmp
    if stat.S_IMODE(about.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def leftovers() -> Iterator[ScratchLeftover]:
    """The scratch directories of drivers that have ended, however they ended."""
    try:
        entries = sorted(root().iterdir())
    except OSError:
        return
    for path in entries:
        if path.is_dir() and not path.is_symlink() and _is_dead(path):
            yield ScratchLeftover(path, _elsewhere(path))


def remove(path: Path) -> None:
    """Delete a scratch directory, with what it has on other disks. What can't be deleted is left."""
    for folder in (*_elsewhere(path), path):
        shutil.rmtree(folder, ignore_errors=True)


def note_elsewhere(path: Path, folders: list[Path]) -> None:
    """Written by the driver before it makes them: its directories on other disks."""
    (path / "elsewhere.json").write_text(json.dumps([str(folder) for folder in folders]))


def _is_dead(path: Path) -> bool:
    """Whether nobody holds its lock, and no process of its driver's group lives."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        age = time.time() - os.fstat(handle).st_mtime
    except OSError:
        return False
    finally:
        os.close(handle)
    if not (path / _LOCAL).exists() and age <= _UNFINISHED:
        return False  # just being made, and not locked yet; or its maker was killed at that moment
    about = _read(path / _ABOUT)
    group = about.get("group") if isinstance(about, dict) else None
    same_machine = isinstance(about, dict) and about.get("boot") == boot()
    return not (isinstance(group, int) and same_machine and group_lives(group))


def _elsewhere(path: Path) -> tuple[Path, ...]:
    """Only directories with this one's name: the file is not trusted to name others."""
    named = _read(path / "elsewhere.json")
    folders = [Path(name) for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return tuple(folder for folder in folders if folder.is_absolute() and folder.name == f"weir-{path.name}")


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
