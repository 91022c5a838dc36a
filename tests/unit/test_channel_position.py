"""How far a reader may go: every kind of entry in every situation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.channel.log import Barrier, Entry, Fence, Segment, SegmentFile, Tail, apply
from weir.channel.position import (
    Bound,
    Facts,
    Mode,
    Position,
    Status,
    held_back,
    joint_barrier,
    next_position,
    positions_in,
)
from weir.ids import Attempt, BatchId, CheckpointId, Run, Token

FIRST, SECOND = Token(Attempt(1), Run(1)), Token(Attempt(2), Run(1))


def segment(batch: int, rows: int = 10, token: Token = FIRST) -> Segment:
    return Segment(BatchId(batch), token, f"data/{batch}", (SegmentFile("part-0", rows, rows * 8),))


def barrier(checkpoint: int, batch: int = 0, token: Token = FIRST) -> Barrier:
    return Barrier(CheckpointId(checkpoint), BatchId(batch), token)


def fence(token: Token = FIRST) -> Fence:
    return Fence(token, BatchId(-1), "job/query", "lineage")


def at(entry: int, checkpoint: int = 0) -> Position:
    return Position(entry, CheckpointId(checkpoint))


def all_are(status: Status) -> Callable[[CheckpointId], Status]:
    return lambda _: status


def go(
    *ahead: Entry,
    start: Position | None = None,
    status: Status = Status.PENDING,
    joint: int | None = None,
    mode: Mode = Mode.ALIGNED,
    bound: Bound | None = None,
    until: int | None = None,
) -> Position:
    start = start or at(0)
    return next_position(
        Facts(
            start=start,
            tail=Tail(fence=FIRST, barrier=start.barrier),
            ahead=ahead,
            status=all_are(status),
            joint=None if joint is None else CheckpointId(joint),
            mode=mode,
            bound=bound or Bound(),
            until=until,
        )
    )


def test_without_entries_the_start_is_the_end() -> None:
    assert go() == at(0)
    assert go(start=at(7, 3)) == at(7, 3)


def test_all_segments_make_one_batch() -> None:
    assert go(segment(0), segment(1), segment(2)) == at(3)


STOPPING = [Mode.ALIGNED, Mode.AT_LEAST_ONCE]


@pytest.mark.parametrize("mode", STOPPING)
def test_a_batch_ends_at_a_barrier_that_is_pending(mode: Mode) -> None:
    assert go(segment(0), barrier(1), segment(1), status=Status.PENDING, mode=mode) == at(2, 1)


@pytest.mark.parametrize("mode", STOPPING)
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.ABORTED, Status.UNKNOWN])
def test_the_barrier_of_a_checkpoint_that_has_ended_is_passed_over_and_not_reached(
    status: Status, mode: Mode
) -> None:
    assert go(segment(0), barrier(1), segment(1), status=status, mode=mode) == at(3, 0)


def test_a_barrier_without_rows_before_it_makes_a_batch() -> None:
    assert go(barrier(1), start=at(4)) == at(5, 1)


def test_two_barriers_are_two_batches() -> None:
    log: list[Entry] = [segment(0), barrier(1), barrier(2), segment(1)]
    first = go(*log)
    second = go(*log[first.entry :], start=first)
    third = go(*log[second.entry :], start=second)
    assert [first, second, third] == [at(2, 1), at(3, 2), at(4, 2)]


def states(**by_number: str) -> Callable[[CheckpointId], Status]:
    return lambda id: Status(by_number.get(f"c{id}", "unknown"))


SHARED = [
    (states(c2="pending", c3="pending"), True),
    (states(c2="pending", c3="aborted"), True),
    (states(c2="aborted", c3="pending"), True),
    (states(c2="aborted", c3="aborted"), False),
    (states(c2="pending", c3="completed"), False),  # then every query has passed the cut of 2 as well
    (states(c1="pending", c2="aborted", c3="aborted"), False),
]


@pytest.mark.parametrize(("status", "waits"), SHARED)
def test_a_barrier_counts_as_long_as_one_of_those_that_share_it_is_pending(
    status: Callable[[CheckpointId], Status], waits: bool
) -> None:
    """It is that of 3, and 2 is not in front of it; the reader has 1 behind it."""
    ahead: list[Entry] = [segment(0), barrier(3), segment(1)]
    facts = Facts(at(4, 1), Tail(fence=FIRST, barrier=CheckpointId(1)), ahead, status, None)
    assert next_position(facts) == (at(6, 3) if waits else at(7, 1))
    reached = Facts(at(6, 3), Tail(fence=FIRST), [segment(1)], status, CheckpointId(1))
    assert held_back(reached) is waits


def test_what_carries_nothing_makes_no_batch_by_itself() -> None:
    assert go(fence(), barrier(1), fence(), status=Status.ABORTED) == at(0)
    assert go(fence(), segment(0), fence()) == at(2)


def test_a_barrier_that_was_reached_before_is_passed_over() -> None:
    assert go(barrier(2), segment(3), start=at(5, 2), status=Status.COMPLETED) == at(7, 2)


def test_entries_of_a_fenced_writer_do_not_count() -> None:
    log: list[Entry] = [fence(SECOND), segment(0), barrier(1), segment(0, token=SECOND)]
    assert go(*log) == at(4)
    assert go(*log[:3]) == at(0)


def test_a_batch_that_is_there_twice_counts_once() -> None:
    assert go(segment(0), segment(0)) == at(1)


@pytest.mark.parametrize("status", Status)
def test_unaligned_reads_on_and_remembers_the_highest_barrier(status: Status) -> None:
    mode = Mode.UNALIGNED
    assert go(segment(0), barrier(1), segment(1), barrier(2), mode=mode, status=status) == at(4, 2)
    assert go(barrier(1), mode=mode, status=status) == at(1, 1)
    assert go(segment(5), start=at(9, 4), joint=1, mode=mode, status=status) == at(10, 4)


HOLDS = {(Mode.ALIGNED, Status.PENDING, 1)}


@pytest.mark.parametrize(("mode", "status", "joint"), list(product(Mode, Status, [None, 1, 2, 3])))
def test_a_reader_is_held_back_only_by_a_pending_checkpoint_that_another_channel_has_not_reached(
    mode: Mode, status: Status, joint: int | None
) -> None:
    start = at(4, 2)
    lowest = None if joint is None else CheckpointId(joint)
    facts = Facts(start, Tail(fence=FIRST), [segment(1)], all_are(status), lowest, mode)
    assert held_back(facts) == ((mode, status, joint) in HOLDS)
    assert next_position(facts) == (start if held_back(facts) else at(5, 2))


@pytest.mark.parametrize(
    ("bound", "end"),
    [
        (Bound(), 4),
        (Bound(segments=2), 2),
        (Bound(rows=30), 3),
        (Bound(rows=39), 3),
        (Bound(bytes=160), 2),
        (Bound(rows=1), 1),
        (Bound(segments=3, rows=20), 2),
    ],
)
def test_a_bound_ends_a_batch_behind_whole_segments_and_one_always_passes(bound: Bound, end: int) -> None:
    assert go(*(segment(n) for n in range(4)), bound=bound) == at(end)


def test_a_full_batch_still_reaches_the_barrier_behind_it() -> None:
    assert go(segment(0), segment(1), barrier(1), bound=Bound(segments=2)) == at(3, 1)


def test_an_available_now_run_ends_where_it_was_told_and_at_barriers_before() -> None:
    log: list[Entry] = [segment(0), barrier(1), segment(1), segment(2), barrier(2)]
    assert go(*log, until=4) == at(2, 1)
    assert go(*log[2:], start=at(2, 1), until=4, status=Status.COMPLETED) == at(4, 1)
    assert go(*log[4:], start=at(4, 1), until=4, status=Status.COMPLETED) == at(4, 1)


def test_only_as_many_entries_are_read_as_are_needed() -> None:
    read = []

    def ahead() -> Iterator[Entry]:
        for number in range(100):
            read.append(number)
            yield segment(number)

    facts = Facts(at(0), Tail(), ahead(), all_are(Status.PENDING), None, bound=Bound(segments=3))
    assert next_position(facts) == at(3)
    assert len(read) == 4


OFFSETS = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


def offset_log(version: str, *lines: str) -> str:
    return "\n".join([version, OFFSETS, *lines])


def line(entry: int, checkpoint: int, channel: str) -> str:
    return json.dumps(at(entry, checkpoint).offset(channel))


def test_the_joint_position_is_the_lowest_barrier_of_the_channels() -> None:
    log = offset_log("v1", line(9, 4, "left"), '{"logOffset":3}', "-", "17", line(2, 3, "right"))
    assert positions_in(log) == {"left": [at(9, 4)], "right": [at(2, 3)]}
    assert joint_barrier(log) == 3
    assert joint_barrier(offset_log("v2", f"orders:{line(9, 4, 'orders')}", "other:-")) == 4
    assert joint_barrier(offset_log("v1", '{"logOffset":3}', '{"entry":3,"source":"lines"}')) is None


def test_a_channel_that_is_read_twice_has_two_positions_and_the_lower_counts() -> None:
    log = offset_log("v1", line(9, 4, "left"), line(7, 3, "left"))
    assert positions_in(log) == {"left": [at(9, 4), at(7, 3)]}
    assert joint_barrier(log) == 3


def test_an_offset_is_the_same_after_spark_stored_it() -> None:
    stored = json.dumps(at(3, 1).offset("orders"))
    assert stored == '{"entry": 3, "barrier": 1, "channel": "orders"}'
    assert Position.parse(json.loads(stored)) == at(3, 1)


entries = st.lists(
    st.one_of(st.just("segment"), st.just("fence"), st.sampled_from(["pending", "completed", "aborted"])),
    max_size=12,
)


def build(kinds: Sequence[str]) -> tuple[list[Entry], dict[int, Status]]:
    log: list[Entry] = []
    statuses: dict[int, Status] = {}
    for kind in kinds:
        behind = sum(isinstance(one, Segment) for one in log)
        if kind == "segment":
            log.append(segment(behind))
        elif kind == "fence":
            log.append(fence())
        else:
            checkpoint = len(statuses) + 1
            log.append(barrier(checkpoint, batch=behind - 1))
            statuses[checkpoint] = Status(kind)
    return log, statuses


@given(entries, st.integers(1, 4), st.sampled_from(Mode))
def test_every_segment_is_read_once_and_every_pending_barrier_ends_a_batch(
    kinds: Sequence[str], most: int, mode: Mode
) -> None:
    log, statuses = build(kinds)
    position, tail, ends = at(0), Tail(), []
    for _ in range(len(log) + 1):
        facts = Facts(
            position,
            Tail(tail.fence, tail.last, position.barrier),
            log[position.entry :],
            lambda checkpoint: statuses[checkpoint],
            position.barrier,
            mode,
            Bound(segments=most),
        )
        after = next_position(facts)
        assert after.entry >= position.entry
        assert after.barrier >= position.barrier
        taken = log[position.entry : after.entry]
        assert sum(isinstance(one, Segment) for one in taken) <= most
        if mode in STOPPING:
            across = [one for one in taken[:-1] if isinstance(one, Barrier)]
            assert not any(statuses[one.checkpoint] is Status.PENDING for one in across)
        if after == position:
            break
        for one in taken:
            tail = apply(tail, one)
        position = after
        ends.append(position)
    left = log[position.entry :]
    assert not any(isinstance(one, Segment) for one in left), "a channel did not drain"
    if mode in STOPPING:
        stops = {one.barrier for one in ends}
        assert stops >= {k for k, status in statuses.items() if status is Status.PENDING}
