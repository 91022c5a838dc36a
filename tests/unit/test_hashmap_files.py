"""The files of Spark's hashmap backend: what is written is read again, and what is torn is told."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.spark import hashmap
from weir.spark.hashmap import DamagedFileError, load, read, write_snapshot
from weir.spark.reshape import HASHMAP_CODECS

Rows = dict[bytes, bytes]

ROWS = {f"key {n}".encode(): bytes([n % 256]) * (n % 50) for n in range(5000)}
"""More than one block of the compression."""


def delta(path: Path, changes: dict[bytes, bytes | None]) -> None:
    """A delta as Spark writes one: a snapshot in which a length of -1 deletes the key."""
    data = b""
    for key, value in changes.items():
        data += struct.pack(">i", len(key)) + key
        data += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(data + struct.pack(">i", -1))


@pytest.mark.parametrize("codec", HASHMAP_CODECS)
@given(rows=st.dictionaries(st.binary(max_size=60), st.binary(max_size=200)))
def test_what_is_written_is_read_again(codec: str, rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert write_snapshot(Path(folder) / "7.snapshot", rows.items(), codec) == len(rows)
        assert load(Path(folder), 7, codec) == rows


@pytest.mark.parametrize("codec", HASHMAP_CODECS)
@pytest.mark.parametrize("rows", [{}, ROWS, {b"": b""}, {b"big": bytes(200_000)}], ids=len)
def test_many_blocks_or_none(codec: str, rows: Rows, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "1.snapshot", rows.items(), codec)
    assert dict(read(tmp_path / "1.snapshot", codec)) == rows


def test_the_newest_snapshot_counts_and_the_deltas_behind_it(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "2.snapshot", [(b"old", b"")], "zstd")
    write_snapshot(tmp_path / "4.snapshot", [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], "zstd")
    delta(tmp_path / "5.delta", {b"a": b"2", b"b": None, b"never": None})
    delta(tmp_path / "6.delta", {b"b": b"3", b"d": b"3"})
    write_snapshot(tmp_path / "7.snapshot", [(b"later", b"")], "zstd")
    assert load(tmp_path, 6, "zstd") == {b"a": b"2", b"b": b"3", b"c": b"1", b"d": b"3"}
    assert load(tmp_path, 4, "zstd") == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_without_a_snapshot_all_deltas_count(tmp_path: Path) -> None:
    delta(tmp_path / "1.delta", {b"a": b"1"})
    delta(tmp_path / "2.delta", {b"b": b"2"})
    assert load(tmp_path, 2, "zstd") == {b"a": b"1", b"b": b"2"}
    with pytest.raises(FileNotFoundError):
        load(tmp_path, 3, "zstd")


@pytest.mark.parametrize("codec", HASHMAP_CODECS)
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
def test_a_file_that_ends_too_early_is_torn(codec: str, kept: float, tmp_path: Path) -> None:
    file = tmp_path / "1.snapshot"
    write_snapshot(file, ROWS.items(), codec)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DamagedFileError):
        load(tmp_path, 1, codec)


@given(at=st.floats(min_value=0, max_value=1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_never_goes_unseen(at: float, bit: int) -> None:
    """The level in a block's header is the one thing that nobody reads."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "1.snapshot"
        write_snapshot(file, list(ROWS.items())[:200], "lz4")
        data = bytearray(file.read_bytes())
        data[int(len(data) * at)] ^= 1 << bit
        file.write_bytes(data)
        try:
            found = load(Path(folder), 1, "lz4")
        except DamagedFileError:
            return
        assert found == dict(list(ROWS.items())[:200])


def test_a_block_says_how_it_was_packed(tmp_path: Path) -> None:
    """As `LZ4BlockOutputStream` of Java writes it, with blocks of 32 KiB."""
    write_snapshot(tmp_path / "1.snapshot", [(b"", bytes(40_000))], "lz4")
    data = (tmp_path / "1.snapshot").read_bytes()
    assert data[:9] == b"LZ4Block" + bytes([0x25])
    packed, plain = struct.unpack_from("<ii", data, 9)
    assert plain == 32 * 1024 > packed
    assert data.endswith(b"LZ4Block" + bytes([0x15]) + bytes(12))


def test_bytes_that_do_not_shrink_are_kept_as_they_are(tmp_path: Path) -> None:
    import random

    noise = random.Random(1).randbytes(32 * 1024)
    write_snapshot(tmp_path / "1.snapshot", [(b"k", noise)], "lz4")
    assert (tmp_path / "1.snapshot").read_bytes()[8] == 0x15
    assert hashmap.load(tmp_path, 1, "lz4") == {b"k": noise}
