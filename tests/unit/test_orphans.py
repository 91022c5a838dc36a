"""What the next sweep would delete, told from another process: exactly that, and never a pending file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fake_job import FakeJob
from tests.kept_job import KeptJob, tree
from weir.checkpoint import manifest as mf
from weir.checkpoint.pins import Pins
from weir.checkpoint.retention import drop, sweep
from weir.ids import CheckpointId
from weir.monitor import checkpoints as module
from weir.monitor.checkpoints import Orphans, orphans

QUERY = "queries/counts"


@dataclass
class Job:
    """One job: who runs it, and its files."""

    runner: FakeJob
    kept: KeptJob

    def orphans(self) -> Orphans:
        before = self.files()
        found = orphans(str(self.kept.folder), self.kept.job, self.runner.clock)
        assert self.files() == before
        return found

    def files(self) -> dict[str, bytes]:
        """All that a sweep may touch."""
        return {path: data for path, data in tree(self.kept.folder).items() if "/journal/" not in path}

    def swept_at_the_next_start(self) -> list[str]:
        there = mf.ids(self.kept.store, self.kept.job)
        for id in there["begun"] - there["chk"] - there["aborted"]:
            self.kept.abort(id)
        return sweep(self.kept.store, self.kept.job, [])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(FakeJob(tmp_path).state("RUNNING"), KeptJob(tmp_path, "wordcount"))


def keys(found: Orphans) -> list[str]:
    return [one.key for one in found.found]


def test_of_a_running_job_it_is_what_an_aborted_checkpoint_left(job: Job) -> None:
    pins, kept = job.kept.pins(), job.kept
    kept.take(1, pins, kept.batch(0), 0)
    assert keys(job.orphans()) == []
    kept.begin(2)
    left = pins.keep(QUERY, kept.batch(1), checkpoint=CheckpointId(2))
    kept.abort(2)
    found = job.orphans()
    assert found.under_way == [] and found.bytes == left.new_bytes > 0
    assert keys(found) == sweep(kept.store, kept.job, [])


def test_what_a_pending_checkpoint_of_a_running_job_keeps_is_no_orphan(job: Job) -> None:
    kept = job.kept
    kept.begin(1)
    kept.pins().keep(QUERY, kept.batch(0), checkpoint=CheckpointId(1))
    assert job.orphans() == Orphans([], [CheckpointId(1)])


@pytest.mark.parametrize("full", [False, True])
def test_of_a_job_that_nobody_runs_it_is_what_its_next_start_sweeps(job: Job, full: bool) -> None:
    kept = job.kept
    kept.begin(1)
    kept.pins().keep(QUERY, kept.batch(0), checkpoint=CheckpointId(1), full=full)
    job.runner.killed()
    found = job.orphans()
    assert found.under_way == [] and len(keys(found)) > 0
    assert keys(found) == job.swept_at_the_next_start()


def test_copies_are_told_by_their_path_and_counted(job: Job, tmp_path: Path) -> None:
    kept, place = job.kept, tmp_path / "copies"
    pins = kept.pins(copy_dir=place)
    kept.take(1, pins, kept.batch(0), 0)
    kept.begin(2)
    left = pins.keep(QUERY, kept.batch(1), checkpoint=CheckpointId(2))
    kept.abort(2)
    found = job.orphans()
    assert [key for key in keys(found) if key.startswith(f"{place}/wordcount/generations/0001/pins/")]
    assert found.bytes == 2 * left.new_bytes
    assert keys(found) == sweep(kept.store, kept.job, [])


@pytest.mark.parametrize("gone", [False, True])
def test_a_checkpoint_that_came_or_went_meanwhile_is_one_under_way(
    gone: bool, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, pins = job.kept, job.kept.pins()
    kept.take(1, pins, kept.batch(0), 0)

    def meanwhile(*args: object, **more: object) -> list[str]:
        if gone:
            drop(kept.store, kept.job, [CheckpointId(1)])
        else:
            begin_and_keep(kept, pins)
        return sweep(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "sweep", meanwhile)
    found = orphans(str(kept.folder), kept.job, job.runner.clock)
    assert found == Orphans([], [CheckpointId(1 if gone else 2)])


def begin_and_keep(kept: KeptJob, pins: Pins) -> None:
    kept.begin(2)
    pins.keep(QUERY, kept.batch(1), checkpoint=CheckpointId(2))
