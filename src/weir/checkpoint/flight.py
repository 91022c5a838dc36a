"""A pending checkpoint on its way, as the coordinator knows it, and whom that asks and tells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from weir.channel.position import Position
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.checkpoint.vertex import Found, NoPositionError
from weir.errors import WeirError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol.checkpoints import AbortReason, Alignment, Pending
from weir.protocol.messages import CheckpointAborted, CheckpointCompleted, Message
from weir.spark.closure import GoneError

Held = Callable[[Manifest | None, str], None]
"""Called once, and must return at once: with the checkpoint, or with None and why there is none."""


@dataclass(frozen=True)
class Wish:
    """A checkpoint that was asked for."""

    request: str
    full: bool
    trigger: str = "request"
    held: Held | None = None
    """Who wants it, and releases it later; without one the answer goes to the request."""
    final: bool = False
    """Every query has ended: the cut is what each has committed."""
    asked_at: float = 0.0
    """On the monotonic clock."""


@dataclass
class Flight:
    """A pending checkpoint, with what is known of it so far."""

    state: Pending
    trigger: str
    full: bool
    begun_at: str
    wishes: list[Wish]
    phases: dict[str, float] = field(default_factory=dict)
    barriers: dict[QueryName, float] = field(default_factory=dict)
    """When each query's cut was found (its barrier appended), in seconds after the trigger."""
    acked: dict[QueryName, float] = field(default_factory=dict)
    """When each query's ack was taken, in seconds after the trigger."""
    found: dict[QueryName, Found] = field(default_factory=dict)
    behind: dict[QueryName, BatchId] = field(default_factory=dict)
    """Roots whose barrier comes behind the segment of the batch that they were in."""
    positions: dict[QueryName, Mapping[QueryName, Position]] = field(default_factory=dict)
    """Where each query stood in its channels at its cut; read at once, before Spark purges it."""
    queries: dict[QueryName, Future[QueryCut]] = field(default_factory=dict)
    pinned: set[QueryName] = field(default_factory=set)
    """Queries whose files are safe from Spark, though they may still be copied."""
    channels: dict[QueryName, Future[ChannelCut]] = field(default_factory=dict)
    manifest: Manifest | None = None
    """Made when all have acked."""
    exported: Future[None] | None = None
    """The manifest is being written beside the copies, if there are any."""
    turned: bool = False
    """It began as aligned, and took too long."""

    @property
    def id(self) -> CheckpointId:
        return self.state.id

    @property
    def alignment(self) -> Alignment:
        """How the cut was found in the end."""
        return Alignment.UNALIGNED if self.turned else self.state.alignment

    def goes_on(self, reader: QueryName, channel: QueryName) -> Position:
        """Where a reader goes on after a restore of this checkpoint."""
        position = self.positions[reader][channel]
        behind = self.found[channel].behind
        if self.state.alignment is Alignment.AT_LEAST_ONCE and behind is not None:
            return position if position.entry <= behind else Position(behind, self.id)
        return position

    def cuts(self, inputs: Mapping[QueryName, Sequence[QueryName]]) -> dict[str, QueryCut]:
        """Every query's cut, when all have acked; `inputs` are the queries whose channels each reads."""
        return {name: self._cut(name, inputs[name]) for name in self.queries}

    def _cut(self, name: QueryName, inputs: Sequence[QueryName]) -> QueryCut:
        cut = self.queries[name].result()
        places = {one: self.goes_on(name, QueryName(one)) for one in cut.positions}
        back = {
            one: (there.entry, there.barrier)
            for one, there in places.items()
            if there.entry < cut.positions[one][0]
        }
        taking = sum(cut.phases.get(phase, 0.0) for phase in ("listing", "pinning", "copying"))
        ack = max(0.0, self.acked[name] - self.barriers[name] - taking)
        phases = {"barrier": max(self.barriers[one] for one in inputs or (name,)), **cut.phases, "ack": ack}
        if name in self.channels:  # its channel is kept behind it
            for phase, seconds in self.channels[name].result().phases.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        return cut.model_copy(update={"set_back": back, "phases": phases})

    def manifest_of(
        self, about: Mapping[str, Any], cuts: dict[str, QueryCut], completed_at: str, seconds: float
    ) -> Manifest:
        """The manifest, when all have acked; `about` is what every manifest of the job says."""
        return Manifest(
            **about,
            id=self.id,
            alignment=self.alignment,
            full=self.full,
            trigger=self.trigger,
            begun_at=self.begun_at,
            completed_at=completed_at,
            seconds=seconds,
            queries=cuts,
            channels={name: future.result() for name, future in self.channels.items()},
        )

    def came_to(self) -> dict[str, float]:
        """Seconds of the phases of the whole, as far as it has come."""
        barrier = {"barrier": max(self.barriers.values())} if self.barriers else {}
        return {**self.phases, **barrier}

    def aborted(self, reason: AbortReason, detail: str, seconds: float) -> CheckpointAborted:
        """What is told of it when it is aborted."""
        return CheckpointAborted(
            id=self.id,
            alignment=self.state.alignment.value,
            trigger=self.trigger,
            seconds=seconds,
            reason=reason.value,
            detail=detail,
            phases=self.came_to(),
        )

    def completed(self, manifest: Manifest, subsumed: Sequence[CheckpointId]) -> CheckpointCompleted:
        """What is told of it when it is complete."""
        return CheckpointCompleted(
            id=self.id,
            alignment=manifest.alignment.value,
            trigger=self.trigger,
            full=self.full,
            seconds=manifest.seconds,
            new_bytes=manifest.new_bytes,
            full_bytes=manifest.full_bytes,
            phases=self.came_to(),
            queries={
                name: {
                    "batch": cut.batch,
                    "unaligned": cut.unaligned,
                    "new_bytes": cut.new_bytes,
                    "full_bytes": cut.full_bytes,
                    "phases": cut.phases,
                }
                for name, cut in manifest.queries.items()
            },
            subsumed=list(subsumed),
        )


@dataclass(frozen=True)
class Outside:
    """Whom the coordinator asks and tells."""

    report: Callable[[Message], None]
    running: Callable[[], bool]
    """Whether no query is down, and some run."""
    standing: Callable[[], Collection[QueryName]]
    """The queries that will reach no barrier: they have ended or wait for their streams to end, or their
    batches were fixed when they started (bounded ones)."""
    completed: Callable[[CheckpointId], None]
    aborted: Callable[[CheckpointId, str], None]
    give_up: Callable[[WeirError], None]
    """Too many checkpoints failed: the job must be started again."""
    down: Callable[[], str] = lambda: ""
    """Which query is down, for people; "" when that is not known."""


def words_of(error: BaseException) -> str:
    """Why a checkpoint was aborted, for people."""
    if isinstance(error, GoneError):
        return f"{error} is gone: {error.why}"
    if isinstance(error, NoPositionError):
        return str(error)
    return error.text if isinstance(error, WeirError) else f"{type(error).__name__}: {error}"
