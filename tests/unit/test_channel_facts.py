"""What a reader learns from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.channel.facts import Ahead, Checkpoints, JointPosition
from weir.channel.log import Segment, encode
from weir.channel.position import Status
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
        lines = [f'{{"entry": 1, "barrier": {barrier}}}' for barrier in barriers]
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


def test_an_entry_that_must_be_there_and_is_not_stops_the_reader(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ahead, token = Ahead(store), Token(Attempt(1), Run(1))
    assert ahead.before(0) is None
    assert ahead.get(0) is None
    log = DenseLog(store, "log")
    for batch in range(5):
        log.append(encode(Segment(BatchId(batch), token, "data/0")), lambda _: True)
    ahead.need(4)
    store.delete("log/000000000.json")
    store.delete("log/000000001.json")
    assert ahead.before(2) is None, "the head was deleted up to here"
    before = ahead.before(4)
    assert before is not None
    assert before.batch == 3
    with pytest.raises(LostSegmentError, match=r"000000000\.json is gone"):
        ahead.before(1)
