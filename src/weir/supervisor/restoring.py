"""Going back to a checkpoint, as the supervisor of a running job does it.

1 the point is checked and the intention written, in a thread of its own: that may read every file of
the checkpoint, and the driver's lease must be renewed meanwhile -> 2 the driver finishes its batches
and ends -> 3 another one is started, which finds the intention and goes on from there -> 4 its report
is the answer. Killed anywhere behind step 1, the job goes back at its next start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from weir.checkpoint.restore import intend
from weir.clock import Clock
from weir.errors import WeirError
from weir.supervisor.home import Home
from weir.supervisor.requests import Request
from weir.words import without_secrets

WHY = "asked for with 'weir restore'"


@dataclass
class Restore:
    """A restore that has no answer yet."""

    request: Request
    intended: bool = False
    """Step 1 is over: it will happen, with this supervisor or the next one."""

    @property
    def point(self) -> str:
        return str(self.request.arguments.get("point", ""))

    @property
    def accept_duplicates(self) -> bool:
        return bool(self.request.arguments.get("accept_duplicates", False))


@dataclass(frozen=True)
class Intended:
    """Step 1 is over; with the error when it was refused."""

    restore: Restore
    error: Exception | None = None


def write_intention(home: Home, restore: Restore, clock: Clock, done: Callable[[Intended], None]) -> None:
    """Step 1; returns at once, and calls `done` once, from another thread."""

    def work() -> None:
        try:
            intend(
                home.store,
                home.job,
                restore.point,
                accept_duplicates=restore.accept_duplicates,
                clock=clock,
                why=WHY,
            )
        except Exception as error:
            done(Intended(restore, error))
        else:
            done(Intended(restore))

    threading.Thread(target=work, name="weir-restore", daemon=True).start()


def words(error: Exception) -> dict[str, str]:
    """An error as it is answered: what, why, what to do."""
    if isinstance(error, WeirError):
        return {"what": error.what, "why": error.why, "hint": error.hint}
    what = without_secrets(f"weir broke down: {type(error).__name__}: {error}")
    return {"what": what, "why": "", "hint": ""}
