"""Spark's files that say which columns the keys and values of a state store have.

Each begins with its version, as `DataOutputStream.writeUTF` writes it. Version 2 (`_metadata/schema`
below partition 0) has one key and one value; version 3 (`_stateSchema/`) has them for each column
family, with how the key is laid out. A schema is a count of pieces, then the pieces of its JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weir.ids import BatchId
from weir.protocol.operators import Family, Operator, StateStore
from weir.spark.closure import GoneError, closure
from weir.spark.logs import OperatorEntry, schema_files, store_folder

_PIECE = 65535 // 4
"""How many characters fit into one piece, whatever they are."""


@dataclass(frozen=True)
class Columns:
    """The columns of one column family, as Spark's JSON of a struct."""

    family: str
    key: dict[str, Any]
    value: dict[str, Any]
    encoder: dict[str, Any] = field(default_factory=dict)
    """How the key is laid out; only version 3 says so."""
    user_key: dict[str, Any] | None = None
    """The key inside a map state; only version 3."""


def read_schemas(data: bytes) -> list[Columns]:
    """The columns that a schema file describes; raises `ValueError` for one that can't be read."""
    reader = _SchemaReader(data)
    version = reader.utf()
    if version == "v1":
        return [Columns("default", json.loads(reader.utf()), json.loads(reader.utf()))]
    if version == "v2":
        return [Columns("default", reader.json(), reader.json())]
    if version == "v3":
        return [reader.family() for _ in range(reader.integer())]
    raise ValueError(f"a state schema of version {version} is not known to this weir")


def schema_file(key: dict[str, Any], value: dict[str, Any]) -> bytes:
    """A schema file of version 2: one key, one value."""
    return _utf("v2") + _pieces(key) + _pieces(value)


def _pieces(schema: dict[str, Any]) -> bytes:
    text = json.dumps(schema, separators=(",", ":"))
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    return struct.pack(">i", len(pieces)) + b"".join(map(_utf, pieces))


def _utf(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


class _SchemaReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def family(self) -> Columns:
        """Name, number and schema of the key, number and schema of the value, layout, user's key."""
        name = self.utf()
        self._take(2)
        key = self.json()
        self._take(2)
        value = self.json()
        encoder, user_key = self.json(), self.json()
        return Columns(name, key, value, encoder, user_key or None)

    def json(self) -> Any:
        return json.loads("".join(self.utf() for _ in range(self.integer())))

    def integer(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def utf(self) -> str:
        """Java's modified UTF-8; it differs from UTF-8 only in what no schema has."""
        (length,) = struct.unpack(">H", self._take(2))
        return self._take(length).decode()

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("the state schema ends too early")
        self._at += count
        return taken


# The operators that keep state in a query, read from its checkpointLocation alone, without Spark.
#
# Spark numbers operators from the sink upwards and describes each in `state/<id>/_metadata`; the schema
# of its keys and values is in files beside its state. All of it is as of one committed batch. Nothing
# here writes.


def operators(root: Path, batch: BatchId) -> tuple[Operator, ...]:
    """The operators of a committed batch of the query whose checkpointLocation is `root`, by id.

    Raises `GoneError` when a file of the batch is not there.
    """
    try:
        sizes = {name: (root / name).stat().st_size for name in closure(root, batch).files}
        return described(sizes, lambda name: (root / name).read_bytes())
    except FileNotFoundError as error:
        raise GoneError(str(error.filename)) from error


def described(sizes: Mapping[str, int], read: Callable[[str], bytes]) -> tuple[Operator, ...]:
    """The operators whose state consists of these files, the closure of one batch, with their sizes."""
    ids = sorted({int(name.split("/")[1]) for name in sizes if name.startswith("state/")})
    return tuple(_operator(id, sizes, read) for id in ids)


def _operator(id: int, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> Operator:
    folder = f"state/{id}"
    needed = [name for name in sizes if name.startswith(f"{folder}/")]
    description = next(name for name in needed if name.startswith(f"{folder}/_metadata/"))
    entry = OperatorEntry.parse(read(description))
    partitions = {name.split("/")[2] for name in needed} - {"_metadata", "_stateSchema"}
    return Operator(
        id=id,
        kind=entry.kind,
        stores=tuple(_store(id, store, needed, read) for store in entry.stores),
        partitions=len(partitions),
        properties=entry.properties,
        bytes=sum(sizes[name] for name in needed),
    )


def _store(id: int, store: dict[str, Any], needed: list[str], read: Callable[[str], bytes]) -> StateStore:
    name = store["storeName"]
    files = schema_files(store, f"state/{id}")[-1:] or [f"{store_folder(id, 0, name)}/_metadata/schema"]
    schemas = [columns for file in files if file in needed for columns in read_schemas(read(file))]
    prefix = store.get("numColsPrefixKey", 0)
    return StateStore(name=name, prefix_columns=prefix, families=tuple(map(_family, schemas)))


def _family(columns: Columns) -> Family:
    return Family(
        name=columns.family,
        key_schema=columns.key,
        value_schema=columns.value,
        key_encoder=columns.encoder,
        user_key_schema=columns.user_key,
    )
