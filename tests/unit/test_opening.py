"""A start's way to its live files: the plan of this very start is the one that its files are made by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kept_job import KeptJob
from weir.channel.position import Mode
from weir.clock import ManualClock
from weir.config import resolve
from weir.errors import DatabaseError, FencedError, SinkMismatchError, SurgeryError, WeirError
from weir.ids import Attempt, BatchId, Generation, QueryName
from weir.job.env import QuerySpec
from weir.job.graph import Graph
from weir.protocol import messages as m
from weir.restore.convert import Conversion
from weir.restore.fetch import Opened
from weir.restore.intent import intend
from weir.restore.plan import Replan
from weir.restore.point import Point
from weir.restore.request import RestoreRequest
from weir.restore.walk import Restoring
from weir.storage import generation as generations
from weir.storage import paths
from weir.storage.attempts import Lease
from weir.storage.paths import Live

MISMATCH = SinkMismatchError(query="counts", path="out", reason="it is another's", todo="take another")
UNREACHABLE = DatabaseError(verb="connect", place="db", reason="no answer")
SURGERY = SurgeryError(query="counts", batch=1, reason="it can't")


class Code(Restoring):
    """One version of a job: what it makes of a point's files, and how it fails at that."""

    def __init__(self, job: KeptJob, version: str, fails: WeirError | None = None) -> None:
        self._kept, self._version, self._fails = job, version, fails
        self.notes: list[str] = []
        clock, given = ManualClock(), cast(Any, SimpleNamespace(name=job.job))
        config = resolve(file=None, job_options={"state.backend.type": "hashmap"}, environ={})
        lease = Lease(Attempt(2), 1e9, clock)
        super().__init__(given, given, config, job.store, Mode.ALIGNED, lease, self._hear, clock)

    def _hear(self, message: m.Message) -> None:
        if isinstance(message, m.Noted):
            self.notes.append(message.text)

    def start(self, point: str | None = None, then: Callable[[], None] = lambda: None) -> Opened:
        """Open the files, and go on with `then` until they would be live."""
        opened = self.open(RestoreRequest(point) if point else None)
        if opened.origin is not None:
            with self.underway(opened):
                then()
        return opened

    def _plan(self, point: Point, request: RestoreRequest, live: Live, asked: bool) -> Replan:
        def target(root: Path) -> Callable[[str], Path]:
            return lambda path: root / path

        return cast(Replan, SimpleNamespace(point=point, layout=self._version, target=target))

    def _carry_out(self, made: Replan, live: Live) -> None:
        written = self._kept.root(live.generation) / "made-by"
        written.write_text(self._version)
        if self._fails is not None:
            raise self._fails


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    made = KeptJob(tmp_path / "weir")
    made.take(41, made.pins(), made.batch(0), 0)
    made.batch(1)
    return made


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def made_by(job: KeptJob, opened: Opened) -> str:
    return (job.root(opened.live.generation) / "made-by").read_text()


def pending(job: KeptJob) -> Generation | None:
    return generations.opening(job.store, job.job)


@pytest.mark.parametrize("again", ["chk-41", None])
def test_files_that_another_code_left_are_made_anew(job: KeptJob, again: str | None) -> None:
    with pytest.raises(DatabaseError):
        Code(job, "v1").start("chk-41", failing(UNREACHABLE))
    assert job.store.exists(paths.copied(job.job, Generation(2)))
    opened = Code(job, "v2").start(again)
    assert (opened.live.generation, made_by(job, opened)) == (3, "v2")


def test_files_of_the_same_code_are_taken_up_again(job: KeptJob) -> None:
    with pytest.raises(DatabaseError):
        Code(job, "v1").start("chk-41", failing(UNREACHABLE))
    (job.root(2) / "made-by").write_text("not touched again")
    opened = Code(job, "v1").start("chk-41")
    assert (opened.live.generation, made_by(job, opened)) == (2, "not touched again")


def test_half_of_the_files_of_another_code_is_not_taken_up(job: KeptJob) -> None:
    with pytest.raises(KeyboardInterrupt):
        Code(job, "v1", cast(Any, KeyboardInterrupt())).start("chk-41")
    assert not job.store.exists(paths.copied(job.job, Generation(2)))
    assert Code(job, "v2").start().live.generation == 3


@pytest.mark.parametrize("fails", ["carry out", "sink"])
def test_what_can_not_work_later_either_is_dropped(job: KeptJob, fails: str) -> None:
    code = Code(job, "v1", SURGERY if fails == "carry out" else None)
    with pytest.raises(WeirError):
        code.start("chk-41", failing(MISMATCH))
    assert pending(job) is None
    assert code.notes[-1] == "the restore from chk-41 is cancelled: the job stays where it was"
    assert Code(job, "v1").start().live.generation == 1


def test_what_may_work_later_is_taken_up_and_can_be_withdrawn(job: KeptJob) -> None:
    code = Code(job, "v1")
    with pytest.raises(DatabaseError):
        code.start("chk-41", failing(UNREACHABLE))
    assert pending(job) == 2
    assert "to cancel it: weir restore job --withdraw" in code.notes[-1]


def test_nothing_is_dropped_once_sinks_are_taken_back(job: KeptJob) -> None:
    def rewound() -> None:
        generations.begin_rewind(job.store, job.job, Generation(2), {QueryName("counts"): BatchId(0)})
        raise UNREACHABLE

    with pytest.raises(DatabaseError):
        Code(job, "v1").start("chk-41", rewound)
    code = Code(job, "v2")  # its files are another generation's, and the sinks are being rewound all the same
    with pytest.raises(SinkMismatchError):
        code.start(None, failing(MISMATCH))
    assert pending(job) == 2
    assert "the next start resumes the one from chk-41" in code.notes[-1]
    assert Code(job, "v1").start().live.generation == 2


def test_a_job_that_was_never_live_may_try_its_savepoint_again(tmp_path: Path) -> None:
    job = KeptJob(tmp_path / "weir")
    job.take(41, job.pins(2), job.batch(0, generation=2), 0, generation=2)
    (job.root(1) / "origin.json").unlink()
    for _ in range(2):
        with pytest.raises(SinkMismatchError):
            Code(job, "v1").start("chk-41", failing(MISMATCH))
    assert Code(job, "v1").start("chk-41").live.generation == 5


class Work(Conversion):
    """A change of the one query's files that needs no Spark."""

    operates, rewrites = True, False

    def _operate(self, spark: Any, read: Path, write: Path, others: Any) -> None:
        write.mkdir()


class Played(Replan):
    layout = "played"
    changed = frozenset({QueryName("counts")})

    def _conversion(self, name: QueryName) -> Work:
        given: Any = SimpleNamespace(name=name, plan=None, output_mode="append", writer=None, base=name)
        return Work(given, given, {}, cast(Any, 0), {}, given, given, {})


class Driver(Restoring):
    """A driver that restores the one query, and that freezes before it changes its files."""

    def __init__(self, job: KeptJob, frozen: Callable[[], None] = lambda: None) -> None:
        clock, place = ManualClock(), SimpleNamespace(execution_checkpointing_savepoint_dir=None)
        self.lease, self._frozen = Lease(Attempt(1), 10.0, clock), frozen
        given: Any = SimpleNamespace(name=job.job, settings=place)
        super().__init__(given, given, given, job.store, Mode.ALIGNED, self.lease, lambda _: None, clock)

    def _plan(self, point: Point, request: RestoreRequest, live: Live, asked: bool) -> Replan:
        query: Any = SimpleNamespace(name="counts", wanted=True, was="")
        return Played(point, cast(Any, SimpleNamespace(queries=[query])), {}, {QueryName("counts"): query})

    def _carry_out(self, made: Replan, live: Live) -> None:
        self._frozen()
        super()._carry_out(made, live)


@pytest.mark.parametrize("lease", ["over", "not looked at yet"])
def test_a_driver_that_wakes_in_a_restore_leaves_alone_what_another_made_live(
    job: KeptJob, monkeypatch: pytest.MonkeyPatch, lease: str
) -> None:
    monkeypatch.setattr("weir.restore.convert.refusal", lambda *_: None)
    intend(job.store, job.job, RestoreRequest("chk-41"), clock=ManualClock(), why="")
    running = job.root(2) / "queries/counts/commits/2"

    def overtaken() -> None:
        Driver(job).open(None)
        generations.mark_live(job.store, job.job, Generation(2))
        running.parent.mkdir()
        running.touch()
        if lease == "over":
            woken.lease.end()

    woken = Driver(job, overtaken)
    with pytest.raises(FencedError):
        woken.open(None)
    assert running.exists()


def test_a_driver_whose_lease_is_over_writes_nothing_of_a_restore(job: KeptJob) -> None:
    intend(job.store, job.job, RestoreRequest("chk-41"), clock=ManualClock(), why="")
    woken = Driver(job)
    woken.lease.end()
    with pytest.raises(FencedError):
        woken.open(None)
    assert not (job.root(2) / "queries").exists() and not (job.root(2) / "aside").exists()


@pytest.mark.parametrize("planned_for", [2, 3])
def test_a_start_takes_what_the_plan_has_made_of_the_pipeline_for_its_own_generation(
    job: KeptJob, planned_for: int
) -> None:
    graph, query = Graph([QueryName("counts")], [], {}), QuerySpec(QueryName("counts"), None)
    planned_in = Live(job.store, job.job, Generation(planned_for))
    made = Replan(cast(Any, None), cast(Any, None), {query.name: query}, {}, live=planned_in, learnt=graph)
    opened = Opened(Live(job.store, job.job, Generation(2)), replan=made)
    same = planned_for == 2
    assert (opened.learnt, opened.spec(query.name)) == ((graph, query) if same else (None, None))
    assert Opened(opened.live).spec(query.name) is None
