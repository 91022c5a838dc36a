"""A function as a sink, without Spark: what its ledger tells, and what becomes of what it raises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.played_files import SeenStore, WholeStore
from weir import sinks
from weir.errors import (
    Domain,
    FencedError,
    JobConnectionError,
    LostStagingError,
    OutcomeUnknownError,
    PipelineError,
    SinkMismatchError,
    StorageError,
    UserCodeError,
    UserStateError,
)
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import Outcome, StagingSink
from weir.sinks.function import KEPT, FunctionSink
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store
from weir.storage.local import LocalStore
from weir.storage.unreliable import UnreliableStore

OWNER, LINEAGE = "job/query", "lineage"
FRAME: Any = "the rows"


def token(attempt: int, run: int = 1) -> Token:
    return Token(Attempt(attempt), Run(run))


class Target:
    """One sink on one folder, and what its function was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[object, int]] = []

    def made(self) -> FunctionSink:
        return sinks.function(lambda frame, batch: self.calls.append((frame, batch))).at(
            str(self.folder), QueryFiles(LocalStore(self.folder), "query")
        )

    def opened(self, attempt: int, run: int = 1) -> FunctionSink:
        sink = self.made()
        sink.open(OWNER, LINEAGE, token(attempt, run))
        return sink

    def last(self, attempt: int) -> BatchId:
        return self.made().open(OWNER, LINEAGE, token(attempt)).last

    def entries(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "log").iterdir())


def stage(sink: FunctionSink, batch: int, attempt: int) -> Staged:
    staged = Staged(BatchId(batch), token(attempt), ("id",))
    sink.stage(FRAME, staged.batch, staged.token)
    sink.record(staged)
    return staged


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_it_is_a_staging_sink_once_it_has_a_folder(target: Target) -> None:
    assert isinstance(target.made(), StagingSink)
    assert not isinstance(sinks.function(print), StagingSink)
    assert not target.made().rewindable


def test_the_function_is_called_inside_the_batch_with_frame_and_number(target: Target) -> None:
    sink = target.opened(1)
    stage(sink, 0, 1)
    assert target.calls == [(FRAME, 0)]
    assert target.last(2) == NO_BATCH, "it was called, and Spark has not decided"


def test_a_commit_is_entered_once_and_found_by_the_next_attempt(target: Target) -> None:
    sink = target.opened(1)
    staged = stage(sink, 0, 1)
    assert sink.commit(staged) is Outcome.DONE_NOW
    assert sink.commit(staged) is Outcome.ALREADY_DONE
    assert target.opened(2).commit(staged) is Outcome.ALREADY_DONE
    assert target.last(3) == 0
    assert len(target.calls) == 1


def test_the_next_attempt_delivers_what_was_recorded_and_discards_the_rest(target: Target) -> None:
    first = target.opened(1)
    staged, lost, later = (stage(first, batch, 1) for batch in range(3))
    second = target.made()
    assert second.open(OWNER, LINEAGE, token(2)).last == NO_BATCH
    assert list(second.staged()) == [staged, lost, later]
    second.discard(BatchId(1), [staged])
    assert second.commit(staged) is Outcome.DONE_NOW
    with pytest.raises(LostStagingError):
        second.commit(lost)
    assert list(second.staged()) == [later]
    assert len(target.calls) == 3, "no commit calls the function"


def test_a_lower_token_can_neither_record_nor_commit_nor_open(target: Target) -> None:
    old = target.opened(1)
    staged = stage(old, 0, 1)
    target.opened(1, run=2)
    for step in (lambda: old.commit(staged), lambda: old.record(staged), lambda: target.opened(1)):
        with pytest.raises(FencedError):
            step()
    assert target.last(2) == NO_BATCH


def test_a_commit_that_slips_in_before_the_fence_is_kept(target: Target) -> None:
    old, new = target.opened(1), target.made()
    staged = stage(old, 0, 1)
    catch_up = new._log.catch_up

    def late() -> Ledger:
        found = catch_up()
        old.commit(staged)
        return found

    new._log.catch_up = late  # type: ignore[method-assign]
    assert new.open(OWNER, LINEAGE, token(2)).last == 0
    assert target.last(3) == 0


def test_the_ledger_of_another_query_or_of_lost_live_files_is_refused(target: Target) -> None:
    target.opened(1)
    for owner, lineage in (("job/other", LINEAGE), (OWNER, "another")):
        with pytest.raises(SinkMismatchError):
            target.made().open(owner, lineage, token(2))


def test_a_rewind_is_entered_and_the_numbers_come_again(target: Target) -> None:
    sink = target.opened(1)
    for batch in range(3):
        sink.commit(stage(sink, batch, 1))
    after = target.opened(2)
    assert after.rewind(BatchId(0)) is Outcome.DONE_NOW
    assert after.rewind(BatchId(0)) is Outcome.ALREADY_DONE
    assert target.last(3) == 0
    again = target.opened(4)
    assert again.commit(stage(again, 1, 4)) is Outcome.DONE_NOW
    assert [batch for _, batch in target.calls] == [0, 1, 2, 1]


def test_only_the_newest_entries_are_kept(target: Target) -> None:
    sink = target.opened(1)
    for batch in range(KEPT + 20):
        sink.commit(stage(sink, batch, 1))
    assert len(target.entries()) == KEPT
    assert target.last(2) == KEPT + 19
    assert list(target.made().staged()) == []


@pytest.mark.parametrize("at", range(12))
def test_a_run_that_slept_at_any_step_is_fenced_though_its_number_is_free_again(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[FunctionSink.__module__], "KEPT", 5)
    whole = WholeStore("log")
    seen = SeenStore(whole)

    def opened(store: Store, attempt: int) -> FunctionSink:
        sink = FunctionSink(lambda frame, batch: None, "somewhere", store=store)
        sink.open(OWNER, LINEAGE, token(attempt))
        return sink

    old = opened(seen, 1)
    staged = stage(old, 0, 1)
    slept = []

    def others_go_on() -> None:
        slept.append(at)
        after = opened(whole, 2)
        for batch in range(10):
            after.commit(stage(after, batch, 2))

    seen.at(at, others_go_on)
    try:
        assert old.commit(staged) is Outcome.DONE_NOW
    except FencedError:
        assert slept
    else:
        assert (1, 0) in [(one["attempt"], one["last"]) for one in whole.history], "it is not in the ledger"
    seen.at(None, others_go_on)
    with pytest.raises(FencedError) if slept else nullcontext():
        old.commit(staged)
    assert opened(whole, 3).open(OWNER, LINEAGE, token(3)).last == (9 if slept else 0)


def test_a_batch_that_is_skipped_is_entered_and_the_function_is_not_called(target: Target) -> None:
    sink = target.opened(1)
    sink.skip(BatchId(0))
    for batch in range(2):
        assert sink.commit(stage(sink, batch, 1)) is Outcome.DONE_NOW
    assert [batch for _, batch in target.calls] == [1]
    assert target.last(2) == 1


def test_what_the_function_raises_is_told_as_the_authors(target: Target) -> None:
    def broken(frame: object, batch: int) -> None:
        raise KeyError("no such column")

    sink = FunctionSink(broken, str(target.folder))
    sink.open(OWNER, LINEAGE, token(1))
    with pytest.raises(UserCodeError, match="KeyError in query 'query', batch 7") as caught:
        sink.stage(FRAME, BatchId(7), token(1))
    assert isinstance(caught.value.__cause__, KeyError)


class OperationalError(Exception):
    """As the clients of databases raise it."""


def test_a_database_that_the_function_can_not_reach_is_an_outage(target: Target) -> None:
    def away(frame: object, batch: int) -> None:
        raise OperationalError("connection to server at 'db' failed")

    sink = FunctionSink(away, str(target.folder))
    sink.open(OWNER, LINEAGE, token(1))
    with pytest.raises(JobConnectionError, match="connection to server at 'db' failed") as caught:
        sink.stage(FRAME, BatchId(7), token(1))
    assert caught.value.domain is Domain.EXTERNAL and caught.value.retry


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), UserStateError(state="s", query="q", verb="kept", reason="", todo="")]
)
def test_what_tells_by_its_type_whose_fault_it_is_passes_unchanged(target: Target, error: Exception) -> None:
    def broken(frame: object, batch: int) -> None:
        raise error

    sink = FunctionSink(broken, str(target.folder))
    sink.open(OWNER, LINEAGE, token(1))
    with pytest.raises(type(error)) as caught:
        sink.stage(FRAME, BatchId(0), token(1))
    assert caught.value is error


def test_a_batch_whose_state_is_not_written_as_a_whole_is_refused(target: Target) -> None:
    store, fresh = LocalStore(target.folder), iter("abcdef")
    info = '{"stateStoreInfo": [{"storeName": "default", "numPartitions": 2}]}'
    for metadata in ("0/_metadata/metadata", "1/_metadata/v2/0", "1/_metadata/v2/3"):
        store.put(f"query/state/{metadata}", f"v1\n{info}".encode())
    evaluated = ["0/0/{0}_{1}.changelog", "0/1/{0}_{1}.zip", "1/0/left/{0}.delta", "1/1/{0}.delta"]

    def evaluate(frame: object, batch: int) -> None:
        for form in evaluated:
            store.put("query/state/" + form.format(batch + 1, next(fresh)), b"")

    sink = sinks.function(evaluate).at(str(target.folder), QueryFiles(store, "query"))
    sink.open(OWNER, LINEAGE, token(1))
    sink.stage(FRAME, BatchId(0), token(1))
    del evaluated[1:3]
    with pytest.raises(PipelineError, match=r"only a part of batch 1.*\(2 partitions\) would be lost"):
        sink.stage(FRAME, BatchId(1), token(1))


class Parts:
    """A sink whose function works off the parts of each batch, and may die before or behind each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.did: list[tuple[int, str]] = []
        self.ledgers: list[sinks.BatchLedger] = []
        self.die: str | None = None
        self.files = QueryFiles(LocalStore(folder), "query")
        LocalStore(folder).put("query/metadata", b'{"id": "of-spark"}')

    def opened(self, attempt: int, run: int = 1) -> FunctionSink:
        sink = sinks.function(self.work).at(str(self.folder), self.files)
        sink.open(OWNER, LINEAGE, token(attempt, run))
        return sink

    def work(self, frame: object, batch: int, ledger: sinks.BatchLedger) -> None:
        self.ledgers.append(ledger)
        for part in ("a/../b", "b"):
            if ledger.done(part):
                continue
            self.did.append((batch, part))
            if self.die == part:
                raise ConnectionError
            ledger.mark(part)

    def marks(self) -> int:
        return len(list(LocalStore(self.folder).list("marks")))


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_a_batch_that_runs_again_skips_the_parts_that_are_marked_and_repeats_the_one_that_is_not(
    parts: Parts,
) -> None:
    sink, parts.die = parts.opened(1), "b"
    with pytest.raises(ConnectionError):
        stage(sink, 0, 1)
    parts.die = None
    sink = parts.opened(2)
    sink.discard(NO_BATCH, [])
    staged = stage(sink, 0, 2)
    assert parts.did == [(0, "a/../b"), (0, "b"), (0, "b")]
    sink.commit(staged)
    assert parts.marks() == 0
    stage(sink, 1, 2)
    assert parts.did[3:] == [(1, "a/../b"), (1, "b")]


def test_the_key_stays_the_same_when_a_batch_runs_again_and_the_token_grows(parts: Parts) -> None:
    stage(parts.opened(1), 0, 1)
    again = parts.opened(2)
    stage(again, 0, 2)
    stage(again, 1, 2)
    assert [one.key for one in parts.ledgers] == [f"job/query/of-spark/{batch}" for batch in (0, 0, 1)]
    assert parts.ledgers[0].token < parts.ledgers[1].token


def test_behind_a_restore_no_mark_and_no_key_of_before_is_found(parts: Parts) -> None:
    sink = parts.opened(1)
    sink.commit(stage(sink, 0, 1))
    stage(sink, 1, 1)  # Spark has not decided, so the ledger has nothing to take back
    zombie = parts.ledgers[-1]
    assert parts.marks() == 2
    after = parts.opened(2)
    assert after.rewind(BatchId(0)) is Outcome.ALREADY_DONE
    assert parts.marks() == 0
    parts.files.renew_id()
    zombie._store.create(zombie._mark("b"), b'{"attempt": 1, "run": 1}')  # it had checked before, and slept
    del parts.did[:]
    staged = stage(after, 1, 2)
    assert parts.did == [(1, "a/../b"), (1, "b")]
    assert parts.ledgers[-1].key != zombie.key
    after.commit(staged)
    assert parts.marks() == 0


def test_a_run_that_was_replaced_marks_nothing_and_removes_no_marks_of_the_newer_one(parts: Parts) -> None:
    old, new = parts.opened(1), parts.opened(2)
    with pytest.raises(FencedError):
        stage(old, 0, 1)
    assert parts.marks() == 0
    stage(new, 0, 2)
    old.discard(BatchId(5), [])
    assert parts.marks() == 2


def test_marks_of_a_batch_whose_run_died_behind_its_entry_are_removed_at_the_next_start(parts: Parts) -> None:
    stage(parts.opened(1), 0, 1)
    after = parts.opened(2)
    after.discard(BatchId(-1), [])
    assert parts.marks() == 2, "Spark has not decided: it comes again"
    after.discard(BatchId(0), [])
    assert parts.marks() == 0


class Called:
    """Functions of several forms, with what each was called with beside frame and number."""

    def __init__(self) -> None:
        self.more: list[object] = []

    def two(self, frame: object, batch: int) -> None:
        self.more.append(None)

    def three(self, frame: object, batch: int, ledger: object = None) -> None:
        self.more.append(ledger)

    def own(self, frame: object, batch: int, retries: int = 3) -> None:
        self.more.append(retries)

    def any(self, *given: object) -> None:
        self.more.append(len(given))

    def __call__(self, frame: object, batch: int, book: object, /) -> None:
        self.more.append(book)


def test_the_ledger_is_given_to_functions_with_a_third_argument_for_it(target: Target) -> None:
    called = Called()
    partly = partial(lambda this, frame, batch: this.two(frame, batch), called)
    forms: list[Any] = [called.two, called.own, called.any, partly, called.three, called]
    for run, fn in enumerate(forms, 1):
        sink = FunctionSink(fn, str(target.folder))
        sink.open(OWNER, LINEAGE, token(1, run))
        sink.stage(FRAME, BatchId(0), token(1, run))
    assert called.more[:4] == [None, 3, 2, None]
    assert [isinstance(one, sinks.BatchLedger) for one in called.more[4:]] == [True, True]


@pytest.mark.parametrize("seed", range(5))
def test_through_a_failing_transport_every_batch_is_entered(target: Target, seed: int) -> None:
    def until_known(step: Callable[[], object]) -> None:
        for _ in range(200):
            try:
                if step() is not Outcome.UNKNOWN:
                    return
            except (OutcomeUnknownError, StorageError):
                continue
        raise AssertionError(f"seed {seed} never lets it through")

    sink = FunctionSink(print, "", store=UnreliableStore(LocalStore(target.folder), seed))
    until_known(lambda: sink.open(OWNER, LINEAGE, token(1)))
    for batch in range(3):
        staged = Staged(BatchId(batch), token(1))
        until_known(lambda staged=staged: sink.record(staged))  # type: ignore[misc]
        until_known(lambda staged=staged: sink.commit(staged))  # type: ignore[misc]
    assert target.last(2) == 2
