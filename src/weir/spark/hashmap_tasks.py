"""Hashmap state read and written by Spark's tasks, one for each state partition.

The functions here go to Python workers (`DataFrame.mapInArrow`); they and the driver see one file
system. A row travels as its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from weir.spark import hashmap
from weir.spark.unsafe_row import place_of
from weir.storage import files

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


def store_folder(root: Path | str, operator: int, partition: int, store: str) -> Path:
    """Where the files of one store of one partition are."""
    folder = Path(root) / f"state/{operator}/{partition}"
    return folder if store == "default" else folder / store


def loading(
    root: Path, operator: int, store: str, version: int, codec: str, placing: dict[str, Any] | None
) -> Task:
    """Give the rows of the state partitions whose numbers come in.

    Each says where it belongs: where it is, or by `placing`, the arguments of `place_of`.
    """
    place_by_root = str(root)

    def load(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = place_of(**placing) if placing else None
        for batch in numbers:
            for partition in batch.column(0).to_pylist():
                folder = store_folder(place_by_root, operator, partition, store)
                rows = iter(hashmap.load(folder, version, codec).items())
                while some := list(islice(rows, _AT_A_TIME)):
                    keys, values = zip(*some, strict=True)
                    places = [place(key) for key in keys] if place else [partition] * len(keys)
                    yield _batch(LOADED_TYPES, places, keys, values, [FAMILY] * len(keys))

    return load


def writing(root: Path, operator: int, store: str, version: int, codec: str) -> Task:
    """Write what comes in as the state of the partition that it comes in as, and say how much it was."""
    to = str(root)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        folder = store_folder(to, operator, partition, store)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{version}.snapshot"
        temporary = files.beside(target)
        try:
            count = hashmap.write_snapshot(temporary, _pairs(batches), codec)
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
