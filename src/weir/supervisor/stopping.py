"""A stop with a savepoint, as the supervisor of a running job sees it.

1 the driver works off what the sources hold, if that was asked for; a query that fails meanwhile is
started again -> 2 it ends its queries, and none is started any more -> 3 it takes the savepoint and
answers -> 4 it ends, the job is FINISHED, and that is the answer to who asked. When the savepoint
fails behind step 2, another driver goes on with the job. A driver that dies behind step 3 ends the job all
the same: what ran on would be missing in the savepoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weir.protocol.messages import SavepointProgress
from weir.supervisor.requests import Request

_BEFORE_THE_END = ("drain",)


@dataclass
class Stopping:
    """A stop that has no answer yet."""

    request: Request
    ending: bool = False
    """Step 2 has begun."""
    saved: dict[str, Any] | None = None
    """What the driver answered; it is about to end."""

    def hear(self, progress: SavepointProgress) -> None:
        if progress.request == self.request.id and progress.phase not in _BEFORE_THE_END:
            self.ending = True
