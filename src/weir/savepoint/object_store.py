"""A savepoint in an object store: written, abandoned, deleted, and swept, by any number of processes at once.

    <name>/taking.json              somebody writes it; created if absent, so the name is one writer's
    <name>/queries/...              its files
    <name>/manifest.json            created when all of them are there: it is a savepoint
    <name>/deleting-<token>.json    somebody deletes it; one for each who does

What is never deleted by itself is a savepoint, and what may become one:

- A writer takes a name where nothing is but its own mark, and acts there only as long as that is so. It
  looks before and after it creates the manifest: one whose files were deleted meanwhile is no savepoint.
- Who deletes leaves a mark of its own first and takes it away last, so that no name is used again while
  somebody deletes there. After its mark it looks once more whether it may: of a writer and one who
  deletes at least one sees the other.
- What is left of a killed deletion is known by its mark, and any sweep continues it, unless a writer's
  mark is there too. The mark itself stays, for who left it may only be slow: the name is not used again.
- A writer is known to be dead only when it was an earlier attempt of the very job that sweeps. What others
  left when they were killed (a copy, an edit) goes with `weir savepoint dispose`.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from weir import faults
from weir.clock import Clock, retry
from weir.errors import ExternalError, OutcomeUnknownError, SavepointPlaceError
from weir.ids import Attempt, JobName
from weir.savepoint.manifest import MANIFEST, SavedFile, Savepoint, encode
from weir.storage import Created, Store, paths

TAKING = "taking.json"
_DELETING = re.compile(r"deleting-[0-9a-f]+\.json")
_PAUSES = (0.1, 0.5, 2.0)
"""Seconds to wait before each further try to put a file into an object store."""


@dataclass(frozen=True)
class TakingAttempt:
    """The attempt of a job that takes a savepoint; there is one at a time, and its record identifies it."""

    store: Store
    job: JobName
    attempt: Attempt

    def mark(self) -> dict[str, Any]:
        """What a mark says of it."""
        return {"job": self.job, "attempt": self.attempt, "record": self._record(self.attempt)}

    def outlived(self, data: bytes | None) -> bool:
        """Whether a mark is that of an earlier attempt of this job, in this directory."""
        with suppress(ValueError, KeyError, TypeError):
            mark = json.loads(data or b"")
            earlier = mark["job"] == self.job and mark["attempt"] < self.attempt
            record = self._record(Attempt(mark["attempt"])) if earlier else ""
            return bool(record) and mark["record"] == record
        return False

    def _record(self, attempt: Attempt) -> str:
        data = self.store.get(paths.attempt(self.job, attempt))
        return hashlib.sha256(data).hexdigest() if data else ""


class InStore:
    """One savepoint in the making: a `Writing`."""

    at_once = 8  # each waits for the network

    def __init__(self, store: Store, names: list[str], holder: TakingAttempt | None) -> None:
        self._store = store
        self._mark = json.dumps({"token": secrets.token_hex(8), **(holder.mark() if holder else {})}).encode()
        self._over = False
        sweep(store, holder)
        found = next((name for name in names if self._takes(name)), None)
        if found is None:
            raise self._no_name(names)
        self._name = found
        faults.point("savepoint.begun")

    def add(self, path: str, chunks: Iterable[bytes]) -> SavedFile:
        data = b"".join(chunks)
        retry(lambda: self._store.put(f"{self._name}/{path}", data), _PAUSES, Clock().sleep, on=ExternalError)
        return SavedFile(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def finish(self, savepoint: Savepoint) -> str:
        faults.point("savepoint.written")
        key, place = f"{self._name}/{MANIFEST}", f"{self._store.url}/{self._name}"
        if not self._is_ours():
            raise _disposed(place)
        if not _made(self._store, key, encode(savepoint)):
            self._over = True  # an earlier weir, which knows no marks of ours: what is there is its own
            raise taken(place)
        if not self._is_ours():
            self._store.delete(key)
            raise _disposed(place)
        self._over = True
        faults.point("savepoint.taken")
        with suppress(ExternalError):  # beside a manifest it says nothing
            self._store.delete(f"{self._name}/{TAKING}")
        return place

    def give_up(self) -> None:
        if not self._over:
            self._over = True
            with suppress(ExternalError):
                _delete(self._store, self._name, lambda _there: self._holds())

    def _takes(self, name: str) -> bool:
        """Make the name this writer's, if nothing is there."""
        key = f"{name}/{TAKING}"
        if self._store.exists(f"{name}/{MANIFEST}") or not _made(self._store, key, self._mark):
            return False
        if list(self._store.list(name)) == [key]:
            return True
        self._store.delete(key)
        return False

    def _no_name(self, names: list[str]) -> SavepointPlaceError:
        place = f"{self._store.url}/{names[-1]}"
        if all(self._store.exists(f"{name}/{MANIFEST}") for name in names):
            return taken(place)
        reason = (
            "a savepoint of this name is being written or deleted there, or files of an earlier one are left"
        )
        todo = f"name another place; or, if nothing is writing there: weir savepoint dispose {place}"
        return SavepointPlaceError(place=place, reason=reason, todo=todo)

    def _is_ours(self) -> bool:
        """Whether nobody deletes here, and nobody has: looked at in this order, for a mark goes last."""
        return not any(map(_is_deleting, _below(self._store, self._name))) and self._holds()

    def _holds(self) -> bool:
        return self._store.get(f"{self._name}/{TAKING}") == self._mark


def sweep(store: Store, holder: TakingAttempt | None) -> list[str]:
    """Delete what killed writers and deletions have left below a store; the names. Safe to be killed in.

    Without a holder nobody is known to be dead, and only deletions are continued.
    """
    there: dict[str, set[str]] = {}
    for key in store.list(""):
        name, _, path = key.partition("/")
        there.setdefault(name, set()).add(path)

    def is_left(name: str, own: set[str]) -> bool:
        return _is_left(store, name, own, holder)

    left = [name for name, own in there.items() if is_left(name, own)]
    return [name for name in left if _delete(store, name, partial(is_left, name))]


def delete(store: Store) -> None:
    """Delete the savepoint that the store is: first it is none any more, then its files go.

    Safe to be killed in, and to repeat.
    """
    _delete(store, "", lambda there: MANIFEST in there or TAKING not in there)


def discard(store: Store) -> bool:
    """Delete what is left of a savepoint that never was one, or is none any more; False for all else.

    Whoever asks for it knows that nobody writes or deletes it: one who does finds it gone.
    """
    if MANIFEST in (there := _below(store, "")) or not any(map(is_mark, there)):
        return False
    _delete(store, "", lambda _there: True)
    for mark in filter(_is_deleting, _below(store, "")):
        store.delete(mark)
    return True


def is_mark(path: str) -> bool:
    """Whether a file below a savepoint is none of its own, but says who is at work there."""
    return path == TAKING or _is_deleting(path)


def taken(place: object) -> SavepointPlaceError:
    """A savepoint has the name that another one should get."""
    return SavepointPlaceError(
        place=place, reason="a savepoint of this name exists", todo="move it away, or name another folder"
    )


def _disposed(place: str) -> SavepointPlaceError:
    reason = "somebody deleted its files while it was written"
    return SavepointPlaceError(place=place, reason=reason, todo="take it again")


def _is_left(store: Store, name: str, own: set[str], holder: TakingAttempt | None) -> bool:
    """Whether nobody will make a savepoint of what is below a name, by what a listing has."""
    if MANIFEST in own:
        return False
    if TAKING in own:
        return holder is not None and holder.outlived(store.get(f"{name}/{TAKING}"))
    return any(map(_is_deleting, own)) and not all(map(_is_deleting, own))


def _delete(store: Store, name: str, may: Callable[[set[str]], bool]) -> bool:
    """Delete all below a name but the marks of others who delete; False when it may not.

    Whether it may is asked when our mark is there. The manifest goes first, a writer's mark after its
    files, our own mark last.
    """
    mark = f"deleting-{secrets.token_hex(8)}.json"
    store.put(_key(name, mark), b"{}")
    there = _below(store, name) - {mark}
    allowed = may(there)
    if allowed:
        store.delete(_key(name, MANIFEST))
        for path in sorted(there - {MANIFEST, TAKING}):
            if not _is_deleting(path):
                store.delete(_key(name, path))
        store.delete(_key(name, TAKING))
    store.delete(_key(name, mark))
    return allowed


def _below(store: Store, name: str) -> set[str]:
    """The paths of all that is below a name."""
    return {key.removeprefix(f"{name}/") if name else key for key in store.list(name)}


def _is_deleting(path: str) -> bool:
    return _DELETING.fullmatch(path) is not None


def _key(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


def _made(store: Store, key: str, data: bytes) -> bool:
    """Create a key if it is absent; whether what is there now is ours, however often it was tried."""
    try:
        if store.create(key, data) is Created.NOW:
            return True
    except OutcomeUnknownError:
        if store.get(key) is None:
            raise
    return store.get(key) == data
