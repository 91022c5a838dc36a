"""One query as the coordinator sees it: where it stands, and what its files say of a cut."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from weir.channel.position import Position, positions_in
from weir.channel.writer import ChannelWriter
from weir.errors import WeirError
from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName
from weir.protocol.checkpoint import Found, Track, has_position
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.closure import GoneError
from weir.spark.logs import OffsetEntry


@dataclass(frozen=True)
class BatchOffsets:
    """What Spark planned for a batch, as its offset log says."""

    ends: tuple[str, ...]
    """The end offset of each source."""
    positions: Mapping[QueryName, Position]
    """Where each channel that the query reads stood after it."""
    watermark_ms: int | None


class NoPositionError(Exception):
    """A query has committed nothing yet: where it would begin after a restore is not known."""

    def __init__(self, query: QueryName) -> None:
        super().__init__(
            f"query {query} has not committed its first batch yet, so it has nothing to resume"
            " from; ask again when it has"
        )


def reason_of(error: BaseException) -> str:
    """Why a checkpoint was aborted, for people."""
    if isinstance(error, GoneError):
        return f"{error} is gone: {error.why}"
    if isinstance(error, NoPositionError):
        return str(error)
    return error.text if isinstance(error, WeirError) else f"{type(error).__name__}: {error}"


def no_files(_batch: BatchId) -> Sequence[str]:
    """For a query without user state."""
    return ()


class Vertex:
    """One query of the graph; another one is made when the query is started again."""

    def __init__(
        self,
        name: QueryName,
        files: QueryFiles,
        root: Path,
        inputs: Sequence[QueryName],
        writer: ChannelWriter | None,
        rewindable: bool,
        user_state: Callable[[BatchId], Sequence[str]] = no_files,
        fixed: bool = True,
    ) -> None:
        self.name = name
        self.files = files
        self.root = root
        """Its checkpointLocation on this machine."""
        self.inputs = tuple(inputs)
        """The queries whose channels it reads."""
        self.writer = writer
        self.rewindable = rewindable
        self.user_state = user_state
        """Names of the files, below the generation, that hold the author's own state of a batch."""
        self._fixed = fixed
        """Whether all its sources begin in the same place, whenever they begin."""
        self._began = False
        self._track = Track()

    def begin(self, found: Iterable[Container[QueryName]]) -> None:
        """A checkpoint begins; `found` are the queries that each of the pending ones has cut."""
        if self.inputs and self.writer is None:
            self._track = self._track.skip(self.name, self.files.last_committed(), found)

    def look(self) -> None:
        """Learn what was committed and appended since the last look.

        Raises `GoneError` when Spark has purged a batch that nobody has looked at: it may be a cut.
        """
        if self.writer is not None:
            self.writer.catch_up()
        elif self.inputs:
            newest = self.files.newest_committed(self._track.examined)
            self._track = self._track.follow(
                newest, lambda batch: min(position.barrier for position in self.positions(batch).values())
            )

    def aligned(self, id: CheckpointId) -> Found | None:
        """The cut of a query with channel inputs, once a look has found it committed (and appended)."""
        if self.writer is not None:
            cut = self.writer.cut(id)
            return None if cut is None else Found(cut.batch, end=cut.entry + 1)
        batch = self._track.cut(id)
        return None if batch is None else Found(batch)

    def barriers(self) -> list[CheckpointId]:
        """The barriers that its live files know: in its channel, and in its offsets."""
        barriers = [self.writer.newest_barrier()] if self.writer is not None else []
        for batch in {self.files.last_committed(), self.files.last_planned()} if self.inputs else ():
            with suppress(GoneError):  # then nothing resumes from there
                by_channel = positions_in(self._offsets(batch)).values()
                barriers += [position.barrier for positions in by_channel for position in positions]
        return barriers

    def began(self, stands: bool) -> bool:
        """Whether a restore would rewind the query to where it is now; `stands`: it reaches no barrier."""
        if not self._began:
            committed = self.files.last_committed()
            self._began = committed != NO_BATCH
            return self.has_position(committed, stands)
        return True

    def has_position(self, cut: BatchId, stands: bool) -> bool:
        """The same of a cut that was found by now."""
        planned = self.files.last_planned() if cut == NO_BATCH else cut
        return has_position(committed=cut, planned=planned, stands=stands, fixed=self._fixed)

    def beginning(self) -> Position:
        """Where a reader of the query's channel begins that has committed nothing."""
        assert self.writer is not None
        return Position(self.writer.beginning())

    def caught_up(self, batch: BatchId) -> bool:
        """Whether every batch before this one was looked at for cuts."""
        return self.writer is not None or not self.inputs or self._track.examined >= batch - 1

    def entered(self) -> BatchId:
        """The newest batch whose segment is in the query's channel."""
        assert self.writer is not None
        return self.writer.here().batch

    def barrier(self, id: CheckpointId) -> Found:
        """Append the barrier to the query's channel now; its cut is what stands before it.

        Where a later one is there already, that one is its barrier too.
        """
        assert self.writer is not None
        cut = self.writer.append_barrier(id)
        return Found(cut.batch, end=cut.entry + 1)

    def here_or_aligned(self, id: CheckpointId) -> Found:
        """The cut at the barrier if the query has just reached it, else where it stands now.

        Looked at in this order no batch after the barrier is ever taken for one before it.
        """
        here = self.here()
        self.look()
        return self.aligned(id) or replace(here, unaligned=True)

    def here(self) -> Found:
        """The last batch that is committed (and appended) now."""
        if self.writer is None:
            return Found(self.files.last_committed())
        cut = self.writer.here()
        return Found(cut.batch, end=cut.entry)

    def planned(self, batch: BatchId) -> BatchOffsets:
        """What `offsets/<n>` says."""
        text = self._offsets(batch)
        entry = OffsetEntry.parse(text)
        return BatchOffsets(entry.lines, self._positions(text), entry.watermark_ms)

    def positions(self, batch: BatchId) -> Mapping[QueryName, Position]:
        """Where each channel stood after a batch; the beginning before the first."""
        return self._positions(self._offsets(batch))

    def _positions(self, text: str) -> Mapping[QueryName, Position]:
        found = positions_in(text) if self.inputs else {}
        return {name: min(found.get(name) or [Position()], key=lambda p: p.entry) for name in self.inputs}

    def _offsets(self, batch: BatchId) -> str:
        if batch == NO_BATCH:
            return ""
        try:
            return (self.root / "offsets" / str(batch)).read_text()
        except FileNotFoundError as error:
            raise GoneError(f"offsets/{batch} of query {self.name}") from error

    def waited(self, found: Found, id: CheckpointId) -> dict[str, float]:
        """Seconds of alignment and commit, from the times of Spark's own files; for showing only."""
        if found.unaligned or found.batch == NO_BATCH or not self.inputs:
            return {}
        planned = _time(self.root / "offsets" / str(found.batch))
        first = found.batch
        while first > 0 and self._reached(BatchId(first - 1), id):
            first = BatchId(first - 1)
        began = _time(self.root / "offsets" / str(first))
        committed = _time(self.root / "commits" / str(found.batch))
        return {"alignment": max(0.0, planned - began), "commit": max(0.0, committed - planned)}

    def _reached(self, batch: BatchId, id: CheckpointId) -> bool:
        try:
            return any(p.barrier >= id for p in self.positions(batch).values())
        except GoneError:
            return False


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
