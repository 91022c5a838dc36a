"""Savepoints beside a running job, without Spark: the thread that takes them, and its schedule."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import KeptJob
from weir.checkpoint.actions import Held
from weir.checkpoint.manifest import Manifest
from weir.clock import Clock, ManualClock
from weir.config import resolve
from weir.driver import savepoints as module
from weir.driver.savepoints import SavepointHost, Savepoints, WantedSavepoint
from weir.errors import BadValueError, NoSavepointError
from weir.ids import CheckpointId
from weir.protocol import messages as m
from weir.restore.go_live import Claim
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.savepoint.manifest import MANIFEST, encode
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import SavepointFacts, take
from weir.storage import generation as generations

LIMIT = 20.0


class Bench:
    """A job whose coordinator answers as it is told to."""

    def __init__(self, folder: Path, clock: Clock | None = None, **settings: str) -> None:
        self.job = KeptJob(folder / "weir")
        self.pins = self.job.pins()
        self.told: list[m.Message] = []
        self.held: set[int] = set()
        self.waiting: list[Held] = []
        self.refuse = ""
        self.silent = False
        self.undelivered = ""
        self.final: list[bool] = []
        self._id = 0
        self._changed = threading.Condition()
        self.savepoints = Savepoints(
            self.job.store,
            self.job.job,
            self.job.origin.lineage,
            resolve(file=None, overrides=settings).settings,
            SavepointHost(self.report, self.hold, self.hold, self.release, self.delivered, self.facts),
            clock or Clock(),
        )

    def report(self, message: m.Message) -> None:
        with self._changed:
            self.told.append(message)
            self._changed.notify_all()

    def hold(self, held: Held) -> None:
        if self.silent:
            self.waiting.append(held)
        elif self.refuse:
            held(None, self.refuse)
        else:
            self._id += 1
            manifest = self.job.take(self._id, self.pins, self.job.batch(0), 0)
            now = Clock().now().isoformat()
            self.held.add(self._id)
            held(manifest.model_copy(update={"completed_at": now}), "")

    def release(self, id: CheckpointId) -> None:
        self.held.remove(id)

    def delivered(self, manifest: Manifest, *, final: bool, halted: Callable[[], bool]) -> None:
        self.final.append(final)
        if self.undelivered:
            raise NoSavepointError(job=self.job.job, reason=self.undelivered, todo="try again")

    def facts(self, manifest: Manifest, wanted: WantedSavepoint) -> SavepointFacts:
        return SavepointFacts(wanted.trigger, wanted.by, wanted.since)

    def wait_for(self, kind: type[m.Message], count: int = 1) -> list[Any]:
        def found() -> list[Any]:
            return [one for one in self.told if isinstance(one, kind)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, LIMIT), self.told
            return found()


Made = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Made]:
    made: list[Bench] = []

    def make(clock: Clock | None = None, **settings: str) -> Bench:
        made.append(Bench(tmp_path, clock, **settings))
        return made[-1]

    yield make
    for one in made:
        one.savepoints.halt()
        one.savepoints.settle()


def wanted(path: object, request: str = "r") -> WantedSavepoint:
    return WantedSavepoint(request, str(path), "request", "ada@engine", 0.0)


def test_savepoints_are_taken_one_after_the_other_and_let_go_of_their_checkpoints(
    bench: Made, tmp_path: Path
) -> None:
    one = bench()
    for request in ("a", "b"):
        one.savepoints.ask(wanted(tmp_path / "saved", request))
    one.savepoints.start()
    answers = one.wait_for(m.Answered, 2)
    assert [(a.request, a.done, Path(a.body["path"]).name) for a in answers] == [
        ("a", True, "job-1"),
        ("b", True, "job-2"),
    ]
    assert [taken.path for taken in one.wait_for(m.SavepointTaken, 2)] == [a.body["path"] for a in answers]
    phases = [p.phase for p in one.wait_for(m.SavepointProgress) if p.request == "a"]
    assert phases == ["checkpoint", "deliver", "copy"]
    assert one.held == set()
    assert SavepointPlace(answers[1].body["path"]).read().taken_by == "ada@engine"


def test_one_that_fails_says_why_and_the_next_is_taken(bench: Made, tmp_path: Path) -> None:
    one = bench()
    one.savepoints.start()
    one.savepoints.ask(wanted("", "nowhere"))
    one.savepoints.ask(wanted(one.job.folder / "job", "inside"))
    first, second = one.wait_for(m.Answered, 2)
    assert not first.done and "savepoint-dir" in first.body["why"] and "weir stop job" in first.body["hint"]
    assert "the job's own directory" in second.body["why"]
    goes_on, again = "the job continues; take it again", "take it again when the job runs"
    refusals = {"a query of the job is down": goes_on, "the job is ending": again, "the job was ended": again}
    for count, (reason, hint) in enumerate(refusals.items(), start=3):
        one.refuse = reason
        one.savepoints.ask(wanted(tmp_path / "saved", "refused"))
        refused = one.wait_for(m.Answered, count)[-1]
        assert refused.body["reason"] == f"its checkpoint was not taken: {reason}"
        assert refused.body["hint"] == hint
    assert [failed.by for failed in one.wait_for(m.SavepointFailed, 5)] == ["ada@engine"] * 5
    one.refuse = ""
    one.savepoints.ask(wanted(tmp_path / "saved", "good"))
    assert one.wait_for(m.Answered, 6)[-1].done


def test_the_reason_of_one_that_fails_names_the_place(bench: Made, tmp_path: Path) -> None:
    """Whoever shows the reason alone, as a notebook does, shows the place with it."""
    one = bench()
    one.savepoints.start()
    target = tmp_path / "file"
    target.write_text("")
    one.savepoints.ask(wanted(target))
    (answer,) = one.wait_for(m.Answered)
    assert not answer.done and str(target) in answer.body["what"]
    assert answer.body["reason"].startswith(f"the storage could not write a savepoint to {target}: ")


def test_one_whose_batches_are_not_delivered_is_not_written(bench: Made, tmp_path: Path) -> None:
    job = bench()
    job.undelivered = "PostgreSQL has not taken batch 0"
    job.savepoints.start()
    job.savepoints.ask(wanted(tmp_path / "saved"))
    assert job.wait_for(m.Answered)[0].body["reason"] == job.undelivered
    with pytest.raises(NoSavepointError, match="took no savepoint"):
        job.savepoints.take_final(wanted(tmp_path / "saved"))
    assert [one.reason.count(job.undelivered) for one in job.wait_for(m.SavepointFailed, 2)] == [1, 1]
    assert job.final == [False, True]
    assert not job.held and not list((tmp_path / "saved").iterdir())
    job.undelivered = ""
    assert SavepointPlace(job.savepoints.take_final(wanted(tmp_path / "saved"))["path"]).read().id == 3


def test_the_end_of_the_job_gives_up_what_is_copied_and_refuses_what_waits(
    bench: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench()
    copying, on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        copying.set()
        assert on.wait(LIMIT)
        return take(*arguments)

    monkeypatch.setattr(module, "take", slow)
    one.savepoints.start()
    one.savepoints.ask(wanted(tmp_path / "saved", "first"))
    assert copying.wait(LIMIT)
    one.savepoints.ask(wanted(tmp_path / "saved", "second"))
    one.savepoints.halt()
    on.set()
    one.savepoints.settle()
    answers = {a.request: a for a in one.wait_for(m.Answered, 2)}
    assert [answers[name].body["reason"] for name in ("first", "second")] == ["the job was ended"] * 2
    assert answers["first"].body["hint"] == "take it again when the job runs"
    assert list((tmp_path / "saved").iterdir()) == [] and one.held == set()


def test_a_job_that_ends_by_itself_waits_for_the_copy(bench: Made, tmp_path: Path) -> None:
    one = bench()
    one.savepoints.ask(wanted(tmp_path / "saved"))
    one.silent = True
    one.savepoints.start()
    one.wait_for(m.SavepointProgress)
    settling = threading.Thread(target=one.savepoints.settle)
    settling.start()
    while not one.waiting:
        threading.Event().wait(0.01)
    one.silent = False
    one.hold(one.waiting[0])
    settling.join(LIMIT)
    assert one.wait_for(m.Answered)[0].done and not settling.is_alive()


def test_the_schedule_takes_them_and_makes_room(bench: Made, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    one = bench(
        **{
            "execution.checkpointing.savepoint-dir": str(saved),
            "savepoint.schedule": "10 ms",
            "savepoint.retain": "2",
        }
    )
    one.savepoints.ask(wanted(saved))
    one.savepoints.start()
    gone = one.wait_for(m.SavepointsDeleted, 3)
    one.savepoints.settle()
    deleted = {path for message in gone for path in message.paths}
    triggers = {place.name: SavepointPlace(str(place)).read().trigger for place in saved.iterdir()}
    assert list(triggers.values()).count("request") == 1
    assert 2 <= list(triggers.values()).count("schedule") <= 3
    assert not deleted & {str(saved / name) for name in triggers}
    assert one.wait_for(m.Answered)[0].request == "r"


def test_the_schedule_goes_on_where_it_was_before_a_restart(bench: Made, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    settings = {"execution.checkpointing.savepoint-dir": str(saved), "savepoint.schedule": "1 h"}
    one = bench(**settings)
    one.savepoints.ask(wanted(saved))
    one.savepoints.start()
    place = Path(one.wait_for(m.SavepointTaken)[0].path)
    told = one.savepoints._schedule.first_due()
    assert told is not None and 3590 < told - Clock().monotonic() <= 3600
    earlier = (Clock().now() - timedelta(minutes=59, seconds=30)).isoformat()
    changed = (
        SavepointPlace(str(place)).read().model_copy(update={"trigger": "schedule", "taken_at": earlier})
    )
    (place / MANIFEST).write_bytes(encode(changed))
    told = one.savepoints._schedule.first_due()
    assert told is not None and 0 < told - Clock().monotonic() <= 30


def test_a_fork_with_the_same_settings_counts_and_deletes_only_its_own(bench: Made, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    one = bench(
        **{
            "execution.checkpointing.savepoint-dir": str(saved),
            "savepoint.schedule": "1 h",
            "savepoint.retain": "1",
        }
    )
    one.savepoints.start()
    one.savepoints.ask(wanted(saved))
    mine = Path(one.wait_for(m.SavepointTaken)[0].path)
    theirs = []
    for id, hours in ((8, 3), (9, 2)):
        taken = (Clock().now() - timedelta(hours=hours)).isoformat()
        update = {"job": "job-test", "id": id, "trigger": "schedule", "taken_at": taken}
        theirs.append(shutil.copytree(mine, saved / f"job-test-{id}"))
        changed = SavepointPlace(str(mine)).read().model_copy(update=update)
        (theirs[-1] / MANIFEST).write_bytes(encode(changed))
    told = one.savepoints._schedule.first_due()
    assert told is not None and told - Clock().monotonic() > 3590, "this job has taken none yet"
    one.savepoints._schedule.make_room()
    assert all((place / MANIFEST).exists() for place in theirs)


def test_a_savepoint_that_a_restore_waits_for_stays(bench: Made, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    one = bench(
        **{
            "execution.checkpointing.savepoint-dir": str(saved),
            "savepoint.schedule": "1 h",
            "savepoint.retain": "1",
        }
    )
    job = one.job
    one.savepoints.start()
    for count in (1, 2, 3):
        one.savepoints.ask(replace(wanted(saved), trigger="schedule"))
        one.wait_for(m.SavepointTaken, count)
        if count == 1:
            first = one.wait_for(m.SavepointTaken)[0].path
            number = intend(
                job.store,
                job.job,
                RestoreRequest(first, accept_duplicates=True),
                clock=ManualClock(),
                why="a test",
            )
    one.wait_for(m.SavepointsDeleted)
    one.savepoints.settle()
    assert {path.name for path in saved.iterdir()} == {"job-1", "job-3"}
    origin = generations.read_origin(job.store, job.job, number)
    assert origin is not None
    awaited = partial(generations.awaited, job.store, job.job)
    claim = Claim(replace(origin, options=generations.RestoreOptions(claim=True)), 1, awaited, one.report)
    claim._delete()
    assert Path(first).exists()
    generations.drop(job.store, job.job, number, "a test")
    claim._delete()
    assert not Path(first).exists()


def test_a_schedule_needs_a_place() -> None:
    with pytest.raises(BadValueError, match="savepoint-dir must be set"):
        resolve(file=None, overrides={"savepoint.schedule": "1 h"})
    for text in ("0", "5, 6", "soon", "1 d, 2 d", "0 s"):
        with pytest.raises(BadValueError):
            resolve(file=None, overrides={"savepoint.retain": text})
    for text, written in {"5": "5", "7 d": "7 d", "5,7d": "5, 7 d", "all": "all"}.items():
        assert resolve(file=None, overrides={"savepoint.retain": text}).text("savepoint.retain") == written


class Working(ManualClock):
    """A file takes no time, and a tenth of a second of a core; what rests is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float] = []
        self._used = threading.local()

    def cpu(self) -> float:
        self._used.seconds = getattr(self._used, "seconds", 0.0) + 0.1
        return float(self._used.seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.rests.append(seconds)
        return event.is_set()


def batch(rows: int) -> m.BatchCommitted:
    return m.BatchCommitted("q", 1, 1, rows, seconds=3.0)


def test_copying_leaves_the_cores_to_queries_that_have_work(bench: Made, tmp_path: Path) -> None:
    clock = Working()
    one = bench(clock)
    one.savepoints.start()

    def rests() -> list[float]:
        clock.rests.clear()
        place = tmp_path / f"saved-{clock.monotonic()}"
        one.savepoints.ask(wanted(place, str(place)))
        one.wait_for(m.Answered, 1 + len([a for a in one.told if isinstance(a, m.Answered)]))
        return list(clock.rests)

    one.savepoints.batch(batch(rows=0))
    assert rests() == []
    one.savepoints.batch(batch(rows=1))
    clock.advance(5)  # the next batch takes about as long as the last one
    found = rests()
    assert found == [pytest.approx(1.0)] * len(found) and found, "a tenth of a core"
    clock.advance(2)
    assert rests() == []


def test_nobody_is_given_way_to_when_the_queries_have_ended(bench: Made, tmp_path: Path) -> None:
    clock = Working()
    one = bench(clock)
    one.savepoints.batch(batch(rows=1))
    one.savepoints.take_final(wanted(tmp_path / "saved"))
    assert clock.rests == []


def test_a_clock_that_is_set_forward_makes_no_savepoint_old(bench: Made, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    one = bench(
        **{
            "execution.checkpointing.savepoint-dir": str(saved),
            "savepoint.schedule": "1 h",
            "savepoint.retain": "7 d",
        }
    )

    class SetForward(Clock):
        def now(self) -> datetime:
            return super().now() + timedelta(days=3650)

    one.savepoints.start()
    for count in (1, 2):
        one.savepoints.ask(replace(wanted(saved), trigger="schedule"))
        one.wait_for(m.SavepointTaken, count)
    one.savepoints.settle()
    one.savepoints._schedule._clock = SetForward()
    one.savepoints._schedule.make_room()
    assert len(list(saved.iterdir())) == 2
