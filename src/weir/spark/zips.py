"""RocksDB snapshots of Spark: which files a `<version>.zip` refers to."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from weir.spark import lz4
from weir.spark.logs import versioned
from weir.storage.members import is_safe

_MOST = 64 * 2**20
"""Bytes of metadata: a snapshot of a hundred thousand files has less."""


def members(snapshot: Path | BinaryIO) -> list[str]:
    """The SST and log files that the snapshot needs beside itself, relative to its folder."""
    return list(sizes(snapshot))


def sizes(snapshot: Path | BinaryIO) -> dict[str, int | None]:
    """The same with the size of each, where it is recorded. Raises `ValueError` for what is damaged."""
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


# The header of a RocksDB changelog of state format 2: from which uploads its version descends.
#
# Spark writes `writeUTF("v3" or "v4")` and `writeUTF(<lineage as JSON>)`, then the changes, all through
# LZ4 in blocks. Only the beginning is read and decoded: a header is small, a changelog may not be.


def lineage(file: BinaryIO) -> dict[int, str]:
    """For each version since the last uploaded snapshot, up to the one before, its unique id.

    Raises `ValueError` for what is damaged.
    """
    stream = _Decoded(file)
    try:
        version = stream.utf()
        if version not in ("v3", "v4"):
            raise ValueError(f"it is a changelog of version {version}, which has no lineage")
        return {int(one["version"]): str(one["checkpointUniqueId"]) for one in json.loads(stream.utf())}
    except lz4.LZ4Error as error:
        raise ValueError(f"the changelog {error}") from error
    except (struct.error, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the header of the changelog can't be read: {error}") from error


class _Decoded:
    """The decompressed bytes of a file, read and decoded only as far as they are asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._pieces = lz4.beginning(file)
        self._ready = bytearray()

    def utf(self) -> str:
        (length,) = struct.unpack(">H", self._take(2))
        return self._take(length).decode()

    def _take(self, count: int) -> bytes:
        while len(self._ready) < count:
            try:
                self._ready += next(self._pieces)
            except StopIteration:
                raise ValueError("the changelog ends within its header") from None
        taken = bytes(self._ready[:count])
        del self._ready[:count]
        return taken
