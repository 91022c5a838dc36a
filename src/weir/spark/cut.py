"""The files of a cut: what they say of its batch, and a folder of links in which Spark can read its state.

`lay_out` makes that folder: Spark reads state there, whatever place the files have and wherever their schema
files were recorded to be, and the files themselves are never touched. Spark's state reader does not find a
place whose name must be quoted in a URL, such as one with a space, so `scratch` gives one that it finds.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from weir.ids import BatchId
from weir.spark.closure import closure
from weir.spark.logs import CommitEntry, FileEntry, OffsetEntry, OperatorEntry, file_entries
from weir.storage import files

_OPERATOR = re.compile(r"state/\d+/_metadata/(metadata|v2/\d+)")
_DESCRIPTION = re.compile(r"state/\d+/(_metadata/.*|_stateSchema/.*|\d+/(.+/)?_metadata/schema)")
_QUOTED = re.compile(r"[\s%\"<>\\^`{|}#?\[\]]")


def is_state(path: str) -> bool:
    """Whether a file of a checkpointLocation holds state, rather than a description of it."""
    return path.startswith("state/") and _DESCRIPTION.fullmatch(path) is None


def is_operator(path: str) -> bool:
    """Whether it is the metadata of an operator."""
    return _OPERATOR.fullmatch(path) is not None


def conf_of(root: Path, batch: BatchId) -> dict[str, str]:
    """The settings that `offsets/<batch>` fixes for the query."""
    return offsets_of(root, batch).conf


def offsets_of(root: Path, batch: BatchId) -> OffsetEntry:
    return OffsetEntry.parse((root / f"offsets/{batch}").read_bytes())


def commit_of(root: Path, batch: BatchId) -> CommitEntry:
    return CommitEntry.parse((root / f"commits/{batch}").read_bytes())


def format_of(root: Path, batch: BatchId) -> int:
    """The format of the query's state files: 2 has names that are unique to their writer."""
    return commit_of(root, batch).state_format


def read_since(log: Path, entry: int) -> Iterator[Path]:
    """The files of this machine that a file source has read after an entry of its log, in this folder.

    Nothing of the log of another source. What can't be read is left out: whether a log is intact is asked
    elsewhere.
    """
    for number, name in file_entries(path.name for path in log.iterdir()).items():
        if number <= entry:
            continue
        try:
            content = FileEntry.parse((log / name).read_bytes())
            read = [urlsplit(one["path"]) for one in content.files if int(one["batchId"]) > entry]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if content.known:
            yield from (Path(unquote(url.path)) for url in read if url.scheme in ("", "file"))


def scratch(near: Path) -> Path:
    """A folder that Spark's state reader finds, to be removed by the caller: beside `near`, if it can be."""
    if _QUOTED.search(str(near.absolute())):
        return Path(tempfile.mkdtemp(prefix="weir-state-"))
    folder = files.beside(near.absolute())
    folder.mkdir(parents=True)
    return folder


def lay_out(root: Path, batch: BatchId, folder: Path) -> Path:
    """Lay the files of a committed batch out as a checkpointLocation of links; the folder must be new."""
    folder = folder.absolute()
    for path in closure(root, batch).files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_operator(path):
            target.write_bytes(OperatorEntry.parse((root / path).read_bytes()).moved(folder).data)
        else:
            target.symlink_to((root / path).absolute())
    return folder
