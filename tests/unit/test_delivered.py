"""A savepoint waits for its sinks: with a played Spark, and sinks that are slow, down, or held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kept_job import KeptJob
from tests.unit.test_query_run import LIMIT, Played
from weir.checkpoint.manifest import Manifest, QueryCut
from weir.clock import Clock
from weir.errors import NoSavepointError
from weir.ids import NO_BATCH, BatchId, JobName
from weir.savepoint.delivered import Delivered
from weir.savepoint.take import HaltedError
from weir.sinks.committer import Committer
from weir.sinks.held_commit import HeldCommitter


class Waiting:
    """A savepoint that waits for the sink of the query `q` up to a batch."""

    def __init__(self, folder: Path, played: Played, seconds: float = LIMIT) -> None:
        self.played = played
        self._delivered = Delivered(JobName("job"), seconds, Clock())
        self._delivered.follow(played.run)
        self._job = KeptJob(folder / "weir")

    def wait(self, batch: int, *, final: bool = False, halted: Callable[[], bool] = lambda: False) -> None:
        self._delivered.wait(self._manifest(batch), final=final, halted=halted)

    def begin(self, batch: int) -> threading.Thread:
        thread = threading.Thread(target=self.wait, args=(batch,), daemon=True)
        thread.start()
        return thread

    def restarted(self, again: Played) -> None:
        self._delivered.follow(again.run)

    def _manifest(self, batch: int) -> Manifest:
        return self._job.manifest(1, {"q": QueryCut(batch=batch)})


@pytest.fixture
def played(tmp_path: Path) -> Played:
    played = Played(tmp_path)
    for batch in range(2):
        played.spark.batch(batch)
    assert played.sink.begun.wait(LIMIT)
    return played


def test_it_waits_until_the_sink_has_all_batches_of_the_cut(played: Played, tmp_path: Path) -> None:
    waits = Waiting(tmp_path, played).begin(1)
    waits.join(0.2)
    assert waits.is_alive(), "Spark has committed it, the sink has not"
    played.sink.let_go.set()
    waits.join(LIMIT)
    assert not waits.is_alive() and played.sink.done == [0, 1]


def test_batches_behind_the_cut_are_not_waited_for(played: Played, tmp_path: Path) -> None:
    played.sink.let_go.set()
    waiting = Waiting(tmp_path, played)
    waiting.wait(1)
    played.sink.let_go.clear()
    played.spark.batch(2)
    waiting.wait(1)
    played.sink.let_go.set()


def test_a_sink_that_does_not_answer_is_named(played: Played, tmp_path: Path) -> None:
    with pytest.raises(NoSavepointError) as caught:
        Waiting(tmp_path, played, seconds=0.05).wait(1)
    assert "query 'q' has committed 2 batches up to 1, and slow has not taken it" in caught.value.text
    with pytest.raises(HaltedError):
        Waiting(tmp_path, played).wait(1, halted=lambda: True)


def test_a_query_whose_sink_was_never_opened_in_this_attempt_takes_no_savepoint(tmp_path: Path) -> None:
    manifest = KeptJob(tmp_path / "weir").manifest(1, {"q": QueryCut(batch=4)})
    delivered = Delivered(JobName("job"), LIMIT, Clock())
    with pytest.raises(NoSavepointError, match="5 batches up to 4"):
        delivered.wait(manifest, final=True, halted=lambda: False)
    nothing = KeptJob(tmp_path / "new").manifest(1, {"q": QueryCut(batch=-1)})
    delivered.wait(nothing, final=True, halted=lambda: False)


def test_a_stop_that_cut_the_sink_off_takes_no_savepoint(played: Played, tmp_path: Path) -> None:
    assert not played.end(0.05)
    played.run.cut_off()
    with pytest.raises(NoSavepointError, match="took no savepoint"):
        Waiting(tmp_path, played).wait(1, final=True)
    assert played.sink.done == []


def test_a_run_that_failed_is_waited_for_until_the_next_one_has_delivered(
    played: Played, tmp_path: Path
) -> None:
    played.sink.error = RuntimeError("the sink is down")
    waiting = Waiting(tmp_path, played)
    waits = waiting.begin(1)
    played.sink.let_go.set()
    assert played.ended.wait(LIMIT)
    waits.join(0.2)
    assert waits.is_alive() and played.run.output.gave_up
    waiting.restarted(Played(tmp_path))
    waits.join(LIMIT)
    assert not waits.is_alive()


def test_what_is_held_for_a_checkpoint_is_missing_until_that_permits_it(played: Played) -> None:
    held = HeldCommitter(played.sink, played.run.files, [], NO_BATCH)
    committer = played.run.output.committer
    assert isinstance(committer, Committer)
    for staged in list(committer._pending):
        held.submit(staged)
    assert [held.missing(BatchId(upto)) for upto in (-1, 0, 1)] == [0, 1, 2]
    held.done(BatchId(0))
    assert held.missing(BatchId(1)) == 1
    played.sink.let_go.set()
