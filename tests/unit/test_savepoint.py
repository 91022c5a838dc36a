"""A savepoint on the disk: taken, looked into, verified, moved, copied, disposed of; and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kept_job import KeptJob, tree, write
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.clock import Clock
from weir.config import Keep
from weir.errors import (
    DamagedCheckpointError,
    DamagedSavepointError,
    NotASavepointError,
    OtherInputError,
    SavepointPlaceError,
    StorageError,
    WeirError,
)
from weir.ids import Attempt, CheckpointId, Run, Token
from weir.restore.fetch import fetch_savepoint
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.savepoint import write as writing
from weir.savepoint.catalogue import entries, scheduled, superfluous
from weir.savepoint.manifest import MANIFEST, SavedSink, Savepoint, decode, encode
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import HaltedError, QueryFacts, SavepointFacts, TakenSavepoint, take, unread_entries
from weir.savepoint.verify import copy, dispose, last_verified, verify
from weir.savepoint.write import HIDDEN
from weir.sources import journal
from weir.storage.generation import read_origin
from weir.storage.local import LocalStore
from weir.storage.manifest import FORMAT
from weir.storage.sums import seal

FACTS = SavepointFacts(
    "request", "ada@engine", since=0.0, job_file="wordcount.py", job_version="1f3c9a2b0d4e"
)
SCHEMA = {"type": "struct", "fields": [{"name": "k", "type": "string", "nullable": True, "metadata": {}}]}


def schema_file(*parts: str) -> bytes:
    """As Spark writes version 2: a version, then for key and value the pieces of their JSON."""

    def utf(text: str) -> bytes:
        return len(text).to_bytes(2, "big") + text.encode()

    return utf("v2") + b"".join((1).to_bytes(4, "big") + utf(part) for part in parts)


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    return KeptJob(tmp_path / "weir", "wordcount")


def checkpoint(job: KeptJob, id: int = 7) -> Manifest:
    """A checkpoint of one query with state and user state, behind a channel."""
    names = job.batch(0) and job.batch(
        1, '{"entry": 3, "barrier": 7, "channel": "clean"}', '{"logOffset": 4}'
    )
    root = job.root()
    (root / "queries/counts/state/0/0/_metadata").mkdir(exist_ok=True)
    (root / "queries/counts/state/0/0/_metadata/schema").write_bytes(
        schema_file(json.dumps(SCHEMA), json.dumps(SCHEMA))
    )
    described = {
        "operatorInfo": {"operatorId": 1, "operatorName": "transformWithStateInPandasExec"},
        "stateStoreInfo": [
            {
                "storeName": "default",
                "numColsPrefixKey": 0,
                "numPartitions": 1,
                "stateSchemaFilePaths": [f"file:{root}/queries/counts/state/1/_stateSchema/default/0_ab"],
            }
        ],
        "operatorPropertiesJson": '{"timeMode":"NoTime"}',
    }
    write(root / "queries/counts/state/1/_metadata/v2/0", "v2\n" + json.dumps(described))
    write(root / "queries/counts/state/1/_stateSchema/default/0_ab", "")
    (root / "queries/counts/state/1/_stateSchema/default/0_ab").write_bytes(schema_file("{}", "{}"))
    write(root / "queries/counts/state/1/0/2.delta", "more")
    write(root / "channels/clean/log/000000003.json", "{}")
    write(root / "user-state/counts/1.json", '{"stage": 4}')
    names += ["state/0/0/_metadata/schema", "state/1/_metadata/v2/0", "state/1/0/2.delta"]
    names += ["state/1/_stateSchema/default/0_ab"]
    all_names = [f"queries/counts/{name}" for name in names] + ["user-state/counts/1.json"]
    pins = job.pins()
    kept = pins.keep("", all_names, checkpoint=CheckpointId(id))
    channel = pins.keep("channels/clean", ["log/000000003.json"], checkpoint=CheckpointId(id))
    cut = QueryCut(batch=1, files=kept.files, positions={"clean": (4, 7)}, watermark_ms=5)
    manifest = job.manifest(
        id, {"counts": cut}, {"clean": ChannelCut(first=3, behind=4, batch=9, files=channel.files)}
    )
    return job.complete(manifest)


def taken(job: KeptJob, target: Path, **facts: Any) -> TakenSavepoint:
    given = SavepointFacts(**{**vars(FACTS), **facts})
    return take(job.store, checkpoint(job), str(target), given, job.clock)


def test_a_savepoint_has_the_files_of_the_cut_and_tells_what_they_are(job: KeptJob, tmp_path: Path) -> None:
    sink = SavedSink(kind="files", description="parquet files in out")
    facts = QueryFacts(sink, "update", ("channel", "FileStreamSource[in]"), {0: 12})
    done = taken(job, tmp_path / "saved", queries={"counts": facts})
    assert done.place == str(tmp_path / "saved" / "wordcount-7")
    found = SavepointPlace(done.place).read()
    assert found == done.savepoint
    assert (found.format, found.job, found.id, found.taken_by) == (FORMAT, "wordcount", 7, "ada@engine")
    assert (found.job_file, found.job_version, found.trigger) == ("wordcount.py", "1f3c9a2b0d4e", "request")
    assert (found.lineage, found.backend, found.generation) == (job.origin.lineage, "hashmap", 1)
    query = found.queries["counts"]
    assert (query.batch, query.watermark_ms, query.output_mode, query.state_format) == (1, 5, "update", 1)
    assert query.conf["spark.sql.shuffle.partitions"] == "1"
    assert query.sink == SavedSink(kind="files", description="parquet files in out", last_batch=1)
    assert [(s.name, s.channel, s.description) for s in query.sources] == [
        ("0", "clean", "channel"),
        ("1", "", "FileStreamSource[in]"),
    ]
    assert query.offsets[1] == '{"logOffset": 4}'
    first, second = query.operators
    assert (first.kind, first.rows, first.partitions) == ("stateStoreSave", 12, 1)
    assert first.stores[0].key_schema == SCHEMA
    assert (second.id, second.rows, second.properties) == (1, None, {"timeMode": "NoTime"})
    assert found.channels["clean"].behind == 4
    stored = tree(Path(done.place))
    assert set(stored) - {MANIFEST} == {file.path for file in found.files}
    assert stored["user-state/counts/1.json"] == b'{"stage": 4}'
    assert sum(len(data) for path, data in stored.items() if path != MANIFEST) == found.bytes


def test_nothing_in_it_names_the_place_it_was_taken_from(job: KeptJob, tmp_path: Path) -> None:
    done = taken(job, tmp_path / "saved")
    stored = tree(Path(done.place))
    assert [path for path, data in stored.items() if str(tmp_path).encode() in data] == []
    described = json.loads(stored["queries/counts/state/1/_metadata/v2/0"].decode().split("\n", 1)[1])
    (named,) = described["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert named == "queries/counts/state/1/_stateSchema/default/0_ab" and named in stored


def test_it_is_whole_without_the_original_and_in_another_place(job: KeptJob, tmp_path: Path) -> None:
    done = taken(job, tmp_path / "saved")
    shutil.rmtree(tmp_path / "weir")
    moved = tmp_path / "elsewhere" / "mine"
    moved.parent.mkdir()
    Path(done.place).rename(moved)
    found = verify(SavepointPlace(str(moved)), Clock())
    assert found.whole and found.files == len(done.savepoint.files) and found.bytes == done.savepoint.bytes
    assert last_verified(SavepointPlace(f"{moved}/{MANIFEST}")) == found
    target = tmp_path / "offsets"
    file = done.savepoint.files_of("counts")["offsets/1"]
    SavepointPlace(str(moved)).bring(file, target)
    assert target.read_bytes() == (moved / file.path).read_bytes()
    assert target.stat().st_ino != (moved / file.path).stat().st_ino
    SavepointPlace(str(moved)).bring(file, target, lambda data: data[:2])
    assert target.read_bytes() == b"v1"


def test_progress_ends_with_every_byte(job: KeptJob, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = checkpoint(job)
    take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock, lambda *now: seen.append(now))
    assert max(seen) == (manifest.full_bytes, manifest.full_bytes)


def test_a_savepoint_that_fails_leaves_nothing(job: KeptJob, tmp_path: Path) -> None:
    manifest = checkpoint(job)
    target = tmp_path / "saved"
    with pytest.raises(HaltedError):
        take(job.store, manifest, str(target), FACTS, job.clock, halted=lambda: True)
    assert list(target.iterdir()) == []
    pinned = job.root() / "pins" / "user-state/counts/1.json"
    pinned.write_text('{"stage": 5}')
    with pytest.raises(DamagedCheckpointError, match="has changed"):
        take(job.store, manifest, str(target), FACTS, job.clock)
    pinned.unlink()
    with pytest.raises(DamagedCheckpointError, match="is gone"):
        take(job.store, manifest, str(target), FACTS, job.clock)
    assert list(target.iterdir()) == []


def test_a_place_that_can_not_be_written_is_said_and_so_is_the_jobs_own(job: KeptJob, tmp_path: Path) -> None:
    manifest = checkpoint(job)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not write a savepoint to"):
        take(job.store, manifest, str(tmp_path / "file" / "below"), FACTS, job.clock)
    os.symlink(job.folder, tmp_path / "link")
    for own in (job.root(), job.folder / "wordcount", tmp_path / "link" / "wordcount" / "mine"):
        with pytest.raises(SavepointPlaceError, match="the job's own directory"):
            take(job.store, manifest, str(own), FACTS, job.clock)


def test_a_name_that_is_taken_by_another_life_of_the_job_gets_a_longer_one(
    job: KeptJob, tmp_path: Path
) -> None:
    manifest = checkpoint(job)
    first = take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock)
    second = take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock)
    assert second.place == f"{first.place}-{job.origin.lineage[:8]}"
    with pytest.raises(SavepointPlaceError, match="a savepoint of this name exists"):
        take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock)
    assert len(list((tmp_path / "saved").iterdir())) == 2


KILLED = """
import sys
from pathlib import Path
from tests.kept_job import KeptJob
from tests.unit.test_savepoint import FACTS
from weir.checkpoint.manifest import read
from weir.clock import Clock
from weir.ids import CheckpointId, JobName
from weir.savepoint.take import take
from weir.storage.local import LocalStore
store = LocalStore(sys.argv[1])
take(store, read(store, JobName("wordcount"), CheckpointId(7)), sys.argv[2], FACTS, Clock())
"""


@pytest.mark.parametrize(
    "fault", ["savepoint.begun#2", "savepoint.copying#1", "savepoint.copying#5", "savepoint.written#1"]
)
def test_a_writer_that_is_killed_leaves_nothing_that_looks_like_a_savepoint(
    fault: str, job: KeptJob, tmp_path: Path
) -> None:
    checkpoint(job)
    saved = tmp_path / "saved"
    repository = Path(__file__).parents[2]
    sources = os.pathsep.join([str(repository / "src"), str(repository)])
    environ = {**os.environ, "WEIR_FAULTS": f"{fault}:kill", "PYTHONPATH": sources}
    command = [sys.executable, "-c", KILLED, str(job.folder), str(saved)]
    done = subprocess.run(command, env=environ, cwd=repository, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = saved.iterdir()
    assert left.name.startswith(HIDDEN) and entries([str(saved)]) == []
    another = take(job.store, checkpoint(job), str(saved), FACTS, job.clock)
    assert [path.name for path in saved.iterdir()] == [Path(another.place).name]
    assert verify(SavepointPlace(another.place), Clock()).whole


def test_a_writer_that_lives_is_not_swept(tmp_path: Path) -> None:
    one = writing.begin(str(tmp_path), "a-1", "lineage")
    one.add("queries/q/metadata", [b"x"])
    other = writing.begin(str(tmp_path), "a-2", "lineage")
    assert len(list(tmp_path.iterdir())) == 2
    one.give_up()
    one.give_up()
    other.give_up()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_comes_before_the_lock_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    swept: list[Any] = []

    def overtaken(path: Any, *given: Any) -> int:
        if Path(path).name.startswith(HIDDEN) and not swept:
            swept.append(path)
            os.rmdir(path)
        return opened(path, *given)

    monkeypatch.setattr("weir.savepoint.write.os.open", overtaken)
    one = writing.begin(str(tmp_path), "a-1", "lineage")
    one.add("queries/q/metadata", [b"x"])
    assert swept and [path.name != Path(swept[0]).name for path in tmp_path.iterdir()] == [True]
    one.give_up()


@pytest.mark.parametrize("word", ["edited", "converted"])
def test_that_the_name_of_a_new_one_is_taken_is_said_before_spark_is_asked(
    job: KeptJob, tmp_path: Path, word: str
) -> None:
    from weir.restore.convert_savepoint import convert
    from weir.state.edit import edit

    done, target, no_spark = taken(job, tmp_path / "saved"), str(tmp_path / "made"), cast("Any", None)
    for name in (f"wordcount-7-{word}", f"wordcount-7-{word}-{job.origin.lineage[:8]}"):
        shutil.copytree(done.place, Path(target, name))
    with pytest.raises(SavepointPlaceError, match="a savepoint of this name exists"):
        if word == "edited":
            edit(no_spark, done.place, target, delete="true")
        else:
            nothing, point = SimpleNamespace(queries=()), SimpleNamespace(name=done.place)
            made = SimpleNamespace(changed={"counts"}, point=point, plan=nothing)
            convert(no_spark, cast("Any", made), target, cast("Any", None), 0.0)


def test_damage_is_named_file_by_file(job: KeptJob, tmp_path: Path) -> None:
    done = taken(job, tmp_path / "saved")
    folder = Path(done.place)
    flipped = folder / "queries/counts/state/0/0/1.delta"
    data = bytearray(flipped.read_bytes())
    data[3] ^= 1
    flipped.write_bytes(data)
    (folder / "queries/counts/commits/1").write_text("")
    (folder / "channels/clean/log/000000003.json").unlink()
    found = verify(SavepointPlace(done.place), Clock())
    assert sorted(found.damage) == [
        "channels/clean/log/000000003.json is gone",
        "queries/counts/commits/1 has 0 bytes instead of 29",
        "queries/counts/state/0/0/1.delta has changed",
    ]
    assert not found.whole and entries([str(folder.parent)])[0].verified == found
    with pytest.raises(DamagedSavepointError, match="is damaged"):
        copy(SavepointPlace(done.place), str(tmp_path / "copies"))
    assert list((tmp_path / "copies").iterdir()) == []
    file = done.savepoint.files_of("counts")["state/0/0/1.delta"]
    with pytest.raises(DamagedSavepointError, match="has changed"):
        SavepointPlace(done.place).bring(file, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def refused(data: dict[str, Any] | str) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(NotASavepointError) as error:
        decode(text.encode(), "/saved/x")
    assert error.value.exit_code == 2 and "/saved/x" in error.value.what
    return error.value.why


def test_what_is_no_manifest_or_not_for_this_weir_is_refused_by_name(job: KeptJob, tmp_path: Path) -> None:
    done = taken(job, tmp_path / "saved")
    assert decode(encode(done.savepoint), "x") == done.savepoint
    whole = {key: value for key, value in json.loads(encode(done.savepoint)).items() if key != "checksum"}
    assert "does not match its checksum" in refused(whole)
    whole["format"] = 1  # as an earlier weir wrote it, without a checksum
    assert decode(json.dumps({**whole, "added": 1}).encode(), "x") == done.savepoint.model_copy(
        update={"format": 1}
    )
    assert (
        "can't be read" in refused("{") and "can't be read" in refused("[]") and "can't be" in refused("{}")
    )
    assert refused({**whole, "format": FORMAT + 1}).endswith("a newer weir wrote it")
    later = encode(done.savepoint).replace(b'"job":', b'"added": 1, "job":', 1)
    assert "does not match its checksum" in refused(later.decode())
    resealed = seal(re.sub(rb'"checksum": "[0-9a-f]*"', b'"checksum": ""', later, count=1))
    assert refused(resealed.decode()) == "it has added, which this weir does not know: a newer weir wrote it"
    lost = {key: value for key, value in whole.items() if key != "lineage"}
    assert refused(lost) == "its manifest.json is damaged: lineage: Field required"
    assert "can't be the name of a job" in refused({**whole, "job": "../up"})
    assert "can't be the name of a query" in refused(
        {**whole, "queries": {"a/b": whole["queries"]["counts"]}}
    )
    one = whole["files"][0]
    for path in ("/etc/passwd", "../../up", "queries/../../up", "queries//x", "origin.json", "pins/x", ""):
        why = refused({**whole, "files": [{**one, "path": path}]})
        assert f"the path {path!r} is not that of a file of a checkpoint or savepoint" in why
    assert "is there twice" in refused({**whole, "files": [one, one]})
    for path in ("queries/other/offsets/1", "user-state/other/1.json", "channels/other/log/000000003.json"):
        why = refused({**whole, "files": [{**one, "path": path}]})
        assert why == f"its manifest.json is damaged: the path {path!r} is of 'other', which is not in it"


def escape(manifest: dict[str, Any], folder: Path) -> None:
    manifest["files"][0]["path"] = "queries/../../../evil"


def root_it(manifest: dict[str, Any], folder: Path) -> None:
    manifest["files"][0]["path"] = str(folder.parent / "evil")


def age(manifest: dict[str, Any], folder: Path) -> None:
    manifest["format"] = FORMAT + 1


def flip(manifest: dict[str, Any], folder: Path) -> None:
    victim = folder / "queries/counts/offsets/1"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)


def lose(manifest: dict[str, Any], folder: Path) -> None:
    (folder / "queries/counts/state/0/0/2.delta").unlink()


def lead_out(manifest: dict[str, Any], folder: Path) -> None:
    """The folder of the files is somewhere else, where they are gone by now."""
    (folder / "queries/counts/commits").rename(folder.parent / "commits")
    (folder / "queries/counts/commits").symlink_to(folder.parent / "nowhere")


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (
            escape,
            NotASavepointError,
            "'queries/../../../evil' is not that of a file of a checkpoint or savepoint",
        ),
        (root_it, NotASavepointError, "/evil' is not that of a file of a checkpoint or savepoint"),
        (age, NotASavepointError, "a newer weir wrote it"),
        (flip, DamagedSavepointError, "queries/counts/offsets/1 has changed"),
        (lose, DamagedSavepointError, "queries/counts/state/0/0/2.delta is gone"),
        (lead_out, DamagedSavepointError, "queries/counts/commits/1 is gone"),
    ],
)
def test_a_bad_savepoint_is_refused_when_a_restore_is_asked_for_and_nothing_is_written(
    job: KeptJob,
    tmp_path: Path,
    damage: Callable[[dict[str, Any], Path], None],
    error: type[WeirError],
    words: str,
) -> None:
    folder = Path(taken(job, tmp_path / "saved").place)
    manifest = json.loads((folder / MANIFEST).read_text())
    damage(manifest, folder)
    if json.loads((folder / MANIFEST).read_text()) != manifest:
        (folder / MANIFEST).write_text(json.dumps(manifest))
    before = tree(tmp_path)
    with pytest.raises(error) as refusal:
        intend(
            job.store,
            job.job,
            RestoreRequest(str(folder), accept_duplicates=True),
            clock=job.clock,
            why="a test",
        )
    assert words in refusal.value.text and str(folder) in refusal.value.text
    assert tree(tmp_path) == before


def test_a_place_without_a_manifest_is_no_savepoint(tmp_path: Path) -> None:
    with pytest.raises(NotASavepointError, match="no such directory"):
        SavepointPlace(str(tmp_path / "nowhere")).read()
    with pytest.raises(NotASavepointError, match=r"no manifest\.json"):
        SavepointPlace(str(tmp_path)).read()


def test_a_copy_is_as_good_as_the_original_and_disposing_leaves_nothing(job: KeptJob, tmp_path: Path) -> None:
    done = taken(job, tmp_path / "saved")
    copied = copy(SavepointPlace(done.place), str(tmp_path / "other"))
    assert copied.place == str(tmp_path / "other" / "wordcount-7")
    assert tree(Path(copied.place)) == tree(Path(done.place))
    assert [one.place for one in entries([str(tmp_path / "other")], [done.place, "/gone"])] == [
        copied.place,
        done.place,
    ]
    (Path(done.place) / "notes.txt").write_text("mine")
    with pytest.raises(NotASavepointError, match=r"other files too, like notes\.txt"):
        dispose(SavepointPlace(done.place))
    (Path(done.place) / "notes.txt").unlink()
    verify(SavepointPlace(done.place), Clock())
    dispose(SavepointPlace(done.place))
    assert list((tmp_path / "saved").iterdir()) == []
    with pytest.raises(NotASavepointError):
        dispose(SavepointPlace(done.place))
    assert (tmp_path / "weir").exists()
    with pytest.raises(NotASavepointError):
        dispose(SavepointPlace(str(tmp_path / "weir")))


@pytest.mark.parametrize("work", ["verify", "copy"])
def test_progress_does_not_add_up_the_size_of_all_files_for_each_file(
    work: str, job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a savepoint of 100,000 files that would take longer than to read them."""
    place = SavepointPlace(taken(job, tmp_path / "saved").place)
    full, added_up, seen = place.read().bytes, [], list[tuple[int, int]]()
    assert len(place.read().files) > 5

    def bytes_of(savepoint: Savepoint) -> int:
        added_up.append(savepoint.id)
        return sum(file.bytes for file in savepoint.files)

    monkeypatch.setattr(Savepoint, "bytes", property(bytes_of))
    if work == "verify":
        verify(place, Clock(), lambda done, total: seen.append((done, total)))
    else:
        copy(place, str(tmp_path / "other"), lambda done, total: seen.append((done, total)))
    assert max(seen) == (full, full)
    assert len(added_up) <= 2


def test_in_an_object_store_the_manifest_makes_it_a_savepoint(
    job: KeptJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that only has the six verbs; here on the local disk."""
    store = LocalStore(tmp_path / "bucket")
    monkeypatch.setattr(writing, "is_local", lambda url: False)
    monkeypatch.setattr(writing, "open_store", lambda url: store)
    manifest = checkpoint(job)
    with pytest.raises(HaltedError):
        take(job.store, manifest, "s3://bucket", FACTS, job.clock, halted=lambda: True)
    assert list(store.list("")) == []
    theirs = writing.begin("s3://bucket", "other-1", "another lineage")
    done = take(job.store, manifest, "s3://bucket", FACTS, job.clock)
    keys = list(store.list(""))
    assert done.place == f"{store.url}/wordcount-7"
    assert {key for key in keys if not key.startswith("wordcount-7/")} == {"other-1/taking.json"}
    assert len(keys) == len(list(manifest.files())) + 2
    theirs.give_up()
    assert verify(SavepointPlace(done.place), Clock()).whole
    second = take(job.store, manifest, "s3://bucket", FACTS, job.clock)
    assert second.place == f"{done.place}-{job.origin.lineage[:8]}"


def test_what_was_received_and_not_read_goes_with_it_and_comes_back(job: KeptJob, tmp_path: Path) -> None:
    manifest = checkpoint(job)
    for source, count in (("lines", 6), ("removed", 2)):
        for number in range(count):
            write(job.folder / f"wordcount/sources/{source}/log/{number:09d}.json", f"{source} {number}")
    offsets = ('{"entry": 4, "source": "lines"}', '{"logOffset": 4}', "-")
    cut = manifest.queries["counts"].model_copy(update={"offsets": offsets})
    manifest = manifest.model_copy(update={"queries": {"counts": cut}})
    done = take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock)
    unread = [f"sources/lines/log/{number:09d}.json" for number in (3, 4, 5)]
    assert [file.path for file in done.savepoint.files if file.path.startswith("sources/")] == unread
    assert verify(SavepointPlace(done.place), Clock()).whole
    idle = manifest.model_copy(update={"queries": {"counts": cut, "late": QueryCut(batch=-1)}})
    assert len(unread_entries(job.store, idle)) == 8
    fresh = tmp_path / "fresh" / "wordcount"
    write(fresh / unread[2], "lines 5")
    generation = fresh / "generations" / "0001"
    fetch_savepoint(SavepointPlace(done.place), generation, lambda path: generation / path)
    assert [(fresh / path).read_text() for path in unread] == ["lines 3", "lines 4", "lines 5"]
    assert (fresh / "generations/0001/user-state/counts/1.json").exists()
    assert not (fresh / "generations/0001/sources").exists()


def test_what_another_life_has_received_in_place_of_its_lines_refuses_it(
    job: KeptJob, tmp_path: Path
) -> None:
    entry = "sources/lines/log/000000003.json"
    write(job.folder / "wordcount" / entry, "lines 3")
    manifest = checkpoint(job)
    cut = manifest.queries["counts"].model_copy(update={"offsets": ('{"entry": 3, "source": "lines"}',)})
    manifest = manifest.model_copy(update={"queries": {"counts": cut}})
    done = take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock)
    other = KeptJob(tmp_path / "other", "wordcount")
    there = write(other.folder / "wordcount" / entry, "lines x")
    before = tree(other.folder)
    with pytest.raises(OtherInputError) as refusal:
        intend(
            other.store,
            other.job,
            RestoreRequest(done.place, accept_duplicates=True),
            clock=job.clock,
            why="a test",
        )
    assert str(there.parent.parent) in refusal.value.hint and "'lines'" in refusal.value.what
    generation = other.root(2)
    with pytest.raises(OtherInputError, match=r"000000003\.json"):
        fetch_savepoint(SavepointPlace(done.place), generation, lambda path: generation / path)
    assert tree(other.folder) == before, "nothing was brought"
    there.parent.parent.rename(tmp_path / "away")
    intend(
        other.store,
        other.job,
        RestoreRequest(done.place, accept_duplicates=True),
        clock=job.clock,
        why="a test",
    )
    fetch_savepoint(SavepointPlace(done.place), generation, lambda path: generation / path)
    assert there.read_text() == "lines 3"


def test_a_savepoint_whose_lines_would_cut_off_what_a_source_has_received_is_refused(
    job: KeptJob, tmp_path: Path
) -> None:
    def entry(number: int) -> str:
        return json.dumps(journal.lines(Token(Attempt(1), Run(1)), number, 4096 * number, "a line"))

    write(job.folder / "wordcount/sources/lines/log/000000300.json", entry(300))
    offset = '{"entry": 300, "source": "lines"}'
    manifest = job.take(7, job.pins(), job.batch(0, offset), 0)
    cut = manifest.queries["counts"].model_copy(update={"offsets": (offset,)})
    manifest = manifest.model_copy(update={"queries": {"counts": cut}, "attempt": 57})
    done = take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock)
    other = KeptJob(tmp_path / "other", "wordcount")
    given: dict[str, Any] = {"clock": job.clock, "why": "a test"}
    request = RestoreRequest(done.place, accept_duplicates=True)
    received = write(other.folder / "wordcount/sources/lines/log/000000005.json", entry(5))
    with pytest.raises(OtherInputError, match="up to 5, and the savepoint's begin with 300"):
        intend(other.store, other.job, request, **given)
    write(received, json.dumps(journal.fence(Token(Attempt(1), Run(1)), 0)))  # nothing was received
    generation = intend(other.store, other.job, request, **given)
    origin = read_origin(other.store, other.job, generation)
    assert origin is not None and origin.attempt == 57, "the restore needs an attempt above it"


def test_only_what_the_schedule_took_may_go_and_never_the_newest(job: KeptJob, tmp_path: Path) -> None:
    now = datetime(2026, 11, 16, tzinfo=timezone.utc)
    done = taken(job, tmp_path / "saved").savepoint
    found = []
    for id, (days, trigger) in enumerate([(9, "schedule"), (8, "request"), (5, "schedule"), (1, "schedule")]):
        at = (now - timedelta(days=days)).isoformat()
        folder = tmp_path / "all" / f"wordcount-{id}"
        changed = done.model_copy(update={"id": id, "taken_at": at, "trigger": trigger})
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_bytes(encode(changed))
    (tmp_path / "all" / "broken").mkdir()
    (tmp_path / "all" / "broken" / MANIFEST).write_text("{")
    found = entries([str(tmp_path / "all")])
    assert [one.savepoint.id if one.savepoint else one.trouble for one in found] == [
        "its manifest.json can't be read",
        *range(4),
    ]

    ours = scheduled(found, done.job, done.lineage)

    def gone(keep: Keep, at: datetime = now) -> list[int]:
        return sorted(one.savepoint.id for one in superfluous(ours, keep, at) if one.savepoint)

    assert gone(Keep()) == [] and gone(Keep(count=3)) == []
    assert gone(Keep(count=2)) == [0] and gone(Keep(count=1)) == [0, 2]
    assert gone(Keep(age=timedelta(days=7))) == [0]
    assert gone(Keep(count=3, age=timedelta(days=2))) == [0, 2]
    assert gone(Keep(age=timedelta(hours=1)), now + timedelta(days=99)) == [0, 2]
    assert scheduled(found, done.job, "another life") == []
    assert scheduled(found, "a-fork", done.lineage) == []
