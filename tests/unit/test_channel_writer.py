"""The writing end of a channel, without Spark: small Parquet files stand for what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.channel.log import (
    Barrier,
    Entry,
    Fence,
    Segment,
    Tail,
    encode,
    read_entry,
    segments,
    trim,
)
from weir.channel.position import Position
from weir.channel.writer import ChannelWriter, Cut
from weir.errors import (
    FencedError,
    IllegalMoveError,
    LostStagingError,
    OutcomeUnknownError,
    SinkMismatchError,
    StorageError,
)
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks import Outcome, StagingSink
from weir.storage.local import LocalStore
from weir.storage.unreliable import UnreliableStore

OWNER, LINEAGE = "job/query", "lineage"


def token(attempt: int) -> Token:
    return Token(Attempt(attempt), Run(1))


class Setup:
    """One channel and the checkpointLocation of the query that writes it."""

    def __init__(self, root: Path) -> None:
        self.channel, self.query = root / "channel", LocalStore(root / "query")

    def opened(self, attempt: int) -> ChannelWriter:
        writer = ChannelWriter("channel", str(self.channel), self.query.url)
        writer.open(OWNER, LINEAGE, token(attempt))
        return writer

    def stage(self, writer: ChannelWriter, batch: int, attempt: int, *values: int) -> Staged:
        staged = Staged(BatchId(batch), token(attempt))
        folder = self.channel / "data" / f"{batch:09d}-{attempt}-1"
        folder.mkdir(parents=True)
        for number, rows in enumerate([list(values), []]):
            pq.write_table(pa.table({"value": pa.array(rows, pa.int64())}), folder / f"part-{number}.parquet")
        writer.record(staged)
        return staged

    def plan(self, batch: int, *barriers: int) -> None:
        """The offset log of the writing query: the barrier of each channel that it reads."""
        positions = [Position(batch, CheckpointId(barrier)) for barrier in barriers]
        lines = [json.dumps(one.offset(f"channel-{number}")) for number, one in enumerate(positions)]
        self.query.put(f"offsets/{batch}", "\n".join(["v1", "{}", *lines]).encode())

    def log(self) -> list[Entry]:
        store, found = LocalStore(self.channel), list[Entry]()
        while (entry := read_entry(store, len(found))) is not None:
            found.append(entry)
        return found


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_it_is_a_staging_sink(setup: Setup) -> None:
    assert isinstance(setup.opened(1), StagingSink)


def test_a_batch_is_in_the_log_once_with_its_rows_and_files(setup: Setup) -> None:
    writer = setup.opened(1)
    staged = setup.stage(writer, 0, 1, 1, 2, 3)
    assert len(setup.log()) == 1, "only the fence"
    assert writer.commit(staged) is Outcome.DONE_NOW
    assert writer.commit(staged) is Outcome.ALREADY_DONE
    assert setup.opened(2).commit(staged) is Outcome.ALREADY_DONE
    (segment,) = segments(Tail(), setup.log())
    assert (segment.batch, segment.rows, segment.folder) == (0, 3, "data/000000000-1-1")
    assert [file.name for file in segment.files] == ["part-0.parquet"], "a file without rows is left out"
    assert segment.bytes > 0


class Evaluated(Exception):
    """Raised by a frame that is about to be written."""


class Untouched:
    """Stands for a frame that must not be evaluated."""

    @property
    def write(self) -> object:
        raise Evaluated


@pytest.mark.parametrize(
    ("batch", "ends", "evaluated"),
    [
        (1, [2], False),  # the barrier alone
        (1, [3], True),  # and a segment behind it
        (1, [2, 2], False),  # two readers of one channel
        (1, [2, 3], True),
        (0, [1], True),  # where it began is not known
        (2, [2], True),  # nor here
    ],
)
def test_a_batch_that_only_passes_barriers_is_not_evaluated(
    setup: Setup, batch: int, ends: list[int], evaluated: bool
) -> None:
    def evaluates(*more: str, begin: int = 1) -> bool:
        for number, entries in ((0, [begin] * len(ends)), (batch, ends)):
            lines = [json.dumps(Position(entry, CheckpointId(1)).offset("up")) for entry in entries]
            setup.query.put(f"offsets/{number}", "\n".join(["v1", "{}", *lines, *more]).encode())
        try:
            writer.stage(Untouched(), BatchId(batch), token(1))  # type: ignore[arg-type]
        except Evaluated:
            return True
        return False

    up = ChannelWriter("up", str(setup.channel.parent / "up"), setup.query.url)
    up.open("job/up", LINEAGE, token(1))
    up.append_barrier(CheckpointId(1))
    other = Setup(setup.channel.parent / "other")
    other.channel = setup.channel.parent / "up"
    up.commit(other.stage(up, 0, 1, 7))
    assert [type(read_entry(LocalStore(other.channel), n)) for n in range(3)] == [Fence, Barrier, Segment]
    writer = setup.opened(1)
    assert evaluates() is evaluated
    assert evaluates('{"logOffset":3}'), "it has a source of another kind"
    setup.query.put("state/0/0/1.delta", b"")
    assert evaluates(), "a query with state"


def test_the_next_run_commits_what_was_staged_and_discards_the_rest(setup: Setup) -> None:
    first = setup.opened(1)
    first.commit(setup.stage(first, 0, 1, 1))
    staged, lost, later = (setup.stage(first, batch, 1, batch) for batch in (1, 2, 3))
    second = setup.opened(2)
    assert second.open(OWNER, LINEAGE, token(2)).last == 0
    assert list(second.staged()) == [staged, lost, later]
    second.discard(BatchId(2), [staged])
    assert second.commit(staged) is Outcome.DONE_NOW
    with pytest.raises(LostStagingError):
        second.commit(lost)
    assert list(second.staged()) == [later]
    folders = sorted(one.name for one in (setup.channel / "data").iterdir() if any(one.iterdir()))
    assert folders == ["000000000-1-1", "000000001-1-1", "000000003-1-1"]


def test_a_lower_token_can_do_nothing_more(setup: Setup) -> None:
    old = setup.opened(1)
    staged = setup.stage(old, 0, 1, 1)
    setup.opened(2)
    with pytest.raises(FencedError):
        old.commit(staged)
    with pytest.raises(FencedError):
        old.append_barrier(CheckpointId(1))
    with pytest.raises(FencedError):
        old.open(OWNER, LINEAGE, token(1))
    assert all(isinstance(entry, Fence) for entry in setup.log())


def test_a_batch_is_not_entered_behind_a_gap_which_the_next_run_closes(setup: Setup) -> None:
    zombie = setup.opened(1)
    decided_late = setup.stage(zombie, 0, 1, 1)
    second = setup.opened(2)
    staged = setup.stage(second, 1, 2, 2)
    with pytest.raises(FencedError, match=r"another run \(it decided batch 0 "):
        second.commit(staged)
    third = setup.opened(3)
    for one in (decided_late, staged):
        assert third.commit(one) is Outcome.DONE_NOW
    assert [segment.batch for segment in segments(Tail(), setup.log())] == [0, 1]


def test_a_channel_that_is_new_begins_after_the_batch_that_its_query_resumes_after(setup: Setup) -> None:
    """As that of a query that was split off another one, whose batches went elsewhere."""
    writer = setup.opened(1)
    for _ in range(2):
        assert writer.rewind(BatchId(12)) is Outcome.ALREADY_DONE
    assert len(setup.log()) == 2, "two fences, the second after batch 12"
    assert setup.opened(2).last_batch == 12
    third = setup.opened(3)
    assert third.commit(setup.stage(third, 13, 3, 1)) is Outcome.DONE_NOW
    assert [segment.batch for segment in segments(Tail(), setup.log())] == [13]


def test_a_channel_of_another_owner_or_of_lost_live_files_is_refused(setup: Setup) -> None:
    setup.opened(1)
    for owner, lineage in (("job/other", LINEAGE), (OWNER, "another")):
        with pytest.raises(SinkMismatchError):
            ChannelWriter("channel", str(setup.channel), setup.query.url).open(owner, lineage, token(2))


def test_a_barrier_stands_behind_the_newest_segment_and_only_once(setup: Setup) -> None:
    writer = setup.opened(1)
    assert writer.append_barrier(CheckpointId(1)) == Cut(1, NO_BATCH)
    writer.commit(setup.stage(writer, 0, 1, 1))
    assert writer.append_barrier(CheckpointId(2)) == Cut(3, BatchId(0))
    writer.commit(setup.stage(writer, 1, 1, 2))
    assert writer.append_barrier(CheckpointId(2)) == Cut(3, BatchId(0))
    assert setup.opened(2).append_barrier(CheckpointId(2)) == Cut(3, BatchId(0))
    assert [type(entry) for entry in setup.log()] == [Fence, Barrier, Segment, Barrier, Segment, Fence]


def test_a_barrier_stands_for_each_lower_one_that_is_not_in_front_of_it(setup: Setup) -> None:
    writer = setup.opened(1)
    writer.append_barrier(CheckpointId(2))
    writer.commit(setup.stage(writer, 0, 1, 1))
    shared = writer.append_barrier(CheckpointId(5))
    writer.commit(setup.stage(writer, 1, 1, 2))
    newest = writer.append_barrier(CheckpointId(6))
    assert [writer.cut(CheckpointId(id)) for id in (3, 4, 5, 6, 7)] == [shared, shared, shared, newest, None]
    assert writer.append_barrier(CheckpointId(4)) == shared
    assert [type(entry) for entry in setup.log()].count(Barrier) == 3


def test_a_lower_barrier_behind_a_higher_one_that_was_trimmed_is_refused(setup: Setup) -> None:
    setup.opened(1).append_barrier(CheckpointId(5))
    setup.opened(2)
    trim(LocalStore(setup.channel), 3)
    writer = setup.opened(3)
    with pytest.raises(IllegalMoveError):
        writer.append_barrier(CheckpointId(4))


def test_a_barrier_names_the_batch_that_won_the_race(setup: Setup) -> None:
    writer, store = setup.opened(1), LocalStore(setup.channel)
    writer.append_barrier(CheckpointId(1))
    make = writer._barrier

    def late(checkpoint: CheckpointId) -> Barrier | None:
        made = make(checkpoint)
        entry = Segment(BatchId(0), token(1), "data/0")
        store.create("log/000000002.json", json.dumps(encode(entry)).encode())
        return made

    writer._barrier = late  # type: ignore[method-assign]
    assert writer.append_barrier(CheckpointId(2)) == Cut(3, BatchId(0))


def kinds(log: list[Entry]) -> str:
    """The log in short: f for a fence, the batch of a segment, the checkpoint of a barrier in brackets."""

    def short(one: Entry) -> str:
        if isinstance(one, Barrier):
            return f"({one.checkpoint})"
        return "f" if isinstance(one, Fence) else str(one.batch)

    return " ".join(map(short, log))


def test_a_barrier_comes_directly_behind_the_batch_that_reached_it_on_all_channels(setup: Setup) -> None:
    writer = setup.opened(1)
    for batch, barriers in enumerate([(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (2, 2)]):
        setup.plan(batch, *barriers)
    staged = [setup.stage(writer, batch, 1, batch) for batch in range(6)]
    for one in staged:
        writer.commit(one)
    assert kinds(setup.log()) == "f 0 1 2 (1) 3 4 (2) 5"
    assert writer.cut(CheckpointId(1)) == Cut(4, BatchId(2))
    assert writer.cut(CheckpointId(2)) == Cut(7, BatchId(4))
    assert writer.cut(CheckpointId(3)) is None
    assert writer.here() == Cut(9, BatchId(5))
    assert writer.last_batch == 5
    assert [writer.batch_before(entry) for entry in (0, 1, 2, 5, 6)] == [NO_BATCH, NO_BATCH, 0, 2, 3]


def test_a_query_without_channels_appends_no_barrier_by_itself(setup: Setup) -> None:
    writer = setup.opened(1)
    setup.query.put("offsets/0", b'v1\n{}\n{"logOffset":0}\n{"entry":3,"source":"lines"}')
    writer.commit(setup.stage(writer, 0, 1, 1))
    assert kinds(setup.log()) == "f 0"


def test_a_barrier_that_the_coordinator_appended_is_not_appended_again(setup: Setup) -> None:
    writer = setup.opened(1)
    setup.plan(0, 0)
    setup.plan(1, 1)
    first = setup.stage(writer, 0, 1, 0)
    second = setup.stage(writer, 1, 1, 1)
    writer.commit(first)
    assert writer.append_barrier(CheckpointId(1)) == Cut(2, BatchId(0))
    writer.commit(second)
    assert kinds(setup.log()) == "f 0 (1) 1"
    later = setup.opened(2)
    assert later.append_barrier(CheckpointId(1)) == Cut(2, BatchId(0))
    assert later.commit(second) is Outcome.ALREADY_DONE
    assert kinds(setup.log()) == "f 0 (1) 1 f"


@pytest.mark.parametrize("done_by", [1, 2])
def test_a_commit_that_was_cut_short_in_front_of_the_barrier_is_completed(setup: Setup, done_by: int) -> None:
    writer = setup.opened(1)
    setup.plan(0, 1)
    staged = setup.stage(writer, 0, 1, 1)
    enter, writer._enter_barrier = writer._enter_barrier, _unknown  # type: ignore[method-assign]
    assert writer.commit(staged) is Outcome.UNKNOWN
    assert kinds(setup.log()) == "f 0"
    writer._enter_barrier = enter  # type: ignore[method-assign]
    again = writer if done_by == 1 else setup.opened(2)
    assert again.commit(staged) is Outcome.ALREADY_DONE
    assert kinds(setup.log()) == ("f 0 (1)" if done_by == 1 else "f 0 f (1)")
    assert list(again.staged()) == []


def _unknown(checkpoint: CheckpointId) -> None:
    raise OutcomeUnknownError(verb="create", path="log", reason="no answer", root="")


def test_the_barrier_of_a_batch_is_known_even_if_spark_purges_its_plan(setup: Setup) -> None:
    writer = setup.opened(1)
    setup.plan(0, 1)
    staged = setup.stage(writer, 0, 1, 1)
    setup.query.delete("offsets/0")
    writer.commit(staged)
    assert kinds(setup.log()) == "f 0 (1)"


def test_behind_a_trimmed_head_no_barrier_is_appended_again_and_no_zombie_counts(setup: Setup) -> None:
    first = setup.opened(1)
    zombie = setup.stage(first, 0, 1, 0)
    second = setup.opened(2)
    for batch in range(3):
        setup.plan(batch, 1)
        second.commit(setup.stage(second, batch, 2, batch))
    assert kinds(setup.log()) == "f f 0 (1) 1 2"
    trim(LocalStore(setup.channel), 6)
    third = setup.opened(3)
    setup.plan(3, 1)
    third.commit(setup.stage(third, 3, 3, 3))
    store = LocalStore(setup.channel)
    entries = [read_entry(store, number) for number in range(5, 8)]
    assert kinds([one for one in entries if one is not None]) == "2 f 3"
    assert third.open(OWNER, LINEAGE, token(3)).last == 3
    with pytest.raises(FencedError):
        first.commit(zombie)
    assert read_entry(store, 1) is None, "it wrote nothing where the head was"


def test_nothing_can_be_taken_back_from_readers(setup: Setup) -> None:
    writer = setup.opened(1)
    writer.commit(setup.stage(writer, 0, 1, 1))
    assert writer.rewind(BatchId(0)) is Outcome.ALREADY_DONE
    with pytest.raises(IllegalMoveError):
        writer.rewind(NO_BATCH)


def decision(log: str, batch: int, **values: int) -> tuple[str, bytes]:
    return f"{log}/{batch}", f"v1\n{json.dumps(values)}".encode()


@pytest.mark.parametrize(("stateful", "carried"), [(False, [None, 7000, None]), (True, [None, 3000, None])])
def test_a_segment_carries_the_watermark_that_its_rows_are_not_late_for(
    setup: Setup, stateful: bool, carried: list[int | None]
) -> None:
    setup.query.put(*decision("offsets", 0, batchWatermarkMs=0))
    setup.query.put(*decision("commits", 0, nextBatchWatermarkMs=0))
    setup.query.put(*decision("offsets", 1, batchWatermarkMs=3000))
    setup.query.put(*decision("commits", 1, nextBatchWatermarkMs=7000))
    if stateful:
        setup.query.put("state/0/_metadata/metadata", b"")
    writer = setup.opened(1)
    for batch in range(3):  # the logs of batch 2 are purged
        writer.commit(setup.stage(writer, batch, 1, batch))
    assert [segment.watermark_ms for segment in segments(Tail(), setup.log())] == carried


@pytest.mark.parametrize("seed", range(5))
def test_through_a_failing_transport_every_entry_is_there_once(setup: Setup, seed: int) -> None:
    def until_known(step: Callable[[], object]) -> None:
        for _ in range(200):
            try:
                if step() is not Outcome.UNKNOWN:
                    return
            except (OutcomeUnknownError, StorageError):
                continue
        raise AssertionError(f"seed {seed} never lets it through")

    store = UnreliableStore(LocalStore(setup.channel), seed)
    writer = ChannelWriter("channel", str(setup.channel), setup.query.url, store)
    until_known(lambda: writer.open(OWNER, LINEAGE, token(1)))
    for batch in range(3):
        folder = setup.channel / "data" / f"{batch:09d}-1-1"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"value": [batch]}), folder / "part-0.parquet")
        staged, checkpoint = Staged(BatchId(batch), token(1)), CheckpointId(batch + 1)
        until_known(lambda staged=staged: writer.record(staged))  # type: ignore[misc]
        until_known(lambda staged=staged: writer.commit(staged))  # type: ignore[misc]
        until_known(lambda checkpoint=checkpoint: writer.append_barrier(checkpoint))  # type: ignore[misc]
    assert [type(entry) for entry in setup.log()] == [Fence] + [Segment, Barrier] * 3
