"""The ledger of a files sink stays short and its files few; nobody who sleeps or dies in between does harm.

Without Spark: `played_files.py`. Every single operation on the store is tried as the one at which a run is
killed, or sleeps while others go on; `tests/protocol/test_files_machine.py` mixes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tests.played_files import KilledError, PlayedFiles, PlayedMerger, SeenStore, WholeStore
from weir.clock import ManualClock
from weir.errors import FencedError, SinkMismatchError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.protocol import ledger
from weir.protocol.ledger import Staged
from weir.sinks import Outcome, committed_files, files, files_ledger
from weir.sinks import compaction as upkeep
from weir.sinks.files_ledger import log_of
from weir.storage import DenseLog, Store
from weir.storage.local import LocalStore

EVERY = 5
WITHIN = range(30)
"""More operations than any step here has."""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_ledger, "EVERY", EVERY)
    monkeypatch.setattr("weir.sinks.compaction.FAN", 4)


def token(attempt: int) -> Token:
    return Token(Attempt(attempt), Run(1))


def opened(store: Store, attempt: int, clock: ManualClock | None = None, **options: None) -> PlayedFiles:
    sink = PlayedFiles(store, clock or ManualClock(), **options)
    now = sink.open("job/query", "lineage", token(attempt))
    sink.discard(now.last, [])
    return sink


def deliver(sink: PlayedFiles, store: Store, count: int, upto: int = NO_BATCH) -> None:
    """So many more batches, with the upkeep that is due behind each."""
    for _ in range(count):
        commit(sink, store)
        sink.work(BatchId(upto))


def commit(sink: PlayedFiles, store: Store) -> None:
    batch = BatchId(log_of(store).catch_up().ledger.last + 1)
    staged = Staged(batch, sink._ledger.token)
    sink.write(staged, 2)
    sink.record(staged)
    sink.commit(staged)


def batches(store: Store) -> list[int]:
    """The batch of each row that a reader finds."""
    names = log_of(store).catch_up().in_order()
    return sorted(int(row.split()[0]) for name in names for row in json.loads(store.get(name) or b""))


def twice(count: int) -> list[int]:
    return sorted([*range(count), *range(count)])


def keys(store: Store, folder: str) -> list[str]:
    return list(store.list(folder))


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "out") if request.param == "local" else WholeStore()


def test_the_ledger_stays_short_and_a_start_knows_all(store: Store) -> None:
    sink = opened(store, 1, target=None)
    deliver(sink, store, 40)
    assert len(keys(store, "_weir/log")) <= 2 * EVERY + 1
    assert len(keys(store, "_weir/snapshots")) == 2
    assert batches(store) == twice(40)
    again = PlayedFiles(store)
    assert again.open("job/query", "lineage", token(2)).last == 39
    assert again.rewind(BatchId(3)) is Outcome.DONE_NOW
    assert batches(store) == twice(4)
    with pytest.raises(SinkMismatchError):
        PlayedFiles(store).open("other/query", "lineage", token(3))


def test_a_folder_of_before_there_were_snapshots_is_read_and_written_on(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    log = DenseLog(store, "_weir/log")
    entries = [ledger.opened("job/query", "lineage"), ledger.fence(token(1))]
    for batch in range(3 * EVERY):
        name = f"_data/{batch:09d}-1-1/part-0"
        store.put(name, json.dumps([f"{batch} of old"]).encode())
        body = {"folder": f"_data/{batch:09d}-1-1", "files": [name]}
        entries.append(ledger.delivered(BatchId(batch), token(1), body))
    for entry in entries:
        log.append(entry, lambda _: True)
    assert len(committed_files(str(tmp_path))) == 3 * EVERY
    sink = opened(store, 2, target=None)
    assert batches(store) == list(range(3 * EVERY))
    deliver(sink, store, 3 * EVERY)
    assert set(batches(store)) == set(range(6 * EVERY))
    assert len(keys(store, "_weir/log")) <= 2 * EVERY + 1


@pytest.mark.parametrize("at", WITHIN)
def test_a_run_that_slept_at_any_step_of_a_commit_is_fenced_though_its_number_is_free_again(at: int) -> None:
    store = WholeStore()
    seen = SeenStore(store)
    old = opened(seen, 1)
    deliver(old, store, 2)
    staged = Staged(BatchId(2), token(1))
    old.write(staged, 2)
    old.record(staged)
    slept = []

    def others_go_on() -> None:
        slept.append(at)
        deliver(opened(store, 2), store, 6 * EVERY)
        assert "_weir/log/000000004.json" not in keys(store, "_weir/log"), "its number is not free"

    seen.at(at, others_go_on)
    try:
        old.commit(staged)
    except FencedError:
        assert slept
        with pytest.raises(FencedError):
            old.commit(staged)
    counts = {(one["batch"], one["attempt"]) for one in store.history if one["kind"] == "batch"}
    by_old = (2, 1) in counts
    assert by_old != ((2, 2) in counts)
    if not by_old:
        assert list(old.staged()) == [staged], "what Spark may have decided for was removed"
    count = 2 + by_old + (6 * EVERY if slept else 0)
    assert batches(store) == twice(count)
    deliver(opened(store, 3), store, 1)
    assert batches(store) == twice(count + 1)


@pytest.mark.parametrize("at", WITHIN)
def test_a_reader_that_slept_at_any_step_sees_each_row_once(at: int) -> None:
    store = WholeStore()
    sink, seen = opened(store, 1), SeenStore(store)
    deliver(sink, store, EVERY - 1)
    seen.at(at, lambda: deliver(sink, store, 6 * EVERY, upto=3 * EVERY))
    found = batches(seen)
    assert found in (twice(EVERY - 1), twice(7 * EVERY - 1))


@pytest.mark.parametrize("at", range(60))
def test_a_kill_at_any_step_of_the_upkeep_changes_no_row(at: int) -> None:
    store = WholeStore()
    seen, clock = SeenStore(store), ManualClock()
    sink = opened(seen, 1, clock)
    for _ in range(3):
        deliver(sink, store, EVERY)  # nothing may be merged yet
        clock.advance(2 * upkeep.GRACE.total_seconds())

    def killed() -> None:
        raise KilledError

    seen.at(at, killed)
    with suppress(KilledError):
        deliver(sink, store, EVERY, upto=2 * EVERY)
    there = log_of(store).catch_up().ledger.last + 1
    assert batches(store) == twice(there)
    after = opened(store, 2, clock)
    assert batches(store) == twice(there)
    deliver(after, store, EVERY, upto=2 * EVERY)
    assert batches(store) == twice(there + EVERY)
    counted = log_of(store).catch_up()
    assert sum(span.last <= 2 * EVERY for span in counted.files.values()) < 8
    for key in keys(store, "_merged"):
        assert key in counted.files or key in counted.replaced, f"{key} is left over"


def test_small_files_of_old_batches_are_merged_and_deleted_after_a_while(store: Store) -> None:
    clock = ManualClock()
    sink = opened(store, 1, clock)
    deliver(sink, store, 16)
    before = log_of(store).catch_up().in_order()
    sink.work(BatchId(11))
    now = log_of(store).catch_up()
    assert batches(store) == twice(16)
    assert {name for name in before if name not in now.files} == now.replaced.keys()
    assert now.ledger.floor == 11 and len(now.files) < 16
    assert all(len({part for part in name.split("/") if part.startswith("p=")}) == 1 for name in now.files)
    assert all(span.last <= 11 or span.first == span.last for span in now.files.values())
    clock.advance((upkeep.GRACE - timedelta(seconds=1)).total_seconds())
    sink.work(BatchId(11))
    assert all(store.exists(name) for name in before)
    clock.advance(2)
    sink.work(BatchId(11))
    assert not any(store.exists(name) for name in now.replaced)
    assert batches(store) == twice(16)
    if isinstance(store, LocalStore):
        assert not (Path(store.url) / "_data/000000000-1-1").exists()
    deliver(sink, store, 4, upto=15)
    assert not any(name in log_of(store).catch_up().replaced for name in now.replaced), "known to be gone"


def test_a_merge_that_fails_leaves_all_as_it_was(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(PlayedMerger):
        def merge(self, names: object, folder: str) -> None:
            store.put(f"{folder}/part-0", b"half")
            raise OSError("the disk is full")

    sink = opened(store, 1)
    deliver(sink, store, 8)
    before = log_of(store).catch_up()
    sink._upkeep._merger = Failing(store)
    sink.work(BatchId(7))
    assert log_of(store).catch_up().files == before.files
    assert keys(store, "_merged") == []
    assert "the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: files("out", "csv", compact="1 mb"), "can't be merged"),
        (lambda: files("out", compact="128"), "not a size"),
        (lambda: files("out", compact="0 mb"), "not a size"),
        (
            lambda: files("out", compact="1 gb").check("q", None, "update"),  # type: ignore[arg-type]
            "output mode update",
        ),
    ],
)
def test_what_can_not_be_merged_is_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(SinkMismatchError, match=word):
        make()


def test_merges_that_go_on_for_long_do_not_keep_the_ledger_from_being_cut(store: Store) -> None:
    sink = opened(store, 1)

    class Busy(PlayedMerger):
        """While it merges, more batches come: so the upkeep is never done."""

        def merge(self, names: Sequence[str], folder: str) -> None:
            super().merge(names, folder)
            if log_of(store).catch_up().ledger.last < 60:
                for _ in range(4):
                    commit(sink, store)
                sink._upkeep.forget(log_of(store).catch_up().ledger.last)

    for _ in range(4):
        commit(sink, store)
    sink._upkeep._merger = Busy(store)
    sink.work(BatchId(3))
    assert batches(store) == twice(64)
    assert len(keys(store, "_weir/log")) <= 4 * EVERY
