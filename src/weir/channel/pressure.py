"""Back-pressure: how far a channel may be ahead of its slowest reader.

The driver asks before it stages a batch, and waits while the answer is yes. A reader's position is
that of its last committed batch, so a reader that waits at a barrier counts as one that is slow.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.channel.position import positions_of
from weir.channel.writer import ChannelWriter
from weir.ids import BatchId
from weir.spark.layout import QueryFiles


def too_far_ahead(written: BatchId, slowest: BatchId | None, bound: int) -> bool:
    """Whether `bound` segments or more wait for the slowest reader; never when nobody reads.

    Both are batches of the writing query: the newest in the channel, and the newest that every
    reader has read.
    """
    return slowest is not None and written - slowest >= bound


class Pressure:
    """One channel and the live files of the queries that read it."""

    def __init__(self, writer: ChannelWriter, readers: Sequence[QueryFiles], bound: int) -> None:
        self._writer = writer
        self._readers = readers
        self._bound = bound

    def full(self) -> bool:
        """Whether the writer must wait now. Raises `LostSegmentError` when the log has a hole."""
        return too_far_ahead(self._writer.last_batch, self._slowest(), self._bound)

    def _slowest(self) -> BatchId | None:
        entries = [self._entry(reader) for reader in self._readers]
        return self._writer.batch_before(min(entries)) if entries else None

    def _entry(self, reader: QueryFiles) -> int:
        positions = positions_of(reader.committed_offsets()).get(self._writer.name, [])
        return min((position.entry for position in positions), default=0)
