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
from weir.spark.logs import OffsetEntry, OperatorEntry, parsed_offset

_OPERATOR = re.compile(r"queries/([^/]+)/state/\d+/_metadata/v2/\d+")
_OFFSETS = re.compile(r"queries/([^/]+)/offsets/\d+")

Edit = Callable[[bytes], bytes]


def edit_of(manifest: Manifest, path: str, root: Path) -> Edit | None:
    """What must become of a file, at its path in the generation `root`; None for most."""
    if (found := _OPERATOR.fullmatch(path)) is not None:
        location = f"{root}/queries/{found[1]}"
        return lambda data: OperatorEntry.parse(data).moved(location).data
    if (found := _OFFSETS.fullmatch(path)) is not None:
        stored = manifest.queries[found[1]].set_back
        positions = {
            name: Position(entry, CheckpointId(barrier)) for name, (entry, barrier) in stored.items()
        }
        return (lambda data: set_back(data.decode(), positions).encode()) if positions else None
    return None


def set_back(offset_log_entry: str, to: Mapping[str, Position]) -> str:
    """An `offsets/<n>` in which no reader of these channels is beyond its position.

    Every other source stays where it is, and so does a reader that had not come so far.
    """
    return OffsetEntry.parse(offset_log_entry).with_offsets(lambda end: _reset(end, to)).text


def _reset(end: str, to: Mapping[str, Position]) -> str:
    offset = parsed_offset(end)
    if not isinstance(offset, dict) or offset.keys() != {"entry", "barrier", "channel"}:
        return end
    position = to.get(offset["channel"])
    if position is None or offset["entry"] <= position.entry:
        return end
    return json.dumps(position.offset(offset["channel"]))
