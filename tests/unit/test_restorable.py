"""Whether the present code takes a savepoint: yes only where that is known, and by the rules of the plan."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.fake_job import FakeJob
from tests.kept_job import KeptJob, write
from tests.planned import CONF, COUNT, SUM, aggregation, dedup, shape
from weir.clock import Clock, ManualClock
from weir.ids import Attempt, QueryName
from weir.monitor.savepoints import known
from weir.protocol.shape import Shape
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.savepoint import about
from weir.savepoint.catalogue import record
from weir.savepoint.manifest import SavedQuery, Savepoint
from weir.savepoint.place import SavepointPlace
from weir.savepoint.restorable import Present, Restorability, Restorable, judge
from weir.savepoint.take import SavepointFacts, take
from weir.savepoint.verify import verify
from weir.storage.generation import FIRST, mark_live
from weir.storage.manifest import FORMAT


def savepoint(was: Shape | None, conf: dict[str, str] = CONF, **more: Any) -> Savepoint:
    query = SavedQuery(batch=1, conf=conf, shape=was, operators=was.operators if was else ())
    facts: dict[str, Any] = dict.fromkeys(("taken_at", "taken_by", "trigger", "job_file", "job_version"), "")
    facts |= {"format": FORMAT, "job": "job", "id": 1, "seconds": 1.0, "weir": "0.1.0", "spark": "4.3.0"}
    facts |= {"backend": "rocksdb", "parallelism": 2, "alignment": "aligned", "lineage": "life"}
    facts |= {"generation": 1, "attempt": 1, "queries": {"counts": query}, "channels": {}, "files": ()}
    return Savepoint(**facts | more)


def asked(was: Shape | None, now: Shape, **more: Any) -> Restorable:
    present = Present(7, {"counts": now}, **{"conf": {"counts": CONF}, **more})
    return judge(savepoint(was), present)


def test_what_the_plan_takes_is_restorable() -> None:
    same = shape(aggregation(0), sink="files /out")
    assert asked(same, same) == Restorable(Restorability.YES, "by the code of attempt 7")
    more = shape(aggregation(0, reads=["Deduplicate id", "reads json /in"]), dedup(1), sink="files /out")
    assert asked(same, more).answer is Restorability.YES
    assert asked(same, same, parallelism=8, backend="hashmap").answer is Restorability.YES


def test_what_the_plan_does_not_take_says_why() -> None:
    lost = asked(shape(aggregation(0), dedup(1)), shape(aggregation(0)))
    assert (lost.answer, "operator 1 (its state); to allow all of that: -n" in lost.why) == (
        Restorability.LOSES,
        True,
    )
    other = asked(shape(aggregation(0, COUNT)), shape(aggregation(0, SUM)))
    assert other.answer is Restorability.NEEDS_MAP
    assert "count(1) became sum(v), and looks the same in the state" in other.why
    misfit = asked(shape(dedup(0)), shape(dedup(0, key="name")))
    assert misfit.answer in (Restorability.NO, Restorability.NEEDS_MAP) and misfit.why


def test_what_is_not_known_is_never_a_yes() -> None:
    same = shape(aggregation(0))
    assert asked(None, same).answer is Restorability.UNKNOWN
    assert asked(same, shape(aggregation(0), spark="4.4.0")).answer is Restorability.UNKNOWN
    assert "has no batch yet" in asked(same, same, conf={}).why
    other = {**CONF, "spark.sql.streaming.join.stateFormatVersion": "3"}
    assert asked(same, same, conf={"counts": other}).answer is Restorability.UNKNOWN
    assert asked(same, same, doubt="its job file has changed") == Restorable(
        Restorability.UNKNOWN, "its job file has changed"
    )


class Told:
    """A job whose start told what its queries are, and a savepoint of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = write(folder / "wordcount.py", "the code")
        self.fake = FakeJob(folder / "weir", file=str(self.file))
        self.kept = KeptJob(folder / "weir", "wordcount")
        version = hashlib.sha256(self.file.read_bytes()).hexdigest()[:12]
        self.start(shape(job=version))
        for number in (0, 1):
            names = self.kept.batch(number)
            self.manifest = self.kept.take(number + 1, self.kept.pins(), names, number)
        facts = SavepointFacts("request", "ada@engine", 0.0)
        taken = take(self.kept.store, self.manifest, str(folder / "saved"), facts, ManualClock())
        record(self.kept.store, taken)
        self.place = taken.place

    def start(self, told: Shape) -> None:
        about.keep(self.kept.store, self.kept.job, FIRST, Attempt(1), QueryName("counts"), told)

    def answer(self) -> tuple[str, str]:
        (entry,) = known(str(self.folder / "weir"), "wordcount", None)
        assert entry.place == self.place, "it is known by its record alone"
        assert entry.restorable is not None
        return entry.restorable.answer.value, entry.restorable.why


@pytest.fixture
def told(tmp_path: Path) -> Told:
    job = Told(tmp_path)
    operator = SavepointPlace(job.place).read().queries["counts"].operators
    plain = shape(job=hashlib.sha256(job.file.read_bytes()).hexdigest()[:12])
    job.start(plain.with_files(operator))
    return job


def test_the_code_is_known_as_long_as_its_job_file_is_the_same(told: Told) -> None:
    assert told.answer() == ("yes", "by the code of attempt 1")
    write(told.file, "other code")
    assert told.answer() == ("unknown", "its job file has changed since it was last started")
    told.file.unlink()
    assert told.answer() == ("unknown", "its job file can't be read here")
    told.start(shape())
    assert told.answer()[0] == "unknown"


def test_a_savepoint_that_is_damaged_or_left_behind_is_not_restorable(told: Told) -> None:
    store, job = told.kept.store, told.kept.job
    number = intend(store, job, RestoreRequest("chk-1"), clock=ManualClock(), why="")
    mark_live(store, job, number)
    assert told.answer()[0] == "no" and "rewound past it" in told.answer()[1]
    next(Path(told.place).rglob("metadata")).unlink()
    verify(SavepointPlace(told.place), Clock())
    assert told.answer()[0] == "no" and "it is damaged" in told.answer()[1]


def test_of_a_job_that_never_ran_here_nothing_is_known(told: Told) -> None:
    (entry,) = known(str(told.folder / "nowhere"), None, str(told.folder / "saved"))
    assert entry.restorable == Restorable(Restorability.UNKNOWN, "no job 'wordcount' has ever run here")
