"""The local file system as a store.

Every write is: temporary file beside the target, fsync, link (create) or rename (put), fsync of the
folder. The link makes create-if-absent atomic on every POSIX file system, NFS included, and a crash
leaves either nothing or the complete value. What goes wrong after the link or the rename has happened is an
`OutcomeUnknownError`. Temporary files start with a dot and are never listed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weir.errors import OutcomeUnknownError, StorageError
from weir.storage.store import Created


class LocalStore:
    """A folder of this machine, or one that it has mounted."""

    def __init__(self, root: str | Path) -> None:
        self._root = str(Path(root).absolute())

    @property
    def url(self) -> str:
        return self._root

    def create(self, key: str, data: bytes) -> Created:
        path = self._path(key)
        try:
            temporary = self._write_beside(path, data)
        except OSError as error:
            raise self._failed("create", key, error) from error
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            if not self._is_linked(temporary, key, error):
                return Created.EXISTS
        except OSError as error:
            if not self._is_linked(temporary, key, error):
                raise self._failed("create", key, error) from error
        finally:
            with suppress(OSError):  # a file that starts with a dot is never listed
                os.unlink(temporary)
        try:
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise self._unknown("create", key, error) from error
        return Created.NOW

    def _is_linked(self, temporary: str, key: str, refused: OSError) -> bool:
        """Whether a refused link exists all the same: NFS repeats a request whose answer was lost."""
        try:
            return os.stat(temporary).st_nlink > 1
        except OSError:
            raise self._unknown("create", key, refused) from refused

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            temporary = self._write_beside(path, data)
            os.replace(temporary, path)
        except OSError as error:
            raise self._failed("write", key, error) from error
        try:
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise self._unknown("write", key, error) from error

    def get(self, key: str) -> bytes | None:
        try:
            handle = os.open(self._path(key), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):  # a pipe or a device may never end
                    raise OSError(errno.EINVAL, "is not a regular file")
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failed("read", key, error) from error

    def exists(self, key: str) -> bool:
        try:
            os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._failed("look for", key, error) from error
        return True

    def list(self, prefix: str) -> Iterator[str]:
        top = self._path(prefix) if prefix else self._root
        keys = []
        try:
            for folder, names in walk(top):
                inner = os.path.relpath(folder, self._root)
                inner = "" if inner == "." else f"{inner}/"
                keys += [inner + name for name in names if not name.startswith(".")]
        except OSError as error:
            raise self._failed("list", prefix, error) from error
        return iter(sorted(keys))

    def delete(self, key: str) -> None:
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._path(key))
        except OSError as error:
            raise self._failed("delete", key, error) from error

    def _path(self, key: str) -> str:
        if key.startswith("/") or ".." in key.split("/"):
            raise StorageError(verb="use", path=key, reason="a key must stay below the root", root=self.url)
        return f"{self._root}/{key}"

    def _write_beside(self, path: str, data: bytes) -> str:
        folder, name = os.path.split(path)
        make_folders(folder)
        temporary = f"{folder}/.{name}.{secrets.token_hex(6)}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    def _unknown(self, verb: str, key: str, error: OSError) -> OutcomeUnknownError:
        return OutcomeUnknownError(verb=verb, path=f"{self._root}/{key}", reason=reason(error))

    def _failed(self, verb: str, key: str, error: OSError) -> StorageError:
        return StorageError(verb=verb, path=f"{self._root}/{key}", reason=reason(error), root=self.url)


def walk(top: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder from the top on, with the names of its files; nothing when it does not exist.

    A folder that can't be read is an error, where `os.walk` skips it: its files would seem to be gone.
    """

    def refused(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for folder, _, names in os.walk(top, onerror=refused):
        yield folder, names


def reason(error: OSError) -> str:
    """Why the file system refused, in words."""
    words = {errno.ENOSPC: "the disk is full", errno.EACCES: "permission is missing"}
    return words.get(error.errno or 0, error.strerror or str(error))


def make_folders(folder: str | Path) -> None:
    """Make a folder, and those above it that are missing; the new names are on the disk when this returns."""
    parent = os.path.dirname(os.path.abspath(folder))
    if os.path.isdir(folder):
        return
    make_folders(parent)
    with suppress(FileExistsError):  # somebody was faster
        os.mkdir(folder)
    with suppress(PermissionError):  # it may be written and not read
        sync_folder(parent)


def sync_folder(folder: str | Path) -> None:
    """Force the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
