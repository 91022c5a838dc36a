"""RocksDB snapshots of Spark: which files a `<version>.zip` refers to."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from weir.storage.members import is_safe

_MOST = 64 * 2**20
"""Bytes of metadata: a snapshot of a hundred thousand files has less."""


def members(path: Path) -> list[str]:
    """The SST and log files that the snapshot needs beside itself, relative to its folder."""
    return list(sizes(path))


def sizes(path: Path) -> dict[str, int | None]:
    """The same with the size of each, where it is told."""
    with zipfile.ZipFile(path) as snapshot, snapshot.open("metadata") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"{path.name} has metadata of more than {_MOST} bytes")
    version, text = data.decode().split("\n", 1)
    if version != "v1":
        raise ValueError(f"{path.name} has metadata of version {version}, which this weir does not know")
    metadata = json.loads(text)
    tables = {f"SSTs/{one['dfsSstFileName']}": one.get("sizeBytes") for one in metadata.get("sstFiles") or []}
    logs = {f"logs/{one['dfsLogFileName']}": one.get("sizeBytes") for one in metadata.get("logFiles") or []}
    for name in tables | logs:
        if not is_safe(name) or name.count("/") != 1:
            raise ValueError(f"{path.name} names {name!r}, which is no file of a snapshot")
    return tables | logs
