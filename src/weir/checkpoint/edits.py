"""What must change in a file of a checkpoint when it becomes a live file: nearly nothing.

Spark's own files name one place in full: the schema files of an operator. And at-least-once readers
of channels that had gone beyond their barrier are set back to it. Text in, text out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from weir.channel.position import Position
from weir.checkpoint.manifest import Manifest
from weir.ids import CheckpointId

_OPERATOR = re.compile(r"queries/([^/]+)/state/\d+/_metadata/v2/\d+")
_OFFSETS = re.compile(r"queries/([^/]+)/offsets/\d+")
_SCHEMA = re.compile(r"(file:)?.*?(/state/\d+/_stateSchema/.*)")

Edit = Callable[[bytes], bytes]


def edit_of(manifest: Manifest, path: str, root: Path) -> Edit | None:
    """What must become of a file, at its path in the generation `root`; None for most."""
    if (found := _OPERATOR.fullmatch(path)) is not None:
        location = f"{root}/queries/{found[1]}"
        return lambda data: relocated(data.decode(), location).encode()
    if (found := _OFFSETS.fullmatch(path)) is not None:
        stored = manifest.queries[found[1]].set_back
        positions = {
            name: Position(entry, CheckpointId(barrier)) for name, (entry, barrier) in stored.items()
        }
        return (lambda data: set_back(data.decode(), positions).encode()) if positions else None
    return None


def relocated(operator_metadata: str, location: str) -> str:
    """The metadata of an operator whose query has moved to another checkpointLocation."""
    version, text = operator_metadata.split("\n", 1)
    metadata = json.loads(text)
    for store in metadata["stateStoreInfo"]:
        if "stateSchemaFilePaths" in store:
            store["stateSchemaFilePaths"] = [_moved(path, location) for path in store["stateSchemaFilePaths"]]
    return version + "\n" + json.dumps(metadata, separators=(",", ":"))


def _moved(schema_file: str, location: str) -> str:
    found = _SCHEMA.fullmatch(schema_file)
    return schema_file if found is None else f"{found[1] or ''}{location}{found[2]}"


def set_back(offset_log_entry: str, to: Mapping[str, Position]) -> str:
    """An `offsets/<n>` in which no reader of these channels is beyond its position.

    Every other source stays where it is, and so does a reader that had not come so far.
    """
    version, metadata, *lines = offset_log_entry.split("\n")
    return "\n".join([version, metadata, *(_line_set_back(line, to) for line in lines)])


def _line_set_back(line: str, to: Mapping[str, Position]) -> str:
    name, brace, rest = line.partition("{")
    try:
        offset = json.loads(brace + rest)
    except ValueError:  # no offset, or one that is no JSON
        return line
    if not isinstance(offset, dict) or offset.keys() != {"entry", "barrier", "channel"}:
        return line
    position = to.get(offset["channel"])
    if position is None or offset["entry"] <= position.entry:
        return line
    return name + json.dumps(position.offset(offset["channel"]))
