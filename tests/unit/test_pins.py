"""The files of a checkpoint are kept: by links that are shared, by copies, or in the manifest itself."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import KeptJob, changes, tree, write
from weir.checkpoint import copies as copies_module
from weir.checkpoint import retention
from weir.checkpoint.copies import Copies
from weir.checkpoint.kept_files import KeptFiles
from weir.checkpoint.manifest import encode
from weir.checkpoint.pins import MEMORY_LIMIT, Pins
from weir.config import CheckpointStorage
from weir.errors import BadValueError, CheckpointTooLargeError, CopiesMismatchError, StorageError
from weir.ids import BatchId, CheckpointId
from weir.restore.point import verify
from weir.spark.closure import GoneError, closure
from weir.storage import files
from weir.storage.generation import FIRST
from weir.storage.object_store import ObjectStore

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
QUERY = "queries/counts"


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    return KeptJob(tmp_path / "weir")


def pinned(job: KeptJob) -> Path:
    return job.root() / "pins"


@pytest.mark.parametrize(
    ("ends", "kept"),
    [
        (["3", "3", "5"], {"0": [0, 1, 2, 3, 4, 5], "1": [0, 1, 2, 3, 4, 5]}),  # a frame twice, then another
        (["3", "5"], {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3, 4, 5]}),
    ],
)
def test_a_log_of_files_is_kept_up_to_where_its_source_stands(
    tmp_path: Path, ends: list[str], kept: dict[str, list[int]]
) -> None:
    """A frame that is used twice has two lines in the offset log and one folder: none may be cut short."""
    lines = [f'{{"logOffset":{end}}}' for end in ends]
    files = {"metadata": "{}", "offsets/0": "\n".join(["v1", '{"conf":{}}', *lines]), "commits/0": "v1\n{}"}
    files |= {f"sources/{folder}/{entry}": "v1" for folder in kept for entry in range(8)}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = [path.split("/") for path in closure(tmp_path, BatchId(0)).files if path.startswith("sources/")]
    assert {folder: sorted(int(n) for _, f, n in found if f == folder) for folder in kept} == kept


def test_the_closure_of_the_made_up_job_is_what_it_says(job: KeptJob) -> None:
    job.batch(0)
    names = job.batch(1)
    assert set(closure(job.root() / QUERY, 1).files) == set(names)  # type: ignore[arg-type]


def test_a_file_is_linked_summed_up_and_survives_its_purge(job: KeptJob) -> None:
    names = job.batch(0)
    kept = job.pins().keep(QUERY, names, checkpoint=ONE)
    live = job.root() / QUERY
    assert [file.path for file in kept.files] == [f"{QUERY}/{name}" for name in names]
    for file in kept.files:
        assert os.path.samefile(job.root() / file.path, pinned(job) / file.path)
        assert files.checksum(pinned(job) / file.path) == files.Sum(file.bytes, file.crc)
    content = tree(live)
    for name in names:
        (live / name).unlink()
    assert tree(pinned(job) / QUERY) == content
    assert kept.new_bytes == sum(file.bytes for file in kept.files)
    assert kept.seconds.keys() == {"pinning", "copying"}


def test_only_what_is_new_is_read_and_counted(job: KeptJob, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = job.pins()
    first = pins.keep(QUERY, job.batch(0), checkpoint=ONE)
    read = watch_reading(monkeypatch)
    second = pins.keep(QUERY, job.batch(1), checkpoint=TWO)
    new = {f"{QUERY}/{name}" for name in ("offsets/1", "commits/1", "state/0/0/2.delta")}
    assert read == new
    assert second.new_bytes == sum(file.bytes for file in second.files if file.path in new)
    old = {file.path: file for file in first.files}
    assert all(old.get(file.path, file) == file for file in second.files)
    read.clear()
    again = pins.keep(QUERY, job.batch(1), checkpoint=TWO)
    assert (again.files, again.new_bytes, read) == (second.files, second.new_bytes, set())


def test_after_a_start_what_retained_checkpoints_have_is_known(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    read = watch_reading(monkeypatch)
    pins = job.pins()
    pins.seed([manifest])
    kept = pins.keep(QUERY, job.batch(0), checkpoint=TWO)
    assert (kept.files, kept.new_bytes, read) == (manifest.queries["counts"].files, 0, set())


def test_what_only_an_aborted_checkpoint_had_is_new(job: KeptJob) -> None:
    pins = job.pins()
    first = pins.keep(QUERY, job.batch(0), checkpoint=ONE)
    assert pins.keep(QUERY, job.batch(0), checkpoint=TWO).new_bytes == 0
    job.abort(1)
    assert pins.keep(QUERY, job.batch(0), checkpoint=THREE).new_bytes == first.new_bytes


def test_a_pin_that_a_killed_driver_left_is_used(job: KeptJob) -> None:
    names = job.batch(0)
    target = pinned(job) / QUERY / names[0]
    target.parent.mkdir(parents=True)
    os.link(job.root() / QUERY / names[0], target)
    kept = job.pins().keep(QUERY, names, checkpoint=ONE)
    assert len(kept.files) == len(names)
    assert kept.new_bytes == sum(file.bytes for file in kept.files)


def test_a_file_that_vanished_says_so_and_leaves_the_rest_usable(job: KeptJob) -> None:
    names = job.batch(0)
    (job.root() / QUERY / "commits/0").unlink()
    with pytest.raises(GoneError, match="commits/0"):
        job.pins().keep(QUERY, names, checkpoint=ONE)
    assert len(job.pins().keep(QUERY, job.batch(0), checkpoint=ONE).files) == len(names)


def test_a_pin_outlives_the_live_file_that_was_written_again(job: KeptJob) -> None:
    pins = job.pins()
    first = pins.keep(QUERY, job.batch(0), checkpoint=ONE)
    delta = job.root() / QUERY / "state/0/0/1.delta"
    delta.unlink()
    delta.write_text("by somebody else")
    assert pins.keep(QUERY, job.batch(0), checkpoint=TWO).files == first.files
    assert (pinned(job) / QUERY / "state/0/0/1.delta").read_bytes() == changes(0)


def test_where_there_are_no_links_files_are_copied(job: KeptJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "not on this file system")

    names = job.batch(0)
    monkeypatch.setattr(os, "link", no_link)
    kept = job.pins().keep(QUERY, names, checkpoint=ONE)
    assert tree(pinned(job) / QUERY) == tree(job.root() / QUERY)
    assert not os.path.samefile(pinned(job) / QUERY / names[0], job.root() / QUERY / names[0])
    assert job.pins().keep(QUERY, names, checkpoint=ONE).files == kept.files


def test_a_full_checkpoint_shares_nothing(job: KeptJob) -> None:
    pins = job.pins()
    names = job.batch(0)
    shared = pins.keep(QUERY, names, checkpoint=ONE)
    kept = pins.keep(QUERY, names, checkpoint=TWO, full=True)
    assert (kept.files, kept.new_bytes) == (shared.files, shared.new_bytes)
    for file in kept.files:
        assert os.stat(pinned(job) / "full-2" / file.path).st_nlink == 1
    assert tree(pinned(job) / "full-2" / QUERY) == tree(job.root() / QUERY)
    (job.root() / QUERY / "commits/0").unlink()
    with pytest.raises(GoneError, match="commits/0"):
        pins.keep(QUERY, names, checkpoint=THREE, full=True)


def test_a_full_disk_is_said_in_words(job: KeptJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    names = job.batch(0)
    with monkeypatch.context() as disk:
        disk.setattr(os, "link", full)
        with pytest.raises(StorageError, match="the disk is full"):
            job.pins().keep(QUERY, names, checkpoint=ONE)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            job.pins().keep(QUERY, names, checkpoint=ONE, full=True)
    assert not [path for path in pinned(job).rglob("*") if files.is_temporary(path.name)]


def test_names_are_on_the_disk_when_it_returns(job: KeptJob, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr(files, "sync_folder", synced.add)
    pins = job.pins()
    pins.keep(QUERY, job.batch(0), checkpoint=ONE)
    names = [pinned(job) / QUERY / name for name in ("offsets/0", "state/0/0/1.delta")]
    assert synced >= {folder for name in names for folder in files.up_to(name, job.root())}
    synced.clear()
    pins.keep(QUERY, job.batch(0), checkpoint=TWO)
    assert not synced
    pins.keep(QUERY, job.batch(1), checkpoint=THREE)
    assert synced == {pinned(job) / QUERY / name for name in ("offsets", "commits", "state/0/0")}, (
        "the folders above them are on the disk"
    )


def test_a_folder_that_was_swept_and_made_again_is_on_the_disk(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = job.pins()
    kept = pins.keep(QUERY, job.batch(0), checkpoint=ONE)
    pins.remove([file.path for file in kept.files])
    files.remove_empty(pinned(job))
    synced: set[Path] = set()
    monkeypatch.setattr(files, "sync_folder", synced.add)
    names = [pinned(job) / file.path for file in pins.keep(QUERY, job.batch(0), checkpoint=TWO).files]
    assert synced == {folder for name in names for folder in files.up_to(name, job.root())}


def test_folders_that_are_made_while_others_are_synced_are_synced_by_their_own_checkpoint(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = job.pins()
    other = job.batch(0, query="other")
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        if not synced:  # in the midst of the first
            synced.append(folder)
            pins.keep("queries/other", other, checkpoint=ONE)
        synced.append(folder)

    monkeypatch.setattr(files, "sync_folder", sync)
    pins.keep(QUERY, job.batch(0), checkpoint=ONE)
    synced.clear()
    synced.append(job.root())  # nothing in between any more
    pins.keep(QUERY, job.batch(1), checkpoint=TWO)
    assert pinned(job) in synced, "what was made meanwhile is no reason to think that all is on the disk"


@pytest.mark.parametrize("inline", [0, 10_000])
def test_a_snapshot_that_was_written_again_is_not_kept_with_the_files_of_the_first(
    job: KeptJob, inline: int
) -> None:
    def snapshot(table: str) -> None:
        write(folder / "SSTs" / table, table)
        with zipfile.ZipFile(folder / "new", "w") as made:
            made.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": table}]}))
        os.replace(folder / "new", folder / "3.zip")

    folder = job.root() / QUERY / "state/0/0"
    listed = ["state/0/0/3.zip", "state/0/0/SSTs/a.sst"]
    snapshot("a.sst")
    snapshot("b.sst")
    pins = job.pins(inline=inline)
    with pytest.raises(GoneError, match=r"3\.zip"):
        pins.keep(QUERY, listed, checkpoint=ONE)
    listed = ["state/0/0/3.zip", "state/0/0/SSTs/b.sst"]
    kept = pins.keep(QUERY, listed, checkpoint=ONE)
    snapshot("c.sst")
    with pytest.raises(GoneError, match=r"3\.zip"):
        pins.keep(QUERY, ["state/0/0/3.zip", "state/0/0/SSTs/c.sst"], checkpoint=TWO)
    assert pins.keep(QUERY, listed, checkpoint=TWO).files == kept.files


def test_two_threads_may_keep_at_once(job: KeptJob) -> None:
    names = job.batch(0)
    for query in ("a", "b"):
        job.batch(0, query=query)
    pins = job.pins()
    work = [(query, k) for k in (1, 2) for query in ("counts", "a", "b")]
    results: dict[Any, Any] = {}

    def keep(query: str, k: int) -> None:
        results[query, k] = pins.keep(f"queries/{query}", names, checkpoint=CheckpointId(k))

    threads = [threading.Thread(target=keep, args=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(work)
    assert all(results[query, 1].files == results[query, 2].files for query in ("counts", "a", "b"))


def test_what_is_removed_can_be_kept_again(job: KeptJob) -> None:
    pins = job.pins()
    manifest = job.take(1, pins, job.batch(0), 0)
    pins.remove(manifest.kept())
    assert not tree(pinned(job))
    kept = pins.keep(QUERY, job.batch(0), checkpoint=TWO)
    assert kept.files == manifest.queries["counts"].files
    assert kept.new_bytes == manifest.new_bytes


def test_a_pin_that_an_aborted_checkpoint_left_is_not_taken_for_another_file_of_its_name(
    job: KeptJob,
) -> None:
    """After a power loss a batch ran again, and wrote other changes under the same name."""
    names = job.batch(0)
    state = next(name for name in names if name.endswith(".delta"))
    job.pins().keep(QUERY, names, checkpoint=ONE)
    job.abort(1)
    write(job.root() / QUERY / state, changes(7))
    with pytest.raises(StorageError, match="an aborted checkpoint kept another file of this name"):
        job.pins().keep(QUERY, names, checkpoint=TWO)
    retention.sweep(job.store, job.job, [])
    manifest = job.take(3, job.pins(), names, 0)
    assert KeptFiles(job.store, manifest).content(
        next(file for file in manifest.files() if file.path.endswith(state))
    ) == changes(7)


def test_where_there_are_no_links_a_pin_that_is_there_is_compared_by_its_content(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no links")

    monkeypatch.setattr(os, "link", no_links)
    names = job.batch(0)
    first = job.pins().keep(QUERY, names, checkpoint=ONE)
    assert job.pins().keep(QUERY, names, checkpoint=TWO).files == first.files


# storage memory


def in_memory(job: KeptJob) -> Pins:
    return Pins(job.store, job.job, FIRST, storage=CheckpointStorage.MEMORY)


def test_in_memory_the_manifest_has_the_contents(job: KeptJob) -> None:
    names = job.batch(0)
    kept = in_memory(job).keep(QUERY, names, checkpoint=ONE)
    assert all(file.inline for file in kept.files)
    assert kept.new_bytes == sum(file.bytes for file in kept.files)
    assert not pinned(job).exists()
    (job.root() / QUERY / names[0]).unlink()
    with pytest.raises(GoneError, match=names[0]):
        in_memory(job).keep(QUERY, names, checkpoint=ONE)


def test_in_memory_the_limit_is_for_the_whole_checkpoint(job: KeptJob) -> None:
    half = "x" * (MEMORY_LIMIT // 2)
    for query in ("a", "b"):
        write(job.root() / f"queries/{query}/big", half)
    write(job.root() / "queries/c/small", "y")
    pins = in_memory(job)
    for k in (ONE, TWO, ONE):
        for query in ("a", "b"):
            pins.keep(f"queries/{query}", ["big"], checkpoint=k)
    with pytest.raises(CheckpointTooLargeError, match=r"execution\.checkpointing\.storage: filesystem"):
        pins.keep("queries/c", ["small"], checkpoint=TWO)
    pins.keep("queries/c", ["small"], checkpoint=THREE)


# small files


def large(job: KeptJob) -> str:
    name = "state/0/0/1.snapshot"
    write(job.root() / QUERY / name, "x" * 1001)
    return name


def test_small_files_are_in_the_manifest_and_have_no_pin(job: KeptJob, tmp_path: Path) -> None:
    names = [*job.batch(0), large(job)]
    second = tmp_path / "second"
    manifest = job.take(1, job.pins(inline=1000, copy_dir=second), names, 0)
    assert [file.path for file in manifest.files()] == [f"{QUERY}/{name}" for name in names]
    assert list(tree(pinned(job))) == list(manifest.kept()) == [f"{QUERY}/{large(job)}"]
    assert tree(second / "job/generations/0001/pins") == tree(pinned(job))
    assert manifest.new_bytes == manifest.full_bytes > 1001
    assert verify(job.store, manifest) == []
    small = [file for file in manifest.files() if file.within]
    kept = KeptFiles(job.store, manifest)
    assert {file.path: kept.content(file) for file in small} == {
        file.path: (job.root() / file.path).read_bytes() for file in small
    }


def test_a_small_file_is_read_once_and_new_once(job: KeptJob) -> None:
    first = job.take(1, job.pins(inline=1000), job.batch(0), 0)
    again = job.pins(inline=1000)
    again.seed([first])
    names = job.batch(1)
    (job.root() / QUERY / "offsets/0").unlink()
    second = job.take(2, again, names, 1)
    new = {file.path for file in second.files()} - {file.path for file in first.files()}
    assert second.new_bytes == sum(file.bytes for file in second.files() if file.path in new)
    assert verify(job.store, second) == []


def test_a_start_with_a_lower_limit_links_what_was_in_the_manifest(job: KeptJob) -> None:
    first = job.take(1, job.pins(inline=1000), job.batch(0), 0)
    again = job.pins()
    again.seed([first])
    second = job.take(2, again, job.batch(0), 0)
    assert not any(file.within for file in second.files())
    assert sorted(tree(pinned(job))) == sorted(second.kept())


def test_what_a_dead_checkpoint_linked_is_found_where_the_live_file_is_gone(job: KeptJob) -> None:
    names = job.batch(0)
    job.pins().keep(QUERY, names, checkpoint=ONE)
    (job.root() / QUERY / "offsets/0").unlink()
    kept = job.pins(inline=1000).keep(QUERY, names, checkpoint=TWO)
    assert [file.path for file in kept.files if not file.within] == [f"{QUERY}/offsets/0"]


# copy-dir


def test_new_files_are_copied_to_the_second_place(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    pins = job.pins(copy_dir=second)
    first = job.take(1, pins, job.batch(0), 0)
    assert first.copied_to == str(second)
    below = second / "job/generations/0001/pins"
    assert tree(below) == tree(pinned(job))
    assert not os.path.samefile(below / QUERY / "metadata", pinned(job) / QUERY / "metadata")
    stamp = os.stat(below / QUERY / "metadata").st_ino
    manifest = job.take(2, pins, job.batch(1), 1, full=True)
    assert tree(below) == tree(pinned(job))
    assert os.stat(below / QUERY / "metadata").st_ino == stamp
    assert (second / "job/checkpoints/chk-2.json").read_bytes() == encode(manifest)
    pins.remove(manifest.kept())
    pins.remove_copies(manifest.kept())
    assert tree(below) == tree(pinned(job))
    assert not tree(below / "full-2")


def test_a_start_copies_only_what_is_not_copied(
    job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = job.take(1, job.pins(), job.batch(0), 0)
    copied: list[str] = []
    copy = files.copy

    def watched(source: Path, target: Path) -> files.Sum:
        copied.append(target.name)
        return copy(source, target)

    monkeypatch.setattr(files, "copy", watched)
    pins = job.pins(copy_dir=tmp_path / "second")
    pins.seed([here])
    there = job.take(2, pins, job.batch(0), 0)
    assert len(copied) == len(list(there.files()))
    copied.clear()
    pins = job.pins(copy_dir=tmp_path / "second")
    pins.seed([here, there])
    job.take(3, pins, job.batch(0), 0)
    assert copied == []


def test_a_copy_is_tried_again(job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, failures = files.copy, iter([errno.EIO, errno.EIO, errno.EIO])

    def shaky(source: Path, target: Path) -> files.Sum:
        mine = "second" in str(target) and target.match(f"{QUERY}/metadata")
        if mine and (number := next(failures, 0)):
            raise OSError(number, "now and then")
        return copy(source, target)

    monkeypatch.setattr(files, "copy", shaky)
    began = job.clock.monotonic()
    job.take(1, job.pins(copy_dir=tmp_path / "second"), job.batch(0), 0)
    assert tree(tmp_path / "second/job/generations/0001/pins") == tree(pinned(job))
    assert job.clock.monotonic() - began >= sum(copies_module._PAUSES)


def test_a_place_that_stays_away_is_said_in_words(
    job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    names = job.batch(0)
    pins = job.pins(copy_dir=second)
    pins.keep(QUERY, names, checkpoint=ONE)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "copy", full)
    assert pins.keep(QUERY, names, checkpoint=TWO).files
    with pytest.raises(StorageError, match="the disk is full"):
        pins.keep(QUERY, job.batch(1), checkpoint=TWO)
    monkeypatch.undo()
    pins.keep(QUERY, job.batch(1), checkpoint=THREE)
    assert tree(second / "job/generations/0001/pins") == tree(pinned(job))


def test_a_pin_that_was_damaged_is_not_copied_as_if_it_were_whole(job: KeptJob, tmp_path: Path) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0)
    (pinned(job) / QUERY / "metadata").write_text("something else")
    pins = job.pins(copy_dir=tmp_path / "second")
    pins.seed([manifest])
    with pytest.raises(StorageError, match="it has changed since it was kept"):
        pins.keep(QUERY, job.batch(0), checkpoint=TWO)


def test_copies_of_another_life_of_the_job_are_not_written_over(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    job.take(1, job.pins(copy_dir=second), job.batch(0), 0)
    before = tree(second)
    anew = KeptJob(tmp_path / "anew")
    pins = anew.pins(copy_dir=second)
    with pytest.raises(CopiesMismatchError, match="chk-<number>"):
        pins.keep(QUERY, anew.batch(0), checkpoint=ONE)
    assert tree(second) == before


def test_the_second_place_is_not_the_first(job: KeptJob) -> None:
    with pytest.raises(BadValueError, match="which already holds the files"):
        job.pins(copy_dir=job.folder)


def test_an_object_store_is_no_place_for_pins(job: KeptJob) -> None:
    with pytest.raises(BadValueError, match="directory of a file system"):
        Pins(ObjectStore("memory://"), job.job, FIRST)


def test_an_object_store_may_be_the_second_place(job: KeptJob, tmp_path: Path) -> None:
    copies = Copies("memory://", job.job, job.clock, ObjectStore("memory://"))
    source = write(tmp_path / "source", "content")
    assert copies.checksum(FIRST, "a/b") is None
    assert copies.fetch(FIRST, "a/b", tmp_path / "back") is None
    sums = copies.put(FIRST, {"a/b": source, "c": source})
    assert set(sums.values()) == {files.checksum(source)} == {copies.checksum(FIRST, "a/b")}
    assert copies.kept() == [(FIRST, "a/b"), (FIRST, "c")]
    assert copies.fetch(FIRST, "a/b", tmp_path / "back") == files.checksum(source)
    assert (tmp_path / "back").read_text() == "content"
    copies.remove([(FIRST, "c"), (FIRST, "never")])
    assert copies.kept() == [(FIRST, "a/b")]
    copies.claim("one")
    copies.claim("one")
    with pytest.raises(CopiesMismatchError):
        copies.claim("two")


def watch_reading(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    read: set[str] = set()
    checksum = files.checksum

    def watched(path: Path) -> files.Sum:
        read.add(str(path).partition("/pins/")[2])
        return checksum(path)

    monkeypatch.setattr(files, "checksum", watched)
    return read


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a thread a priority of its own")
def test_work_that_gives_way_leaves_the_other_threads_their_priority() -> None:
    def niceness(_item: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness(0)
    assert set(files.parallel(niceness, range(3), give_way=True)) == {min(19, before + 10)}
    assert set(files.parallel(niceness, range(3))) == {before} and niceness(0) == before
    assert files.parallel(niceness, [], give_way=True) == []


def test_no_more_are_worked_on_at_once_than_allowed() -> None:
    together = threading.Barrier(2)
    places = threading.Semaphore(2)

    def work(item: int) -> int:
        assert places.acquire(blocking=False), "a third one is at work"
        together.wait(10)
        places.release()
        return item

    assert files.parallel(work, range(6), at_once=2, give_way=True) == list(range(6))


def test_what_takes_no_time_stays_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ALONE", 60.0)
    assert set(files.parallel(lambda _item: threading.get_ident(), range(9))) == {threading.get_ident()}


def test_what_takes_long_gets_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ALONE", 0.0)
    together = threading.Barrier(3)

    def work(item: int) -> int:
        together.wait(10)
        return item

    assert files.parallel(work, range(3)) == list(range(3)), "in order, three of them at once"


def test_a_failure_is_raised_when_nobody_is_at_work_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ALONE", 0.0)
    failing, raised, ended = threading.Event(), threading.Event(), threading.Event()

    def work(item: int) -> None:
        if item == 0:
            assert failing.wait(10), "the other one is not at work"
            raised.set()
            raise ValueError("item 0")
        failing.set()
        assert raised.wait(10)
        ended.set()

    with pytest.raises(ValueError, match="item 0"):
        files.parallel(work, range(2))
    assert ended.is_set()
