"""Spark's UnsafeRow: where the row of a key belongs, and how a row is made of plain values.

A row is its null bits, then eight bytes for each field, then what does not fit into them. Keys and
values of state are kept in that form, so state can be moved and edited without Spark's classes. A
schema is Spark's JSON of a struct; a type that is not known here raises `UnknownTypeError`.

A plain value is what Spark stores: None, an int (also for dates, times and decimals, unscaled), a
float, bytes (strings in UTF-8), a sequence for a struct or an array, pairs for a map.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

SEED = 42
"""Spark's seed of the hash by which rows find their partition."""

_MASK = 0xFFFFFFFF
_WORD = struct.Struct("<q")
_DECIMAL = re.compile(r"decimal\((\d+),\s*-?\d+\)")
_LONG_DIGITS = 18
_COLLATIONS = "__COLLATIONS"


class UnknownTypeError(ValueError):
    """A type that rows of state are not moved or made with."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Type(ABC):
    """One type of Spark's: how its values lie in a row, and how they are hashed."""

    width: ClassVar[int] = 8
    """Bytes of a value within an array; 8 for what lies elsewhere."""

    @abstractmethod
    def hash(self, row: memoryview, at: int, seed: int) -> int:
        """The hash of the value whose eight bytes are at `at`; `row` begins where offsets count from."""

    @abstractmethod
    def put(self, into: bytearray, at: int, tail: bytearray, value: Any) -> None:
        """Write a value into its bytes at `at`, and what does not fit after the end."""

    def put_null(self, into: bytearray, at: int, tail: bytearray) -> None:
        """Null has zeros for its bytes, and nothing after the end, in nearly every type."""
        into[at : at + self.width] = bytes(self.width)


class _Fixed(Type):
    def __init__(self, form: str, *, wide: bool) -> None:
        self._form = struct.Struct(form)
        self.width = self._form.size  # type: ignore[misc]
        self._hash = _hash_long if wide else _hash_int

    def hash(self, row: memoryview, at: int, seed: int) -> int:
        (value,) = self._form.unpack_from(row, at)
        return self._hash(value, seed)

    def put(self, into: bytearray, at: int, tail: bytearray, value: Any) -> None:
        self._form.pack_into(into, at, value)

    def get(self, row: memoryview, at: int) -> Any:
        """The value whose eight bytes are at `at`."""
        return self._form.unpack_from(row, at)[0]

    def lies_like(self, other: Type) -> bool:
        """Whether the bytes of both mean the same."""
        return isinstance(other, _Fixed) and self._form.format == other._form.format


class _Floating(_Fixed):
    """Hashed by its bits, but zero and NaN have one form each."""

    def __init__(self, form: str, *, wide: bool) -> None:
        super().__init__(form, wide=wide)
        self._bits = struct.Struct("<q" if wide else "<i")
        self._nan = struct.unpack("<q", struct.pack("<Q", 0x7FF8 << 48))[0] if wide else 0x7FC00000

    def hash(self, row: memoryview, at: int, seed: int) -> int:
        (value,) = self._form.unpack_from(row, at)
        if value == 0:
            bits = 0
        elif value != value:
            bits = self._nan
        else:
            (bits,) = self._bits.unpack_from(row, at)
        return self._hash(bits, seed)


class _Nothing(Type):
    """`void`: always null."""

    def hash(self, row: memoryview, at: int, seed: int) -> int:
        return seed

    def put(self, into: bytearray, at: int, tail: bytearray, value: Any) -> None:
        raise ValueError(f"{value!r} in a column that is always null")


class _Elsewhere(Type):
    """A type whose word says where in the row the value is, and how long."""

    def hash(self, row: memoryview, at: int, seed: int) -> int:
        (word,) = _WORD.unpack_from(row, at)
        start = word >> 32
        return self.hash_bytes(row[start : start + (word & _MASK)], seed)

    def put(self, into: bytearray, at: int, tail: bytearray, value: Any) -> None:
        self.put_bytes(into, at, tail, self.pack(value))

    def put_bytes(self, into: bytearray, at: int, tail: bytearray, data: bytes) -> None:
        """The same with a value that is packed already."""
        _WORD.pack_into(into, at, (len(into) + len(tail)) << 32 | len(data))
        tail += data + bytes(self.room(len(data)) - len(data))

    def room(self, size: int) -> int:
        """The bytes that a value of this size takes after the end."""
        return size + -size % 8

    @abstractmethod
    def hash_bytes(self, data: memoryview, seed: int) -> int: ...

    @abstractmethod
    def pack(self, value: Any) -> bytes: ...


class _Bytes(_Elsewhere):
    def hash_bytes(self, data: memoryview, seed: int) -> int:
        return _hash_bytes(data, seed)

    def pack(self, value: Any) -> bytes:
        return bytes(value)


class _Decimal(_Elsewhere):
    """More digits than a long has: the unscaled number, in a place of 16 bytes that null has too."""

    def hash_bytes(self, data: memoryview, seed: int) -> int:
        return _hash_bytes(data, seed)

    def pack(self, value: Any) -> bytes:
        number = int(value)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return number.to_bytes(size, "big", signed=True)

    def room(self, size: int) -> int:
        return 16

    def put_null(self, into: bytearray, at: int, tail: bytearray) -> None:
        self.put_bytes(into, at, tail, b"")


class Struct(_Elsewhere):
    """A struct; also the complete row of a key or a value."""

    def __init__(self, fields: Sequence[Type]) -> None:
        self.fields = tuple(fields)
        self._bits = -(-len(self.fields) // 64) * 8

    def hash_bytes(self, data: memoryview, seed: int) -> int:
        for number, type in enumerate(self.fields):
            if not data[number >> 3] >> (number & 7) & 1:
                seed = type.hash(data, self._bits + 8 * number, seed)
        return seed

    def pack(self, value: Any) -> bytes:
        if len(value) != len(self.fields):
            raise ValueError(f"{len(value)} values for a row of {len(self.fields)} columns")
        fixed, tail = bytearray(self._bits + 8 * len(self.fields)), bytearray()
        for number, (type, one) in enumerate(zip(self.fields, value, strict=True)):
            at = self._bits + 8 * number
            if one is None:
                fixed[number >> 3] |= 1 << (number & 7)
                type.put_null(fixed, at, tail)
            else:
                type.put(fixed, at, tail, one)
        return bytes(fixed + tail)


class _Array(_Elsewhere):
    def __init__(self, element: Type) -> None:
        self._element = element

    def hash_bytes(self, data: memoryview, seed: int) -> int:
        (count,) = _WORD.unpack_from(data, 0)
        start = 8 + -(-count // 64) * 8
        for number in range(count):
            if not data[8 + (number >> 3)] >> (number & 7) & 1:
                seed = self._element.hash(data, start + self._element.width * number, seed)
        return seed

    def pack(self, value: Any) -> bytes:
        start = 8 + -(-len(value) // 64) * 8
        size = self._element.width * len(value)
        fixed, tail = bytearray(start + size + -size % 8), bytearray()
        _WORD.pack_into(fixed, 0, len(value))
        for number, one in enumerate(value):
            at = start + self._element.width * number
            if one is None:
                fixed[8 + (number >> 3)] |= 1 << (number & 7)
                self._element.put_null(fixed, at, tail)
            else:
                self._element.put(fixed, at, tail, one)
        return bytes(fixed + tail)


class _Map(_Elsewhere):
    def __init__(self, key: Type, value: Type) -> None:
        self._keys, self._values = _Array(key), _Array(value)

    def hash_bytes(self, data: memoryview, seed: int) -> int:
        raise UnknownTypeError("map")  # Spark has no keys with maps

    def pack(self, value: Any) -> bytes:
        keys = self._keys.pack([key for key, _ in value])
        return _WORD.pack(len(keys)) + keys + self._values.pack([one for _, one in value])


def struct_type(schema: Mapping[str, Any]) -> Struct:
    """The type of a struct from Spark's JSON; raises `UnknownTypeError`."""
    return Struct([_field(field) for field in schema["fields"]])


def check(schema: Mapping[str, Any]) -> str | None:
    """The first type of a schema that is not known here, or None."""
    try:
        struct_type(schema)
    except UnknownTypeError as error:
        return error.name
    return None


def place_of(key: Mapping[str, Any], columns: int, partitions: int) -> Callable[[bytes], int]:
    """The partition in which Spark looks for a row, by the first `columns` columns of its key."""
    leading = struct_type({"fields": key["fields"][:columns]})
    bits = -(-len(key["fields"]) // 64) * 8
    columns_at = [(number, type, bits + 8 * number) for number, type in enumerate(leading.fields)]

    def place(row: bytes) -> int:
        view = memoryview(row)
        seed = SEED
        for number, type, at in columns_at:
            if not row[number >> 3] >> (number & 7) & 1:
                seed = type.hash(view, at, seed)
        return (seed - (seed >> 31 << 32)) % partitions

    return place


def splice(row: bytes, old: Struct, fields: Sequence[int | None], new: Struct, fresh: Sequence[Any]) -> bytes:
    """A row of the type `new`: each field is a field of the old row, or a fresh plain value.

    A number that the new row has with more bytes is written with those.
    """
    view = memoryview(row)
    bits = -(-len(old.fields) // 64) * 8
    made_bits = -(-len(new.fields) // 64) * 8
    fixed, tail = bytearray(made_bits + 8 * len(new.fields)), bytearray()
    for number, (type, source) in enumerate(zip(new.fields, fields, strict=True)):
        at = made_bits + 8 * number
        null = fresh[number] is None if source is None else bool(row[source >> 3] >> (source & 7) & 1)
        if null:
            fixed[number >> 3] |= 1 << (number & 7)
            type.put_null(fixed, at, tail)
        elif source is None:
            type.put(fixed, at, tail, fresh[number])
        elif isinstance(type, _Elsewhere):
            (word,) = _WORD.unpack_from(view, bits + 8 * source)
            type.put_bytes(fixed, at, tail, bytes(view[word >> 32 : (word >> 32) + (word & _MASK)]))
        elif isinstance(before := old.fields[source], _Fixed) and not before.lies_like(type):
            type.put(fixed, at, tail, before.get(view, bits + 8 * source))
        else:
            fixed[at : at + 8] = view[bits + 8 * source : bits + 8 * source + 8]
    return bytes(fixed + tail)


_SIMPLE: dict[str, Callable[[], Type]] = {
    "boolean": lambda: _Fixed("<b", wide=False),
    "byte": lambda: _Fixed("<b", wide=False),
    "short": lambda: _Fixed("<h", wide=False),
    "integer": lambda: _Fixed("<i", wide=False),
    "date": lambda: _Fixed("<i", wide=False),
    "long": lambda: _Fixed("<q", wide=True),
    "timestamp": lambda: _Fixed("<q", wide=True),
    "timestamp_ntz": lambda: _Fixed("<q", wide=True),
    "float": lambda: _Floating("<f", wide=False),
    "double": lambda: _Floating("<d", wide=True),
    "string": _Bytes,
    "binary": _Bytes,
    "void": _Nothing,
}
_PATTERNS: list[tuple[str, Callable[[], Type]]] = [
    (r"(var)?char\(\d+\)", _Bytes),
    (r"interval (day|hour|minute|second)( to .*)?", _SIMPLE["long"]),
    (r"interval (year|month)( to .*)?", _SIMPLE["integer"]),
]


def _field(field: Mapping[str, Any]) -> Type:
    if _COLLATIONS in (field.get("metadata") or {}):
        raise UnknownTypeError("string with a collation")
    return _type(field["type"])


def _type(named: Any) -> Type:
    if isinstance(named, str):
        return _atomic(named)
    if named["type"] == "struct":
        return struct_type(named)
    if named["type"] == "array":
        return _Array(_type(named["elementType"]))
    if named["type"] == "map":
        return _Map(_type(named["keyType"]), _type(named["valueType"]))
    raise UnknownTypeError(str(named["type"]))


def _atomic(name: str) -> Type:
    if name in _SIMPLE:
        return _SIMPLE[name]()
    if (match := _DECIMAL.fullmatch(name)) is not None:
        return _SIMPLE["long"]() if int(match[1]) <= _LONG_DIGITS else _Decimal()
    for pattern, make in _PATTERNS:
        if re.fullmatch(pattern, name):
            return make()
    raise UnknownTypeError(name)


def _mix(seed: int, word: int) -> int:
    """One round of Murmur3 over an unsigned word of 32 bits."""
    word = word * 0xCC9E2D51 & _MASK
    seed ^= (word << 15 | word >> 17) * 0x1B873593 & _MASK
    return ((seed << 13 | seed >> 19) * 5 + 0xE6546B64) & _MASK


def _finish(seed: int, length: int) -> int:
    seed ^= length
    seed = (seed ^ seed >> 16) * 0x85EBCA6B & _MASK
    seed = (seed ^ seed >> 13) * 0xC2B2AE35 & _MASK
    return seed ^ seed >> 16


def _hash_int(value: int, seed: int) -> int:
    return _finish(_mix(seed, value & _MASK), 4)


def _hash_long(value: int, seed: int) -> int:
    return _finish(_mix(_mix(seed, value & _MASK), value >> 32 & _MASK), 8)


def _hash_bytes(data: memoryview, seed: int) -> int:
    """Not the usual Murmur3: the bytes after the last full word are each a word, with their sign."""
    length = len(data)
    words = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:words]):
        seed = _mix(seed, word)
    for byte in data[words:]:
        seed = _mix(seed, byte | 0xFFFFFF00 if byte > 127 else byte)
    return _finish(seed, length)
