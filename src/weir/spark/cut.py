"""The files of a cut as a folder that Spark can read, and what of them must change for another shape.

`lay_out` makes a folder of links: Spark reads state there, whatever place the files have and wherever
their schema files were said to be, and the files themselves are never touched. Spark's state reader
does not find a place whose name must be quoted in a URL, such as one with a space, so `scratch` gives
one that it finds. The rest is text in, text out.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.ids import BatchId
from weir.spark.closure import closure
from weir.storage import files

_OPERATOR = re.compile(r"state/\d+/_metadata/(metadata|v2/\d+)")
_DESCRIPTION = re.compile(r"state/\d+/(_metadata/.*|_stateSchema/.*|\d+/(.+/)?_metadata/schema)")
_SCHEMA = re.compile(r"(file:)?.*?(/?state/\d+/_stateSchema/.*)")
_QUOTED = re.compile(r"[\s%\"<>\\^`{|}#?\[\]]")


def is_state(path: str) -> bool:
    """Whether a file of a checkpointLocation holds state, rather than a description of it."""
    return path.startswith("state/") and _DESCRIPTION.fullmatch(path) is None


def is_operator(path: str) -> bool:
    """Whether it is the metadata of an operator."""
    return _OPERATOR.fullmatch(path) is not None


def conf_of(root: Path, batch: BatchId) -> dict[str, str]:
    """The settings that `offsets/<batch>` fixes for the query."""
    conf: dict[str, str] = json.loads((root / f"offsets/{batch}").read_text().split("\n")[1])["conf"]
    return conf


def commit_of(root: Path, batch: BatchId) -> tuple[str, dict[str, Any]]:
    """Version and content of `commits/<batch>`."""
    version, _, text = (root / f"commits/{batch}").read_text().partition("\n")
    return version, json.loads(text or "{}")


def commit_text(version: str, content: Mapping[str, Any]) -> str:
    return version + "\n" + json.dumps(content, separators=(",", ":"))


def format_of(root: Path, batch: BatchId) -> int:
    """The format of the query's state files: 2 has names that are unique to their writer."""
    return 2 if commit_of(root, batch)[1].get("stateUniqueIds") else 1


def with_conf(offset_log_entry: str, conf: Mapping[str, str]) -> str:
    """An `offsets/<n>` in which some settings are others."""
    version, metadata, *lines = offset_log_entry.split("\n")
    content = json.loads(metadata)
    content["conf"] |= conf
    return "\n".join([version, json.dumps(content, separators=(",", ":")), *lines])


def described(operator_metadata: str, location: Path, partitions: int | None = None) -> str:
    """The metadata of an operator at another checkpointLocation, with so many partitions."""
    version, text = operator_metadata.split("\n", 1)
    metadata = json.loads(text)
    for store in metadata["stateStoreInfo"]:
        if partitions is not None:
            store["numPartitions"] = partitions
        if "stateSchemaFilePaths" in store:
            store["stateSchemaFilePaths"] = [_moved(path, location) for path in store["stateSchemaFilePaths"]]
    return version + "\n" + json.dumps(metadata, separators=(",", ":"))


def _moved(schema_file: str, location: Path) -> str:
    found = _SCHEMA.fullmatch(schema_file)
    if found is None:
        return schema_file
    return f"{found[1] or ''}{location}/{found[2].removeprefix('/')}"


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
            target.write_text(described((root / path).read_text(), folder))
        else:
            target.symlink_to((root / path).absolute())
    return folder
