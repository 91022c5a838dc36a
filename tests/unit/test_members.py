"""A manifest may be anybody's: what it names stays inside, and only regular files of their size are read."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.kept_job import KeptJob, tree
from weir.checkpoint import manifest as mf
from weir.checkpoint.copies import Copies
from weir.checkpoint.kept_files import KeptFiles
from weir.checkpoint.manifest import File, Manifest
from weir.clock import ManualClock
from weir.errors import DamagedSavepointError, NoSuchCheckpointError, OutsideError, StorageError
from weir.ids import BatchId, CheckpointId, Generation
from weir.restore.fetch import fetch, fetch_savepoint
from weir.restore.intent import intend
from weir.restore.point import candidates, resolve, verify, verify_id
from weir.restore.request import RestoreRequest
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import SavepointFacts, take
from weir.spark.closure import closure
from weir.spark.zips import members
from weir.storage import open_store
from weir.storage.generation import FIRST
from weir.storage.members import below, check_members

FACTS = SavepointFacts("request", "ada@engine", since=0.0)
UP = "queries/counts/../../../../../../victim/authorized_keys"


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    return KeptJob(tmp_path / "weir")


def with_path(manifest: Manifest, path: str) -> bytes:
    """The manifest, and one more file in it, whose content it has itself."""
    body = json.loads(manifest.model_dump_json(exclude={"format", "checksum"}))
    body["queries"]["counts"]["files"].append({"path": path, "bytes": 3, "crc": 2196158926, "inline": "a2V5"})
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "path",
    [
        UP,
        "/etc/passwd",
        "queries/counts/./offsets/0",
        "queries/counts//offsets/0",
        "queries/counts/",
        "queries/counts",
        "queries",
        "",
        "pins/counts/x",
        "origin.json",
        "sources/lines/log/000000001.json",
        "queries/other/offsets/0",
        "user-state/other/values/1.json",
        "channels/counts/log/000000001.json",
        "queries/counts/a\\b",
        "queries/counts/a\0b",
    ],
)
def test_a_checkpoint_names_only_files_of_its_own_queries_and_channels(job: KeptJob, path: str) -> None:
    manifest = job.take(41, job.pins(), job.batch(0), 0)
    with pytest.raises(ValueError, match="the path"):
        mf.decode(with_path(manifest, path))
    mf.decode(with_path(manifest, "user-state/counts/values/1.json"))
    with pytest.raises(ValueError, match="is there twice"):
        mf.decode(with_path(manifest, manifest.queries["counts"].files[0].path))


@pytest.mark.parametrize("job_name", ["../up", "a/b", ""])
def test_nor_is_its_job_a_path(job: KeptJob, job_name: str) -> None:
    manifest = job.take(41, job.pins(), job.batch(0), 0)
    with pytest.raises(ValueError, match="can't be the name of a job"):
        mf.decode(
            json.dumps(
                json.loads(manifest.model_dump_json(exclude={"format", "checksum"})) | {"job": job_name}
            ).encode()
        )


def test_a_hostile_copy_writes_nothing(job: KeptJob, tmp_path: Path) -> None:
    """The manifest of a copy-dir that anybody can write names a file of the user's."""
    manifest = job.take(41, job.pins(copy_dir=tmp_path / "copies"), job.batch(0), 0)
    copied = tmp_path / "copies" / job.job / "checkpoints/chk-41.json"
    copied.write_bytes(with_path(manifest, UP))
    before = tree(tmp_path)
    with pytest.raises(NoSuchCheckpointError, match="can't be read"):
        intend(
            job.store,
            job.job,
            RestoreRequest(str(copied), accept_duplicates=True),
            clock=ManualClock(),
            why="a test",
        )
    assert tree(tmp_path) == before


def unchecked(manifest: Manifest, path: str) -> Manifest:
    """What a check of the manifest would have refused."""
    file = File(path=path, bytes=3, crc=2196158926, inline="a2V5")
    cut = manifest.queries["counts"]
    cut = cut.model_copy(update={"files": (*cut.files, file)})
    return manifest.model_copy(update={"queries": {"counts": cut}})


@pytest.mark.parametrize("path", [UP, "/tmp/victim", "../up"])
def test_where_files_are_written_it_is_checked_once_more(
    job: KeptJob, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = job.take(41, job.pins(), job.batch(0), 0)
    number = intend(
        job.store,
        job.job,
        RestoreRequest("chk-41", accept_duplicates=True),
        clock=ManualClock(),
        why="a test",
    )
    monkeypatch.setattr("weir.restore.fetch.named", lambda *_: unchecked(manifest, path))
    before = tree(tmp_path)
    with pytest.raises(OutsideError, match="outside of"):
        fetch(job.store, job.job, number)
    assert tree(tmp_path) == before


def to(target: Path, _path: str) -> Path:
    return target


def test_so_it_is_for_a_savepoint_and_for_where_a_plan_lays_its_files(job: KeptJob, tmp_path: Path) -> None:
    manifest = job.take(41, job.pins(), job.batch(0), 0)
    place = SavepointPlace(take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock).place)
    root = job.root(2)
    before = tree(tmp_path)
    for target in (tmp_path / "evil", root, root / ".." / "evil", root.with_name("0002x")):
        with pytest.raises(OutsideError):
            fetch_savepoint(place, root, partial(to, target))
        with pytest.raises(OutsideError):
            below(root, target)
    assert tree(tmp_path) == before


def test_copies_are_read_nowhere_else(job: KeptJob, tmp_path: Path) -> None:
    copies = Copies(str(tmp_path / "copies"), job.job)
    outside = "../../../../etc/passwd"
    for verb in (copies.read, copies.checksum):
        with pytest.raises(OutsideError):
            verb(FIRST, outside)
    with pytest.raises(OutsideError):
        copies.fetch(FIRST, outside, tmp_path / "target")


def test_a_journal_has_entries_and_nothing_else() -> None:
    check_members(["sources/lines/log/000000001.json"], (), (), journals=True)
    for path in ("sources/lines", "sources/lines/x", "sources/lines/log/x.json", "sources/-/log/1.json"):
        with pytest.raises(ValueError, match=r"path|name"):
            check_members([path], (), (), journals=True)


def replaced_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def replaced_by_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grown(path: Path) -> None:
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)  # nobody could read that to its end


STRANGE = [replaced_by_link, replaced_by_device, replaced_by_pipe, grown]


@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_no_regular_file_of_its_size_is_damage_in_a_savepoint(
    job: KeptJob, tmp_path: Path, strange: Callable[[Path], None]
) -> None:
    manifest = job.take(41, job.pins(), job.batch(0), 0)
    place = SavepointPlace(take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock).place)
    assert place.folder is not None
    victim = place.folder / "queries/counts/offsets/0"
    strange(victim)
    file = next(one for one in place.read().files if one.path.endswith("offsets/0"))
    wrong = "instead of" if strange is grown else "is not a regular file"
    assert wrong in str(place.damage(file))
    with pytest.raises(DamagedSavepointError, match=wrong):
        fetch_savepoint(place, job.root(2), lambda path: job.root(2) / path)


@pytest.mark.parametrize("strange", STRANGE)
def test_and_among_copies_and_pins(job: KeptJob, tmp_path: Path, strange: Callable[[Path], None]) -> None:
    manifest = job.take(41, job.pins(copy_dir=tmp_path / "copies"), job.batch(0), 0)
    name = "generations/0001/pins/queries/counts/state/0/0/1.delta"
    for place in (job.folder, tmp_path / "copies"):
        strange(place / job.job / name)
    assert [text.split()[0] for text in verify(job.store, manifest)] == ["queries/counts/state/0/0/1.delta"]
    kept, target = KeptFiles(job.store, manifest), tmp_path / "target"
    file = next(one for one in manifest.files() if one.path.endswith("1.delta"))
    with pytest.raises(Exception, match="is damaged"):
        kept.bring(file, target, None)
    assert not target.exists()


@pytest.mark.parametrize("strange", [replaced_by_device, replaced_by_pipe])
def test_a_manifest_that_never_ends_is_not_read(tmp_path: Path, strange: Callable[[Path], None]) -> None:
    (tmp_path / "manifest.json").touch()
    strange(tmp_path / "manifest.json")
    with pytest.raises(StorageError, match="is not a regular file"):
        SavepointPlace(str(tmp_path)).read()
    with pytest.raises(StorageError, match="is not a regular file"):
        open_store(str(tmp_path)).get("manifest.json")


def zipped(path: Path, metadata: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as snapshot:
        snapshot.writestr("metadata", metadata)
    return path


@pytest.mark.parametrize("name", ["../../x.sst", "..", "", "a/b.sst", "/etc/passwd"])
def test_a_snapshot_names_only_files_beside_itself(tmp_path: Path, name: str) -> None:
    good = {"dfsSstFileName": "000008-ab.sst", "sizeBytes": 1}
    told = {"sstFiles": [good], "logFiles": []}
    assert members(zipped(tmp_path / "1.zip", f"v1\n{json.dumps(told)}".encode())) == ["SSTs/000008-ab.sst"]
    told["sstFiles"].append({**good, "dfsSstFileName": name})
    with pytest.raises(ValueError, match="no file of a snapshot"):
        members(zipped(tmp_path / "2.zip", f"v1\n{json.dumps(told)}".encode()))


def test_metadata_of_a_snapshot_has_a_limit(tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "1.zip", b"v1\n" + b" " * (65 * 2**20))
    with pytest.raises(ValueError, match="more than"):
        members(bomb)


@pytest.mark.parametrize(
    "told",
    [
        {"storeName": "default", "stateSchemaFilePaths": ["x/_stateSchema/../../../../../origin.json"]},
        {"storeName": "../../../offsets"},
    ],
)
def test_what_spark_s_files_say_of_each_other_stays_inside(job: KeptJob, told: dict[str, object]) -> None:
    job.batch(0)
    metadata = job.root() / "queries/counts/state/0/_metadata/metadata"
    body = {"operatorInfo": {"operatorId": 0, "operatorName": "x"}, "stateStoreInfo": [told]}
    metadata.write_text("v1\n" + json.dumps(body))
    with pytest.raises(ValueError, match="not a file of a query"):
        closure(job.root() / "queries/counts", BatchId(0))


def test_a_checkpoint_that_was_left_with_a_strange_path_is_passed_over(job: KeptJob) -> None:
    """Of before the check, or by a hand: it is damage like any other, and the one before it is taken."""
    job.take(40, job.pins(), job.batch(0), 0)
    manifest = job.take(41, job.pins(), job.batch(1), 1)
    path = job.folder / job.job / "checkpoints/chk-41.json"
    shutil.copy(path, path.with_name("before"))
    path.write_bytes(with_path(manifest, UP))
    assert verify_id(job.store, job.job, CheckpointId(41)) == ["chk-41.json can't be read"]
    assert resolve(job.store, job.job, "latest").manifest.id == 40
    assert candidates(job.store, job.job) == [41, 40]
    assert Generation(1) == FIRST
