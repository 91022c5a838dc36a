"""What can be done to a savepoint that is there: copy, verify, delete it. The job is not needed for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from weir.clock import Clock
from weir.savepoint import verify as copies
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import Verified
from weir.savepoint.verify import verify as verify_files

Bytes = Callable[[int, int], None]
"""Called with the bytes that are done and those there are, from any thread."""


def unseen(_done: int, _total: int) -> None:
    """Nobody looks."""


@dataclass(frozen=True)
class Copied:
    """A copy of a savepoint, as good as the original."""

    job: str
    id: int
    original: str
    path: str
    bytes: int

    def form(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "id": self.id,
            "from": self.original,
            "path": self.path,
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class Disposed:
    """A savepoint that was deleted; only `path` is known of one that was killed while it was written."""

    path: str
    job: str | None = None
    id: int | None = None
    bytes: int | None = None

    def form(self) -> dict[str, Any]:
        return {"job": self.job, "id": self.id, "path": self.path, "bytes": self.bytes}


@dataclass(frozen=True)
class VerifiedAt:
    """What was found of every file of a savepoint; damage is a result, not a failure."""

    path: str
    found: Verified

    def form(self) -> dict[str, Any]:
        return {"path": self.path, "whole": self.found.whole, **asdict(self.found)}


def copy(
    place: str, target: str, progress: Bytes = unseen, read: Callable[[], None] = lambda: None
) -> Copied:
    """Copy a savepoint into a folder of its own below `target`; every file is checked on the way.

    `read` is called when all is read, while the target still stores it.
    """
    original = SavepointPlace(place)
    copied = copies.copy(original, target, progress, read)
    saved = copied.savepoint
    return Copied(saved.job, saved.id, original.url, copied.place, saved.bytes)


def dispose(place: str) -> Disposed:
    """Delete a savepoint, intact or damaged, or what a killed writer has left of one in an object store.

    Raises `NotASavepointError` for a place that is none, or that holds other files too.
    """
    found = SavepointPlace(place)
    if copies.clear(found):
        return Disposed(found.url)
    gone = copies.dispose(found)
    return Disposed(gone.place, gone.savepoint.job, gone.savepoint.id, gone.savepoint.bytes)


def verify(place: str, progress: Bytes = unseen) -> VerifiedAt:
    """Read every file of a savepoint and compare it with the manifest; raises `NotASavepointError`."""
    found = SavepointPlace(place)
    return VerifiedAt(found.url, verify_files(found, Clock(), progress))
