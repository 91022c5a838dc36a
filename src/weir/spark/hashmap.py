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

from weir.spark import lz4

CODECS = ("lz4", "zstd")
"""The compressions that are known here; Spark's default is the first."""

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
        try:
            with open(path, "rb") as file:
                return b"".join(lz4.read(file))
        except lz4.LZ4Error as error:
            raise TornFileError(f"{path} {error}") from error
    try:
        with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TornFileError(f"{path} can't be decompressed: {error}") from error


def _compressing(file: io.BufferedWriter, codec: str) -> io.BufferedWriter | pa.NativeFile:
    if codec == "lz4":
        return lz4.writing(file)
    return pa.CompressedOutputStream(_Kept(file), codec)


class _Kept(io.RawIOBase):
    """A file that stays open when the stream above it is closed."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._file.write(data)  # type: ignore[arg-type]
