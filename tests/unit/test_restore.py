"""From a checkpoint to a new generation: the right one, whole, and safe to be killed in."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import KeptJob, changes, tree, write
from weir.channel.position import Position
from weir.checkpoint import kept_files, retention
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.checkpoint.pins import Pins
from weir.clock import ManualClock
from weir.config import CheckpointStorage
from weir.errors import DamagedCheckpointError, JobRunningError, NoSuchCheckpointError
from weir.ids import BatchId, CheckpointId, Generation, QueryName
from weir.restore import intent
from weir.restore.fetch import fetch
from weir.restore.point import attempt_of, attempt_of_latest, candidates, resolve, verify, verify_id
from weir.restore.request import RestoreRequest
from weir.savepoint.catalogue import record
from weir.savepoint.manifest import MANIFEST, decode, encode
from weir.savepoint.take import SavepointFacts, take
from weir.storage import Store, files, paths
from weir.storage import generation as generations
from weir.storage.generation import FIRST, mark_live, read_origin
from weir.storage.sums import seal

ONE, TWO = CheckpointId(1), CheckpointId(2)
QUERY = "queries/counts"


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    return KeptJob(tmp_path / "weir")


def intend(job: KeptJob, point: str = "latest", accept_duplicates: bool = False) -> Generation:
    return intent.intend(
        job.store,
        job.job,
        RestoreRequest(point, accept_duplicates=accept_duplicates),
        clock=ManualClock(),
        why="a test",
    )


def opened(job: KeptJob, point: str = "latest", accept_duplicates: bool = False) -> Generation:
    number = intend(job, point, accept_duplicates)
    fetch(job.store, job.job, number)
    return number


def three(job: KeptJob, pins: Pins | None = None) -> list[Manifest]:
    pins = pins or job.pins()
    return [job.take(41 + n, pins, job.batch(n), n) for n in range(3)]


def files_of(job: KeptJob, generation: Generation) -> dict[str, bytes]:
    return {path: data for path, data in tree(job.root(generation)).items() if path.startswith("queries")}


def closure_of(job: KeptJob, manifest: Manifest) -> dict[str, bytes]:
    return {file.path: (job.root() / file.path).read_bytes() for file in manifest.files()}


# which one


@pytest.mark.parametrize(("point", "id"), [("latest", 43), ("chk-41", 41), ("42", 42)])
def test_a_checkpoint_is_found_by_what_users_call_it(job: KeptJob, point: str, id: int) -> None:
    three(job)
    assert resolve(job.store, job.job, point).manifest.id == id


@pytest.mark.parametrize("point", ["chk-7", "7", "newest", "chk-"])
def test_one_that_is_not_there_is_answered_with_those_that_are(job: KeptJob, point: str) -> None:
    with pytest.raises(NoSuchCheckpointError, match="are: none"):
        resolve(job.store, job.job, point)
    three(job)
    job.abort(42)
    with pytest.raises(NoSuchCheckpointError, match="are: chk-41, chk-43"):
        resolve(job.store, job.job, point)
    with pytest.raises(NoSuchCheckpointError, match="chk-42"):
        resolve(job.store, job.job, "chk-42")


def test_latest_needs_a_checkpoint(job: KeptJob) -> None:
    with pytest.raises(NoSuchCheckpointError, match="it has no completed checkpoint"):
        resolve(job.store, job.job, "latest")


def damage_content(path: Path) -> None:
    data = path.read_bytes()
    write(path, data.replace(b"batch", b"BATCH"))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "is gone"),
    (lambda path: write(path, ""), f"has 0 bytes instead of {len(changes(2))}"),
    (damage_content, "has changed"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_a_damaged_file_is_found_and_the_one_before_is_taken(
    job: KeptJob, damage: Callable[[Path], object], words: str
) -> None:
    manifests = three(job)
    damage(job.root() / "pins" / QUERY / "state/0/0/3.delta")
    problem = f"{QUERY}/state/0/0/3.delta {words}"
    assert verify(job.store, manifests[2]) == [problem]
    assert verify_id(job.store, job.job, CheckpointId(43)) == [problem]
    with pytest.raises(DamagedCheckpointError, match=rf"3\.delta {words}"):
        intend(job, "chk-43")
    told: list[tuple[str, str]] = []
    found = resolve(job.store, job.job, "latest", lambda name, what: told.append((name, what)))
    assert (found.name, found.manifest.id, told) == ("chk-42", 42, [("chk-43", problem)])


def test_when_all_are_damaged_it_says_so(job: KeptJob) -> None:
    three(job)
    (job.root() / "pins" / QUERY / "metadata").unlink()
    with pytest.raises(
        NoSuchCheckpointError, match="no checkpoint is intact: chk-43 queries/counts/metadata"
    ):
        intend(job)
    assert generations.opening(job.store, job.job) is None


def test_a_manifest_that_can_not_be_read_is_damage(job: KeptJob) -> None:
    three(job)
    job.store.put(paths.completed(job.job, CheckpointId(43)), b'{"id": 43')
    assert resolve(job.store, job.job, "latest").manifest.id == 42
    assert verify_id(job.store, job.job, CheckpointId(43)) == ["chk-43.json can't be read"]
    with pytest.raises(DamagedCheckpointError, match=r"chk-43\.json"):
        intend(job, "43")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((b'"format":2', b'"format":3'), "it has format 3"),
        ((b'"id":43', b'"id":43,"added":1'), "it has added, which this weir does not know"),
    ],
)
def test_a_manifest_of_a_newer_weir_is_not_called_damaged(
    job: KeptJob, change: tuple[bytes, bytes], words: str
) -> None:
    three(job)
    key = paths.completed(job.job, CheckpointId(43))
    data = re.sub(rb'"checksum":"[0-9a-f]*"', b'"checksum":""', job.store.get(key) or b"", count=1)
    job.store.put(key, seal(data.replace(*change, 1)))
    (found,) = verify_id(job.store, job.job, CheckpointId(43))
    assert words in found and found.endswith("a newer weir wrote it")
    with pytest.raises(NoSuchCheckpointError, match="a newer weir wrote it"):
        intend(job, "43")
    assert resolve(job.store, job.job, "latest").manifest.id == 42


def test_latest_is_on_the_way_to_the_live_files(job: KeptJob) -> None:
    three(job)
    second = opened(job, "chk-42")
    assert candidates(job.store, job.job) == [43, 42, 41]
    mark_live(job.store, job.job, second)
    assert candidates(job.store, job.job) == [42, 41]
    job.take(44, job.pins(second), job.batch(2, generation=second), 2, generation=second)
    assert candidates(job.store, job.job) == [44, 42, 41]
    assert resolve(job.store, job.job, "chk-43").manifest.id == 43


def saved(job: KeptJob, manifest: Manifest, folder: Path) -> str:
    taken = take(job.store, manifest, str(folder), SavepointFacts("request", "me@here", 0.0), job.clock)
    record(job.store, taken)
    return taken.place


def latest(job: KeptJob, savepoint_dir: Path | None = None) -> str:
    given = str(savepoint_dir) if savepoint_dir else ""
    return resolve(job.store, job.job, "latest", savepoint_dir=given).name


def test_latest_is_a_checkpoint_before_its_copy_and_the_copy_when_the_checkpoint_is_gone(
    job: KeptJob, tmp_path: Path
) -> None:
    manifests = three(job)
    older, place = (saved(job, one, tmp_path / "saved") for one in (manifests[0], manifests[2]))
    assert latest(job) == "chk-43"
    (job.root() / "pins" / QUERY / "state/0/0/3.delta").unlink()
    assert latest(job) == place
    number = intend(job)
    origin = read_origin(job.store, job.job, number)
    assert origin is not None and (origin.restored_from, origin.saved) == (place, 43)
    Path(place, QUERY, "state/0/0/1.delta").unlink()
    assert latest(job) == "chk-42", "the savepoint is not whole either"
    for id in (41, 42, 43):
        job.store.delete(paths.completed(job.job, CheckpointId(id)))
    assert latest(job) == older
    shutil.rmtree(older)
    with pytest.raises(NoSuchCheckpointError, match=f"no checkpoint is intact: {place}"):
        latest(job)


def test_latest_finds_a_savepoint_that_was_moved_to_the_savepoint_dir(job: KeptJob, tmp_path: Path) -> None:
    place = Path(saved(job, three(job)[2], tmp_path / "saved"))
    job.store.delete(paths.completed(job.job, CheckpointId(43)))
    (tmp_path / "other").mkdir()
    moved = place.rename(tmp_path / "other" / "moved")
    assert latest(job) == "chk-42"
    assert latest(job, tmp_path / "other") == str(moved)


def test_latest_is_no_savepoint_that_the_job_was_taken_back_behind_nor_one_of_another_life(
    job: KeptJob, tmp_path: Path
) -> None:
    saved(job, three(job)[2], tmp_path / "saved")
    mark_live(job.store, job.job, opened(job, "chk-42"))
    assert latest(job) == "chk-42"
    other = KeptJob(tmp_path / "other life")
    saved(other, three(other)[2], tmp_path / "saved")
    assert latest(job, tmp_path / "saved") == "chk-42"


@pytest.mark.parametrize("place", ["az://nobody/job-99", "/" + 300 * "x" + "/job-99"])
def test_latest_passes_over_a_savepoint_that_can_not_be_reached(
    job: KeptJob, tmp_path: Path, place: str
) -> None:
    body = json.dumps({"path": place, "taken_at": "later"}).encode()
    job.store.put(paths.saved(job.job, CheckpointId(99)), body)
    with pytest.raises(NoSuchCheckpointError, match="can't be reached"):
        latest(job)
    three(job)
    told: list[tuple[str, str]] = []
    found = resolve(job.store, job.job, "latest", lambda name, what: told.append((name, what)))
    assert found.name == "chk-43" and [name for name, _ in told] == [place]
    assert latest(job, Path(place)) == "chk-43", "nor does a savepoint-dir that can't be reached stop it"
    lost = KeptJob(tmp_path / "lost", lineage=False)
    lost.store.put(paths.saved(job.job, CheckpointId(99)), body)
    assert attempt_of_latest(lost.store, lost.job, "") == 0


def test_no_checkpoint_of_another_life_is_on_the_way(job: KeptJob, tmp_path: Path) -> None:
    """Numbers of generations and checkpoints begin anew with each life."""
    three(job)
    other = KeptJob(tmp_path / "other life")
    place = saved(other, three(other)[1], tmp_path / "saved")
    mark_live(job.store, job.job, opened(job, place, accept_duplicates=True))
    assert candidates(job.store, job.job) == []
    shutil.rmtree(job.folder / paths.generations(job.job))
    assert candidates(job.store, job.job) == [43, 42, 41], "without live files any will do"


def test_a_fork_goes_back_to_no_point_of_its_own_that_it_was_taken_back_behind(
    job: KeptJob, tmp_path: Path
) -> None:
    first, second = (saved(job, one, tmp_path / "saved") for one in three(job)[1:])
    fork = KeptJob(tmp_path / "weir", "test", lineage=False)

    def forked(point: str) -> Generation:
        request = RestoreRequest(point, forked_from=job.job)
        number = intent.intend(fork.store, fork.job, request, clock=ManualClock(), why="a test")
        fetch(fork.store, fork.job, number)
        return number

    begun = forked(first)
    mark_live(fork.store, fork.job, begun)
    origin = read_origin(fork.store, fork.job, begun)
    assert origin is not None and origin.lineage == job.origin.lineage
    fork.origin = origin
    for id in (51, 52):
        batch = id - 49
        names = fork.batch(batch, generation=begun)
        fork.take(id, fork.pins(begun), names[:5], batch, generation=begun)
    mark_live(fork.store, fork.job, forked("chk-51"))
    with pytest.raises(NoSuchCheckpointError, match="rewound past it"):
        forked("chk-52")
    assert forked("chk-51") and forked(second), "the original's are of its own generations"


@pytest.mark.parametrize("trigger", ["edit", "convert"])
def test_latest_is_no_savepoint_that_was_made_of_another_one(
    job: KeptJob, tmp_path: Path, trigger: str
) -> None:
    older, newer = (Path(saved(job, one, tmp_path / "saved")) for one in three(job)[1:])
    made = tmp_path / "saved" / "made"
    shutil.copytree(older, made)
    told = decode((made / MANIFEST).read_bytes(), str(made))
    told = told.model_copy(update={"trigger": trigger, "taken_at": "2999-01-01T00:00:00+00:00"})
    (made / MANIFEST).write_bytes(encode(told))
    lost = KeptJob(tmp_path / "lost", lineage=False)
    assert latest(lost, tmp_path / "saved") == str(newer), "not the one that was written last"
    for place in (older, newer):
        shutil.rmtree(place)
    with pytest.raises(NoSuchCheckpointError):
        latest(lost, tmp_path / "saved")
    assert resolve(lost.store, lost.job, str(made)).name == str(made), "by its name it is found"


def test_a_job_that_lost_its_directory_comes_back_from_the_savepoint_that_was_taken_last(
    tmp_path: Path,
) -> None:
    for name, number in (("2026-01-01", 2), ("2026-01-02", 1)):
        life = KeptJob(tmp_path / name)
        taken = three(life)[number].model_copy(update={"completed_at": name})
        newest = saved(life, taken, tmp_path / "saved")
    lost = KeptJob(tmp_path / "weir", lineage=False)
    assert latest(lost, tmp_path / "saved") == newest, "though the number of the other is higher"
    assert attempt_of_latest(lost.store, lost.job, str(tmp_path / "saved")) == 1
    assert attempt_of_latest(life.store, life.job, str(tmp_path / "saved")) == 0


# the intention


def test_an_intention_keeps_what_may_not_change(job: KeptJob) -> None:
    three(job)
    number = intend(job, "chk-42", accept_duplicates=True)
    origin = read_origin(job.store, job.job, number)
    assert origin is not None
    assert (number, origin.restored_from, origin.parent, origin.options.accept_duplicates, origin.why) == (
        *(2, "chk-42", 1, True),
        "a test",
    )
    assert (origin.lineage, origin.backend, origin.parallelism) == (job.origin.lineage, "hashmap", 1)
    assert generations.opening(job.store, job.job) == number
    assert sorted(path.name for path in job.root(number).iterdir()) == ["origin.crc32", "origin.json"]


def test_to_intend_the_same_again_changes_nothing(job: KeptJob) -> None:
    three(job)
    assert intend(job, "chk-42") == intend(job, "42") == 2
    assert intend(job, "chk-41") == 3
    assert generations.opening(job.store, job.job) == 3


def test_a_checkpoint_that_is_dropped_while_it_is_verified_is_not_intended(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(store: Store, manifest: Manifest) -> list[str]:
        job.store.delete(paths.completed(job.job, CheckpointId(manifest.id)))
        return []

    three(job)
    monkeypatch.setattr("weir.restore.point.verify", slow)
    with pytest.raises(NoSuchCheckpointError, match="are: chk-42, chk-43"):
        intend(job, "chk-41")
    assert generations.opening(job.store, job.job) is None


@pytest.mark.parametrize("first", ["intention", "drop"])
def test_a_checkpoint_that_is_let_go_and_asked_for_at_one_time_is_there_or_refused(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    three(job)
    create, delete = generations.create_origin, job.store.delete

    def drop_meanwhile(*args: Any) -> bool:
        retention.drop(job.store, job.job, [CheckpointId(41)])
        return create(*args)

    def intend_meanwhile(key: str) -> None:
        if key == paths.begun(job.job, CheckpointId(41)):
            intend(job, "chk-41")
        delete(key)

    if first == "intention":
        monkeypatch.setattr(job.store, "delete", intend_meanwhile)
        assert retention.drop(job.store, job.job, [CheckpointId(41), CheckpointId(42)]) == [42]
        opened(job, "chk-41")
    else:
        monkeypatch.setattr("weir.restore.intent.create_origin", drop_meanwhile)
        with pytest.raises(NoSuchCheckpointError, match="deleted meanwhile"):
            intend(job, "chk-41")
        assert generations.opening(job.store, job.job) is None


def test_a_checkpoint_that_is_asked_for_while_its_record_is_deleted_is_put_back(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(job)
    delete, key = job.store.delete, paths.completed(job.job, CheckpointId(41))

    def intend_meanwhile(deleted: str) -> None:
        if deleted == key:
            intend(job, "chk-41")
        delete(deleted)

    monkeypatch.setattr(job.store, "delete", intend_meanwhile)
    assert retention.drop(job.store, job.job, [CheckpointId(41), CheckpointId(42)]) == [42]
    assert job.store.exists(key)
    opened(job, "chk-41")


def test_the_point_of_a_rewind_that_was_begun_is_kept_beside_the_one_that_was_asked_for_since(
    job: KeptJob,
) -> None:
    three(job)
    first = intend(job, "chk-42")
    generations.begin_rewind(job.store, job.job, first, {QueryName("counts"): BatchId(1)})
    intend(job, "chk-41")
    assert retention.wanted(job.store, job.job) == {41, 42}


@pytest.mark.parametrize("started", [1, 2, 3])
def test_an_intention_of_a_job_that_was_started_meanwhile_never_counts(job: KeptJob, started: int) -> None:
    """Else some later crash of that job would take it up."""
    three(job)
    calls = []

    def still() -> None:
        calls.append(len(generations.numbers(job.store, job.job)))
        if len(calls) == started:
            raise JobRunningError(job=job.job, pid=1, host="here", user="me", since="now", attempt=2)

    with pytest.raises(JobRunningError):
        intent.intend(
            job.store, job.job, RestoreRequest("chk-41"), clock=ManualClock(), why="a test", still=still
        )
    assert calls == [1, 1, 2][:started]
    assert generations.opening(job.store, job.job) is None


# the files


def test_the_new_generation_has_the_files_and_the_old_one_is_untouched(job: KeptJob) -> None:
    manifests = three(job)
    job.batch(3)
    before = tree(job.root())
    number = opened(job, "chk-42")
    assert files_of(job, number) == closure_of(job, manifests[1])
    assert tree(job.root()) == before
    copied = json.loads((job.root(number) / "copied.json").read_text())
    assert copied == {"from": "chk-42", "bytes": manifests[1].full_bytes}
    for file in manifests[1].files():
        assert os.path.samefile(job.root(number) / file.path, job.root() / "pins" / file.path)


def test_a_query_before_its_first_batch_gets_no_files(job: KeptJob) -> None:
    job.complete(job.manifest(1, {"counts": QueryCut(batch=-1)}))
    number = opened(job)
    names = sorted(path.name for path in job.root(number).iterdir())
    assert names == ["copied.json", "origin.crc32", "origin.json"]


def test_a_channel_comes_back_with_its_numbers(job: KeptJob) -> None:
    names = ["schema.json", "log/000000007.json", "log/000000008.json", "data/3-1-1/part-0.parquet"]
    for name in names:
        write(job.root() / "channels/clean" / name, name)
    kept = job.pins().keep("channels/clean", names, checkpoint=ONE)
    job.complete(job.manifest(1, {}, {"clean": ChannelCut(first=7, behind=9, batch=3, files=kept.files)}))
    number = opened(job)
    assert tree(job.root(number) / "channels/clean") == tree(job.root() / "channels/clean")


def test_a_full_checkpoint_is_restored_from_its_own_files(job: KeptJob) -> None:
    manifest = job.take(1, job.pins(), job.batch(0), 0, full=True)
    assert files_of(job, opened(job)) == closure_of(job, manifest)


def test_what_was_in_memory_is_written(job: KeptJob) -> None:
    pins = Pins(job.store, job.job, FIRST, storage=CheckpointStorage.MEMORY)
    names = job.batch(0)
    write(job.root() / QUERY / "empty", "")
    manifest = job.take(1, pins, [*names, "empty"], 0)
    expected = closure_of(job, manifest)
    shutil.rmtree(job.root() / "queries")
    assert files_of(job, opened(job)) == expected
    file = manifest.queries["counts"].files[0]
    torn = file.model_copy(update={"inline": "AAAA"})
    cut = manifest.queries["counts"].model_copy(update={"files": (torn,)})
    assert verify(job.store, manifest.model_copy(update={"queries": {"counts": cut}})) == [
        f"{file.path} has 3 bytes instead of {file.bytes}"
    ]


class Killed(BaseException):
    """As sudden as a kill."""


@pytest.mark.parametrize("linking", [True, False])
def test_it_may_be_killed_at_any_file(job: KeptJob, monkeypatch: pytest.MonkeyPatch, linking: bool) -> None:
    manifests = three(job)
    number = intend(job)
    real = files.link

    for survives in range(len(manifests[2].queries["counts"].files)):
        left = [survives]

        def dying(source: Path, target: Path, left: list[int] = left) -> bool:
            left[0] -= 1
            if left[0] < 0:
                half = files.beside(target)
                half.write_text("half")
                raise Killed
            if linking:
                return real(source, target)
            files.copy(source, target)
            return True

        monkeypatch.setattr(files, "link", dying)
        with pytest.raises(Killed):
            fetch(job.store, job.job, number)
        assert not job.store.exists(paths.copied(job.job, number))
        assert files_of(job, number).items() <= (closure_of(job, manifests[2]) | halves(job, number)).items()
        shutil.rmtree(job.root(number) / "queries")
    with pytest.raises(Killed):
        fetch(job.store, job.job, number)
    monkeypatch.undo()
    assert fetch(job.store, job.job, number) == manifests[2]
    assert files_of(job, number) == closure_of(job, manifests[2])


def halves(job: KeptJob, number: Generation) -> dict[str, bytes]:
    found = files_of(job, number)
    return {path: data for path, data in found.items() if files.is_temporary(path.rpartition("/")[2])}


def test_when_it_is_done_it_is_not_done_again(job: KeptJob) -> None:
    manifests = three(job)
    number = opened(job)
    shutil.rmtree(job.root() / "pins")
    assert fetch(job.store, job.job, number) == manifests[2]


def test_what_a_killed_try_left_wrong_is_made_right(job: KeptJob) -> None:
    manifests = three(job)
    number = intend(job)
    write(job.root(number) / QUERY / "metadata", "half")
    fetch(job.store, job.job, number)
    assert files_of(job, number) == closure_of(job, manifests[2])


def test_what_is_damaged_since_is_not_restored(job: KeptJob) -> None:
    three(job)
    number = intend(job)
    write(job.root() / "pins" / QUERY / "metadata", '{"id": "1"}')
    with pytest.raises(DamagedCheckpointError, match="metadata has changed"):
        fetch(job.store, job.job, number)
    assert not job.store.exists(paths.copied(job.job, number))


def test_what_was_dropped_since_is_not_restored(job: KeptJob) -> None:
    three(job)
    number = intend(job, "chk-41")
    job.store.delete(paths.completed(job.job, CheckpointId(41)))
    with pytest.raises(NoSuchCheckpointError, match="are: chk-42, chk-43"):
        fetch(job.store, job.job, number)


# from the copies


def test_a_damaged_pin_is_replaced_by_its_copy(job: KeptJob, tmp_path: Path) -> None:
    manifests = three(job, job.pins(copy_dir=tmp_path / "second"))
    expected = closure_of(job, manifests[2])
    pins = job.root() / "pins" / QUERY
    (pins / "metadata").unlink()
    damage_content(pins / "state/0/0/3.delta")
    write(pins / "offsets/2", "")
    assert verify(job.store, manifests[2]) == []
    number = opened(job)
    assert files_of(job, number) == expected
    copies = tmp_path / "second/job/generations/0001/pins" / QUERY
    (copies / "metadata").unlink()
    assert verify(job.store, manifests[2]) == [f"{QUERY}/metadata is gone, and its copy is gone"]


def test_a_lost_directory_comes_back_from_the_copies_alone(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    manifests = three(job, job.pins(copy_dir=second))
    expected = closure_of(job, manifests[1])
    shutil.rmtree(job.folder)
    moved = tmp_path / "moved"
    second.rename(moved)
    new = KeptJob(tmp_path / "new", lineage=False)
    point = f"{moved}/job/checkpoints/chk-42.json"
    assert attempt_of(point) == 1, "the fences in its channels and sinks are of that attempt"
    assert intend(new, point) == intend(new, point) == 2
    number = opened(new, point)
    assert files_of(new, number) == expected
    origin = read_origin(new.store, new.job, number)
    assert origin is not None and (origin.lineage, origin.parent) == (job.origin.lineage, 1)
    mark_live(new.store, new.job, number)
    assert candidates(new.store, new.job) == [42]
    pins = new.pins(number, copy_dir=moved)
    new.origin = origin
    new.take(43, pins, new.batch(2, generation=number), 2, generation=number)
    assert verify_id(new.store, new.job, CheckpointId(42)) == []


def test_the_path_of_a_manifest_in_the_jobs_own_directory_is_a_point_like_that_of_a_copy(
    job: KeptJob, tmp_path: Path
) -> None:
    manifests = three(job)
    point = f"{job.store.url}/{paths.completed(job.job, CheckpointId(42))}"
    expected = closure_of(job, manifests[1])
    assert resolve(job.store, job.job, point).manifest.id == 42
    assert files_of(job, opened(job, point)) == expected
    new = KeptJob(tmp_path / "new", lineage=False)
    assert files_of(new, opened(new, point)) == expected


def test_a_manifest_elsewhere_must_be_there_and_of_this_job(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    three(job, job.pins(copy_dir=second))
    with pytest.raises(NoSuchCheckpointError, match="there is no such file"):
        intend(job, f"{second}/job/checkpoints/chk-7.json")
    other = KeptJob(tmp_path / "weir", name="other")
    with pytest.raises(NoSuchCheckpointError, match="of job 'job'"):
        intend(other, f"{second}/job/checkpoints/chk-42.json")
    write(second / "job/checkpoints/chk-9.json", "{half")
    with pytest.raises(NoSuchCheckpointError, match="can't be read"):
        intend(job, f"{second}/job/checkpoints/chk-9.json")


def test_a_number_is_not_taken_by_two_checkpoints(job: KeptJob, tmp_path: Path) -> None:
    second = tmp_path / "second"
    three(job, job.pins(copy_dir=second))
    anew = KeptJob(tmp_path / "anew")
    anew.take(42, anew.pins(), anew.batch(0), 0)
    anew.abort(41)
    for id in (41, 42):
        with pytest.raises(NoSuchCheckpointError, match="another checkpoint of this number"):
            intend(anew, f"{second}/job/checkpoints/chk-{id}.json")
    assert generations.opening(anew.store, anew.job) is None


# what must change in a file


def offset(entry: int, barrier: int, channel: str) -> str:
    return json.dumps(Position(entry, CheckpointId(barrier)).offset(channel))


def test_at_least_once_readers_are_set_back_in_the_new_generation_only(job: KeptJob) -> None:
    lines = [offset(9, 3, "left"), '{"logOffset":4}', offset(5, 2, "right"), "-", offset(8, 2, "left")]
    job.batch(0, offset(7, 2, "left"), '{"logOffset":3}', offset(5, 2, "right"), "-", offset(2, 1, "left"))
    names = job.batch(1, *lines)
    kept = job.pins().keep(QUERY, names, checkpoint=TWO)
    back = {"left": (6, 2), "right": (6, 2)}
    job.complete(job.manifest(2, {"counts": QueryCut(batch=1, files=kept.files, set_back=back)}))
    before = tree(job.root())
    number = opened(job)
    assert tree(job.root()) == before
    now = (job.root(number) / QUERY / "offsets/1").read_text().split("\n")
    then = (job.root() / QUERY / "offsets/1").read_text().split("\n")
    assert now == [*then[:2], offset(6, 2, "left"), lines[1], lines[2], "-", offset(6, 2, "left")]
    first = (job.root(number) / QUERY / "offsets/0").read_text().split("\n")[2:]
    assert first[0] == offset(6, 2, "left")
    assert first[4] == offset(2, 1, "left")


def test_named_sources_are_set_back_too() -> None:
    text = "\n".join(["v2", "{}", f"a:{offset(9, 3, 'left')}", 'b:{"logOffset":4}'])
    back = kept_files.reset_readers(text, {"left": Position(6, TWO)})
    assert back == "\n".join(["v2", "{}", f"a:{offset(6, 2, 'left')}", 'b:{"logOffset":4}'])


def test_an_operator_names_its_schema_files_at_the_new_place(job: KeptJob) -> None:
    def metadata(root: Path) -> str:
        schema = f"file:{root}/{QUERY}/state/0/_stateSchema/default/0_a1"
        store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [schema]}
        return "v2\n" + json.dumps({"stateStoreInfo": [store]}, separators=(",", ":"))

    name = "state/0/_metadata/v2/0"
    write(job.root() / QUERY / name, metadata(job.root()))
    kept = job.pins().keep(QUERY, [name], checkpoint=ONE)
    job.complete(job.manifest(1, {"counts": QueryCut(batch=0, files=kept.files)}))
    number = opened(job)
    assert (job.root(number) / QUERY / name).read_text() == metadata(job.root(number))
    assert (job.root() / QUERY / name).read_text() == metadata(job.root())
