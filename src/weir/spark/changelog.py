"""The header of a RocksDB changelog of state format 2: from which uploads its version descends.

Spark writes `writeUTF("v3" or "v4")` and `writeUTF(<lineage as JSON>)`, then the changes, all through
LZ4 in blocks. Only the beginning is read and decoded: a header is small, a changelog may not be.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import BinaryIO

_MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBiii")
_RAW = 0x10


def lineage(file: BinaryIO) -> dict[int, str]:
    """For each version since the last uploaded snapshot, up to the one before, its unique id.

    Raises `ValueError` for what is damaged.
    """
    try:
        return _lineage(_Decoded(file))
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
        self._chunks = _decoded(file)
        self._ready = bytearray()

    def utf(self) -> str:
        (length,) = struct.unpack(">H", self._take(2))
        return self._take(length).decode()

    def _take(self, count: int) -> bytes:
        while len(self._ready) < count:
            try:
                self._ready += next(self._chunks)
            except StopIteration:
                raise ValueError("the changelog ends within its header") from None
        taken = bytes(self._ready[:count])
        del self._ready[:count]
        return taken


def _decoded(file: BinaryIO) -> Iterator[bytes]:
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        magic, token, packed, plain, _ = _HEADER.unpack(header)
        if magic != _MAGIC or packed < 0:
            raise ValueError("the changelog is not compressed with LZ4")
        if plain == 0:
            return
        block = file.read(packed)
        yield from (block,) if token & 0xF0 == _RAW else _unpacked(block)


def _unpacked(block: bytes) -> Iterator[bytes]:
    """One LZ4 block, sequence by sequence: literals, then a copy of what was written before."""
    done = bytearray()
    at = 0
    while at < len(block):
        token = block[at]
        count, at = _length(block, at + 1, token >> 4)
        start = len(done)
        done += block[at : at + count]
        at += count
        if at < len(block):
            offset = block[at] | block[at + 1] << 8
            count, at = _length(block, at + 2, token & 15)
            for _ in range(count + 4):
                done.append(done[-offset])
        yield bytes(done[start:])


def _length(block: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            more = block[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at
