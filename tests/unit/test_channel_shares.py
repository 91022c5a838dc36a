"""How the files of a batch are shared out to tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weir.channel.log import Segment, SegmentFile
from weir.channel.shares import Piece, share_out
from weir.ids import Attempt, BatchId, Run, Token

TOKEN = Token(Attempt(1), Run(1))


def segment(batch: int, *sizes: int) -> Segment:
    files = tuple(SegmentFile(f"part-{n}", 1, size) for n, size in enumerate(sizes))
    return Segment(BatchId(batch), TOKEN, f"data/{batch}", files)


def one_group(_: str) -> list[int]:
    return [1]


def test_small_files_of_many_segments_go_together() -> None:
    assert len(share_out([segment(n, 10, 10) for n in range(100)], 2, 4000, one_group)) == 1
    assert len(share_out([segment(n, 10, 10) for n in range(100)], 2, 100, one_group)) == 2


def test_a_big_file_is_divided_by_its_row_groups() -> None:
    shares = share_out([segment(0, 400)], 2, 10, lambda _: [100, 100, 100, 100])
    assert shares == [
        (Piece("data/0/part-0", 100, (0,)), Piece("data/0/part-0", 100, (1,))),
        (Piece("data/0/part-0", 100, (2,)), Piece("data/0/part-0", 100, (3,))),
    ]


def test_files_without_rows_are_nobodys_share() -> None:
    empty = Segment(BatchId(0), TOKEN, "data/0", (SegmentFile("part-0", 0, 0),))
    assert share_out([empty], 2, 10, one_group) == []
    assert share_out([], 2, 10, one_group) == []


@given(
    st.lists(st.lists(st.integers(1, 1000), max_size=4), max_size=8), st.integers(1, 8), st.integers(1, 500)
)
def test_every_file_is_in_exactly_one_share(sizes: list[list[int]], tasks: int, smallest: int) -> None:
    shares = share_out([segment(n, *one) for n, one in enumerate(sizes)], tasks, smallest, one_group)
    files = [piece.file for share in shares for piece in share]
    assert files == [f"data/{n}/part-{m}" for n, one in enumerate(sizes) for m in range(len(one))]
    assert len(shares) <= 2 * tasks + 1
