"""A savepoint where it is, a folder or a place in an object store: read, and nothing else.

Every file is summed up while it is read: one that is not as the manifest says never comes out complete.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from weir.checkpoint.kept_files import Edit
from weir.errors import DamagedSavepointError, NotASavepointError
from weir.savepoint.manifest import MANIFEST, SavedFile, Savepoint, decode
from weir.storage import files, open_store
from weir.storage.files import NOT_PLAIN, NotPlainError
from weir.storage.open import is_local, local_path


class SavepointPlace:
    """One savepoint. For use from any thread."""

    def __init__(self, url: str) -> None:
        given = url.rstrip("/").removesuffix(f"/{MANIFEST}")
        self._store = open_store(given)
        self._root = Path(local_path(self._store.url)) if is_local(given) else None

    @property
    def url(self) -> str:
        """As it can be opened from anywhere on this machine."""
        return self._store.url

    @property
    def folder(self) -> Path | None:
        """The folder, when it is one of this machine."""
        return self._root

    def read(self) -> Savepoint:
        """Its manifest; raises `NotASavepointError`."""
        data = self._store.get(MANIFEST)
        if data is None:
            reason = f"there is no {MANIFEST}"
            if self._root is not None and not self._root.exists():
                reason = "there is no such directory"
            elif below := self._only_one_below():
                reason += f"; the only savepoint in it is {below}"
            raise NotASavepointError(place=self.url, reason=reason)
        return decode(data, self.url)

    def _only_one_below(self) -> Path | None:
        """The savepoint in a local folder that has exactly one; those in the making do not count."""
        if self._root is None or not self._root.is_dir():
            return None
        with suppress(OSError):
            found = [path.parent for path in self._root.glob(f"*/{MANIFEST}")]
            visible = [path for path in found if not path.name.startswith(".")]
            return visible[0] if len(visible) == 1 else None
        return None

    def names(self) -> list[str]:
        """All files that are there, whether the manifest knows them or not."""
        return files.below(self._root) if self._root is not None else list(self._store.list(""))

    def chunks(self, file: SavedFile) -> Iterator[bytes]:
        """Its content, piece by piece; raises `DamagedSavepointError`, at the latest after the last.

        Never more than the manifest says, and nothing of a link, a pipe or a device.
        """
        size, digest = 0, hashlib.sha256()
        try:
            for chunk in self._pieces(file):
                size += len(chunk)
                if size > file.bytes:
                    break
                digest.update(chunk)
                yield chunk
        except (FileNotFoundError, NotADirectoryError):
            raise self._damaged(file, "is gone") from None
        except NotPlainError:
            raise self._damaged(file, NOT_PLAIN) from None
        except OSError as error:
            raise files.failed("read", f"{self.url}/{file.path}", error, self.url) from error
        if size != file.bytes:
            raise self._damaged(file, f"has {size} bytes instead of {file.bytes}")
        if digest.hexdigest() != file.sha256:
            raise self._damaged(file, "has changed")

    def content(self, file: SavedFile) -> bytes:
        """Its content; raises `DamagedSavepointError`."""
        return b"".join(self.chunks(file))

    def open(self, file: SavedFile) -> BinaryIO:
        """A file that was found intact, to be read from the beginning; not compared once more."""
        if self._root is None:
            return io.BytesIO(self.content(file))
        try:
            return files.opened(self._root / file.path)
        except OSError as error:
            raise files.failed("read", f"{self.url}/{file.path}", error, self.url) from error

    def bring(self, file: SavedFile, target: Path, edit: Edit | None = None) -> None:
        """Make the target this file, or what `edit` makes of it, durably; its folder must be there.

        Safe to repeat, and to be killed in: the target is complete or absent. Always a copy, never a
        link: the savepoint stays the user's. Raises `DamagedSavepointError`.
        """
        try:
            if edit is not None:
                files.write(target, edit(self.content(file)))
            else:
                files.write_pieces(target, self.chunks(file))
        except OSError as error:
            raise files.failed("restore", target, error, self.url) from error

    def damage(self, file: SavedFile) -> str | None:
        """What is wrong with a file, as a phrase that follows its name; None when it is intact."""
        try:
            for _ in self.chunks(file):
                pass
        except DamagedSavepointError as error:
            return str(error.fields["damage"])
        return None

    def _pieces(self, file: SavedFile) -> Iterator[bytes]:
        if self._root is not None:
            path = self._root / file.path
            if (size := files.size_of(path)) != file.bytes:
                raise self._damaged(file, f"has {size} bytes instead of {file.bytes}")
            return files.pieces(path)
        data = self._store.get(file.path)
        if data is None:
            raise FileNotFoundError(file.path)
        return iter((data,))

    def _damaged(self, file: SavedFile, damage: str) -> DamagedSavepointError:
        return DamagedSavepointError(place=self.url, file=file.path, damage=damage)
