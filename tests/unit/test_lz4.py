"""LZ4 in blocks: two readers, one for all and one for the beginning, of what one writer writes."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.spark import lz4


def written(plain: bytes) -> bytes:
    file = io.BytesIO()
    with lz4.writing(file) as stream:
        stream.write(plain)
    return file.getvalue()


@given(
    st.lists(st.sampled_from([b"", b"a", b"abc" * 400, bytes(70_000), bytes(range(256)) * 9])).map(b"".join)
)
def test_both_readers_read_what_is_written(plain: bytes) -> None:
    data = written(plain)
    assert b"".join(lz4.read(io.BytesIO(data))) == plain
    assert b"".join(lz4.beginning(io.BytesIO(data))) == plain
    assert lz4.has_end(io.BytesIO(data))


def test_without_its_end_it_is_damaged_and_its_beginning_is_not() -> None:
    data = written(b"header" * 100)[:-21]
    assert not lz4.has_end(io.BytesIO(data)) and not lz4.has_end(io.BytesIO(b""))
    assert b"".join(lz4.beginning(io.BytesIO(data))) == b"header" * 100
    with pytest.raises(lz4.LZ4Error, match="ends too early"):
        list(lz4.read(io.BytesIO(data)))


def test_what_lz4_never_wrote_is_refused_by_both() -> None:
    for read in (lz4.read, lz4.beginning):
        with pytest.raises(lz4.LZ4Error, match="not valid LZ4"):
            list(read(io.BytesIO(b"PK" + bytes(60))))


def test_a_changed_byte_is_found() -> None:
    data = bytearray(written(b"header" * 100))
    data[30] ^= 1
    with pytest.raises(lz4.LZ4Error):
        list(lz4.read(io.BytesIO(data)))
