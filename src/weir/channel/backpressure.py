"""Back-pressure: how far a channel may be ahead of its slowest reader.

The driver asks before it stages a batch, and waits while the answer is yes. A reader's position is
that of its last committed batch, so a reader that waits at a barrier counts as one that is slow.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.channel.position import positions_of
from weir.channel.writer import ChannelWriter
from weir.ids import NO_BATCH, BatchId
from weir.spark.checkpoint_files import QueryFiles


def too_far_ahead(written: BatchId, slowest: BatchId | None, bound: int) -> bool:
    """Whether `bound` segments or more wait for the slowest reader; never when nobody reads.

    Both are batches of the writing query: the newest in the channel, and the newest that every
    reader has read.
    """
    return slowest is not None and written - slowest >= bound


class Pressure:
    """One channel and the live files of the queries that read it; asked again and again while one waits."""

    def __init__(self, writer: ChannelWriter, readers: Sequence[QueryFiles], bound: int) -> None:
        self._writer = writer
        self._readers = [_Reader(files, writer.name) for files in readers]
        self._bound = bound

    def full(self) -> bool:
        """Whether the writer must wait now. Raises `LostSegmentError` when the log has a hole."""
        return too_far_ahead(self._writer.last_batch, self._slowest(), self._bound)

    def _slowest(self) -> BatchId | None:
        entries = [reader.entry() for reader in self._readers]
        return self._writer.batch_before(min(entries)) if entries else None


class _Reader:
    """Where a reader of the channel stands; its offsets are read again only when it has got on."""

    def __init__(self, files: QueryFiles, channel: str) -> None:
        self._files = files
        self._channel = channel
        self._batch = NO_BATCH
        self._entry = 0

    def entry(self) -> int:
        batch = self._files.newest_committed(self._batch)
        if batch != self._batch:
            positions = positions_of(self._files.offsets(batch)).get(self._channel, [])
            self._entry = min((position.entry for position in positions), default=0)
            self._batch = batch
        return self._entry
