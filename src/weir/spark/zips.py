"""RocksDB snapshots of Spark: which files a `<version>.zip` refers to."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path


def members(path: Path) -> list[str]:
    """The SST and log files that the snapshot needs beside itself, relative to its folder."""
    return list(sizes(path))


def sizes(path: Path) -> dict[str, int | None]:
    """The same with the size of each, where it is told."""
    with zipfile.ZipFile(path) as snapshot:
        version, text = snapshot.read("metadata").decode().split("\n", 1)
    if version != "v1":
        raise ValueError(f"{path.name} has metadata of version {version}, which this weir does not know")
    metadata = json.loads(text)
    tables = {f"SSTs/{one['dfsSstFileName']}": one.get("sizeBytes") for one in metadata.get("sstFiles") or []}
    logs = {f"logs/{one['dfsLogFileName']}": one.get("sizeBytes") for one in metadata.get("logFiles") or []}
    return tables | logs
