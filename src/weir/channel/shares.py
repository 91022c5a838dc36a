"""How the files of a batch are shared out to Spark's tasks: facts in, shares out.

A task of a Python data source costs some ten milliseconds before its first row, so small files go
together; a big file is divided by its row groups, so that no core waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weir.channel.log import Segment


@dataclass(frozen=True)
class Piece:
    """A file, or some of its row groups."""

    file: str
    bytes: int
    row_groups: tuple[int, ...] | None = None


RowGroups = Callable[[str], Sequence[int]]
"""The size of each row group of a file; looked up for big files only."""


def share_out(
    segments: Iterable[Segment], tasks: int, smallest: int, row_groups: RowGroups
) -> list[tuple[Piece, ...]]:
    """About `tasks` shares of like size, none much below `smallest` bytes unless it is the last."""
    whole = [
        Piece(f"{segment.folder}/{file.name}", file.bytes)
        for segment in segments
        for file in segment.files
        if file.rows
    ]
    size = max(smallest, -(-sum(piece.bytes for piece in whole) // max(tasks, 1)))
    pieces = [part for piece in whole for part in _divided(piece, size, row_groups)]
    return _packed(pieces, size)


def _divided(piece: Piece, size: int, row_groups: RowGroups) -> list[Piece]:
    if piece.bytes <= size:
        return [piece]
    sizes = row_groups(piece.file)
    if len(sizes) < 2:
        return [piece]
    return [Piece(piece.file, bytes_, (number,)) for number, bytes_ in enumerate(sizes)]


def _packed(pieces: Sequence[Piece], size: int) -> list[tuple[Piece, ...]]:
    """In order: a share is closed by the piece that would take it over its size."""
    shares: list[tuple[Piece, ...]] = []
    open_share: list[Piece] = []
    filled = 0
    for piece in pieces:
        if open_share and filled + piece.bytes > size:
            shares.append(tuple(open_share))
            open_share, filled = [], 0
        open_share.append(piece)
        filled += piece.bytes
    return [*shares, tuple(open_share)] if open_share else shares
