"""The layout of docs/design.md, section 7, below `<dir>/<job>/`: every key is made here and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from weir.errors import BadNameError, OutsideError
from weir.ids import Attempt, CheckpointId, Generation, JobName, QueryName, SourceName, source_name


def job(name: JobName) -> str:
    return str(name)


def attempts(name: JobName) -> str:
    return f"{name}/attempts"


def attempt(name: JobName, number: Attempt) -> str:
    return f"{name}/attempts/{number:06d}.json"


def beat(name: JobName, number: Attempt) -> str:
    return f"{name}/attempts/{number:06d}.beat"


def generations(name: JobName) -> str:
    return f"{name}/generations"


def generation(name: JobName, number: Generation) -> str:
    return f"{name}/generations/{number:04d}"


def origin(name: JobName, number: Generation) -> str:
    return f"{generation(name, number)}/origin.json"


def origin_sum(name: JobName, number: Generation) -> str:
    """The checksum of the origin."""
    return f"{generation(name, number)}/origin.crc32"


def laid_out(name: JobName, number: Generation) -> str:
    """Written before the first file of a restored generation is brought: for which plan they are."""
    return f"{generation(name, number)}/laid-out.json"


def copied(name: JobName, number: Generation) -> str:
    """Written when every file of a restored generation is in its place."""
    return f"{generation(name, number)}/copied.json"


def rewinding(name: JobName, number: Generation) -> str:
    """Written before the first sink of a restored generation is taken back: from here on it only goes on."""
    return f"{generation(name, number)}/rewinding.json"


def live(name: JobName, number: Generation) -> str:
    """Written when a restored generation is the one that the job goes on with."""
    return f"{generation(name, number)}/live.json"


def dropped(name: JobName, number: Generation) -> str:
    """Written when a restore that was asked for can't be: the generation will never be live."""
    return f"{generation(name, number)}/dropped.json"


def elsewhere(name: JobName, number: Generation) -> str:
    """For queries with a new sink: up to which batch their output was delivered to another one."""
    return f"{generation(name, number)}/elsewhere.json"


def ahead(name: JobName, number: Generation) -> str:
    """Written when sinks were found to hold more than the live files know of: up to which batches."""
    return f"{generation(name, number)}/ahead.json"


def query(name: JobName, number: Generation, query_name: QueryName) -> str:
    """Spark's checkpointLocation of a query."""
    return f"{generation(name, number)}/queries/{query_name}"


def channel(name: JobName, number: Generation, query_name: QueryName) -> str:
    """The channel that a query writes."""
    return f"{generation(name, number)}/channels/{query_name}"


def pins(name: JobName, number: Generation) -> str:
    """Links or copies that keep the files of retained checkpoints, at their paths below the generation."""
    return f"{generation(name, number)}/pins"


def checkpoints(name: JobName) -> str:
    return f"{name}/checkpoints"


def begun(name: JobName, id: CheckpointId) -> str:
    return f"{name}/checkpoints/begun-{id}.json"


def completed(name: JobName, id: CheckpointId) -> str:
    """The manifest of a checkpoint."""
    return f"{name}/checkpoints/chk-{id}.json"


def aborted(name: JobName, id: CheckpointId) -> str:
    return f"{name}/checkpoints/aborted-{id}.json"


def savepoints(name: JobName) -> str:
    return f"{name}/savepoints"


def saved(name: JobName, id: CheckpointId) -> str:
    """Where the savepoint of a checkpoint was written to; the savepoint itself is the user's."""
    return f"{name}/savepoints/{id}.json"


def source(name: JobName, _number: Generation, source_name: SourceName) -> str:
    """The place of a receiving source; its journal is `log/<n>.json` below it.

    It is no part of a generation: what was received outlives a rollback.
    """
    return f"{name}/sources/{source_name}"


def sink(name: JobName, query_name: QueryName) -> str:
    """The ledger of a sink that has no place of its own; like a source, no part of a generation."""
    return f"{name}/sinks/{query_name}"


def requests(name: JobName) -> str:
    return f"{name}/requests"


def journal(name: JobName) -> str:
    return f"{name}/journal/journal.sqlite"


def logs(name: JobName) -> str:
    return f"{name}/logs"


# Which files a manifest may name, and where a restore may write them.
#
# A manifest comes from wherever a savepoint or a copy-dir is, so it may be anybody's. Its paths are
# checked twice: where it is parsed (`check_members`), and once more where a file is written (`below`).


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
