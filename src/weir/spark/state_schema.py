"""Spark's files that say which columns the keys and values of a state store have.

Each begins with its version, as `DataOutputStream.writeUTF` writes it. Version 2 (`_metadata/schema`
below partition 0) has one key and one value; version 3 (`_stateSchema/`) has them for each column
family, with how the key is laid out. A schema is a count of pieces, then the pieces of its JSON.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

_PIECE = 65535 // 4
"""So many characters fit into one piece, whatever they are."""


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
    reader = _Reader(data)
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


class _Reader:
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
