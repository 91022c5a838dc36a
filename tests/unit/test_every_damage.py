"""Flip, half, empty, gone: for every file of a job, none is called intact that a restart can't use.

The files are played ones, as Spark leaves them, with Hadoop checksums beside them; nothing is started. What
a restart needs is found from the files themselves, before any is damaged. A failure prints its seed.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kept_job import KeptJob, source_logs, write
from weir.checkpoint import manifest as mf
from weir.checkpoint import restore
from weir.checkpoint.damage import look
from weir.checkpoint.repair import plan
from weir.clock import ManualClock
from weir.errors import DamagedError, DamagedSavepointError, NotASavepointError, WeirError
from weir.ids import BatchId, CheckpointId
from weir.savepoint.manifest import MANIFEST, decode
from weir.savepoint.place import Place
from weir.savepoint.take import Facts, take
from weir.savepoint.verify import verify
from weir.spark.closure import GoneError, closure
from weir.storage import generations
from weir.storage.generations import FIRST

SEED = 20260917
ENDS = '{"logOffset": 11}'
FACTS = Facts("request", "ada@engine", since=0.0)


def summed(path: Path) -> None:
    """Hadoop's checksum beside a file."""
    data = path.read_bytes()
    sums = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    told = b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", one) for one in sums)
    path.with_name(f".{path.name}.crc").write_bytes(told)


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """Three batches over a file source whose log was compacted once, and checkpoints of the last two."""
    made = KeptJob(tmp_path / "weir")
    for number in range(3):
        made.batch(number, ENDS)
    root = made.root() / "queries/counts"
    lines = [str(text).partition("\n")[2] for text in list(source_logs([ENDS]).values())[:10]]
    for number in range(10):
        (root / f"sources/0/{number}").unlink()
    write(root / "sources/0/9.compact", "\n".join(["v1", *lines]))
    for path in [one for one in root.rglob("*") if one.is_file() and not one.name.startswith(".")]:
        summed(path)
    for number, id in ((1, 41), (2, 42)):
        made.take(id, made.pins(inline=200), closure(root, BatchId(number)).files, number)
    return made


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    write(path, bytes(data))


def half(path: Path, _chance: random.Random) -> None:
    data = path.read_bytes()
    write(path, data[: len(data) // 2])


def empty(path: Path, _chance: random.Random) -> None:
    write(path, b"")


def gone(path: Path, _chance: random.Random) -> None:
    path.unlink()


DAMAGES = [flip, half, empty, gone]


def needed(job: KeptJob) -> list[str]:
    """What the next start reads, of the live files."""
    return [f"queries/counts/{name}" for name in closure(job.root() / "queries/counts", BatchId(2)).files]


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_live_file_that_a_restart_needs_is_called_intact_when_it_is_not(
    job: KeptJob, damage: Callable[[Path, random.Random], None], tmp_path: Path
) -> None:
    assert look(job.store, job.job, FIRST, thorough=True) == look(job.store, job.job, FIRST) == []
    kept = tmp_path / "intact"
    shutil.copytree(job.folder, kept)
    chance = random.Random(SEED)
    for name in [*needed(job), "origin.json"]:
        damage(job.root() / name, chance)
        found = look(job.store, job.job, FIRST, thorough=True)
        assert found, f"{name}, {damage.__name__}, seed {SEED}"
        assert all(one.text for one in found)
        way = plan(job.store, job.job)
        assert way is not None and way.point in ("", "chk-42", "chk-41")
        for place in (job.folder, kept):
            assert place.is_dir()
        shutil.rmtree(job.folder)
        shutil.copytree(kept, job.folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_every_look_ends_in_words(
    job: KeptJob, damage: Callable[[Path, random.Random], None], tmp_path: Path
) -> None:
    """Of all files of the job, records, manifests, pins and checksums as well; one after the other."""
    kept = tmp_path / "intact"
    shutil.copytree(job.folder, kept)
    chance = random.Random(SEED)
    for path in sorted(one for one in job.folder.rglob("*") if one.is_file()):
        if path.stat().st_size == 0:
            continue
        damage(path, chance)
        try:
            torn = look(job.store, job.job, FIRST)
            plan(job.store, job.job)
            if torn:
                restore.intend(
                    job.store, job.job, "latest", accept_duplicates=True, clock=ManualClock(), why="a test"
                )
                opened = generations.opening(job.store, job.job)
                assert opened is not None
                restore.open_generation(job.store, job.job, opened)
        except WeirError as error:
            assert error.what and not isinstance(error, DamagedError), f"{path}, {damage.__name__}, {SEED}"
        shutil.rmtree(job.folder)
        shutil.copytree(kept, job.folder)


def test_no_flip_of_a_bit_in_a_manifest_goes_unnoticed(job: KeptJob) -> None:
    """And where the newest is damaged, the one before it is taken."""
    path = job.folder / job.job / "checkpoints/chk-42.json"
    intact, chance = path.read_bytes(), random.Random(SEED)
    for _ in range(250):
        at, bit = chance.randrange(len(intact)), chance.randrange(8)
        data = bytearray(intact)
        data[at] ^= 1 << bit
        path.write_bytes(bytes(data))
        assert restore.verify_id(job.store, job.job, CheckpointId(42)), f"byte {at}, bit {bit}, seed {SEED}"
        assert restore.find(job.store, job.job, "latest").manifest.id == 41
    path.write_bytes(intact)
    assert restore.find(job.store, job.job, "latest").manifest.id == 42


def test_nor_in_one_that_an_earlier_weir_wrote_where_it_matters(job: KeptJob) -> None:
    """It has no checksum: what is not noticed must name the same files, cuts and lineage."""
    path = job.folder / job.job / "checkpoints/chk-42.json"
    manifest = mf.decode(path.read_bytes())
    intact = manifest.model_dump_json(exclude={"format", "checksum"}).encode()
    path.write_bytes(intact)
    assert restore.verify_id(job.store, job.job, CheckpointId(42)) == []
    chance = random.Random(SEED)
    for _ in range(250):
        at, bit = chance.randrange(len(intact)), chance.randrange(8)
        data = bytearray(intact)
        data[at] ^= 1 << bit
        path.write_bytes(bytes(data))
        if not restore.verify_id(job.store, job.job, CheckpointId(42)):
            found = mf.decode(bytes(data))
            files = {file.path: (file.bytes, file.crc) for file in manifest.files()}
            same = {one.path: (one.bytes, one.crc) for one in found.files()} == files
            assert same, f"byte {at}, bit {bit}, seed {SEED}"


def test_a_path_that_is_left_out_or_changed_in_an_old_manifest_is_found(job: KeptJob) -> None:
    path = job.folder / job.job / "checkpoints/chk-42.json"
    body = json.loads(mf.decode(path.read_bytes()).model_dump_json(exclude={"format", "checksum"}))
    for number, file in enumerate(list(body["queries"]["counts"]["files"])):
        files = [one for one in body["queries"]["counts"]["files"] if one != file]
        for changed in (files, [*files, {**file, "path": file["path"][:-1] + "~"}]):
            cut = {**body["queries"]["counts"], "files": changed}
            path.write_text(json.dumps({**body, "queries": {"counts": cut}}))
            found = restore.verify_id(job.store, job.job, CheckpointId(42))
            assert found, f"{number}: {file['path']}"


def test_no_flip_of_a_bit_in_the_manifest_of_a_savepoint_goes_unnoticed(job: KeptJob, tmp_path: Path) -> None:
    manifest = restore.named(job.store, job.job, "chk-42")
    place = Place(take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock).place)
    assert place.folder is not None and verify(place, job.clock).whole
    path = place.folder / MANIFEST
    intact, chance = path.read_bytes(), random.Random(SEED)
    for _ in range(250):
        at, bit = chance.randrange(len(intact)), chance.randrange(8)
        data = bytearray(intact)
        data[at] ^= 1 << bit
        with pytest.raises(NotASavepointError):
            decode(bytes(data), f"byte {at}, bit {bit}, seed {SEED}")


def test_an_old_savepoint_that_lacks_a_file_of_its_cut_is_damaged(job: KeptJob, tmp_path: Path) -> None:
    manifest = restore.named(job.store, job.job, "chk-42")
    place = Place(take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock).place)
    assert place.folder is not None
    path = place.folder / MANIFEST
    body = {key: value for key, value in json.loads(path.read_text()).items() if key != "checksum"}
    body["format"] = 1
    path.write_text(json.dumps(body))
    assert verify(place, job.clock).whole
    body["files"] = [one for one in body["files"] if not one["path"].endswith("sources/0/10")]
    path.write_text(json.dumps(body))
    assert verify(place, job.clock).damage == ("queries/counts/sources/0/10 is not in it",)
    with pytest.raises(DamagedSavepointError, match="sources/0/10 is not in it"):
        restore.find(job.store, job.job, str(place.folder))


# what a batch needs


@pytest.mark.parametrize("entry", ["9.compact", "10", "11"])
def test_an_entry_of_a_source_s_log_that_is_lost_is_damage_and_no_checkpoint_is_taken_without_it(
    job: KeptJob, entry: str
) -> None:
    (job.root() / "queries/counts/sources/0" / entry).unlink()
    assert look(job.store, job.job, FIRST)
    with pytest.raises(GoneError, match="sources/0/"):
        closure(job.root() / "queries/counts", BatchId(2))
    way = plan(job.store, job.job)
    assert way is not None and way.point == "chk-42"


def test_what_a_planned_batch_will_read_is_looked_at_too(job: KeptJob) -> None:
    root = job.root() / "queries/counts"
    lines = (root / "offsets/2").read_text().replace('"logOffset": 11', '"logOffset": 12')
    write(root / "offsets/3", lines)
    assert [one.text for one in look(job.store, job.job, FIRST)] == ["sources/0/12 of query counts is gone"]
    write(root / "sources/0/12", "v1\n")
    assert look(job.store, job.job, FIRST) == []


def test_a_folder_of_a_partition_that_is_lost_is_damage(job: KeptJob) -> None:
    """In the format that names nothing in commits; a global aggregate has one partition, whatever is told."""
    root = job.root() / "queries/counts"
    for batch in range(3):
        text = (root / f"offsets/{batch}").read_text()
        write(root / f"offsets/{batch}", text.replace('shuffle.partitions": "1"', 'shuffle.partitions": "3"'))
        summed(root / f"offsets/{batch}")
    assert look(job.store, job.job, FIRST) == []
    for partition in (1, 2):
        shutil.copytree(root / "state/0/0", root / f"state/0/{partition}")
    assert look(job.store, job.job, FIRST) == []
    shutil.rmtree(root / "state/0/1")
    (found, *_) = look(job.store, job.job, FIRST)
    assert found.text == "state/0/1/1.delta of query counts is gone"


# how a generation began


def test_a_generation_that_has_worked_and_lost_its_origin_is_damaged(job: KeptJob) -> None:
    (job.root() / "origin.json").unlink()
    (found,) = look(job.store, job.job, FIRST)
    assert found.text == "origin.json of generation 1 is gone"
    way = plan(job.store, job.job)
    assert way is not None and way.point == "chk-42"


def test_a_restored_one_that_lost_its_origin_stays_the_live_one(job: KeptJob) -> None:
    number = restore.intend(
        job.store, job.job, "latest", accept_duplicates=True, clock=ManualClock(), why="a test"
    )
    restore.open_generation(job.store, job.job, number)
    generations.mark_live(job.store, job.job, number)
    (job.root(number) / "origin.json").unlink()
    assert generations.live(job.store, job.job) == number
    (found,) = look(job.store, job.job, number)
    assert found.text == f"origin.json of generation {number} is gone"
