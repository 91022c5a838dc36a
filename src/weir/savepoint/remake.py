"""A new savepoint of an old one, in which the files of some queries are others.

The old savepoint stays as it is. What is not made anew is copied, and checked on the way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from weir.clock import Clock
from weir.ids import BatchId
from weir.savepoint.manifest import SavedFile, Savepoint
from weir.savepoint.place import Place
from weir.savepoint.take import relative
from weir.savepoint.writing import Writing, begin
from weir.spark.closure import closure
from weir.storage import files
from weir.storage.members import JOURNALS


def check_target(old: Savepoint, target: str, name: str) -> None:
    """Raise, in front of long work, when `remake` could not write there behind it, or the name is taken."""
    begin(target, name, old.lineage).give_up()


def remake(
    place: Place, told: Savepoint, target: str, name: str, made: Mapping[str, Path], since: float
) -> str:
    """Write the savepoint that `told` describes, without its files, below `target`; gives its place.

    `made` has for each query that was made anew its folder, like a checkpointLocation; all other files of
    the queries and channels that `told` still has come from `place`. `since` is when it was asked for, on
    the monotonic clock. When it raises, nothing of the new savepoint is left.
    """
    writing = begin(target, name, told.lineage)
    try:
        kept = [file for file in place.read().files if _stays(file, told, made)]
        copied = files.parallel(lambda file: writing.add(file.path, place.chunks(file)), kept)
        written = [
            file for query, root in made.items() for file in _written(writing, told, query, root.absolute())
        ]
        whole = told.model_copy(
            update={
                "files": tuple(sorted((*copied, *written), key=lambda file: file.path)),
                "taken_at": Clock().now().isoformat(),
                "seconds": round(time.monotonic() - since, 3),
            }
        )
        return writing.finish(whole)
    finally:
        writing.give_up()


def _stays(file: SavedFile, told: Savepoint, made: Mapping[str, Path]) -> bool:
    kind, name, *_ = file.path.split("/")
    if kind == JOURNALS:
        return True
    return name in told.queries and not (kind == "queries" and name in made)


def _written(writing: Writing, told: Savepoint, query: str, root: Path) -> list[SavedFile]:
    def add(name: str) -> SavedFile:
        path = f"queries/{query}/{name}"
        edit = relative(path)
        content = files.pieces(root / name) if edit is None else [edit((root / name).read_bytes())]
        return writing.add(path, content)

    return files.parallel(add, closure(root, BatchId(told.queries[query].batch)).files)
