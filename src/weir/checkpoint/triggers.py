"""When the next checkpoint of a job is due, and what kind it is. Plain data: no clock, no threads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from weir.checkpoint.flight import Flight
from weir.config import CheckpointingMode, Settings
from weir.protocol.checkpoints import Alignment, TriggerFacts


@dataclass
class Triggers:
    """What has come since the last trigger. All times are on the monotonic clock."""

    triggered_at: float
    """The last trigger; at first the beginning."""
    records: int = 0
    """So many have come from outside since then."""

    def triggered(self, now: float) -> None:
        self.triggered_at, self.records = now, 0

    def due(self, settings: Settings, now: float) -> Literal["interval", "records"] | None:
        """What makes a checkpoint due, if anything does."""
        every = settings.execution_checkpointing_interval
        if every is not None and now - self.triggered_at >= every.total_seconds():
            return "interval"
        limit = settings.execution_checkpointing_interval_records
        return "records" if limit is not None and self.records >= limit else None

    def left(self, settings: Settings, now: float) -> float | None:
        """Seconds until the interval is over; None when there is none."""
        every = settings.execution_checkpointing_interval
        return None if every is None else self.triggered_at + every.total_seconds() - now


def trigger_facts(
    settings: Settings,
    now: float,
    alignment: Alignment,
    running: bool,
    stopping: bool,
    pending: Collection[Flight],
    last_ended_at: float | None,
    begun: bool,
) -> TriggerFacts:
    """What decides whether a checkpoint of this kind may begin now."""
    return TriggerFacts(
        now=now,
        running=running,
        stopping=stopping,
        pending=len(pending),
        unaligned_pending=any(one.alignment is Alignment.UNALIGNED for one in pending),
        last_ended_at=last_ended_at,
        alignment=alignment,
        max_concurrent=settings.execution_checkpointing_max_concurrent_checkpoints,
        min_pause=settings.execution_checkpointing_min_pause.total_seconds(),
        begun=begun,
    )


def turns_after(settings: Settings) -> float | None:
    """After how many seconds an aligned checkpoint turns unaligned; None when it never does."""
    patience = settings.execution_checkpointing_aligned_checkpoint_timeout.total_seconds()
    return patience if patience and settings.execution_checkpointing_unaligned_enabled else None


def alignment_of(settings: Settings) -> Alignment:
    """How the next checkpoint begins; an aligned one may turn unaligned later."""
    if settings.execution_checkpointing_mode is CheckpointingMode.AT_LEAST_ONCE:
        return Alignment.AT_LEAST_ONCE
    first_aligned = bool(settings.execution_checkpointing_aligned_checkpoint_timeout)
    unaligned = settings.execution_checkpointing_unaligned_enabled and not first_aligned
    return Alignment.UNALIGNED if unaligned else Alignment.ALIGNED
