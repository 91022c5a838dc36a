"""A run without a supervisor: what it does when its attempt is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from weir.clock import Clock
from weir.config import resolve
from weir.driver import notebook
from weir.driver.context import JobContext
from weir.errors import FencedError, RunFailedError, StorageError, WeirError
from weir.ids import job_name
from weir.monitor.job import look
from weir.protocol import messages as m
from weir.spark.failure import from_exception
from weir.storage import open_store
from weir.storage.attempts import AttemptLock

LIMIT = 30.0


class Engine:
    """Remembers what its queries were failed with."""

    def __init__(self, context: JobContext, wanted: object) -> None:
        self.report = context.report
        self.lost = threading.Event()
        self.over = context.end.over
        self.end = context.end
        self.error: WeirError | None = None
        self.cancelled: bool | None = None
        played: Any = SimpleNamespace(name="counts", spec=SimpleNamespace(bounded=False), fail=self.fail)
        context.queries.begin([played], {played.name: ()})
        assert context.queries.starts(played.name) and context.queries.take(played)

    def stop(self, seconds: float, *, cancelled: bool = False) -> None:
        self.cancelled = cancelled
        self.over.set()

    def ask(self, ask: m.Ask) -> None:
        self.report(m.Answered(ask.request, True, {"path": "/a/savepoint"}))

    def settle_groups(self) -> None: ...

    def fail(self, error: WeirError) -> None:
        self.error = self.error or error
        self.lost.set()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "start_engine", Engine)


def started(folder: Path, timeout: str) -> tuple[notebook.Run, Engine]:
    options = {
        "execution.checkpointing.dir": str(folder),
        "heartbeat.interval": "20 ms",
        "heartbeat.timeout": timeout,
    }
    job = weir.Job("clicks", **options)
    spark: Any = SimpleNamespace(newSession=lambda: None)
    run = notebook.Run(job, spark, resolve(file=None, job_options=options, environ={}))
    return run, cast(Engine, run._engine)


def test_a_newer_attempt_stops_every_query(engines: None, tmp_path: Path) -> None:
    run, engine = started(tmp_path, "1 h")
    other = AttemptLock(open_store(str(tmp_path)), job_name("clicks"), Clock())
    assert other._take(other.newest(), "successor", 1.0, 0)
    assert engine.lost.wait(LIMIT)
    assert isinstance(engine.error, FencedError)
    assert engine.error.why == "attempt 2 has taken over"
    run.stop()


def test_a_lease_that_could_not_be_renewed_stops_every_query(
    engines: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_beat(*_: object) -> None:
        raise StorageError(verb="write", path="beat", reason="gone", root="/")

    monkeypatch.setattr(AttemptLock, "beat", no_beat)
    run, engine = started(tmp_path, "300 ms")
    assert engine.lost.wait(LIMIT)
    assert isinstance(engine.error, FencedError)
    run.stop()


def test_a_run_that_ended_watches_its_lease_no_more(engines: None, tmp_path: Path) -> None:
    run, engine = started(tmp_path, "1 h")
    run.stop()
    for thread in threading.enumerate():
        if thread.name in ("weir-heart", "weir-lease"):
            thread.join(LIMIT)
    assert not engine.lost.is_set()


def test_a_run_that_failed_is_failed_for_who_looks_later_and_its_hint_leads_somewhere(
    engines: None, tmp_path: Path
) -> None:
    run, _ = started(tmp_path, "1 h")
    failure = from_exception(RuntimeError("boom"), "clicks")
    run._hear(m.QueryFailed("counts", 1, 3, failure))
    with pytest.raises(RunFailedError) as raised:
        run.check()
    assert "weir logs" not in raised.value.hint and "run.failures[0].failure.stack" in raised.value.hint
    run.stop()
    assert look(str(tmp_path), "clicks", Clock()).state == "FAILED"


def test_leaving_the_block_cancels_a_job_that_runs(engines: None, tmp_path: Path) -> None:
    run, engine = started(tmp_path, "1 h")
    with run:
        pass
    assert engine.cancelled


def test_a_job_that_has_ended_or_failed_or_was_taken_over_is_not_cancelled(
    engines: None, tmp_path: Path
) -> None:
    """It keeps its checkpoints, whatever the setting for a cancel says."""
    for end in ("ended", "failed", "fenced"):
        run, engine = started(tmp_path / end, "1 h")
        if end == "ended":
            engine.over.set()
        elif end == "failed":
            engine.end.failed = StorageError(verb="write", path="offsets", reason="gone", root="/")
        else:
            run._attempt.lease.end()
        run.stop()
        assert engine.cancelled is False, end


def test_a_stop_with_a_savepoint_is_no_cancel(engines: None, tmp_path: Path) -> None:
    run, engine = started(tmp_path, "1 h")
    assert run.stop_with_savepoint() == "/a/savepoint"
    assert engine.cancelled is False
