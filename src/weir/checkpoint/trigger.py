"""Trigger, barrier and align, as the coordinator's thread does them: the rules, and the cuts of the queries.

`rules_of` makes of the settings what the reducer decides by. `Cuts` carries out what it asks of the queries:
send a barrier, look whether it has arrived, take a cut. It asks their vertices (`vertex.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from weir.checkpoint.vertex import NoPositionError, Vertex, reason_of
from weir.config import CheckpointingMode, Settings
from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol.checkpoint import Alignment, Found
from weir.protocol.checkpoint_facts import Fact
from weir.protocol.checkpoint_state import Flow, ReaderPlace, Rules
from weir.spark.closure import GoneError


def rules_of(settings: Settings) -> Rules:
    """The rules that these settings are, in seconds."""
    interval = settings.execution_checkpointing_interval
    patience = settings.execution_checkpointing_aligned_checkpoint_timeout.total_seconds()
    turns = patience and settings.execution_checkpointing_unaligned_enabled
    return Rules(
        interval=None if interval is None else interval.total_seconds(),
        interval_records=settings.execution_checkpointing_interval_records,
        min_pause=settings.execution_checkpointing_min_pause.total_seconds(),
        max_concurrent=settings.execution_checkpointing_max_concurrent_checkpoints,
        timeout=settings.execution_checkpointing_timeout.total_seconds(),
        turns_after=patience if turns else None,
        alignment=alignment_of(settings),
        full=not settings.execution_checkpointing_incremental,
        retained=settings.execution_checkpointing_num_retained,
        tolerable=settings.execution_checkpointing_tolerable_failed_checkpoints,
    )


def alignment_of(settings: Settings) -> Alignment:
    """How the next checkpoint begins; an aligned one may turn unaligned later."""
    if settings.execution_checkpointing_mode is CheckpointingMode.AT_LEAST_ONCE:
        return Alignment.AT_LEAST_ONCE
    first_aligned = bool(settings.execution_checkpointing_aligned_checkpoint_timeout)
    unaligned = settings.execution_checkpointing_unaligned_enabled and not first_aligned
    return Alignment.UNALIGNED if unaligned else Alignment.ALIGNED


_DECLINED = (GoneError, NoPositionError)
"""What a query can't be cut with."""


class Cuts:
    """The queries of a job, and the cuts that are asked of them. For use from one thread at a time."""

    def __init__(self, vertices: Sequence[Vertex], standing: Callable[[], Collection[QueryName]]) -> None:
        self._vertices = {vertex.name: vertex for vertex in vertices}
        """A stream before its readers."""
        self._standing = standing

    @property
    def flow(self) -> Flow:
        """The graph of the job."""
        vertices = self._vertices
        writers = frozenset(name for name, vertex in vertices.items() if vertex.writer is not None)
        return Flow({name: vertex.inputs for name, vertex in vertices.items()}, writers)

    def __getitem__(self, name: QueryName) -> Vertex:
        return self._vertices[name]

    def get(self, name: QueryName) -> Vertex | None:
        return self._vertices.get(name)

    def replace(self, vertex: Vertex) -> None:
        """A query runs again, as a new run."""
        self._vertices[vertex.name] = vertex

    def barriers(self) -> list[CheckpointId]:
        """Those that the live files know: a number that one of them has is never given out again."""
        return [barrier for vertex in self._vertices.values() for barrier in vertex.barriers()]

    def without_position(self, standing: Collection[QueryName]) -> list[QueryName]:
        """The queries that have begun and have committed nothing yet."""
        return [name for name, vertex in self._vertices.items() if not vertex.began(name in standing)]

    def skip(self, action: f.SkipCommitted) -> None:
        for vertex in self._vertices.values():
            vertex.begin(action.found)

    def plan(self, action: f.PlanBarrier) -> Iterable[Fact]:
        vertex = self._vertices[action.query]
        yield f.BatchPlanned(action.id, vertex.name, vertex.files.last_planned())
        yield f.SegmentEntered(vertex.name, vertex.entered())

    def send(self, action: f.SendBarrier) -> Fact:
        """Append a barrier; raises what the channel raises where that fails."""
        vertex = self._vertices[action.query]
        found = replace(vertex.barrier(action.ids[-1]), unaligned=action.unaligned)
        return self._cut(action.ids, vertex, lambda: found)

    def here(self, action: f.CutHere) -> Fact:
        vertex = self._vertices[action.query]
        return self._cut((action.id,), vertex, lambda: replace(vertex.here(), unaligned=action.unaligned))

    def here_or_aligned(self, action: f.CutAtBarrierOrHere) -> Fact:
        vertex = self._vertices[action.query]
        return self._cut((action.id,), vertex, lambda: vertex.here_or_aligned(action.id))

    def look(self, action: f.Look, waiting: Iterable[CheckpointId]) -> Iterable[Fact]:
        """What has come since the last look, for the checkpoints that wait for the query's cut."""
        vertex = self._vertices[action.query]
        try:
            vertex.look()
        except GoneError as error:
            yield f.Lost(vertex.name, reason_of(error))
            return
        if not vertex.inputs:
            if vertex.writer is not None:
                yield f.SegmentEntered(vertex.name, vertex.entered())
            return
        for id in waiting:
            found = vertex.aligned(id)
            if found is not None:
                yield self._aligned(id, vertex, found)

    def _aligned(self, id: CheckpointId, vertex: Vertex, found: Found) -> Fact:
        return self._cut((id,), vertex, lambda: found)

    def _cut(
        self, ids: tuple[CheckpointId, ...], vertex: Vertex, find: Callable[[], Found]
    ) -> f.CutFound | f.Declined:
        try:
            found = find()
            if not vertex.has_position(found.batch, vertex.name in self._standing()):
                raise NoPositionError(vertex.name)
            return f.CutFound(ids, vertex.name, found, self._positions(vertex, found.batch))
        except _DECLINED as error:
            return f.Declined(ids, reason_of(error))

    def _positions(self, vertex: Vertex, batch: BatchId) -> Mapping[QueryName, ReaderPlace]:
        """Where a query stood in its channels; one that has committed nothing begins with what is left."""
        if batch == NO_BATCH:
            places = {name: self._vertices[name].beginning() for name in vertex.inputs}
        else:
            places = dict(vertex.positions(batch))
        return {name: (place.entry, place.barrier) for name, place in places.items()}
