"""What a job leaves behind: what goes, and what never does."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fake_job import FakeJob, Weir
from tests.played_driver import JOB, Driver, Run
from weir.checkpoint.manifest import Manifest, encode
from weir.clock import Clock
from weir.config import resolve
from weir.ids import Attempt, CheckpointId, Generation, JobName
from weir.protocol.checkpoint import Alignment
from weir.storage import generation as generations
from weir.storage import paths, scratch
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.supervisor.inbox import Requests
from weir.supervisor.leftovers import delete, leftovers


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return FakeJob(tmp_path)


CHK = CheckpointId(7)


def manifest(generation: int, attempt: int = 1) -> bytes:
    """The record of a checkpoint that is there."""
    made = Manifest(
        id=CHK,
        job="wordcount",
        generation=generation,
        attempt=attempt,
        alignment=Alignment.ALIGNED,
        trigger="interval",
        begun_at="2026-01-01T00:00:00+00:00",
        completed_at="2026-01-01T00:00:01+00:00",
        seconds=1.0,
        lineage="one",
        backend="rocksdb",
        parallelism=1,
        spark="4",
        weir="0",
    )
    return encode(made)


def settings(**given: str) -> dict[str, str]:
    return {f"history.retain-{key}": value for key, value in given.items()}


def kinds(job: FakeJob, given: dict[str, str]) -> dict[str, list[str]]:
    chosen = resolve(file=None, overrides=given).settings
    answer: dict[str, list[str]] = {}
    for one in leftovers(str(job.dir), job.name, chosen, Clock()):
        answer.setdefault(one.kind, []).append(os.path.relpath(one.path, job.dir / job.name))
    return answer


def test_logs_of_old_attempts_go_with_their_parts_and_the_newest_stays(job: FakeJob) -> None:
    for attempt in range(1, 31):
        job.log(attempt, "said")
    job.log(3, "before", turned=1)
    gone = kinds(job, {})["log"]
    assert len(gone) == 11 and "logs/driver-000003.log.1" in gone and "logs/driver-000010.log" in gone
    assert len(kinds(job, settings(logs="1"))["log"]) == 30
    assert "log" not in kinds(job, settings(logs="all"))
    long_ago = time.time() - 90 * 86400
    for file in (job.dir / paths.logs(job.name)).iterdir():
        os.utime(file, (long_ago, long_ago))
    assert "logs/driver-000030.log" not in kinds(job, settings(logs="30 d"))["log"]


def test_at_least_a_thousand_records_of_attempts_stay(job: FakeJob) -> None:
    store = LocalStore(job.dir)
    for number in [*range(2, 1003), 2_000_000]:
        (job.dir / paths.attempt(job.name, Attempt(number))).write_text("{}")
    (job.dir / paths.beat(job.name, Attempt(2))).write_text("{}")
    chosen = resolve(file=None).settings
    gone = leftovers(str(job.dir), job.name, chosen, Clock())
    assert [Path(one.path).name for one in gone] == [
        "000001.beat",
        "000001.json",
        "000002.beat",
        "000002.json",
        "000003.json",
    ]
    delete(str(job.dir), gone)
    kept = [key for key in store.list(paths.attempts(job.name)) if key.endswith(".json")]
    assert len(kept) == 1000 and kinds(job, {}) == {}
    with pytest.raises(Exception, match="1000"):
        resolve(file=None, overrides={"history.retain-attempts": "10"})


def test_answers_that_nobody_fetched_go_after_a_day(job: FakeJob) -> None:
    requests = Requests(LocalStore(job.dir), job.name)
    requests.ask("cancel", "s")
    (request,) = requests.pending()
    requests.answer(request, done=True)
    assert kinds(job, {}) == {}
    (file,) = (job.dir / paths.requests(job.name)).glob("*.answer")
    long_ago = time.time() - 90_000
    os.utime(file, (long_ago, long_ago))
    assert list(kinds(job, {})) == ["answer"]


def opened(dir: Path, job: JobName, live: int) -> LocalStore:
    """Generations up to the live one, each with files, and shapes of some starts."""
    store, first = LocalStore(dir), None
    for number in range(1, live + 1):
        if first is None:
            first = generations.open_origin(
                store, job, generations.FIRST, backend="rocksdb", parallelism=1, spark="4", clock=Clock()
            )
        else:
            generations.create_origin(
                store, job, Generation(number), replace(first, restored_from="chk-1", parent=number - 1)
            )
            generations.mark_live(store, job, Generation(number))
        folder = dir / paths.generation(job, Generation(number))
        for name in ("queries/counts/offsets/0", "channels/words/0.json", "pins/queries/x"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("content")
    return store


def test_files_of_old_generations_go_and_what_tells_of_them_stays(job: FakeJob) -> None:
    store = opened(job.dir, job.name, 5)
    assert kinds(job, {})["generation"] == [
        f"generations/000{number}/{name}" for number in (1, 2) for name in ("queries", "channels")
    ]
    before = generations.timeline(store, job.name)
    delete(str(job.dir), leftovers(str(job.dir), job.name, resolve(file=None).settings, Clock()))
    assert generations.timeline(store, job.name) == before and generations.live(store, job.name) == 5
    assert (job.dir / paths.generation(job.name, Generation(1)) / "pins/queries/x").exists()
    assert (job.dir / paths.generation(job.name, Generation(3)) / "queries/counts/offsets/0").exists()
    assert len(kinds(job, settings(generations="0"))["generation"]) == 4


def test_a_generation_that_a_checkpoint_is_of_stays(job: FakeJob) -> None:
    store = opened(job.dir, job.name, 5)
    store.put(paths.completed(job.name, CHK), manifest(generation=1))
    assert kinds(job, {})["generation"] == ["generations/0002/queries", "generations/0002/channels"]
    store.put(paths.completed(job.name, CHK), b"torn")
    assert kinds(job, {}) == {}


def test_while_a_restore_is_asked_for_no_generation_goes(job: FakeJob) -> None:
    store = opened(job.dir, job.name, 5)
    origin = generations.read_origin(store, job.name, Generation(5))
    assert origin is not None
    generations.create_origin(store, job.name, Generation(6), replace(origin, parent=1))
    assert kinds(job, {}) == {}


def test_shapes_of_old_starts_go_unless_a_query_has_no_newer_one(job: FakeJob) -> None:
    store = opened(job.dir, job.name, 1)
    folder = paths.generation(job.name, Generation(1))
    for attempt in range(1, 41):
        store.put(f"{folder}/shapes/{attempt:06d}/counts.json", b"{}")
    store.put(f"{folder}/shapes/000005/gone.json", b"{}")
    gone = kinds(job, {})["shape"]
    assert len(gone) == 19 and "generations/0001/shapes/000005" not in gone
    store.put(paths.completed(job.name, CHK), manifest(generation=1, attempt=3))
    assert len(kinds(job, {})["shape"]) == 2


def test_weir_clean_shows_first_and_deletes_when_it_is_told_to(job: FakeJob, weir: Weir) -> None:
    for attempt in range(1, 6):
        job.log(attempt, "said")
    left = scratch.Scratch.make()
    os.close(left.handle)
    command = ("clean", "wordcount", "--dir", str(job.dir), "-D", "history.retain-logs=2")
    shown = weir(*command)
    assert shown.code == 0 and "nothing is deleted yet" in shown.out and "-y" in shown.out
    assert str(left.path) in shown.out and left.path.exists()
    asked = weir(*command, "--json").json
    assert (asked["deleted"], len(asked["leftovers"])) == (False, 4)
    done = weir(*command, "-y")
    assert done.code == 0 and "deleted" in done.out
    assert not left.path.exists() and len(list((job.dir / paths.logs(job.name)).iterdir())) == 2
    assert "there is nothing to delete" in weir(*command).out
    assert weir("clean", "nope", "--dir", str(job.dir)).code == 2


def test_each_start_deletes_what_is_left_over(run: Run, drivers: list[Driver]) -> None:
    logs = run.dir / paths.logs(JOB)
    logs.mkdir(parents=True)
    for attempt in range(100, 140):
        (logs / f"driver-{attempt:06d}.log").write_text("said")
    left = scratch.Scratch.make()
    os.close(left.handle)
    run(lambda client: client.wait_for(lambda: not left.path.exists()))
    assert len(list(logs.glob("driver-*"))) <= 21
    newest = AttemptLock(LocalStore(run.dir), JOB, Clock()).newest()
    assert newest is not None and json.loads((run.dir / paths.attempt(JOB, newest.attempt)).read_text())
