"""Going back to a checkpoint, as the supervisor of a running job does it.

1 the point is checked and the intention written, in a thread of its own: that may read every file of
the checkpoint, and the driver's lease must be renewed meanwhile -> 2 the driver finishes its batches
and ends -> 3 another one is started, which finds the intention and goes on from there -> 4 its report
is the answer. Killed anywhere behind step 1, the job goes back at its next start. One that can't be
done is given up: yet another driver goes on where the job was, with the settings from before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from weir.checkpoint.restore import Changes, From, intend
from weir.clock import Clock
from weir.config import Settings
from weir.errors import ExternalError, WeirError
from weir.ids import Generation
from weir.protocol.messages import Failure
from weir.storage import generations
from weir.supervisor.home import Home
from weir.supervisor.inputs import Inputs
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
    def wanted(self) -> From:
        return From.from_wire(self.request.arguments)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the next driver must have, for state of the shape that was asked for."""
        changes = self.wanted.changes
        given = {"parallelism.default": changes.parallelism, "state.backend.type": changes.backend}
        return {key: str(value) for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class Intended:
    """Step 1 is over."""

    restore: Restore
    outcome: Generation | BaseException
    """The generation that it will be, or why it was refused."""


@dataclass(frozen=True)
class Underway:
    """A restore that is written down, and not known to be live yet."""

    generation: Generation
    before: Inputs
    """What the job goes on with when it can't be done."""

    def given_up(self, home: Home, failure: Failure) -> bool:
        """Behind a driver that failed: whether the job goes on where it was; else as this restore wants it.

        What a driver can't do it drops itself; what no retry can mend is dropped here. Nothing is given
        up that is live by now, or behind which sinks are taken back already.
        """
        try:
            if generations.live(home.store, home.job) >= self.generation:
                return False
            opening = generations.opening(home.store, home.job)
            if opening is None:
                return True
            return not failure.retry and generations.drop(home.store, home.job, opening, failure.what)
        except ExternalError:  # whoever starts next finds what is written down
            return False


def write_intention(
    home: Home, restore: Restore, settings: Settings, clock: Clock, done: Callable[[Intended], None]
) -> None:
    """Step 1; returns at once, and calls `done` once, from another thread, whatever happens there."""

    def work() -> None:
        try:
            wanted, saved_to = restore.wanted, settings.execution_checkpointing_savepoint_dir or ""
            generation = intend(
                home.store,
                home.job,
                wanted.point,
                accept_duplicates=wanted.accept_duplicates,
                clock=clock,
                why=WHY,
                changes=_completed(wanted.changes, settings),
                savepoint_dir=saved_to,
            )
        except BaseException as error:  # not even SystemExit of somebody's code may leave it unanswered
            done(Intended(restore, error))
        else:
            done(Intended(restore, generation))

    threading.Thread(target=work, name="weir-restore", daemon=True).start()


def _completed(changes: Changes, settings: Settings) -> Changes:
    """As a start with -s has it: state gets the shape that the job's settings ask for."""
    return replace(
        changes,
        parallelism=changes.parallelism or settings.parallelism_default,
        backend=changes.backend or settings.state_backend_type.value,
    )


def words(error: BaseException) -> dict[str, str]:
    """An error as it is answered: what, why, what to do."""
    if isinstance(error, WeirError):
        return {"what": error.what, "why": error.why, "hint": error.hint}
    what = without_secrets(f"weir broke down: {type(error).__name__}: {error}")
    return {"what": what, "why": "", "hint": ""}
