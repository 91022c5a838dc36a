"""How far a channel may be ahead of its slowest reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.channel.backpressure import Pressure, too_far_ahead
from weir.channel.log import trim
from weir.channel.position import Position
from weir.channel.writer import ChannelWriter
from weir.errors import LostSegmentError
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.protocol.ledger import Staged
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.local import LocalStore

TOKEN = Token(Attempt(1), Run(1))


@pytest.mark.parametrize(
    ("written", "slowest", "full"),
    [(-1, -1, False), (1, -1, False), (2, -1, True), (7, 5, False), (8, 5, True), (9, 5, True)],
)
def test_a_bound_is_full_when_so_many_segments_wait(written: int, slowest: int, full: bool) -> None:
    assert too_far_ahead(BatchId(written), BatchId(slowest), 3) is full


def test_where_nobody_reads_nobody_waits() -> None:
    assert not too_far_ahead(BatchId(100), None, 3)


class Setup:
    """A channel, and the queries `one` and `two` that read it."""

    def __init__(self, root: Path) -> None:
        self.store = LocalStore(root)
        self.writer = ChannelWriter("clean", str(root / "clean"), str(root / "clean-query"))
        self.writer.open("job/clean", "lineage", TOKEN)
        self.pressure = Pressure(self.writer, [QueryFiles(self.store, name) for name in ("one", "two")], 2)

    def write(self, batch: int) -> None:
        staged = Staged(BatchId(batch), TOKEN)
        self.writer.record(staged)
        self.writer.commit(staged)

    def read(self, name: str, batch: int, *entries: int, commit: bool = True) -> None:
        lines = [json.dumps(Position(entry, CheckpointId(0)).offset("clean")) for entry in entries]
        lines += ['{"entry": 0, "barrier": 0, "channel": "other"}', '{"logOffset":0}', "-"]
        self.store.put(f"{name}/offsets/{batch}", "\n".join(["v1", "{}", *lines]).encode())
        if commit:
            self.store.put(f"{name}/commits/{batch}", b"v1\n{}")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_the_slowest_reader_holds_the_writer_and_only_committed_batches_count(setup: Setup) -> None:
    assert not setup.pressure.full()
    setup.write(0)
    assert not setup.pressure.full()
    setup.write(1)
    assert setup.pressure.full(), "nobody has committed anything"
    setup.read("one", 0, 3)
    assert setup.pressure.full(), "two has not"
    setup.read("two", 0, 2, commit=False)
    assert setup.pressure.full(), "two has only planned"
    setup.read("two", 0, 2)
    assert not setup.pressure.full()
    setup.write(2)
    assert setup.pressure.full()
    setup.read("two", 1, 4)
    assert not setup.pressure.full()


def test_barriers_do_not_count_as_segments(setup: Setup) -> None:
    for checkpoint in range(1, 9):
        setup.writer.append_barrier(CheckpointId(checkpoint))
    setup.write(0)
    assert not setup.pressure.full()


def test_of_a_channel_that_is_read_twice_the_slower_reader_counts(setup: Setup) -> None:
    setup.write(0)
    setup.write(1)
    setup.read("one", 0, 3)
    setup.read("two", 0, 3, 0)
    assert setup.pressure.full()
    setup.read("two", 1, 3, 2)
    assert not setup.pressure.full()


def test_a_trimmed_head_changes_nothing_and_a_hole_is_told(setup: Setup) -> None:
    for batch in range(4):
        setup.write(batch)
        setup.read("one", batch, batch + 1)
        setup.read("two", batch, batch + 1)
    trim(LocalStore(setup.store.url + "/clean"), 4)
    assert not setup.pressure.full()
    setup.store.delete("clean/log/000000003.json")
    with pytest.raises(LostSegmentError):
        setup.pressure.full()
    assert setup.writer.batch_before(0) is NO_BATCH
