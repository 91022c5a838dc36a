"""Calls the author's listeners of checkpoints, beside the coordinator, which never waits for one.

The last step of a checkpoint's path (notify). One thread calls them one after the other, in the order
of the events and, for one event, in the order in which they were registered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from weir.ids import CheckpointId

if TYPE_CHECKING:
    from weir.job.job import Job

OnComplete = Callable[[int], Any]
OnAborted = Callable[[int, str], Any]
Failed = Callable[[str, BaseException], None]

_PATIENCE = 5.0
"""Seconds that the end of a job gives its listeners for the calls that are left."""


class Listeners:
    """The listeners of one job in one driver. Every method may be called from any thread.

    A listener hears of an event at most once: a driver that dies after it calls nobody.
    One that raises is reported by `failed(name, error)`; the others hear of the event all the same.
    """

    def __init__(self, job: Job, failed: Failed) -> None:
        self._job = job
        self._failed = failed
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="weir-listeners", daemon=True)
        self._thread.start()

    def completed(self, id: CheckpointId) -> None:
        """Report that a checkpoint is completed; returns at once."""
        self._calls.put(partial(self._call_all, self._job.complete_listeners, id))

    def aborted(self, id: CheckpointId, reason: str) -> None:
        """Report that a checkpoint was aborted; returns at once."""
        self._calls.put(partial(self._call_all, self._job.aborted_listeners, id, reason))

    def stop(self, seconds: float = _PATIENCE) -> bool:
        """Make the calls that are left, then end; a listener that takes longer is abandoned.

        False when one was. Safe to repeat.
        """
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _call_all(self, listeners: Sequence[Callable[..., Any]], *event: Any) -> None:
        for listener in listeners:
            try:
                listener(*event)
            except (Exception, SystemExit) as error:
                self._failed(getattr(listener, "__name__", repr(listener)), error)
