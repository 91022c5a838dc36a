"""Which small files are to be merged next: facts in, decision out.

Files of about the same size are merged when there are enough of them, as in a log-structured tree. So a
row is written again only when what it lies in grows by a factor, a few times in all, and of each size there
are never more than a few files. Only files of batches that no rewind takes apart, and of one partition
folder, come together.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.ids import BatchId
from weir.protocol.contents import Span

FAN = 16
"""So many files of about one size are worth a merge."""
MOST = 500
"""No merge has more files than this, however small they are."""
_SIZES = 3
"""Below target / FAN ** _SIZES all files are of one size: small."""


def partition_of(name: str) -> str:
    """The folder for the values of partition columns: `data/<staging>/<it>/part-*`; empty without any."""
    return "/".join(name.split("/")[2:-1])


def may_merge(span: Span, upto: BatchId) -> bool:
    """Whether no rewind to this batch, or to a later one, takes a file with this span back."""
    return span.last <= upto


def next_merge(sizes: Mapping[str, int], target: int) -> list[str]:
    """The files to merge next, out of those that may be, in the order in which they are given; or none.

    The smallest come first. What has half of the target is large enough, and stays as it is.
    """
    groups: dict[tuple[int, str], list[str]] = {}
    for name, size in sizes.items():
        if 2 * size < target:
            groups.setdefault((-_rank(size, target), partition_of(name)), []).append(name)
    for _, names in sorted(groups.items()):
        if len(names) >= FAN or (len(names) > 1 and sum(sizes[name] for name in names) >= target):
            return _up_to(names, sizes, target)
    return []


def _rank(size: int, target: int) -> int:
    """0 for files that a merge makes large enough, more for smaller ones."""
    rank = 0
    while rank < _SIZES and size * FAN < target:
        size, rank = size * FAN, rank + 1
    return rank


def _up_to(names: list[str], sizes: Mapping[str, int], target: int) -> list[str]:
    taken: list[str] = []
    total = 0
    for name in names[:MOST]:
        taken.append(name)
        total += sizes[name]
        if total >= target:
            break
    return taken
