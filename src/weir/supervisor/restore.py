"""A restore of a running job, as its supervisor does it.

1 the point is checked and the intention written, in a thread of its own: that may read every file of
the checkpoint, and the driver's lease must be renewed meanwhile -> 2 the driver finishes its batches
and ends -> 3 another one is started, which finds the intention and walks the rest (`restore/walk.py`)
-> 4 its report is the answer. Killed anywhere after step 1, the job is restored at its next start. One
that can't be done is given up: yet another driver resumes where the job was, with the settings from before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from weir.clock import Clock
from weir.config import Settings
from weir.errors import ExternalError, error_form
from weir.ids import Generation
from weir.protocol.messages import Failure
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.storage import generation as generations
from weir.supervisor.home import Home, Inputs
from weir.supervisor.inbox import Request

WHY = "asked for with 'weir restore'"


@dataclass
class Restore:
    """A restore that has no answer yet."""

    request: Request
    intended: bool = False
    """Step 1 is over: it will happen, with this supervisor or the next one."""

    @property
    def wanted(self) -> RestoreRequest:
        return RestoreRequest.from_wire(self.request.arguments)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the next driver must have, for state of the shape that was asked for."""
        return self.wanted.settings


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
    """What the job resumes with when it can't be done."""

    def given_up(self, home: Home, failure: Failure) -> bool:
        """After a driver that failed: whether the job resumes where it was; else as this restore wants it.

        What a driver can't do it drops itself; what no retry can mend is dropped here. Nothing is given
        up that is live by now, or for which sinks are being rewound already.
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
            generation = intend(
                home.store,
                home.job,
                _completed(restore.wanted, settings),
                clock=clock,
                why=WHY,
                savepoint_dir=settings.execution_checkpointing_savepoint_dir or "",
            )
        except BaseException as error:  # not even SystemExit of somebody's code may leave it unanswered
            done(Intended(restore, error))
        else:
            done(Intended(restore, generation))

    threading.Thread(target=work, name="weir-restore", daemon=True).start()


def _completed(request: RestoreRequest, settings: Settings) -> RestoreRequest:
    """As a start with -s has it: state gets the shape that the job's settings ask for."""
    return request.shaped(
        request.parallelism or settings.parallelism_default,
        request.backend or settings.state_backend_type.value,
    )


def words(error: BaseException) -> dict[str, str]:
    """An error as it is answered: what, why, what to do."""
    return error_form(error)
