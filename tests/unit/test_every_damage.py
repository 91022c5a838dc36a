"""Flip, half, empty, gone: for every file of a job, none is called intact that a restart can't use.

The files are played ones, as Spark leaves them, with Hadoop checksums beside them; nothing is started. What
a restart needs is found from the files themselves, before any is damaged. A failure prints its seed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kept_job import KeptJob, source_logs, write
from tests.wide_job import ENDS, WideJob, file_source_batches, summed
from weir.checkpoint import manifest as mf
from weir.clock import ManualClock
from weir.errors import DamagedError, DamagedSavepointError, NotASavepointError, WeirError
from weir.ids import BatchId, CheckpointId
from weir.restore.damage import look, look_beside
from weir.restore.fetch import fetch
from weir.restore.intent import intend
from weir.restore.point import named, resolve, verify_id
from weir.restore.repair import plan
from weir.restore.request import RestoreRequest
from weir.savepoint.manifest import MANIFEST, decode
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import SavepointFacts, take
from weir.savepoint.verify import verify
from weir.spark.closure import GoneError, closure
from weir.storage import generation as generations
from weir.storage import sums
from weir.storage.generation import FIRST

SEED = 20260917
FACTS = SavepointFacts("request", "ada@engine", since=0.0)


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """Three batches over a file source whose log was compacted once, and checkpoints of the last two."""
    made = KeptJob(tmp_path / "weir")
    file_source_batches(made)
    root = made.root() / "queries/counts"
    for number, id in ((1, 41), (2, 42)):
        made.take(id, made.pins(inline=200), closure(root, BatchId(number)).files, number)
    return made


def flip(path: Path, chance: random.Random) -> None:
    """One bit; not in the name of a sum, without which the rest is read as an earlier version wrote it."""
    data = bytearray(path.read_bytes())
    first = len('{"crc32":"') if sums.has(bytes(data)) else 0
    data[chance.randrange(first, len(data))] ^= 1 << chance.randrange(8)
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
                intend(
                    job.store,
                    job.job,
                    RestoreRequest("latest", accept_duplicates=True),
                    clock=ManualClock(),
                    why="a test",
                )
                opened = generations.opening(job.store, job.job)
                assert opened is not None
                fetch(job.store, job.job, opened)
        except WeirError as error:
            assert error.what and not isinstance(error, DamagedError), f"{path}, {damage.__name__}, {SEED}"
        shutil.rmtree(job.folder)
        shutil.copytree(kept, job.folder)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def seen(wide: WideJob) -> list[str]:
    """What `weir verify` finds of live files, journals and ledgers; raises nothing but `WeirError`."""
    store, job = wide.kept.store, wide.kept.job
    found = [*look(store, job, FIRST, thorough=True), *look_beside(store, job, FIRST)]
    return [one.text for one in found]


def words(act: Callable[[], object], what: str) -> str:
    """What is refused, "" where nothing is; anything but an error in words fails the test."""
    try:
        act()
    except WeirError as error:
        assert error.what and not error.what.startswith("internal error in weir"), what
        return error.text
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return ""


ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 8))]
"""In each every file is damaged in one way, in the next round in the next way, with other bits."""


@pytest.mark.parametrize("number", ROUNDS)
def test_of_every_kind_of_file_no_damage_is_called_intact_and_every_look_ends_in_words(
    number: int, tmp_path: Path
) -> None:
    """State of both backends, a channel, user state, a source's journal, a function's ledger, manifests."""
    wide, chance = WideJob(tmp_path / "weir"), random.Random(SEED + number)
    store, job = wide.kept.store, wide.kept.job
    needed, may_be_gone, unnoticed = set(wide.needed()), set(wide.may_be_gone()), []
    assert seen(wide) == []
    for at, path in enumerate(files_of(wide.kept.folder)):
        damage = DAMAGES[(at + number) % len(DAMAGES)]
        name, intact = str(path.relative_to(wide.kept.folder)), path.read_bytes()
        what = f"{name}, {damage.__name__}, seed {SEED + number}"
        damage(path, chance)
        quick: list[object] = []
        found: list[str] = []
        refused = words(lambda: quick.extend(look(store, job, FIRST)), what)  # noqa: B023
        refused += words(lambda: found.extend(seen(wide)), what)  # noqa: B023
        words(lambda: plan(store, job), what)
        for id in (CheckpointId(41), CheckpointId(42)):
            words(lambda: verify_id(store, job, id), what)  # noqa: B023
        if name in needed - (may_be_gone if damage is gone else set()) and not found and not refused:
            unnoticed.append(what)
        write(path, intact)
    assert unnoticed == []
    assert seen(wide) == []


OTHERS = [b"null", b"7", b"[1]", b"{}"]
"""What is JSON, and not what is expected."""


def test_other_json_in_any_file_is_never_called_intact_and_every_look_ends_in_words(tmp_path: Path) -> None:
    wide = WideJob(tmp_path / "weir")
    store, job, needed = wide.kept.store, wide.kept.job, set(wide.needed())
    unnoticed = []
    for at, path in enumerate(files_of(wide.kept.folder)):
        name, intact = str(path.relative_to(wide.kept.folder)), path.read_bytes()
        for other in OTHERS if name.endswith(".crc") else OTHERS[at % 4 :: 4]:
            if other == b"{}" and "/user-state/" in name:
                continue  # no state has a value: an earlier version wrote that so
            what = f"{name}, {other[:9]!r}"
            write(path, other)
            found: list[str] = []
            refused = words(lambda: look(store, job, FIRST), what)
            refused += words(lambda: found.extend(seen(wide)), what)  # noqa: B023
            words(lambda: plan(store, job), what)
            words(lambda: verify_id(store, job, CheckpointId(42)), what)
            if name in needed and not found and not refused:
                unnoticed.append(what)
        write(path, intact)
    assert unnoticed == []


@pytest.mark.parametrize("number", ROUNDS)
def test_no_damage_of_a_file_of_a_savepoint_is_called_intact(number: int, tmp_path: Path) -> None:
    wide, chance = WideJob(tmp_path / "weir"), random.Random(SEED + number)
    store, job = wide.kept.store, wide.kept.job
    manifest = named(store, job, "chk-42")
    place = SavepointPlace(take(store, manifest, str(tmp_path / "saved"), FACTS, wide.kept.clock).place)
    assert place.folder is not None and verify(place, wide.kept.clock).whole
    (place.folder / "verified.json").unlink()
    unnoticed = []
    for at, path in enumerate(files_of(place.folder)):
        damage, intact = DAMAGES[(at + number) % len(DAMAGES)], path.read_bytes()
        what = f"{path.relative_to(place.folder)}, {damage.__name__}, seed {SEED + number}"
        damage(path, chance)
        if not words(lambda: resolve(store, job, str(place.folder)), what):
            unnoticed.append(what)
        write(path, intact)
    assert unnoticed == []
    resolve(store, job, str(place.folder))


def test_no_flip_of_a_bit_in_a_manifest_goes_unnoticed(job: KeptJob) -> None:
    """And where the newest is damaged, the one before it is taken."""
    path = job.folder / job.job / "checkpoints/chk-42.json"
    intact, chance = path.read_bytes(), random.Random(SEED)
    for _ in range(250):
        at, bit = chance.randrange(len(intact)), chance.randrange(8)
        data = bytearray(intact)
        data[at] ^= 1 << bit
        path.write_bytes(bytes(data))
        assert verify_id(job.store, job.job, CheckpointId(42)), f"byte {at}, bit {bit}, seed {SEED}"
        assert resolve(job.store, job.job, "latest").manifest.id == 41
    path.write_bytes(intact)
    assert resolve(job.store, job.job, "latest").manifest.id == 42


def test_nor_in_one_that_an_earlier_weir_wrote_where_it_matters(job: KeptJob) -> None:
    """It has no checksum: what is not noticed must name the same files, cuts and lineage."""
    path = job.folder / job.job / "checkpoints/chk-42.json"
    manifest = mf.decode(path.read_bytes())
    intact = manifest.model_dump_json(exclude={"format", "checksum"}).encode()
    path.write_bytes(intact)
    assert verify_id(job.store, job.job, CheckpointId(42)) == []
    chance = random.Random(SEED)
    for _ in range(250):
        at, bit = chance.randrange(len(intact)), chance.randrange(8)
        data = bytearray(intact)
        data[at] ^= 1 << bit
        path.write_bytes(bytes(data))
        if not verify_id(job.store, job.job, CheckpointId(42)):
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
            found = verify_id(job.store, job.job, CheckpointId(42))
            assert found, f"{number}: {file['path']}"


def test_no_flip_of_a_bit_in_the_manifest_of_a_savepoint_goes_unnoticed(job: KeptJob, tmp_path: Path) -> None:
    manifest = named(job.store, job.job, "chk-42")
    place = SavepointPlace(take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock).place)
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
    manifest = named(job.store, job.job, "chk-42")
    place = SavepointPlace(take(job.store, manifest, str(tmp_path / "saved"), FACTS, job.clock).place)
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
        resolve(job.store, job.job, str(place.folder))


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


FOREIGN = {
    "plain JSON": '{"shard": "a"}',
    "empty": "",
    "no text": b"\xff\xfe",
    "a version and JSON on several lines": 'v1\n{\n  "shard": "a"\n}',
    "rate": "v1\n1790000000000",
    "Kafka": '\0v1\n{"words":{"0":3}}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["0", "17", "17.compact", "shards.zip", "shards.crc"])
def test_what_a_foreign_source_keeps_in_its_folder_is_never_damage(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    """Also when it has changed since a checkpoint, and whatever checksum lies beside it."""
    job = KeptJob(tmp_path / "weir")
    root = job.root() / "queries/counts"
    job.batch(0, ENDS, '{"shard":"a"}')
    own = write(root / "sources/1" / name, "as it was")
    summed(own)
    names = closure(root, BatchId(0)).files
    assert f"sources/1/{name}" in names
    job.take(41, job.pins(), names, 0)
    write(own, content)
    for thorough in (False, True):
        assert look(job.store, job.job, FIRST, thorough=thorough) == []
    write(root / "sources/0/11", "v")
    (found,) = look(job.store, job.job, FIRST)
    assert found.text == "sources/0/11 of query counts can't be read"


def test_a_foreign_log_between_sources_of_files_is_kept_as_it_is(tmp_path: Path) -> None:
    """A frame that is used twice has one folder, so that offsets alone do not tell whose folder it is."""
    ends = ['{"logOffset":1}', '{"logOffset":1}', '{"shard":"a"}', '{"logOffset":2}']
    files = {"metadata": "{}", "offsets/0": "\n".join(["v1", '{"conf":{}}', *ends]), "commits/0": "v1\n{}"}
    read = {path.rpartition("/")[2]: text for path, text in source_logs(['{"logOffset":2}']).items()}
    files |= {f"sources/{folder}/{name}": str(text) for folder in (0, 2) for name, text in read.items()}
    foreign = {"sources/1/5", "sources/1/9", "sources/1/9.compact"}
    for path, text in (files | dict.fromkeys(foreign, "{}")).items():
        write(tmp_path / path, text)
    found = closure(tmp_path, BatchId(0))
    assert foreign <= set(found.files)
    assert found.foreign == foreign
    (tmp_path / "sources/2/1").unlink()
    with pytest.raises(GoneError, match="sources/2/1"):
        closure(tmp_path, BatchId(0))


def test_a_log_of_files_whose_source_has_no_offset_yet_is_known_by_an_intact_entry(job: KeptJob) -> None:
    root = job.root() / "queries/counts"
    for number in range(3):
        job.batch(number, ENDS, "-")
        summed(root / f"offsets/{number}")
    for name, text in source_logs(["-", ENDS]).items():
        write(root / name, text)
    assert look(job.store, job.job, FIRST) == []
    write(root / "sources/1/3", "")
    (found,) = look(job.store, job.job, FIRST)
    assert found.text == "sources/1/3 of query counts is empty"


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
    number = intend(
        job.store,
        job.job,
        RestoreRequest("latest", accept_duplicates=True),
        clock=ManualClock(),
        why="a test",
    )
    fetch(job.store, job.job, number)
    generations.mark_live(job.store, job.job, number)
    (job.root(number) / "origin.json").unlink()
    assert generations.live(job.store, job.job) == number
    (found,) = look(job.store, job.job, number)
    assert found.text == f"origin.json of generation {number} is gone"
