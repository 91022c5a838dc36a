"""What a reader learns from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.channel.facts import Ahead, Checkpoints, JointPosition, Planning
from weir.channel.log import Segment, encode, trim
from weir.channel.position import Bound, Mode, Position, Status
from weir.errors import LostSegmentError
from weir.ids import Attempt, BatchId, CheckpointId, Run, Token
from weir.storage import DenseLog
from weir.storage.local import LocalStore


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ([], Status.UNKNOWN),
        (["begun"], Status.PENDING),
        (["begun", "chk"], Status.COMPLETED),
        (["begun", "aborted"], Status.ABORTED),
        (["chk"], Status.COMPLETED),
        (["aborted"], Status.ABORTED),
        (["begun", "chk", "aborted"], Status.ABORTED),
    ],
)
def test_the_files_of_a_checkpoint_say_how_it_stands(
    tmp_path: Path, files: list[str], status: Status
) -> None:
    store = LocalStore(tmp_path)
    for file in files:
        store.create(f"{file}-7.json", b"{}")
    assert Checkpoints(store).status(CheckpointId(7)) is status
    assert Checkpoints(store).status(CheckpointId(70)) is Status.UNKNOWN


def test_a_pending_checkpoint_is_looked_at_again_and_a_finished_one_is_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    checkpoints, seven = Checkpoints(store), CheckpointId(7)
    store.create("begun-7.json", b"{}")
    assert checkpoints.status(seven) is Status.PENDING
    store.create("aborted-7.json", b"{}")
    assert checkpoints.status(seven) is Status.ABORTED
    store.delete("aborted-7.json")
    assert checkpoints.status(seven) is Status.ABORTED


def test_without_a_folder_of_checkpoints_nothing_is_pending() -> None:
    assert Checkpoints(None).status(CheckpointId(1)) is Status.UNKNOWN


def test_the_joint_position_follows_the_offset_log(tmp_path: Path) -> None:
    def plan(batch: int, *barriers: int) -> None:
        positions = [Position(1, CheckpointId(barrier)) for barrier in barriers]
        lines = [json.dumps(one.offset(f"channel-{number}")) for number, one in enumerate(positions)]
        store.create(f"offsets/{batch}", "\n".join(["v1", "{}", *lines]).encode())

    store = LocalStore(tmp_path)
    joint = JointPosition(store)
    assert joint.barrier() is None
    plan(8, 1, 0)
    plan(9, 1, 2)
    assert joint.barrier() == 1
    plan(10, 3, 2)
    store.delete("offsets/8")
    assert joint.barrier() == 2
    plan(14, 4, 3)
    for purged in (9, 10):
        store.delete(f"offsets/{purged}")
    assert joint.barrier() == 3, "nobody looked for longer than Spark keeps its log"


def fill(store: LocalStore, *batches: int) -> None:
    """A log of segments."""
    log, token = DenseLog(store, "log"), Token(Attempt(1), Run(1))
    for batch in batches:
        log.append(encode(Segment(BatchId(batch), token, f"data/{batch}")), lambda _: True)


def test_an_entry_that_must_be_there_and_is_not_stops_the_reader(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ahead = Ahead(store)
    assert ahead.before(0) is None
    assert ahead.get(0) is None
    fill(store, *range(5))
    ahead.need(4)
    store.delete("log/000000000.json")
    before = ahead.before(4)
    assert before is not None
    assert before.batch == 3
    with pytest.raises(LostSegmentError, match=r"000000000\.json is gone"):
        ahead.before(1)


def test_a_hole_is_not_taken_for_the_end_of_the_log(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    fill(store, *range(4))
    store.delete("log/000000002.json")
    ahead = Ahead(store)
    assert ahead.get(4) is None
    with pytest.raises(LostSegmentError, match=r"000000002\.json is gone"):
        ahead.get(2)


class _Growing(LocalStore):
    """A log that gets two more entries between two looks of its reader."""

    def exists(self, key: str) -> bool:
        fill(LocalStore(self.url), 0, 1)
        return super().exists(key)


def test_entries_that_come_while_the_reader_looks_are_no_hole(tmp_path: Path) -> None:
    entry = Ahead(_Growing(tmp_path)).get(0)
    assert entry is not None
    assert entry.batch == 0


def test_a_new_reader_starts_behind_the_first_entry_that_is_left(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    planning = Planning(store, LocalStore(tmp_path / "query"), None, Mode.ALIGNED)
    assert planning.start() == Position(0)
    fill(store, *range(6))
    assert planning.start() == Position(0)
    trim(store, 4)
    assert planning.start() == Position(4)
    end = planning.next(planning.start(), Bound())
    assert end == Position(6)
    assert [one.batch for one in planning.segments(4, end.entry)] == [4, 5]
