"""From a path to the state of one query: which files, of which batch, with which operators.

    <savepoint>                        a savepoint, on a file system or in an object store
    <dir>/<job>                        the live files of a job, after their last committed batch
    <dir>/<job>/chk-41                 a checkpoint; also <dir>/<job>/checkpoints/chk-41.json
    <any checkpointLocation>           of a query that Spark runs without weir

Read only. Live files may go while somebody reads them: Spark deletes what it does not need any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from weir.checkpoint import manifest as checkpoints
from weir.checkpoint.kept_files import KeptFiles
from weir.errors import StateNotReadableError
from weir.ids import BatchId, CheckpointId, JobName
from weir.protocol.operators import Operator
from weir.savepoint.manifest import MANIFEST, Savepoint
from weir.savepoint.place import SavepointPlace
from weir.spark.closure import GoneError
from weir.spark.state_schema import operators
from weir.storage import generation as generations
from weir.storage import paths
from weir.storage.local import LocalStore
from weir.storage.open import is_local, local_path

_CHECKPOINT = re.compile(r"(?P<job>.+?)(/checkpoints)?/chk-(?P<id>\d+)(\.json)?")

Scratch = Callable[[], Path]
"""Gives a new folder, for files that are not where Spark could read them."""


@dataclass(frozen=True)
class StatePoint:
    """One query at one committed batch."""

    path: str
    """As it was asked for."""
    query: str
    root: Path
    """A folder with at least the files of the batch, as in a checkpointLocation."""
    batch: BatchId
    operators: tuple[Operator, ...]

    def operator(self, id: int) -> Operator:
        """Raises `StateNotReadableError` when there is none of this id."""
        found = {one.id: one for one in self.operators}
        if id not in found:
            there = ", ".join(f"{one.id} ({one.kind})" for one in self.operators)
            reason = f"it has no operator {id}" if there else "it keeps no state"
            raise unreadable(self.path, self.query, reason, f"there are: {there}" if there else "")
        return found[id]


def locate(path: str, query: str | None, scratch: Scratch) -> StatePoint:
    """The state of a query at a path; without a name it must be the only query there.

    Raises `StateNotReadableError` for what is not there.
    """
    there = queries(path)
    if query is None and len(there) == 1:
        (query,) = there
    if query is None or query not in there:
        reason = "no query was named" if query is None else f"it has no query {query!r}"
        raise unreadable(path, "", reason, f"there are: {', '.join(there)}")
    root, batch = there[query](scratch)
    if batch < 0:
        raise unreadable(path, query, "no batch of it is committed", "wait for its first batch")
    try:
        return StatePoint(path, query, root, batch, operators(root, batch))
    except GoneError as error:
        todo = "try again; Spark deletes live files that it does not need any more"
        raise unreadable(path, query, f"the file {error} is gone", todo) from error


Files = Callable[[Scratch], tuple[Path, BatchId]]
"""Gives the folder of a query's files, and its batch."""


def queries(path: str) -> Mapping[str, Files]:
    """The queries whose state is there, by name."""
    if not is_local(path) or (Path(local_path(path)) / MANIFEST).exists() or path.endswith(MANIFEST):
        place = SavepointPlace(path)
        savepoint = place.read()
        return {name: _saved(place, savepoint, name) for name in savepoint.queries}
    folder = Path(local_path(path)).absolute()
    if (folder / "offsets").is_dir() and (folder / "commits").is_dir():
        return {folder.name: partial(_located, folder)}
    if (folder / "generations").is_dir():
        return _live(folder)
    if (found := _CHECKPOINT.fullmatch(str(folder))) is not None:
        return _of_checkpoint(path, Path(found["job"]), CheckpointId(int(found["id"])))
    reason = "there is no savepoint, checkpoint or job" if folder.exists() else "there is no such place"
    raise unreadable(path, "", reason, "name a savepoint, <dir>/<job>, <dir>/<job>/chk-<number>")


def _saved(place: SavepointPlace, savepoint: Savepoint, query: str) -> Files:
    def bring(scratch: Scratch) -> tuple[Path, BatchId]:
        batch = BatchId(savepoint.queries[query].batch)
        if place.folder is not None:
            return place.folder / "queries" / query, batch
        root = scratch()
        for name, file in savepoint.files_of(query).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            place.bring(file, root / name)
        return root, batch

    return bring


def _live(folder: Path) -> Mapping[str, Files]:
    store, job = LocalStore(folder.parent), JobName(folder.name)
    root = folder.parent / paths.generation(job, generations.live(store, job)) / "queries"
    names = sorted(one.name for one in root.iterdir()) if root.is_dir() else []
    return {name: partial(_located, root / name) for name in names}


def _located(root: Path, _: Scratch) -> tuple[Path, BatchId]:
    return root, _last(root)


def _of_checkpoint(path: str, folder: Path, id: CheckpointId) -> Mapping[str, Files]:
    store, job = LocalStore(folder.parent), JobName(folder.name)
    manifest = checkpoints.read(store, job, id)
    if manifest is None:
        reason, todo = "there is no such checkpoint", f"'weir checkpoints {job}' lists what is there"
        raise unreadable(path, "", reason, todo)
    return {name: _kept(KeptFiles(store, manifest), manifest, name) for name in manifest.queries}


def _kept(kept: KeptFiles, manifest: checkpoints.Manifest, query: str) -> Files:
    def link(scratch: Scratch) -> tuple[Path, BatchId]:
        root, cut = scratch(), manifest.queries[query]
        for file in cut.files:
            below = f"queries/{query}/"
            if file.path.startswith(below):
                target = root / file.path.removeprefix(below)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not file.within and kept.pin(file).exists():
                    target.symlink_to(kept.pin(file))
                else:
                    kept.bring(file, target, None)
        return root, BatchId(cut.batch)

    return link


def _last(root: Path) -> BatchId:
    commits = root / "commits"
    names = [one.name for one in commits.iterdir()] if commits.is_dir() else []
    return BatchId(max((int(name) for name in names if name.isdigit()), default=-1))


def unreadable(path: str, query: str, reason: str, todo: str) -> StateNotReadableError:
    whose = f"query {query!r}: " if query else ""
    return StateNotReadableError(path=path, reason=whose + reason, todo=todo)
