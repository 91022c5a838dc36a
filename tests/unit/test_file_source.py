"""Logs of read files, cut: by time, and at an entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.spark.source_positions import count, modified_before, up_to


def log(*files: tuple[str, int, int]) -> bytes:
    lines = [json.dumps({"path": f"file:///in/{n}", "timestamp": t, "batchId": b}) for n, t, b in files]
    return "\n".join(["v1", *lines]).encode()


def names(made: bytes) -> list[str]:
    version, *lines = made.decode().split("\n")
    assert version == "v1"
    found = [json.loads(line) for line in lines]
    assert {one["batchId"] for one in found} == {0}, "all came with the only entry"
    return [one["path"].rpartition("/")[2] for one in found]


def test_only_what_was_modified_before_a_time_counts_as_read() -> None:
    every = log(("a", 10, 0), ("b", 20, 0), ("c", 30, 0))
    assert names(modified_before(every, 20)) == ["a"]
    assert names(modified_before(every, 21)) == ["a", "b"]
    assert modified_before(every, 10) == b""
    assert modified_before(b"", 10) == b""
    assert (count(every), count(b"")) == (3, 0)


def test_a_log_is_cut_at_an_entry_compacted_or_not(tmp_path: Path) -> None:
    (tmp_path / "1.compact").write_bytes(log(("a", 1, 0), ("b", 2, 1)))
    (tmp_path / "2").write_bytes(log(("c", 3, 2)))
    (tmp_path / "3").write_bytes(log(("d", 4, 3)))
    (tmp_path / ".3.crc").write_bytes(b"\0\xff")
    assert names(up_to(tmp_path, 2)) == ["a", "b", "c"]
    assert names(up_to(tmp_path, 0)) == ["a"], "the compaction tells its entries apart"
    assert names(up_to(tmp_path, 9)) == ["a", "b", "c", "d"]


def test_a_log_of_a_version_that_nobody_knows_is_not_read() -> None:
    with pytest.raises(ValueError, match="'v2'"):
        count(b"v2\n{}")
