"""What may go goes, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.kept_job import KeptJob, tree, write
from weir.channel.facts import Checkpoints
from weir.channel.position import Status
from weir.checkpoint.retention import ABORTED_KEPT, drop, drop_copied, sweep
from weir.clock import ManualClock
from weir.ids import CheckpointId, Generation
from weir.restore.fetch import fetch
from weir.restore.intent import intend
from weir.restore.point import verify
from weir.restore.request import RestoreRequest
from weir.storage import Store, paths
from weir.storage import generation as generations
from weir.storage.generation import mark_live
from weir.storage.local import LocalStore

QUERY = "queries/counts"


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    return KeptJob(tmp_path / "weir")


class Killed(BaseException):
    """As sudden as a kill: nothing in between may tidy up."""


class DyingStore(LocalStore):
    """Dies at the n-th deletion; `deleted` is what it did before."""

    def __init__(self, root: Path, after: int) -> None:
        super().__init__(root)
        self.left = after

    def delete(self, key: str) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        super().delete(key)


def test_a_reader_at_the_barrier_of_a_dropped_checkpoint_never_waits(job: KeptJob) -> None:
    job.take(7, job.pins(), job.batch(0), 0)
    for after in range(3):
        store = DyingStore(job.folder, after)
        with suppress(Killed):
            drop(store, job.job, [CheckpointId(7)])
        folder = LocalStore(job.folder / paths.checkpoints(job.job))
        assert Checkpoints(folder).status(CheckpointId(7)) is not Status.PENDING
    drop(job.store, job.job, [CheckpointId(7)])
    assert list(job.store.list(paths.checkpoints(job.job))) == []


def test_what_no_checkpoint_needs_is_swept_and_live_files_are_not(job: KeptJob) -> None:
    pins = job.pins()
    old = job.take(1, pins, job.batch(0), 0)
    job.take(2, pins, job.batch(1), 1, full=True)
    new = job.take(3, pins, job.batch(1), 1)
    live = tree(job.root() / "queries")
    drop(job.store, job.job, [CheckpointId(1), CheckpointId(2)])
    foretold = sweep(job.store, job.job, [new], dry_run=True)
    before = tree(job.folder)
    assert set(foretold) == {
        f"job/generations/0001/pins/{name}"
        for name in [f"{QUERY}/commits/0", *(f"full-2/{file.path}" for file in new.files())]
    }
    assert sweep(job.store, job.job, [new]) == foretold
    assert tree(job.folder) == {path: data for path, data in before.items() if path not in foretold}
    assert tree(job.root() / "queries") == live
    assert not (job.root() / "pins/full-2").exists()
    assert verify(job.store, new) == []
    assert verify(job.store, old) == [f"{QUERY}/commits/0 is gone"]
    assert sweep(job.store, job.job, [new]) == []


def test_what_an_aborted_checkpoint_made_is_swept_unless_another_one_is_pending_on_it(job: KeptJob) -> None:
    pins = job.pins()
    names = job.batch(0)
    job.begin(1)
    kept = pins.keep(QUERY, names, checkpoint=CheckpointId(1))
    job.begin(2)
    pins.keep(QUERY, names, checkpoint=CheckpointId(2), full=True)
    write(job.root() / "pins" / QUERY / ".offsets.1.tmp", "half")
    job.abort(1)
    pending = [file.path for file in kept.files if "state" in file.path]
    swept = sweep(job.store, job.job, [], pending)
    assert len(swept) == len(kept.files) - len(pending)
    left = tree(job.root() / "pins")
    assert {path for path in left if path.startswith(QUERY)} == {*pending, f"{QUERY}/.offsets.1.tmp"}
    assert len([path for path in left if path.startswith("full-2")]) == len(names)
    job.abort(2)
    sweep(job.store, job.job, [])
    assert not (job.root() / "pins").exists()
    assert len(job.pins().keep(QUERY, names, checkpoint=CheckpointId(3)).files) == len(names)


def test_a_checkpoint_that_the_caller_left_out_keeps_its_files(job: KeptJob) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    assert sweep(job.store, job.job, []) == []
    assert verify(job.store, manifest) == []


def test_nothing_is_swept_while_a_manifest_can_not_be_read(job: KeptJob) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    job.store.put(paths.completed(job.job, CheckpointId(1)), b"{half")
    assert sweep(job.store, job.job, []) == []
    assert verify(job.store, manifest) == []


def test_it_may_be_killed_anywhere_and_goes_on(job: KeptJob) -> None:
    pins = job.pins()
    job.take(1, pins, job.batch(0), 0)
    new = job.take(2, pins, job.batch(1), 1)
    job.begin(3)
    job.abort(3)
    pins.keep(QUERY, job.batch(2), checkpoint=CheckpointId(3))
    for after in range(100):
        store = DyingStore(job.folder, after)
        try:
            drop(store, job.job, [CheckpointId(1)])
            sweep(store, job.job, [new])
        except Killed:
            assert verify(job.store, new) == []
        else:
            break
    assert verify(job.store, new) == []
    assert {*tree(job.root() / "pins")} == {file.path for file in new.files()}


def test_records_of_aborted_checkpoints_stay_for_a_while(job: KeptJob) -> None:
    for id in range(1, ABORTED_KEPT + 4):
        job.begin(id)
        job.abort(id)
    pairs = {f"job/checkpoints/{kind}-{id}.json" for kind in ("begun", "aborted") for id in (1, 2, 3)}
    assert set(sweep(job.store, job.job, [])) == pairs
    assert len(list(job.store.list(paths.checkpoints(job.job)))) == 2 * ABORTED_KEPT


def test_a_manifest_of_a_checkpoint_that_was_aborted_goes(job: KeptJob) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    job.abort(1)
    swept = sweep(job.store, job.job, [])
    assert swept[0] == "job/checkpoints/chk-1.json"
    assert len(swept) == 1 + len(list(manifest.files()))


def test_pins_of_a_generation_stay_as_long_as_a_checkpoint_of_it_is_retained(job: KeptJob) -> None:
    first = job.take(1, job.pins(), job.batch(0), 0)
    second = restored(job.store, job, 1)
    assert sweep(job.store, job.job, [first]) == []
    new = job.take(2, job.pins(second), job.batch(1, generation=second), 1, generation=second)
    assert sweep(job.store, job.job, [first, new]) == []
    drop(job.store, job.job, [CheckpointId(1)])
    assert len(sweep(job.store, job.job, [new])) == len(list(first.files()))
    assert tree(job.root(1) / "queries")
    assert verify(job.store, new) == []


def test_a_restore_that_was_never_finished_leaves_only_its_origin(job: KeptJob) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    dead = intended(job.store, job, 1)
    fetch(job.store, job.job, dead)
    again = intended(job.store, job, 1, accept_duplicates=True)
    fetch(job.store, job.job, again)
    assert sweep(job.store, job.job, [manifest]) == []
    mark_live(job.store, job.job, again)
    sweep(job.store, job.job, [manifest])
    assert list(tree(job.root(dead))) == ["origin.json"]
    assert len(tree(job.root(again) / "queries")) == len(list(manifest.files()))


def test_a_restore_that_was_dropped_leaves_only_that(job: KeptJob) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    dead = intended(job.store, job, 1)
    fetch(job.store, job.job, dead)
    assert sweep(job.store, job.job, [manifest]) == [], "it may be taken up again"
    assert generations.drop(job.store, job.job, dead, "a test")
    assert sweep(job.store, job.job, [manifest], dry_run=True)
    sweep(job.store, job.job, [manifest])
    assert list(tree(job.root(dead))) == ["dropped.json", "origin.json"]
    assert generations.opening(job.store, job.job) is None
    assert sweep(job.store, job.job, [manifest]) == []


# copies


def test_copies_go_with_their_checkpoints(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    pins = job.pins(copy_dir=second)
    old = job.take(1, pins, job.batch(0), 0)
    new = job.take(2, pins, job.batch(1), 1)
    drop(job.store, job.job, [CheckpointId(1)])
    drop_copied(job.job, [old])
    assert sorted(path.name for path in (second / "job/checkpoints").iterdir()) == ["chk-2.json"]
    swept = sweep(job.store, job.job, [new], copy_dir=str(second))
    orphan = f"job/generations/0001/pins/{QUERY}/commits/0"
    assert swept == [orphan, f"{second}/{orphan}"]
    assert tree(second / "job/generations/0001/pins") == tree(job.root() / "pins")


def test_manifests_among_the_copies_that_are_old_or_aborted_go(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    pins = job.pins(copy_dir=second)
    for id in (1, 2, 3):
        job.take(id, pins, job.batch(0), 0)
    job.store.delete(paths.completed(job.job, CheckpointId(1)))
    job.store.delete(paths.completed(job.job, CheckpointId(3)))
    job.abort(3)
    sweep(job.store, job.job, [], copy_dir=str(second))
    assert [path.name for path in (second / "job/checkpoints").iterdir()] == ["chk-2.json"]


@pytest.mark.parametrize("anew", [True, False])
def test_copies_of_a_lost_job_are_never_swept(job: KeptJob, tmp_path: Path, anew: bool) -> None:
    second = tmp_path / "second"
    job.take(1, job.pins(copy_dir=second), job.batch(0), 0)
    before = tree(second)
    other = KeptJob(tmp_path / "other")
    if anew:
        other.take(1, other.pins(), other.batch(0), 0)
    sweep(other.store, other.job, [], copy_dir=str(second))
    assert tree(second) == before


def intended(store: Store, job: KeptJob, id: int, accept_duplicates: bool = False) -> Generation:
    return intend(
        store,
        job.job,
        RestoreRequest(f"chk-{id}", accept_duplicates=accept_duplicates),
        clock=ManualClock(),
        why="a test",
    )


def restored(store: Store, job: KeptJob, id: int) -> Generation:
    number = intended(store, job, id)
    fetch(store, job.job, number)
    mark_live(store, job.job, number)
    return number
