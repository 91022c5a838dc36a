"""Rows of Spark's: how they are laid out, and where they belong. What Spark itself says is in the tests
with Spark; here are what follows from it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.spark.unsafe_row import Struct, UnknownTypeError, check, place_of, splice, struct_type


def schema(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"c{n}", "type": type, "nullable": True} for n, type in enumerate(types)]
    return {"type": "struct", "fields": fields}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


LONGS = st.none() | st.integers(-(2**63), 2**63 - 1)
WIDE = st.none() | st.integers(-(10**38), 10**38)
TEXTS = st.none() | st.binary(max_size=40)


def test_a_row_is_null_bits_words_and_what_does_not_fit() -> None:
    row = struct_type(schema("long", "string", "integer", "boolean")).pack([7, b"abc", None, True])
    assert row == (
        struct.pack("<q", 0b100)
        + struct.pack("<q", 7)
        + struct.pack("<q", 40 << 32 | 3)
        + bytes(8)
        + struct.pack("<q", 1)
        + b"abc"
        + bytes(5)
    )


def test_a_wide_decimal_has_a_place_even_when_it_is_null() -> None:
    type = struct_type(schema("decimal(38,2)"))
    assert type.pack([None]) == struct.pack("<qq", 1, 16 << 32) + bytes(16)
    assert type.pack([-1]) == struct.pack("<qq", 0, 16 << 32 | 1) + b"\xff" + bytes(15)
    assert type.pack([128]) == struct.pack("<qq", 0, 16 << 32 | 2) + b"\x00\x80" + bytes(14)


def test_an_array_has_its_elements_side_by_side() -> None:
    row = struct_type(schema(array("integer"))).pack([[1, None, 3]])
    inner = struct.pack("<qq", 3, 0b10) + struct.pack("<iii", 1, 0, 3) + bytes(4)
    assert row == struct.pack("<qq", 0, 16 << 32 | len(inner)) + inner


def test_a_row_needs_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 values for a row of 2 columns"):
        struct_type(schema("long", "long")).pack([1])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 300))
def test_a_key_belongs_into_one_of_the_partitions(value: int, partitions: int) -> None:
    row = struct_type(schema("long")).pack([value])
    assert 0 <= place_of(schema("long"), 1, partitions)(row) < partitions


@given(LONGS, TEXTS, LONGS)
def test_only_the_leading_columns_decide(first: int | None, second: bytes | None, index: int | None) -> None:
    whole = schema("long", "string", "long")
    row = struct_type(whole).pack([first, second, index])
    alone = struct_type(schema("long", "string")).pack([first, second])
    assert place_of(whole, 2, 97)(row) == place_of(schema("long", "string"), 2, 97)(alone)


@given(LONGS, TEXTS)
def test_a_struct_is_hashed_as_its_columns_are(first: int | None, second: bytes | None) -> None:
    nested = schema(schema("long", "string"))
    row = struct_type(nested).pack([[first, second]])
    flat = struct_type(schema("long", "string")).pack([first, second])
    assert place_of(nested, 1, 97)(row) == place_of(schema("long", "string"), 2, 97)(flat)


def test_zero_and_nothing_have_one_place_each() -> None:
    place = place_of(schema("double"), 1, 1009)
    pack = struct_type(schema("double")).pack
    quiet, loud = struct.unpack("<dd", struct.pack("<QQ", 0x7FF8 << 48, 0xFFF0 << 48 | 1))
    assert place(pack([0.0])) == place(pack([-0.0]))
    assert place(pack([quiet])) == place(pack([loud]))


VALUES: dict[str, Any] = {"long": LONGS, "string": TEXTS, "decimal(38,0)": WIDE, "integer": st.none()}


@given(st.data())
def test_splicing_takes_fields_and_adds_fresh_ones(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), max_size=70))
    old = struct_type(schema(*types))
    values = [data.draw(VALUES[type]) for type in types]
    sources = data.draw(st.lists(st.none() | st.integers(0, max(0, len(types) - 1)), max_size=10))
    sources = [one if types else None for one in sources]
    new = struct_type(schema(*("string" if one is None else types[one] for one in sources)))
    fresh = [b"fresh" for _ in sources]
    expected = [b"fresh" if one is None else values[one] for one in sources]
    assert splice(old.pack(values), old, sources, new, fresh) == new.pack(expected)


@pytest.mark.parametrize(
    ("unknown", "name"),
    [
        ("variant", "variant"),
        (array("interval"), "interval"),
        ({"type": "udt", "sqlType": "long"}, "udt"),
        (schema("geometry(4326)"), "geometry(4326)"),
    ],
)
def test_a_type_that_is_not_known_is_told(unknown: Any, name: str) -> None:
    assert check(schema("long", unknown)) == name


def test_a_collation_is_told() -> None:
    told = schema("string")
    told["fields"][0]["metadata"] = {"__COLLATIONS": {"c0": "icu.UNICODE_CI"}}
    assert check(told) == "string with a collation"


def test_maps_can_be_packed_and_are_no_keys() -> None:
    mapped = schema({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True})
    type = struct_type(mapped)
    assert isinstance(type, Struct)
    row = type.pack([[(b"a", 1), (b"b", None)]])
    with pytest.raises(UnknownTypeError):
        place_of(mapped, 1, 3)(row)
