"""Sinks that are ahead of the live files: how far a crash explains it, and what asks for a person.

A batch is delivered after Spark has committed it, so a sink is never ahead of live files that nobody has
touched. A power loss may take the newest entries of Spark's logs, which Spark does not force to the disk.
More than that means that these live files are an older copy, or that a part of them is gone: to rewind the
sinks that far would delete output that nothing may bring back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weir.errors import OutputAheadError
from weir.ids import BatchId, QueryName
from weir.storage import generations

if TYPE_CHECKING:
    from weir.config import Settings
    from weir.job.live import Live

_SPARE = 8
"""Batches beyond those that may wait for a sink: entries of the commit log that a power loss takes."""


def limit(settings: Settings) -> int:
    """How many batches of a query a repair may rewind, unasked, that nothing but its sink knows of."""
    return settings.sink_max_pending_batches + _SPARE


def check(
    live: Live, delivered: Mapping[QueryName, BatchId], known: Mapping[QueryName, BatchId], limit: int
) -> None:
    """Raise `OutputAheadError` when a sink is ahead by more than the limit.

    `known` are the batches that the live files or a checkpoint have. What the sinks hold is recorded beside
    the live files, for `weir repair`, which can't ask them.
    """
    beyond = {name: last for name, last in delivered.items() if last > known[name]}
    if all(last - known[name] <= limit for name, last in beyond.items()):
        return
    generations.note_ahead(live.store, live.job, live.generation, beyond)
    damage = "; ".join(
        f"query {name} has delivered batches up to {last}, and they know of {known[name]}"
        for name, last in beyond.items()
    )
    raise OutputAheadError(job=live.job, damage=damage, limit=limit)
