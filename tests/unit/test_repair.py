"""A stopped job with torn live files: what it can go on from, what runs again, and that nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_job import FakeJob, Weir
from tests.kept_job import KeptJob, changes, tree, write
from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import encode
from weir.checkpoint.pins import Pins
from weir.errors import DamagedError, NotRewindableError
from weir.ids import CheckpointId, Generation
from weir.restore.damage import look
from weir.restore.fetch import fetch
from weir.restore.point import resolve
from weir.restore.repair import carry_out, plan
from weir.savepoint.take import SavepointFacts, take
from weir.storage import generation as generations
from weir.storage import paths, sums

QUERY = "queries/counts"


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """A job with three batches and no checkpoint."""
    made = KeptJob(tmp_path / "weir")
    for number in range(3):
        made.batch(number, f'{{"logOffset": {number}}}')
    return made


def live(job: KeptJob) -> Path:
    return job.root() / QUERY


def empty(path: Path) -> None:
    os.truncate(path, 0)


def opened(job: KeptJob, **facts: Any) -> Generation:
    """Carry the repair out, and let the next start make its files."""
    found = plan(job.store, job.job)
    assert found is not None
    given = {"accept_duplicates": False, "clock": job.clock, "still": lambda: None, **facts}
    number = carry_out(job.store, job.job, found, **given)
    fetch(job.store, job.job, number)
    return number


CASES: list[tuple[str, Callable[[Path], object], int]] = [
    ("offsets/3", lambda path: write(path, ""), 2),
    ("commits/2", empty, 1),
    ("offsets/2", empty, 1),
    ("offsets/1", empty, 0),
    ("state/0/0/3.delta", empty, 1),
    ("state/0/0/3.delta", Path.unlink, 1),
    ("state/0/0/3.delta", lambda path: os.truncate(path, 30), 1),
    ("state/0/0/2.delta", lambda path: write(path, path.read_bytes().replace(b"batch", b"BATCH")), 0),
]


@pytest.mark.parametrize(("file", "tear", "back_to"), CASES)
def test_the_job_goes_on_from_the_last_batch_whose_files_are_whole(
    job: KeptJob, file: str, tear: Callable[[Path], object], back_to: int
) -> None:
    tear(live(job) / file)
    found = plan(job.store, job.job)
    assert found is not None and found.source.startswith("its live files")
    assert [one.file for one in found.damage] == [file]
    (replay,) = found.replays
    assert (replay.back_to, replay.newest, replay.offsets) == (back_to, 2, (f'{{"logOffset": {back_to}}}',))
    before = tree(job.root() / "queries")
    number = opened(job)
    assert tree(job.root() / "queries") == before  # the only copy is left as it is
    made = job.root(number) / QUERY
    assert sorted(path.name for path in (made / "commits").iterdir()) == [str(back_to)]
    assert (made / f"state/0/0/{back_to + 1}.delta").read_bytes() == changes(back_to)
    generations.mark_live(job.store, job.job, number)
    assert look(job.store, job.job, number) == [] and plan(job.store, job.job) is None


def test_what_runs_again_is_said(job: KeptJob) -> None:
    empty(live(job) / "commits/2")
    found = plan(job.store, job.job)
    assert found is not None and found.replays[0].text == (
        "query counts resumes after batch 1: batch 2 runs again, and what it delivered is rewound"
    )
    empty(live(job) / "state/0/0/2.delta")
    found = plan(job.store, job.job)
    assert found is not None and "resumes after batch 0: batches 1 to 2 run again" in found.replays[0].text


def test_the_checkpoint_of_a_repair_has_a_number_above_the_one_that_the_job_came_from(job: KeptJob) -> None:
    """Of a savepoint that was restored in a new directory, no record has the number."""
    origin = replace(job.origin, restored_from="elsewhere", saved=40).encode()
    job.store.put(paths.origin(job.job, Generation(1)), origin)
    job.store.put(paths.origin_sum(job.job, Generation(1)), sums.of(origin))
    generations.mark_live(job.store, job.job, Generation(1))
    empty(live(job) / "commits/2")
    opened(job)
    assert mf.ids(job.store, job.job)["chk"] == {41}


def test_values_of_the_author_go_with_the_batch(job: KeptJob) -> None:
    for name in (
        "values/000000000-1-1",
        "values/000000001-1-1",
        "values/000000002-1-1",
        "staged/000000001-1-1",
    ):
        write(job.root() / f"user-state/counts/{name}.json", "{}")
    empty(live(job) / "commits/2")
    made = job.root(opened(job)) / "user-state/counts"
    assert sorted(tree(made)) == ["staged/000000001-1-1.json", "values/000000001-1-1.json"]


def test_a_checkpoint_that_is_newer_than_the_whole_batches_is_taken(job: KeptJob) -> None:
    names = [*(f"state/0/0/{n}.delta" for n in (1, 2, 3)), "state/0/_metadata/metadata", "metadata"]
    names += ["offsets/1", "offsets/2", "commits/2"]
    job.take(7, job.pins(), names, 2)
    (live(job) / "state/0/0/3.delta").unlink()
    found = plan(job.store, job.job)
    assert found is not None and (found.point, found.source) == ("chk-7", "checkpoint 7")
    assert found.replays[0].text.endswith("nothing runs again")
    assert (job.root(opened(job)) / QUERY / "state/0/0/3.delta").exists()


def test_a_job_with_streams_goes_back_to_a_checkpoint_as_a_whole(job: KeptJob) -> None:
    write(job.root() / "channels/clean/log/000000000.json", "{}")
    empty(live(job) / "commits/2")
    with pytest.raises(DamagedError, match="commits/2 of query counts"):
        plan(job.store, job.job)
    job.take(3, job.pins(), job.batch(0), 0)
    job.take(4, job.pins(), job.batch(1), 1)
    (job.root() / "pins" / QUERY / "commits/1").unlink()
    found = plan(job.store, job.job)
    assert found is not None and found.point == "chk-3" and found.replays[0].newest == 2
    assert found.passed_over == ("checkpoint 4 is damaged: queries/counts/commits/1 is gone",)


def test_when_nothing_else_is_whole_a_savepoint_is(job: KeptJob, tmp_path: Path) -> None:
    taken = job.take(3, job.pins(), job.batch(0), 0)
    place = take(
        job.store, taken, str(tmp_path / "saved"), SavepointFacts("request", "a@b", 0.0), job.clock
    ).place
    job.store.delete(paths.completed(job.job, CheckpointId(3)))
    for name in ("offsets/0", "offsets/1", "offsets/2"):
        empty(live(job) / name)
    found = plan(job.store, job.job, [str(tmp_path / "gone/job-9"), place])
    assert found is not None and found.point == place and len(found.passed_over) == 1
    assert found.replays[0].back_to == 0 and found.replays[0].newest == 2


def test_output_that_can_not_be_taken_back_is_not_delivered_twice_unasked(job: KeptJob) -> None:
    manifest = job.take(5, job.pins(), job.batch(0), 0)
    cut = manifest.queries["counts"].model_copy(update={"rewindable": False})
    told = manifest.model_copy(update={"queries": {"counts": cut}})
    job.store.put(paths.completed(job.job, CheckpointId(5)), encode(told))
    empty(live(job) / "commits/2")
    found = plan(job.store, job.job)
    assert found is not None and found.replays[0].text.endswith("can't be rewound: it is delivered again")
    with pytest.raises(NotRewindableError, match="counts"):
        opened(job)
    assert generations.numbers(job.store, job.job) == [1]
    assert opened(job, accept_duplicates=True) == 2


# the command


@pytest.fixture
def weir(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weir:
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_DIR", str(tmp_path / "weir"))
    return weir


def test_the_command_shows_asks_and_writes_down(job: KeptJob, weir: Weir, tmp_path: Path) -> None:
    FakeJob(tmp_path / "weir", "job").state("RUNNING").state("FAILED").end()
    assert weir("repair", "job").out == "the live files of job are intact\n"
    empty(live(job) / "commits/2")
    before = tree(tmp_path / "weir")
    answer = weir("repair", "job")
    assert answer.code == 1 and answer.out.splitlines()[0] == "damaged: commits/2 of query counts is empty"
    assert "batch 2 runs again" in answer.out
    assert "nothing was changed; to do it: weir repair job --to-last-good" in answer.err
    answer = weir("repair", "job", "--to-last-good", "--json")
    assert answer.code == 1 and answer.json["error"]["hint"] == "weir repair job --to-last-good --yes"
    changed = {name for name, data in tree(tmp_path / "weir").items() if before.get(name) != data}
    assert not {name for name in changed if "journal" not in name}
    body = weir("repair", "job", "--to-last-good", "--yes", "--json").json
    assert body["generation"] == 2 and body["queries"][0]["back_to"] == 1
    assert body["damage"] == ["commits/2 of query counts is empty"]
    assert "resumes from chk-1 at its next start" in weir("repair", "job").out


def test_a_job_that_runs_is_left_alone(job: KeptJob, weir: Weir, tmp_path: Path) -> None:
    FakeJob(tmp_path / "weir", "job").state("RUNNING")
    answer = weir("repair", "job", "--to-last-good", "--yes")
    assert answer.code == 5 and "already running" in answer.err
    assert weir("repair", "nobody").code == 2


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("when", ["plan", "_confirm", "kept"])
def test_a_job_that_was_started_meanwhile_is_left_alone(
    when: str,
    checkpoint: bool,
    ended: bool,
    job: KeptJob,
    weir: Weir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While files are verified, at the prompt, or while batches are kept; it may have ended again."""
    FakeJob(tmp_path / "weir", "job").state("RUNNING").state("FAILED").end()
    if checkpoint:
        write(job.root() / "channels/clean/log/000000000.json", "{}")
        job.take(3, job.pins(), job.batch(0), 0)
    empty(live(job) / "commits/2")
    before = {name for name in tree(tmp_path / "weir") if "/checkpoints/chk-" in name}

    def starts(*_: object, **__: object) -> None:
        another = FakeJob(tmp_path / "weir", "job", "second").state("RUNNING")
        if ended:
            another.state("CANCELED").end()

    def behind(does: Callable[..., Any]) -> Callable[..., Any]:
        def both(*given: Any, **named: Any) -> Any:
            found = does(*given, **named)
            starts()
            return found

        return both

    if when == "kept":  # the last thing that takes its time: to keep the batches, or to verify the checkpoint
        target = "weir.restore.intent.resolve" if checkpoint else "weir.restore.repair.Pins.keep"
        monkeypatch.setattr(target, behind(resolve if checkpoint else Pins.keep))
    else:
        target = "weir.restore.repair.plan" if when == "plan" else "weir.cli.repair._confirm"
        monkeypatch.setattr(target, behind(plan) if when == "plan" else starts)
    answer = weir("repair", "job", "--to-last-good", "--yes")
    assert answer.code == (1 if ended else 5)
    words = "its newest attempt was 1 and is 2" if ended else "attempt 2 is held by process"
    assert words in answer.err
    assert generations.numbers(job.store, job.job) == [1]
    assert {name for name in tree(tmp_path / "weir") if "/checkpoints/chk-" in name} == before
