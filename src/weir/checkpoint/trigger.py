"""What the settings say of checkpoints, as the reducer takes it."""

from __future__ import annotations

from weir.config import CheckpointingMode, Settings
from weir.protocol.checkpoint import Alignment
from weir.protocol.pending import Rules


def rules_of(settings: Settings) -> Rules:
    """The rules that these settings are, in seconds."""
    interval = settings.execution_checkpointing_interval
    return Rules(
        interval=None if interval is None else interval.total_seconds(),
        interval_records=settings.execution_checkpointing_interval_records,
        min_pause=settings.execution_checkpointing_min_pause.total_seconds(),
        max_concurrent=settings.execution_checkpointing_max_concurrent_checkpoints,
        timeout=settings.execution_checkpointing_timeout.total_seconds(),
        turns_after=turns_after(settings),
        alignment=alignment_of(settings),
        full=not settings.execution_checkpointing_incremental,
        retained=settings.execution_checkpointing_num_retained,
        tolerable=settings.execution_checkpointing_tolerable_failed_checkpoints,
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
