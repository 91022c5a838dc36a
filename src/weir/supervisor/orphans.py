"""Orphans seen from outside: what the next sweep of a job's checkpoints would delete. Nothing here writes.

While the job runs only its own driver knows which files a checkpoint under way is just keeping. So
from here no file that is kept is called an orphan while one is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weir.checkpoint import manifest as mf
from weir.checkpoint.retention import sweep
from weir.clock import Clock
from weir.ids import CheckpointId, job_name
from weir.storage import files, open_store
from weir.storage.open import is_local, local_path
from weir.supervisor.view import look

_Ids = Mapping[str, set[CheckpointId]]


@dataclass(frozen=True)
class Orphan:
    """A file that would go."""

    key: str
    """Below the storage; of a copy its whole path or URL."""
    bytes: int | None
    """None where its size can't be asked for: among copies in an object store."""


@dataclass(frozen=True)
class Orphans:
    """What would go."""

    found: list[Orphan]
    under_way: list[CheckpointId]
    """Checkpoints that are being taken just now: pins and copies are left out."""

    @property
    def bytes(self) -> int:
        return sum(one.bytes or 0 for one in self.found)


def orphans(dir: str, name: str, clock: Clock) -> Orphans:
    """What the next sweep would delete as things stand; raises `NoSuchJobError`.

    Of a job that nobody runs: at its next start, which aborts what was begun first. Copies are
    looked at where a retained checkpoint has some.
    """
    store, job = open_store(dir), job_name(name)
    over = look(dir, name, clock).over
    before = mf.ids(store, job)
    unfinished = before["begun"] - before["chk"] - before["aborted"]
    keys = sweep(store, job, (), void=unfinished if over else (), dry_run=True)
    under_way = set() if over else unfinished | _moved(before, mf.ids(store, job))
    if under_way:
        keys = [key for key in keys if "/pins/" not in key]
    top = files.folder_of(store)
    found = [_orphan(top, key) for key in keys]
    return Orphans([one for one in found if one is not None], sorted(under_way))


def _moved(before: _Ids, after: _Ids) -> set[CheckpointId]:
    """The checkpoints that have begun, ended or gone in between."""
    return {id for kind in before for id in before[kind] ^ after[kind]}


def _orphan(top: Path, key: str) -> Orphan | None:
    """With its size; None when it has gone in the meantime."""
    if not is_local(key):
        return Orphan(key, None)
    with suppress(FileNotFoundError):
        return Orphan(key, (top / local_path(key)).stat().st_size)
    return None
