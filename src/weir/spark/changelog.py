"""The header of a RocksDB changelog of state format 2: from which uploads its version descends.

Spark writes `writeUTF("v3" or "v4")` and `writeUTF(<lineage as JSON>)`, then the changes, all through
LZ4 in blocks. Only the beginning is read and decoded: a header is small, a changelog may not be.
"""

from __future__ import annotations

import json
import struct
from typing import BinaryIO

from weir.spark import lz4


def lineage(file: BinaryIO) -> dict[int, str]:
    """For each version since the last uploaded snapshot, up to the one before, its unique id.

    Raises `ValueError` for what is damaged.
    """
    try:
        return _lineage(_Decoded(file))
    except lz4.LZ4Error as error:
        raise ValueError(f"the changelog {error}") from error
    except (struct.error, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the header of the changelog can't be read: {error}") from error


def _lineage(stream: _Decoded) -> dict[int, str]:
    version = stream.utf()
    if version not in ("v3", "v4"):
        raise ValueError(f"it is a changelog of version {version}, which has no lineage")
    return {int(item["version"]): str(item["checkpointUniqueId"]) for item in json.loads(stream.utf())}


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
