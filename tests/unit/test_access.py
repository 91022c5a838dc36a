"""A job's directory is closed to other users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.played_driver import JOB, Driver, Run, plays_along
from weir.protocol.states import JobState
from weir.storage import paths
from weir.storage.open import close_to_others


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_directory_of_a_new_job_is_its_owners_alone(run: Run, drivers: list[Driver]) -> None:
    assert run(lambda client: None) is JobState.CANCELED
    assert mode(run.dir / JOB) == 0o700
    assert run.told.notes == [] or "open to other users" not in run.told.notes[0]


def test_one_that_was_open_is_closed_and_that_is_told_once(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir(mode=0o755)
    (tmp_path / JOB).chmod(0o755)
    told = close_to_others(str(tmp_path), JOB)
    assert "mode 0755" in told and "dir-access=umask" in told
    assert mode(tmp_path / JOB) == 0o700
    assert close_to_others(str(tmp_path), JOB) == ""


def test_a_start_notes_it(run: Run, drivers: list[Driver]) -> None:
    (run.dir / JOB).mkdir()
    (run.dir / JOB).chmod(0o775)
    assert run(lambda client: None) is JobState.CANCELED
    assert mode(run.dir / JOB) == 0o700
    assert len([note for note in run.told.notes if "closed now" in note]) == 1


def test_where_others_must_read_it_the_directory_is_left_as_it_is(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    (tmp_path / JOB).mkdir()
    (tmp_path / JOB).chmod(0o750)
    Driver.scripts = [plays_along]
    run = Run(tmp_path, {"execution.checkpointing.dir-access": "umask"})
    assert run(lambda client: None) is JobState.CANCELED
    assert mode(tmp_path / JOB) == 0o750


def test_what_is_kept_here_of_a_job_in_an_object_store_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert close_to_others("s3://bucket/jobs", JOB) == ""
    state = tmp_path / ".local/state/weir"
    (folder,) = state.glob(f"*/{paths.job(JOB)}")
    assert mode(state) == 0o700 and mode(folder) == 0o700


def test_a_place_that_refuses_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "other users may be able to read" in close_to_others(str(tmp_path / "file"), JOB)
