"""The engine with played parts: queries that can't start, and what a stop does with the checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from weir.checkpoint.coordinator import Coordinator
from weir.clock import ManualClock
from weir.config import Config, resolve
from weir.driver import start as module
from weir.driver.context import JobContext, JobEnd
from weir.driver.engine import Engine
from weir.driver.queries import Queries
from weir.driver.runs import LearntJob
from weir.driver.sink_start import SinkStart
from weir.errors import DatabaseError, FencedError, RefusedRowError, SinkMismatchError
from weir.ids import Attempt, BatchId, Generation, QueryName, Run, Token
from weir.job import graph
from weir.protocol import messages as m
from weir.storage import generation as generations
from weir.storage import open_store
from weir.storage.attempts import Lease

RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


class Checkpoints:
    """A coordinator that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop(self, *, wait: bool = True) -> None:
        self.told.append("stop")

    def delete_all(self) -> None:
        self.told.append("delete all")


@pytest.mark.parametrize(
    ("retention", "cancelled", "deleted"),
    [
        ("delete_on_cancellation", True, True),
        ("delete_on_cancellation", False, False),
        ("retain_on_cancellation", True, False),
        ("retain_on_cancellation", False, False),
    ],
)
def test_a_cancel_deletes_the_checkpoints_if_the_settings_say_so(
    tmp_path: Path, retention: str, cancelled: bool, deleted: bool
) -> None:
    config = resolve(file=None, job_options={RETENTION: retention}, environ={})
    checkpoints, parts = Checkpoints(), cast(Any, Parts())
    context = context_of(tmp_path, config, lambda _: None)
    engine = Engine(
        context, parts, parts, cast(Coordinator, checkpoints), parts, None, parts, parts, parts, parts
    )
    engine.stop(0, cancelled=cancelled)
    assert ("delete all" in checkpoints.told) == deleted
    if deleted:
        assert checkpoints.told[-2:] == ["stop", "delete all"], "nothing is pending any more"
    assert engine.over.is_set()


class PlayedRun:
    """A run whose sink may be away, refuse a row, or whose Spark query may be refused."""

    def __init__(self, name: str, number: int = 1, **wrong: Exception) -> None:
        self.name, self.token = QueryName(name), Token(Attempt(1), Run(number))
        self.spec = SimpleNamespace(bounded=False, channel=None, sink=None)
        self.files = SimpleNamespace(last_committed=lambda: BatchId(36), last_planned=lambda: BatchId(36))
        self.wrong, self.done = wrong, [f"{name} {number}"]
        self._closed = False
        self.output = self
        """Its output is played by the same object."""

    def _step(self, step: str) -> None:
        self.done.append(step)
        if step in self.wrong:
            raise self.wrong[step]

    def look(self, owner: str, lineage: str, _knows: object = None) -> BatchId:
        self._step("look")
        return BatchId(36)

    def known(self, delivered: BatchId) -> BatchId:
        self._step("known")
        return delivered

    def open(self, owner: str, lineage: str, _knows: object = None) -> BatchId:
        self._step("open")
        return BatchId(36)

    def recover(self, elsewhere: BatchId, note: object) -> int:
        self._step("recover")
        return 0

    def start(self, host: object, began: object, ended: object, beginnings: int) -> None:
        self._step("start")

    def wait_until_begun(self, seconds: float) -> bool:
        self._step("begun")
        return True

    def failed_at(self) -> BatchId:
        return BatchId(36 if "recover" in self.wrong else 37)

    def close(self) -> None:
        self._closed = True


class Parts(Checkpoints):
    """All that an engine starts besides its queries."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class PlayedCoordinator(Parts):
    """One that writes down when it aborts what was begun."""

    def __init__(self, done: list[str]) -> None:
        super().__init__()
        self.done = done

    def prepare(self) -> None:
        self.done.append("prepare")


class PlayedFactory:
    """Makes the runs that a test has set as `next`."""

    def __init__(self, found: graph.Graph) -> None:
        self.live, self.graph, self.groups = None, found, Parts()
        self.next: PlayedRun

    def make(self, name: QueryName, number: Run) -> PlayedRun:
        return self.next

    def vertex(self, run: PlayedRun) -> None:
        return None

    def entries_beyond(self, channel: str, entry: int) -> int:
        return 0


def context_of(
    folder: Path, config: Config, report: Callable[[m.Message], None], *, supervised: bool = False
) -> JobContext:
    clock = ManualClock()
    job = weir.Job("clicks")
    job.pipeline(lambda env: None)
    spark: Any = SimpleNamespace()
    lease, store = Lease(Attempt(1), 1e9, clock), open_store(str(folder))
    return JobContext(
        job, spark, config, store, lease, clock, report, Queries(), JobEnd(), supervised=supervised
    )


AWAY = DatabaseError(verb="open the sink", place="postgresql://db", reason="Connection refused")
REFUSED = RefusedRowError(table="rows", query="?", column="v", value="9", reason="a check", row="9")
LACKING = SinkMismatchError(query="?", path="rows", reason="it lacks a column", todo="add it")
Started = Callable[..., tuple[Engine, list[m.Message]]]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Start a supervised engine with these runs; the engine, and what it reports."""

    def start(
        *runs: PlayedRun,
        again: bool = False,
        supervised: bool = True,
        coordinator: Parts | None = None,
        point: object = None,
    ) -> tuple[Engine, list[m.Message]]:
        opened = SimpleNamespace(live=SimpleNamespace(generation=Generation(1)), manifest=point)
        restoring = SimpleNamespace(
            open=lambda wanted: opened,
            underway=lambda _: nullcontext(),
            check_fork=lambda *_: None,
            check_sinks=lambda *_: None,
            go_live=lambda *_: None,
        )
        found = graph.Graph([run.name for run in runs], [], {run.name: () for run in runs})
        made = PlayedFactory(found)
        origin = SimpleNamespace(lineage="one", forked_from="", owners={})
        learnt = LearntJob(cast(Any, made), cast(Any, list(runs)), cast(Any, origin), cast(Any, None))
        monkeypatch.setattr(module, "Restoring", lambda *_: restoring)
        for name in ("Claim", "ProgressReports", "Savepoints", "Coordinator"):
            monkeypatch.setattr(module, name, lambda *_: Parts())
        monkeypatch.setattr(module, "learn", lambda *_: learnt)
        monkeypatch.setattr(module, "_coordinate", lambda *_: coordinator or Parts())
        monkeypatch.setattr(generations, "delivered_elsewhere", lambda *_: {})
        monkeypatch.setattr(SinkStart, "lost", lambda self, _: [])
        told: list[m.Message] = []
        config = resolve(file=None, job_options={}, environ={})
        context = context_of(tmp_path, config, told.append, supervised=supervised)
        engine = module.start(context, again=again)
        return engine, told

    return start


def failures(told: list[m.Message]) -> list[m.QueryFailed]:
    return [one for one in told if isinstance(one, m.QueryFailed)]


def running(told: list[m.Message]) -> list[str]:
    return [one.query for one in told if isinstance(one, m.QueryStarted)]


@pytest.mark.parametrize(("step", "error"), [("open", AWAY), ("recover", REFUSED), ("recover", AWAY)])
def test_a_query_whose_sink_is_away_or_refuses_a_row_fails_alone_at_a_start(
    started: Started, step: str, error: Exception
) -> None:
    fine = PlayedRun("counts")
    engine, told = started(PlayedRun("rows", 1, **{step: error}), fine)
    (failed,) = failures(told)
    assert (failed.query, failed.batch, failed.started) == ("rows", 36 if step == "recover" else 37, False)
    assert running(told) == ["counts"] and fine.done[-1] == "start"
    again = PlayedRun("rows", 2, **{step: error})
    runs = cast(PlayedFactory, engine._factory)
    runs.next = again
    engine.restart(QueryName("rows"))
    assert len(failures(told)) == 2 and "start" not in again.done, "and at a restart"
    repaired = PlayedRun("rows", 3)
    runs.next = repaired
    engine.restart(QueryName("rows"))
    assert running(told) == ["counts", "rows"]
    assert "begun" in fine.done, "one query starts after the other"


def test_an_error_names_its_query_where_the_sink_does_not_know_it(started: Started) -> None:
    _, told = started(PlayedRun("rows", recover=REFUSED), PlayedRun("counts"))
    assert "query 'rows'" in failures(told)[0].failure.what


def test_what_no_retry_can_fix_ends_the_first_start_before_anything_runs(started: Started) -> None:
    fine = PlayedRun("counts")
    with pytest.raises(SinkMismatchError):
        started(fine, PlayedRun("rows", open=LACKING))
    assert "start" not in fine.done


def test_what_no_retry_can_fix_fails_one_query_of_a_job_that_has_run(started: Started) -> None:
    _, told = started(PlayedRun("counts"), PlayedRun("rows", open=LACKING), again=True)
    assert running(told) == ["counts"] and not failures(told)[0].failure.retry


def test_what_spark_refuses_to_start_is_reported_and_no_retry_helps(started: Started) -> None:
    error = type("AnalysisException", (Exception,), {})("Invalid streaming output mode")
    _, told = started(PlayedRun("rows", start=error), PlayedRun("counts"))
    (failed,) = failures(told)
    assert not failed.started and not failed.failure.retry and running(told) == ["counts"]


def test_a_fenced_driver_starts_nothing(started: Started) -> None:
    fine = PlayedRun("counts")
    with pytest.raises(FencedError):
        started(PlayedRun("rows", recover=FencedError(who="attempt 1", by="attempt 2")), fine, again=True)
    assert "start" not in fine.done


def test_without_a_supervisor_what_fails_at_the_start_is_raised(started: Started) -> None:
    with pytest.raises(DatabaseError):
        started(PlayedRun("rows", open=AWAY), PlayedRun("counts"), supervised=False)


def test_a_job_whose_last_query_is_given_up_is_over(started: Started) -> None:
    engine, told = started(PlayedRun("rows", recover=REFUSED))
    engine.give_up(QueryName("rows"), "a row is refused")
    assert engine.over.is_set()
    engine.restart(QueryName("rows"))
    assert len(failures(told)) == 1, "it is not started again"


def test_a_channel_that_can_not_be_opened_ends_the_start(started: Started) -> None:
    stream = PlayedRun("stream", open=AWAY)
    stream.spec.channel = object()
    with pytest.raises(DatabaseError):
        started(stream, PlayedRun("counts"))


@pytest.mark.parametrize("step", ("look", "known"))
def test_no_sink_is_fenced_when_another_one_refuses(started: Started, step: str) -> None:
    other = PlayedRun("counts")
    with pytest.raises(DatabaseError):
        started(other, PlayedRun("rows", 1, **{step: AWAY}), supervised=False)
    assert "look" in other.done and "open" not in other.done


@pytest.mark.parametrize("point", (None, "chk-7"), ids=("resumed", "restored"))
def test_what_was_begun_is_aborted_after_every_fence_and_before_any_query_runs(
    started: Started, point: object
) -> None:
    runs, done = [PlayedRun("stream"), PlayedRun("counts")], list[str]()
    for run in runs:
        run.done = done
    started(*runs, coordinator=PlayedCoordinator(done), point=point)
    before, after = done[: done.index("prepare")], done[done.index("prepare") :]
    assert [before.count(step) for step in ("open", "recover", "start")] == [2, 2, 0], "no one else writes"
    assert [after.count(step) for step in ("prepare", "open", "recover", "start")] == [1, 0, 0, 2]
