"""The state files of Spark's hashmap backend (HDFSBackedStateStoreProvider): read and written.

    <version>.snapshot    all keys of that version
    <version>.delta       what the version changed

Both are `[key length, key, value length, value]*` and a length of -1 at the end, compressed as the
query's settings say; a value length of -1 deletes the key. Keys and values are UnsafeRows, which
nobody looks into here. A file is read completely, and what is cut off or changed raises `DamagedFileError`.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from weir.spark import lz4
from weir.spark.closure import newest_snapshot
from weir.spark.logs import store_folder
from weir.spark.unsafe_row import place_of
from weir.storage import files

_LENGTH = struct.Struct(">i")
_END = _LENGTH.pack(-1)


class DamagedFileError(Exception):
    """A state file that ends too early, or whose content has changed."""


def load(folder: Path, version: int, codec: str) -> dict[bytes, bytes]:
    """All keys and values of one store at one version; raises `FileNotFoundError` for a missing file."""
    start = newest_snapshot(os.listdir(folder), "snapshot", version)
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
        raise DamagedFileError(f"{path} ends too early") from error


def check(path: Path, codec: str) -> None:
    """Read a file to its end, that of a changelog too; raises `DamagedFileError`."""
    if path.name.endswith((".delta", ".snapshot")):
        for _ in read(path, codec):
            pass
    else:
        _decompressed(path, codec)


def write_snapshot(path: Path, rows: Iterable[tuple[bytes, bytes]], codec: str) -> int:
    """Write a snapshot, durably; its folder must be there. Says how many keys it has."""
    count = 0
    with open(path, "xb") as file:
        packed = lz4.writing(file) if codec == "lz4" else pa.CompressedOutputStream(_Kept(file), codec)
        with packed as stream:
            for key, value in rows:
                stream.write(_LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value)
                count += 1
            stream.write(_END)
        file.flush()
        os.fsync(file.fileno())
    return count


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
            raise DamagedFileError(f"{path} {error}") from error
    try:
        with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"{path} can't be decompressed: {error}") from error


class _Kept(io.RawIOBase):
    """A file that stays open when the stream above it is closed."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._file.write(data)  # type: ignore[arg-type]


# Hashmap state read and written by Spark's tasks, one for each state partition.
#
# The functions here go to Python workers (`DataFrame.mapInArrow`); they and the driver see one file
# system. A row travels as its bytes.


LOADED = "place int, key_bytes binary, value_bytes binary, column_family_name string"
WRITTEN = "partition int, rows long"

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

FAMILY = "default"
"""The one column family that a hashmap store has."""
LOADED_TYPES = {
    "place": pa.int32(),
    "key_bytes": pa.binary(),
    "value_bytes": pa.binary(),
    "column_family_name": pa.string(),
}
WRITTEN_TYPES = {"partition": pa.int32(), "rows": pa.int64()}

_AT_A_TIME = 10_000


def loading(
    root: Path, operator: int, store: str, version: int, codec: str, placing: dict[str, Any] | None
) -> Task:
    """Give the rows of the state partitions whose numbers come in.

    Each says where it belongs: where it is, or by `placing`, the arguments of `place_of`.
    """
    place_by_root = str(root)

    def loaded(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = place_of(**placing) if placing else None
        for batch in numbers:
            for partition in batch.column(0).to_pylist():
                folder = Path(place_by_root, store_folder(operator, partition, store))
                rows = iter(load(folder, version, codec).items())
                while some := list(islice(rows, _AT_A_TIME)):
                    keys, values = zip(*some, strict=True)
                    places = [place(key) for key in keys] if place else [partition] * len(keys)
                    yield _batch(LOADED_TYPES, places, keys, values, [FAMILY] * len(keys))

    return loaded


def writing(root: Path, operator: int, store: str, version: int, codec: str) -> Task:
    """Write what comes in as the state of the partition that it comes in as, and say how much it was."""
    to = str(root)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        folder = Path(to, store_folder(operator, partition, store))
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{version}.snapshot"
        temporary = files.beside(target)
        try:
            count = write_snapshot(temporary, _pairs(batches), codec)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        yield _batch(WRITTEN_TYPES, [partition], [count])

    return write


def _pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes]]:
    for batch in batches:
        yield from zip(
            batch.column("key_bytes").to_pylist(), batch.column("value_bytes").to_pylist(), strict=True
        )


def _batch(types: dict[str, Any], *columns: Any) -> pa.RecordBatch:
    arrays = [pa.array(column, type) for column, type in zip(columns, types.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(types))
