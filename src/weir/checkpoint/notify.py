"""Notify: whom the coordinator asks and tells."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from weir.checkpoint.manifest import Manifest
from weir.errors import WeirError
from weir.ids import CheckpointId, QueryName
from weir.protocol.messages import Message

Held = Callable[[Manifest | None, str], None]
"""Called once, and must return at once: with the checkpoint, or with None and why there is none."""


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
