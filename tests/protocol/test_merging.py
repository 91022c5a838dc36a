"""Which small files are merged: few stay, and no row is written again often."""

from __future__ import annotations

import pytest

from weir.sinks.compaction import FAN, MOST, next_merge, partition_of

TARGET = 1 << 27


def names(count: int, partition: str = "") -> list[str]:
    return [f"data/{n:09d}-1-1/{partition}part-0" for n in range(count)]


def test_a_few_small_files_are_left_alone() -> None:
    assert next_merge(dict.fromkeys(names(FAN - 1), 1000), TARGET) == []
    assert next_merge(dict.fromkeys(names(FAN), 1000), TARGET) == names(FAN)


def test_what_is_large_enough_is_never_written_again() -> None:
    assert next_merge(dict.fromkeys(names(1000), TARGET // 2), TARGET) == []


def test_a_merge_makes_a_file_of_about_the_target_and_not_more() -> None:
    size = TARGET // 5
    assert next_merge(dict.fromkeys(names(FAN), size), TARGET) == names(5) + names(6)[5:]
    assert len(next_merge(dict.fromkeys(names(10 * MOST), 10), TARGET)) == MOST


def test_partitions_do_not_mix() -> None:
    many = dict.fromkeys(names(FAN, "day=1/"), 10) | dict.fromkeys(names(FAN - 1, "day=2/"), 10)
    assert {partition_of(name) for name in next_merge(many, TARGET)} == {"day=1"}
    few = dict.fromkeys(names(FAN - 1, "day=1/"), 10) | dict.fromkeys(names(FAN - 1, "day=2/"), 10)
    assert next_merge(few, TARGET) == []


@pytest.mark.parametrize("size", [1_000, 50_000, 3_000_000])
def test_in_the_long_run_files_are_few_and_rows_are_seldom_written_again(size: int) -> None:
    files: dict[str, int] = {}
    written = total = most = 0
    for number in range(3_000):
        files[f"data/{number}/part-0"] = size
        total += size
        while merge := next_merge(files, TARGET):
            made = sum(files.pop(name) for name in merge)
            files[f"merged/{number}-{len(files)}/part-0"] = made
            written += made
        most = max(most, sum(1 for one in files.values() if 2 * one < TARGET))
    assert most <= 4 * FAN
    assert written / total < 5
