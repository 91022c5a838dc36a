"""Which files a manifest may name, and where a restore may write them.

A manifest comes from wherever a savepoint or a copy-dir is, so it may be anybody's. Its paths are checked
twice: where it is parsed (`check_members`), and once more where a file is written (`below`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from weir.errors import BadNameError, OutsideError
from weir.ids import source_name

QUERIES, CHANNELS, USER_STATE = "queries", "channels", "user-state"
JOURNALS = "sources"
"""What is below it goes to the job's own folder on a restore; all else into the new generation."""

_PART = re.compile(r"[^/\\\0]+")
_ENTRY = re.compile(r"log/\d+\.json")
"""What a journal consists of."""


def is_safe(path: str) -> bool:
    """Whether a relative path can't lead out of the folder that it is below."""
    return all(_PART.fullmatch(part) and part not in (".", "..") for part in path.split("/"))


def check_members(
    paths: Iterable[str], queries: Collection[str], channels: Collection[str], *, journals: bool = False
) -> None:
    """Raise `ValueError` unless each path is that of a file of these queries and channels, named once.

    The form is `<folder>/<owner>/<file>`; with `journals` also `sources/<source>/log/<n>.json`.
    """
    owners = {QUERIES: queries, USER_STATE: queries, CHANNELS: channels}
    seen: set[str] = set()
    for path in paths:
        folder, _, rest = path.partition("/")
        owner, _, name = rest.partition("/")
        if not is_safe(path) or not name or (folder not in owners and not (journals and folder == JOURNALS)):
            raise ValueError(f"the path {path!r} is not that of a file of a checkpoint or savepoint")
        if folder == JOURNALS:
            _check_entry(path, owner, name)
        elif owner not in owners[folder]:
            raise ValueError(f"the path {path!r} is of {owner!r}, which is not in it")
        if path in seen:
            raise ValueError(f"the path {path!r} is there twice")
        seen.add(path)


def _check_entry(path: str, source: str, name: str) -> None:
    try:
        source_name(source)
    except BadNameError as error:
        raise ValueError(error.what) from error
    if not _ENTRY.fullmatch(name):
        raise ValueError(f"the path {path!r} is not that of an entry of a journal")


def below(root: Path, target: Path) -> Path:
    """The target itself; raises `OutsideError` when it is not below the root, whatever its path goes through.

    Nothing is looked up: the folders that a restore writes to are made by weir, and hold no links.
    """
    top = os.path.normpath(root)
    if ".." in target.parts or not os.path.normpath(target).startswith(f"{top}{os.sep}"):
        raise OutsideError(path=str(target), root=top)
    return target
