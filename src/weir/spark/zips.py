"""RocksDB snapshots of Spark: which files a `<version>.zip` refers to."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from weir.spark.logs import versioned
from weir.storage.members import is_safe

_MOST = 64 * 2**20
"""Bytes of metadata: a snapshot of a hundred thousand files has less."""


def members(snapshot: Path | BinaryIO) -> list[str]:
    """The SST and log files that the snapshot needs beside itself, relative to its folder."""
    return list(sizes(snapshot))


def sizes(snapshot: Path | BinaryIO) -> dict[str, int | None]:
    """The same with the size of each, where it is told. Raises `ValueError` for what is damaged."""
    try:
        return _sizes(_metadata(snapshot))
    except (zipfile.BadZipFile, zlib.error, KeyError, TypeError, AttributeError, EOFError) as error:
        raise ValueError(f"the snapshot can't be read: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # a flag says that it is encrypted, or packed oddly
        raise ValueError(f"the snapshot can't be read: {error}") from error


def _metadata(snapshot: Path | BinaryIO) -> bytes:
    with zipfile.ZipFile(snapshot) as inner, inner.open("metadata") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it has metadata of more than {_MOST} bytes")
    return data


def _sizes(data: bytes) -> dict[str, int | None]:
    version, metadata = versioned(data)
    if version != "v1":
        raise ValueError(f"it has metadata of version {version}, which this weir does not know")
    tables = {f"SSTs/{one['dfsSstFileName']}": one.get("sizeBytes") for one in metadata.get("sstFiles") or []}
    logs = {f"logs/{one['dfsLogFileName']}": one.get("sizeBytes") for one in metadata.get("logFiles") or []}
    for name in tables | logs:
        if not is_safe(name) or name.count("/") != 1:
            raise ValueError(f"it names {name!r}, which is no file of a snapshot")
    return tables | logs
