"""The local file system as a store.

Every write is: temporary file beside the target, fsync, link (create) or rename (put), fsync of the
folder. The link makes create-if-absent atomic on every POSIX file system, NFS included, and a crash
leaves either nothing or the whole value. Temporary files start with a dot and are never listed.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weir.errors import StorageError
from weir.storage.store import Created


class LocalStore:
    """A folder of this machine, or one that it has mounted."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    @property
    def url(self) -> str:
        return str(self._root)

    def create(self, key: str, data: bytes) -> Created:
        path = self._path(key)
        try:
            temporary = self._write_beside(path, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return Created.EXISTS
            finally:
                os.unlink(temporary)
            sync_folder(path.parent)
        except OSError as error:
            raise self._failed("create", key, error) from error
        return Created.NOW

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            temporary = self._write_beside(path, data)
            os.replace(temporary, path)
            sync_folder(path.parent)
        except OSError as error:
            raise self._failed("write", key, error) from error

    def get(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
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
        found = []
        try:
            for folder, names in walk(top):
                inner = Path(folder).relative_to(self._root)
                found += [str(inner / name) for name in names if not name.startswith(".")]
        except OSError as error:
            raise self._failed("list", prefix, error) from error
        return iter(sorted(found))

    def delete(self, key: str) -> None:
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                self._path(key).unlink()
        except OSError as error:
            raise self._failed("delete", key, error) from error

    def _path(self, key: str) -> Path:
        path = self._root / key
        if os.path.isabs(key) or ".." in Path(key).parts:
            raise StorageError(verb="use", path=key, reason="a key must stay below the root", root=self.url)
        return path

    def _write_beside(self, path: Path, data: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary

    def _failed(self, verb: str, key: str, error: OSError) -> StorageError:
        return StorageError(verb=verb, path=str(self._root / key), reason=reason(error), root=self.url)


def walk(top: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder from the top on, with the names of its files; nothing when it is not there.

    A folder that can't be read is an error, where `os.walk` passes over it: what lies there would seem to
    be gone.
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


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
