"""The testing tools that need no Spark: scripts, arming, and the comparison of results."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from weir.testing import (
    Crash,
    EndOfInput,
    Pause,
    Rows,
    ScriptedSource,
    armed,
    assert_same_result,
    fired,
    folded,
    write_script,
)
from weir.testing.script import ScriptPosition, Step, fire_once, read_script


def position(folder: Path, *steps: Step) -> ScriptPosition:
    write_script(folder / "script.jsonl", *steps)
    return ScriptPosition(folder / "script.jsonl", driver=0)


def test_a_script_is_read_as_it_was_written(tmp_path: Path) -> None:
    steps: list[Step] = [Rows([["a", 1]]), Crash(), Pause(seconds=0.5), Pause(until="gate"), EndOfInput()]
    write_script(tmp_path / "script.jsonl", *steps[:2])
    write_script(tmp_path / "script.jsonl", *steps[2:])
    assert read_script(tmp_path / "script.jsonl") == steps


def test_times_are_kept_as_text(tmp_path: Path) -> None:
    write_script(tmp_path / "script.jsonl", Rows([datetime(2026, 1, 2, 3, 4, 5)]))
    assert read_script(tmp_path / "script.jsonl") == [Rows(["2026-01-02T03:04:05"])]


def test_a_line_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    write_script(tmp_path / "script.jsonl", Rows([1]))
    with open(tmp_path / "script.jsonl", "a") as file:
        file.write('["Rows", {"ro')
    assert read_script(tmp_path / "script.jsonl") == [Rows([1])]
    assert read_script(tmp_path / "none.jsonl") == []


def test_each_rows_is_one_batch_and_the_end_is_the_end(tmp_path: Path) -> None:
    at = position(tmp_path, Rows([1, 2]), Rows([3]), EndOfInput(), Rows([4]))
    assert [at.next(0), at.next(1), at.next(2)] == [1, 2, 2]
    assert list(at.rows(0, 2)) == [1, 2, 3]


def test_a_pause_holds_until_its_file_is_there(tmp_path: Path) -> None:
    at = position(tmp_path, Rows([1]), Pause(until=str(tmp_path / "gate")), Rows([2]))
    assert at.next(1) == 1
    (tmp_path / "gate").touch()
    assert at.next(1) == 3


def test_a_query_that_ends_with_its_input_waits_out_a_pause(tmp_path: Path) -> None:
    at = position(tmp_path, Pause(seconds=0.05), Rows([1]))
    assert at.next(0) == 0
    at.until_end = True
    assert at.next(0) == 2


def test_a_crash_fires_once_over_all_attempts_and_kills_nobody_else(tmp_path: Path) -> None:
    at = position(tmp_path, Rows([1]), Crash(), Rows([2]))
    assert at.next(0) == 1
    with pytest.raises(RuntimeError, match="outside of 'weir run'"):
        at.next(1)
    assert at.next(1) == ScriptPosition(tmp_path / "script.jsonl", driver=0).next(1) == 3


def test_marks_are_left_once(tmp_path: Path) -> None:
    assert [fire_once(tmp_path / "marks", "a"), fire_once(tmp_path / "marks", "a")] == [True, False]


def test_steps_are_kept_for_the_next_attempt_and_may_not_change(tmp_path: Path) -> None:
    path = ScriptedSource([Rows([1])], folder=tmp_path).path
    assert ScriptedSource([Rows([1])], folder=tmp_path).path == path
    assert read_script(path) == [Rows([1])]
    with pytest.raises(ValueError, match="holds another script"):
        ScriptedSource([Rows([2])], folder=tmp_path)
    with pytest.raises(ValueError, match="needs a folder"):
        ScriptedSource([Rows([1])])


def test_faults_are_armed_by_the_environment(tmp_path: Path) -> None:
    given = armed("batch.staged#2:kill", "sink.committed:raise", folder=tmp_path / "marks")
    assert given["WEIR_FAULTS"] == "batch.staged#2:kill,sink.committed:raise"
    assert given["WEIR_FAULTS_DIR"] == str(tmp_path / "marks")
    assert armed(folder=tmp_path) == {}
    with pytest.raises(ValueError, match=r"no fault point 'batch\.stagd'"):
        armed("batch.stagd#1:kill", folder=tmp_path)


def test_what_fired_is_told_by_its_mark(tmp_path: Path) -> None:
    (tmp_path / "batch.staged#2").touch()
    assert fired(tmp_path) == {"batch.staged#2"}
    assert fired(tmp_path / "none") == set()


ROWS: list[dict[str, Any]] = [{"k": "a", "n": 1}, {"k": "b", "n": 1}, {"k": "a", "n": 2}]


def test_update_rows_fold_to_the_last_of_each_key() -> None:
    assert folded(ROWS, ["k"]) == {("a",): {"k": "a", "n": 2}, ("b",): {"k": "b", "n": 1}}


def test_in_update_mode_only_the_table_counts() -> None:
    assert_same_result(ROWS, [ROWS[2], ROWS[1]], mode="update", key=["k"])
    with pytest.raises(AssertionError, match=r"in 1 places \(seed 7\)"):
        assert_same_result(ROWS[:2], ROWS, mode="update", key=["k"], seed=7)
    with pytest.raises(ValueError, match="key columns"):
        assert_same_result(ROWS, ROWS, mode="update")


def test_in_append_mode_every_row_counts_as_often_as_it_is_there() -> None:
    assert_same_result(ROWS, ROWS[::-1])
    with pytest.raises(AssertionError, match="2 times, and 1 times in the quiet run"):
        assert_same_result([*ROWS, ROWS[0]], ROWS)
