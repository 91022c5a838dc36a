"""The state files of Spark's hashmap backend (HDFSBackedStateStoreProvider): read and written.

    <version>.snapshot    all keys of that version
    <version>.delta       what the version changed

Both are `[key length, key, value length, value]*` and a length of -1 at the end, compressed as the
query's settings say; a value length of -1 deletes the key. Keys and values are UnsafeRows, which
nobody looks into here. A file is read whole, and what is torn or changed raises `TornFileError`.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import xxhash

CODECS = ("lz4", "zstd")
"""The compressions that are known here; Spark's default is the first."""

_MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBIII")
_RAW, _PACKED = 0x10, 0x20
_BLOCK = 32 * 1024
_LEVEL = 5
"""What says that blocks have 32 KiB at most."""
_SEED = 0x9747B28C
_SUM = 0x0FFFFFFF
_LENGTH = struct.Struct(">i")
_END = _LENGTH.pack(-1)


class TornFileError(Exception):
    """A state file that ends too early, or whose content has changed."""


def load(folder: Path, version: int, codec: str) -> dict[bytes, bytes]:
    """All keys and values of one store at one version; raises `FileNotFoundError` for a missing file."""
    start = _newest_snapshot(folder, version)
    rows: dict[bytes, bytes] = {}
    if start:
        _apply(rows, read(folder / f"{start}.snapshot", codec))
    for number in range(start + 1, version + 1):
        _apply(rows, read(folder / f"{number}.delta", codec))
    return rows


def read(path: Path, codec: str) -> Iterator[tuple[bytes, bytes | None]]:
    """The keys of a file in its order; None for one that it deletes."""
    data = _decompressed(path, codec)
    at = 0
    try:
        while True:
            key, at = _piece(data, at)
            if key is None:
                return
            value, at = _piece(data, at)
            yield key, value
    except struct.error as error:
        raise TornFileError(f"{path} ends too early") from error


def check(path: Path, codec: str) -> None:
    """Read a file to its end, that of a changelog too; raises `TornFileError`."""
    if path.name.endswith((".delta", ".snapshot")):
        for _ in read(path, codec):
            pass
    else:
        _decompressed(path, codec)


def write_snapshot(path: Path, rows: Iterable[tuple[bytes, bytes]], codec: str) -> int:
    """Write a snapshot, durably; its folder must be there. Says how many keys it has."""
    count = 0
    with open(path, "xb") as file:
        with _compressing(file, codec) as stream:
            for key, value in rows:
                stream.write(_LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value)
                count += 1
            stream.write(_END)
        file.flush()
        os.fsync(file.fileno())
    return count


def _newest_snapshot(folder: Path, limit: int) -> int:
    found = (re.fullmatch(r"(\d+)\.snapshot", name) for name in os.listdir(folder))
    return max((int(one[1]) for one in found if one and int(one[1]) <= limit), default=0)


def _apply(rows: dict[bytes, bytes], changes: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in changes:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


def _piece(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if at + length > len(data):
        raise struct.error
    return data[at : at + length], at + length


def _decompressed(path: Path, codec: str) -> bytes:
    if codec == "lz4":
        return b"".join(_blocks(path))
    try:
        with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TornFileError(f"{path} can't be decompressed: {error}") from error


def _blocks(path: Path) -> Iterator[bytes]:
    unpack = pa.Codec("lz4_raw").decompress
    with open(path, "rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            magic, token, packed, plain, checksum = _HEADER.unpack(header)
            block = file.read(packed)
            if magic != _MAGIC or len(block) != packed:
                raise TornFileError(f"{path} is not what LZ4 wrote")
            if plain == 0:
                return
            try:
                done = block if token & 0xF0 == _RAW else unpack(block, plain, asbytes=True)
            except OSError as error:
                raise TornFileError(f"{path} can't be decompressed: {error}") from error
            if _checksum(done) != checksum:
                raise TornFileError(f"{path} has changed")
            yield done
    raise TornFileError(f"{path} ends too early")


def _checksum(block: bytes) -> int:
    return int(xxhash.xxh32_intdigest(block, _SEED)) & _SUM


def _compressing(file: io.BufferedWriter, codec: str) -> io.BufferedWriter | pa.NativeFile:
    if codec == "lz4":
        return io.BufferedWriter(_LZ4Blocks(file), _BLOCK)
    return pa.CompressedOutputStream(_Kept(file), codec)


class _Kept(io.RawIOBase):
    """A file that stays open when the stream above it is closed."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._file.write(data)  # type: ignore[arg-type]


class _LZ4Blocks(io.RawIOBase):
    """Writes what it gets in blocks, each with its checksum, as LZ4's stream for Java does."""

    def __init__(self, file: io.BufferedWriter) -> None:
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
