"""LZ4 in blocks, as `LZ4BlockOutputStream` of Java writes it: deltas, snapshots and changelogs of Spark.

    "LZ4Block"  method and level  packed size  plain size  checksum  the block        for each 32 KiB at most
    "LZ4Block"  method and level  0  0  0                                             the end

`read` checks every block and the end. `beginning` decodes only as far as it is asked to, checks no sums and
needs no pyarrow, so that a process without Spark can read the header of a changelog. Both raise `LZ4Error`,
whose text says what is wrong with the file and has no name of it.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBIII")
_END = struct.Struct("<8sB12s")
_RAW, _PACKED = 0x10, 0x20
_BLOCK = 32 * 1024
_LEVEL = 5
"""What says that blocks have 32 KiB at most."""
_MOST = 2**31 - 1
"""Java's sizes have a sign."""
_SEED = 0x9747B28C
_SUM = 0x0FFFFFFF


class LZ4Error(ValueError):
    """Bytes that Java's LZ4 stream did not write, or not all of them."""


class _Header(NamedTuple):
    raw: bool
    packed: int
    plain: int
    checksum: int


def read(file: BinaryIO) -> Iterator[bytes]:
    """The plain bytes, block by block, to the end of the stream, which must be there."""
    import pyarrow as pa  # noqa: PLC0415  slow to load

    unpack = pa.Codec("lz4_raw").decompress
    for header in _headers(file):
        block = file.read(header.packed)
        if len(block) != header.packed:
            raise LZ4Error("is not valid LZ4")
        if header.plain == 0:
            return
        try:
            plain = block if header.raw else unpack(block, header.plain, asbytes=True)
        except OSError as error:
            raise LZ4Error(f"can't be decompressed: {error}") from error
        if _checksum(plain) != header.checksum:
            raise LZ4Error("has changed")
        yield plain
    raise LZ4Error("ends too early")


def beginning(file: BinaryIO) -> Iterator[bytes]:
    """The plain bytes, each block piece by piece as it is decoded; ends where the bytes do.

    Raises `IndexError`, too, for a block that is damaged.
    """
    for header in _headers(file):
        if header.plain == 0:
            return
        block = file.read(header.packed)
        yield from (block,) if header.raw else _unpacked(block)


def has_end(file: BinaryIO) -> bool:
    """Whether a file ends with the empty block that is written last."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size))
    last = file.read()
    return len(last) == _END.size and _END.unpack(last)[::2] == (_MAGIC, bytes(12))


def writing(file: BinaryIO) -> io.BufferedWriter:
    """A stream into a file, which stays open when the stream is closed; that writes the end."""
    return io.BufferedWriter(_Blocks(file), _BLOCK)


class _Blocks(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        import pyarrow as pa  # noqa: PLC0415  slow to load

        self._file = file
        self._pack = pa.Codec("lz4_raw").compress

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        for start in range(0, len(view), _BLOCK):
            self._block(bytes(view[start : start + _BLOCK]))
        return len(view)

    def close(self) -> None:
        if not self.closed:
            self._file.write(_HEADER.pack(_MAGIC, _RAW | _LEVEL, 0, 0, 0))
        super().close()

    def _block(self, plain: bytes) -> None:
        packed = self._pack(plain, asbytes=True)
        method = _PACKED
        if len(packed) >= len(plain):
            packed, method = plain, _RAW
        header = _HEADER.pack(_MAGIC, method | _LEVEL, len(packed), len(plain), _checksum(plain))
        self._file.write(header + packed)


def _headers(file: BinaryIO) -> Iterator[_Header]:
    """The header of each block; the caller reads the block."""
    while len(data := file.read(_HEADER.size)) == _HEADER.size:
        magic, token, packed, plain, checksum = _HEADER.unpack(data)
        if magic != _MAGIC or packed > _MOST:
            raise LZ4Error("is not valid LZ4")
        yield _Header(token & 0xF0 == _RAW, packed, plain, checksum)


def _checksum(plain: bytes) -> int:
    import xxhash  # noqa: PLC0415  needed only with pyarrow

    return int(xxhash.xxh32_intdigest(plain, _SEED)) & _SUM


def _unpacked(block: bytes) -> Iterator[bytes]:
    """One block, sequence by sequence: literals, then a copy of what was written before."""
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
