"""One run of a query over a played Spark: what its end waits for, and which batch a failure is of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError

from weir.clock import Clock, Deadline
from weir.errors import FencedError, StorageError
from weir.ids import NO_BATCH, Attempt, BatchId, QueryName, Run, Token
from weir.job import output
from weir.job.batch import StoppingError
from weir.job.env import QuerySpec
from weir.job.query import QueryRun
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import Outcome
from weir.sinks.committer import Committer
from weir.sinks.fence import Knows, anyone
from weir.sinks.held_commit import HeldCommitter
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.attempts import Lease
from weir.storage.local import LocalStore

LIMIT = 30.0


class PlayedSpark:
    """A frame, its writer and its query in one; a batch runs in the thread of the test."""

    runId = "1"
    isActive = True
    status: dict[str, Any] = {"isTriggerActive": True}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._error: Exception | None = None
        self.stopped = False

    @property
    def writeStream(self) -> PlayedSpark:
        return self

    @property
    def _jdf(self) -> Any:
        """Of its plan, which has no streams, alone what is asked for."""
        plan = Mock()
        plan.queryExecution().analyzed().collectLeaves().size.return_value = 0
        return plan

    @property
    def _jsq(self) -> Any:
        raise Py4JError("another Spark")

    def foreachBatch(self, function: Callable[[Any, int], None]) -> PlayedSpark:
        self.function = function
        return self

    def itself(self, *_: object) -> PlayedSpark:
        return self

    outputMode = queryName = option = start = itself

    def plan(self, batch: int) -> None:
        self._write("offsets", batch)

    def batch(self, batch: int) -> None:
        self.plan(batch)
        self.function(None, batch)
        self._write("commits", batch)

    def end(self, error: Exception | None = None) -> None:
        self._error = error
        self._over.set()

    def stop(self) -> None:
        self.stopped = True
        self._over.set()

    def awaitTermination(self) -> None:
        assert self._over.wait(LIMIT)
        if self._error is not None:
            raise self._error

    def _write(self, log: str, batch: int) -> None:
        file = self._folder / "query" / log / str(batch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("v1\n{}")


class SlowSink:
    """A sink whose commits wait until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Event()
        self.error: Exception | None = None
        self.done: list[BatchId] = []

    def describe(self) -> str:
        return "slow"

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        return Ledger()

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        return Ledger()

    def stage(self, frame: object, batch: BatchId, token: Token) -> None:
        pass

    def record(self, staged: Staged) -> None:
        pass

    def staged(self) -> Sequence[Staged]:
        return []

    def commit(self, staged: Staged) -> Outcome:
        self.begun.set()
        assert self.let_go.wait(LIMIT)
        if self.error is not None:
            raise self.error
        self.done.append(staged.batch)
        return Outcome.DONE_NOW

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        pass

    def rewind(self, to: BatchId) -> Outcome:
        return Outcome.DONE_NOW


class NoHost:
    """A run without a job around it: no batch waits, and nobody is told."""

    def hold(self, spec: QuerySpec, batch: BatchId, over: Callable[[], bool]) -> None: ...

    def oldest_cut(self, query: QueryName) -> BatchId | None:
        return None

    def delivered(self) -> None: ...


class Played:
    """A run that was started."""

    def __init__(self, folder: Path, sink: Any = None) -> None:
        self.spark = PlayedSpark(folder)
        self.sink = sink or SlowSink()
        self.ended = threading.Event()
        self.error: Exception | None = None
        spec = QuerySpec(QueryName("q"), self.sink, frame=cast(Any, self.spark))
        token, clock = Token(Attempt(1), Run(1)), Clock()
        files = QueryFiles(LocalStore(folder), "query")
        self.run = QueryRun(spec, files, token, Lease(Attempt(1), 3600, clock), 100)
        self.run.start(NoHost(), lambda run_id: None, self._over)

    def _over(self, run: QueryRun, error: Exception | None) -> None:
        self.error = error
        self.ended.set()

    def end(self, seconds: float) -> bool:
        self.run.ask_to_end()
        clock = Clock()
        return self.run.end(Deadline(clock, clock.monotonic() + seconds))


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path)


def test_a_query_is_over_when_its_sink_has_all_of_it(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DRAIN", output._DRAIN_LOOK)
    played.spark.batch(0)
    played.spark.batch(1)
    played.spark.end()
    assert played.sink.begun.wait(LIMIT)
    assert not played.ended.wait(5 * output._DRAIN_LOOK.total_seconds()), "its output is not delivered"
    played.sink.let_go.set()
    assert played.ended.wait(LIMIT)
    assert (played.sink.done, played.error) == ([0, 1], None)


def test_behind_a_failure_the_next_run_delivers_what_a_slow_sink_has_not(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_DRAIN", output._DRAIN_LOOK)
    played.spark.batch(0)
    played.spark.batch(1)
    assert played.sink.begun.wait(LIMIT)
    played.spark.end(error := ValueError("no"))
    committer = played.run.output.committer
    assert isinstance(committer, Committer)
    with committer._changed:
        assert committer._changed.wait_for(lambda: committer._closed, LIMIT)
    played.sink.let_go.set()
    assert played.ended.wait(LIMIT)
    assert played.error is error
    assert played.sink.done == [0], "the one that was under way, no other"


def test_past_its_time_an_end_gives_up_a_slow_sink_and_tells_what_is_left(played: Played) -> None:
    played.spark.batch(0)
    played.spark.batch(1)
    played.spark.end()
    assert played.sink.begun.wait(LIMIT)
    assert not played.end(0.0)
    assert played.run.output.undelivered == 2
    played.run.cut_off()
    assert played.ended.wait(LIMIT), "it does not wait for the commit that is under way"
    played.sink.let_go.set()


def test_past_its_time_an_end_throws_the_running_batch_away(played: Played) -> None:
    played.spark.plan(0)
    assert not played.end(0.0)
    assert not played.spark.stopped
    assert played.run.output.undelivered == 0
    played.run.cut_off()
    assert played.spark.stopped
    assert played.ended.wait(LIMIT)


def test_a_sink_that_fails_behind_the_last_batch_fails_the_query(played: Played) -> None:
    played.sink.error = ValueError("no")
    played.sink.let_go.set()
    played.spark.batch(0)
    played.spark.end()
    assert played.ended.wait(LIMIT)
    assert isinstance(played.error, ValueError)


def test_a_failure_is_of_the_batch_that_spark_has_not_committed_whatever_the_sink(tmp_path: Path) -> None:
    played = Played(tmp_path, SimpleNamespace(describe=str, attach=lambda writer: writer))
    assert played.run.failed_at() == 0
    played.spark.function = lambda frame, batch: None
    for batch in range(3):
        played.spark.batch(batch)
    assert played.run.failed_at() == 3, "it fails before it is planned"
    played.spark.plan(3)
    assert played.run.failed_at() == 3
    played.spark.end()


def test_a_failure_is_told_though_the_live_files_can_not_be_read(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> BatchId:
        raise StorageError(verb="list", path="commits", reason="no", root="/")

    monkeypatch.setattr(played.run.files, "last_committed", unreadable)
    assert played.run.failed_at() == NO_BATCH
    played.spark.end()


def test_a_storage_that_fails_behind_the_last_batch_fails_the_query(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would ever hear that it is over: a job that stands still and says nothing."""
    played.spark.batch(0)
    assert played.sink.begun.wait(LIMIT)

    def unreadable(batch: BatchId) -> bool:
        played.sink.let_go.set()
        raise StorageError(verb="read", path=f"commits/{batch}", reason="no", root="/")

    monkeypatch.setattr(played.run.files, "committed", unreadable)
    played.spark.end()
    assert played.ended.wait(LIMIT)
    assert isinstance(played.error, StorageError)


def test_an_end_that_was_asked_for_before_the_query_had_begun_holds(tmp_path: Path) -> None:
    """A bounded query that begins when its streams have ended may begin while the job is told to end."""
    spark = PlayedSpark(tmp_path)
    files = QueryFiles(LocalStore(tmp_path), "query")
    spec = QuerySpec(QueryName("q"), SlowSink(), frame=cast(Any, spark))
    token, lease = Token(Attempt(1), Run(1)), Lease(Attempt(1), 3600, Clock())
    run = QueryRun(spec, files, token, lease, 100)
    ended = threading.Event()
    run.ask_to_end()
    run.start(NoHost(), lambda run_id: None, lambda run, error: ended.set())
    with pytest.raises(StoppingError):
        spark.batch(0)
    spark.end()
    assert ended.wait(LIMIT)


def test_a_failure_is_of_the_batch_that_the_sink_did_not_take(played: Played) -> None:
    played.sink.error = ValueError("a row is refused")
    played.spark.batch(0)
    played.spark.batch(1)
    played.sink.let_go.set()
    assert played.ended.wait(LIMIT)
    assert played.run.failed_at() == 0, "though Spark has committed 1 too"


def test_a_query_has_begun_when_spark_has_asked_its_sources(played: Played) -> None:
    played.spark.status = {"message": "Initializing sources", "isTriggerActive": False}
    assert not played.run.wait_until_begun(0.1)
    played.spark.status = {"message": "Waiting for data to arrive", "isTriggerActive": False}
    assert played.run.wait_until_begun(LIMIT)
    played.spark.status = {"message": "Getting offsets from rate", "isTriggerActive": True}
    played.spark.end(ValueError("no"))
    assert played.run.wait_until_begun(LIMIT), "nobody waits for what is over"


def test_a_batch_after_one_that_another_run_decided_is_refused_before_it_is_recorded() -> None:
    """A zombie decides for batch 3 after this run's start has seen batch 2: Spark begins with 4."""
    lease = Lease(Attempt(1), 1000, Clock())
    files: Any = SimpleNamespace(committed=lambda batch: False)
    committer = Committer(SlowSink(), files, lease, 3, lambda error: None, BatchId(2))
    held = HeldCommitter(SlowSink(), files, [], BatchId(2))
    one = Token(Attempt(1), Run(1))
    each: Committer | HeldCommitter
    for each in (committer, held):
        with pytest.raises(FencedError, match="may no longer write"):
            each.check_next(BatchId(4))
        with pytest.raises(FencedError) as caught:
            each.submit(Staged(BatchId(4), one))
        assert "another run (it decided batch 3 " in caught.value.why
        each.submit(Staged(BatchId(3), one))
        each.submit(Staged(BatchId(4), one))
        with pytest.raises(FencedError):
            each.submit(Staged(BatchId(4), one))
    committer.close(wait=False)
