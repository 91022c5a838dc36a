"""Live files that Spark could not start from are found before it tries."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kept_job import CONF, KeptJob, blocks, source_logs, write
from weir.clock import ManualClock
from weir.ids import BatchId, CheckpointId
from weir.restore.damage import look
from weir.restore.fetch import fetch
from weir.restore.intent import intend
from weir.restore.query_damage import Damage, FileContents, LogFacts, collect, judge
from weir.restore.request import RestoreRequest
from weir.savepoint.take import SavepointFacts, take
from weir.storage import files, paths
from weir.storage import generation as generations
from weir.storage.generation import FIRST, mark_live


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    made = KeptJob(tmp_path / "weir")
    for number in range(3):
        made.batch(number)
    return made


def query(job: KeptJob) -> Path:
    return job.root() / "queries/counts"


def found(job: KeptJob) -> list[str]:
    return [damage.text for damage in look(job.store, job.job, generations.live(job.store, job.job))]


def test_whole_files_are_whole(job: KeptJob) -> None:
    assert found(job) == []
    shutil.copy(query(job) / "offsets/2", query(job) / "offsets/3")
    assert found(job) == []


def test_a_job_that_never_ran_is_whole(tmp_path: Path) -> None:
    assert found(KeptJob(tmp_path, lineage=False)) == []
    new = KeptJob(tmp_path / "new")
    assert found(new) == []
    write(new.root() / "queries/counts/metadata", '{"id":"0"}')
    assert found(new) == []


def empty(path: Path) -> None:
    write(path, "")


def cut_off(path: Path) -> None:
    write(path, path.read_text()[:20])


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


CASES: list[tuple[str, Callable[[Path], object], str]] = [
    ("offsets/2", empty, "is empty"),
    ("offsets/2", cut_off, "is cut off"),
    ("offsets/2", Path.unlink, "is gone"),
    ("offsets/1", empty, "is empty"),
    ("offsets/1", Path.unlink, "is gone"),
    ("commits/2", empty, "is empty"),
    ("commits/2", cut_off, "is cut off"),
    ("state/0/0/3.delta", empty, "is empty"),
    ("state/0/0/3.delta", halved, "is cut off"),
    ("state/0/0/1.delta", Path.unlink, "is gone"),
    ("state/0/_metadata/metadata", empty, "is empty"),
    ("metadata", empty, "is empty"),
    ("metadata", Path.unlink, "is gone"),
]


@pytest.mark.parametrize(("file", "damage", "words"), CASES)
def test_a_torn_file_is_found(job: KeptJob, file: str, damage: Callable[[Path], object], words: str) -> None:
    damage(query(job) / file)
    said = found(job)
    assert len(said) == 1
    assert words in said[0] or "can't be read" in said[0]
    assert "of query counts" in said[0]


def test_a_planned_batch_whose_offsets_are_empty_is_torn(job: KeptJob) -> None:
    empty(query(job) / "offsets/3")
    assert found(job) == ["offsets/3 of query counts is empty"]


def test_a_hole_between_the_logs_is_found(job: KeptJob) -> None:
    (query(job) / "commits/2").unlink()
    assert found(job) == []
    (query(job) / "commits/1").unlink()
    assert found(job) == ["commits/1 of query counts is gone"]


def test_what_a_checkpoint_has_and_the_live_files_have_not_is_lost(job: KeptJob) -> None:
    job.take(1, job.pins(), job.batch(2), 2)
    assert found(job) == []
    (query(job) / "commits/2").unlink()
    assert found(job) == ["commits/2 of query counts is lost: a checkpoint has batch 2, the newest is 1"]
    shutil.rmtree(query(job))
    assert found(job) == ["commits/2 of query counts is lost: a checkpoint has batch 2, the newest is -1"]


def test_when_everything_but_the_checkpoints_is_gone_it_is_lost(job: KeptJob, tmp_path: Path) -> None:
    pins = job.pins(copy_dir=tmp_path / "second")
    job.take(1, pins, job.batch(2), 2)
    shutil.rmtree(job.folder / paths.generations(job.job))
    assert found(job) == ["commits/2 of query counts is lost: a checkpoint has batch 2, the newest is -1"]
    restored(job)
    assert found(job) == []


def test_a_restored_generation_must_have_what_it_was_restored_with(job: KeptJob) -> None:
    job.take(1, job.pins(), job.batch(2), 2)
    job.batch(3)
    job.take(2, job.pins(), job.batch(3), 3)
    restored(job)
    assert generations.live(job.store, job.job) != FIRST
    assert found(job) == []
    shutil.rmtree(job.root(2) / "queries")
    assert found(job) == ["commits/2 of query counts is lost: a checkpoint has batch 2, the newest is -1"]


def test_a_checkpoint_of_another_life_says_nothing_of_a_generation(job: KeptJob, tmp_path: Path) -> None:
    other = KeptJob(tmp_path / "other life")
    for batch in range(3):
        names = other.batch(batch)
    manifest = other.take(1, other.pins(), names, 2)
    saved = take(
        other.store, manifest, str(tmp_path / "saved"), SavepointFacts("request", "me", 0.0), other.clock
    )
    for batch in range(4):
        names = job.batch(batch)
    job.take(1, job.pins(), names, 3)
    restored(job, saved.place)
    assert found(job) == [], "the other chk-1 has one batch more"


def restored(job: KeptJob, point: str = "chk-1") -> None:
    number = intend(
        job.store, job.job, RestoreRequest(point, accept_duplicates=True), clock=ManualClock(), why="a test"
    )
    fetch(job.store, job.job, number)
    mark_live(job.store, job.job, number)


def test_an_unreadable_manifest_expects_nothing(job: KeptJob) -> None:
    job.take(1, job.pins(), job.batch(2), 2)
    job.store.put(paths.completed(job.job, CheckpointId(1)), b"{half")
    assert found(job) == []


@pytest.mark.parametrize(
    ("planned", "committed", "expected", "file"),
    [
        (-1, -1, -1, None),
        (0, -1, -1, None),
        (5, 5, 5, None),
        (6, 5, 3, None),
        (7, 5, 3, "commits/6"),
        (4, 5, 3, "offsets/5"),
        (5, 5, 6, "commits/6"),
        (-1, -1, 0, "commits/0"),
    ],
)
def test_the_verdict_is_a_matter_of_numbers(
    planned: int, committed: int, expected: int, file: str | None
) -> None:
    found = judge("q", LogFacts(BatchId(planned), BatchId(committed)), BatchId(expected))
    assert [damage.file for damage in found] == ([file] if file else [])


def test_what_is_wrong_with_files_is_said_as_it_was_found() -> None:
    facts = LogFacts(BatchId(5), BatchId(5), {"a": "is empty", "b": "is gone"})
    assert judge("q", facts, BatchId(5)) == [Damage("q", "a", "is empty"), Damage("q", "b", "is gone")]


UID = "3f0c6ad1-1c7e-4d3c-9f57-0d4b1a2c3d4e"
SST, CHANGELOG = f"SSTs/000008-{UID}.sst", f"3_{UID}.changelog"


@pytest.fixture
def rocksdb(tmp_path: Path) -> Path:
    """The files of a query with RocksDB, format 2: a snapshot of version 2, and a changelog behind it."""
    job = KeptJob(tmp_path / "rocksdb")
    job.batch(2, generation=1)
    root = query(job)
    conf = {**CONF, "spark.sql.streaming.stateStore.providerClass": "RocksDB"}
    for batch in (1, 2):
        write(root / f"offsets/{batch}", "\n".join(["v1", json.dumps({"conf": conf}), '{"logOffset":1}']))
        for name, content in source_logs(['{"logOffset":1}']).items():
            write(root / name, content)
    write(root / "commits/2", "v2\n" + json.dumps({"stateUniqueIds": {"0": [[UID]]}}))
    folder = root / "state/0/0"
    write(folder / SST, "keys and values")
    with zipfile.ZipFile(folder / f"2_{UID}.zip", "w") as made:
        told = {"sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": SST[5:], "sizeBytes": 15}]}
        made.writestr("metadata", "v1\n" + json.dumps(told))
    lineage = json.dumps([{"version": 2, "checkpointUniqueId": UID}]).encode()
    plain = b"\0\2v3" + struct.pack(">H", len(lineage)) + lineage
    write(folder / CHANGELOG, blocks(plain))
    for name in (f"2_{UID}.zip", CHANGELOG):
        size = (folder / name).stat().st_size
        write(folder / f"{name}.crc", json.dumps({"algorithm": "CRC32C", "mainFileSize": size}))
    return root


def test_rocksdb_s_files_are_whole(rocksdb: Path) -> None:
    assert not collect(rocksdb).wrong and not collect(rocksdb, FileContents({})).wrong


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (SST, "has 7 bytes, and should have 15"),
        (
            f"2_{UID}.zip",
            f"can't be read: state/0/0/2_{UID}.zip: the snapshot can't be read: File is not a zip file",
        ),
        (f"2_{UID}.zip.crc", "is cut off"),
        (f"{CHANGELOG}.crc", "is cut off"),
    ],
)
def test_a_file_of_another_size_than_it_should_have_is_found(rocksdb: Path, file: str, words: str) -> None:
    halved(rocksdb / "state/0/0" / file)
    assert list((collect(rocksdb).wrong or {}).values()) == [words]


def test_a_changelog_that_lost_its_end_is_found(rocksdb: Path) -> None:
    file = rocksdb / "state/0/0" / CHANGELOG
    size = file.stat().st_size
    os.truncate(file, size - 1)
    told = f"has {size - 1} bytes, and should have {size}"
    assert collect(rocksdb).wrong == {f"state/0/0/{CHANGELOG}": told}
    file.with_name(f"{CHANGELOG}.crc").unlink()  # format 1 has none
    assert collect(rocksdb).wrong == {f"state/0/0/{CHANGELOG}": "is cut off"}


def test_offsets_that_lost_their_end_are_found(rocksdb: Path) -> None:
    file = rocksdb / "offsets/1"
    os.truncate(file, file.stat().st_size - 1)
    assert collect(rocksdb).wrong == {"offsets/1": "is cut off"}


def test_only_a_thorough_look_reads_state(rocksdb: Path, job: KeptJob) -> None:
    sst, delta = rocksdb / "state/0/0" / SST, query(job) / "state/0/0/2.delta"
    known = FileContents({f"queries/counts/state/0/0/{SST}": files.checksum(sst)})
    write(sst, "keys and VALUES")
    assert not collect(rocksdb).wrong
    assert collect(rocksdb, known).wrong == {f"state/0/0/{SST}": "differs from what a checkpoint has of it"}
    write(delta, delta.read_bytes().replace(b"batch", b"BATCH"))
    assert found(job) == []
    torn = look(job.store, job.job, FIRST, thorough=True)
    assert [one.text for one in torn] == ["state/0/0/2.delta of query counts can't be read: has changed"]
