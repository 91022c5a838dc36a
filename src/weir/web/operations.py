"""What was asked for and takes its time: each operation from its beginning to its result or its failure.

An operation runs in a thread of its own and is kept for whoever asks; the same wish, asked again while it
is under way, is the same operation. A failure is a failure: status `failed`, with what, why and hint.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.clock import Clock
from weir.errors import ExternalError, NoSuchOperationError, WeirError, error_form
from weir.text import body_without_secrets

_KEPT = 200
_AT_ONCE = 16

RUNNING, DONE, FAILED = "running", "done", "failed"


@dataclass
class Operation:
    """One operation; changed only by its own thread."""

    id: str
    job: str
    verb: str
    arguments: Mapping[str, Any]
    started_at: str
    status: str = RUNNING
    ended_at: str | None = None
    progress: Mapping[str, Any] | None = None
    """How far it is, when that is known: phase, done_bytes, full_bytes."""
    result: Mapping[str, Any] | None = None
    error: WeirError | None = None
    over: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def wish(self) -> tuple[str, str, str]:
        return (self.job, self.verb, json.dumps(self.arguments, sort_keys=True, default=str))

    def form(self) -> dict[str, Any]:
        """As it is shown; whoever may look need not know the passwords that somebody else has sent."""
        return {
            "id": self.id,
            "job": self.job,
            "verb": self.verb,
            "arguments": body_without_secrets(self.arguments),
            "status": self.status,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "progress": self.progress,
            "result": self.result,
            "error": error_form(self.error) if self.error else None,
        }


Work = Callable[[Operation], Mapping[str, Any]]


class Operations:
    """The operations of one server. For use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all: dict[str, Operation] = {}

    def begin(self, job: str, verb: str, arguments: Mapping[str, Any], work: Work) -> Operation:
        """Begin it, unless the very same is under way: then that one."""
        fresh = Operation(uuid.uuid4().hex, job, verb, arguments, self._clock.now().isoformat())
        with self._lock:
            running = [one for one in self._all.values() if one.status == RUNNING]
            for other in running:
                if other.wish == fresh.wish:
                    return other
            if len(running) >= _AT_ONCE:
                raise ExternalError(what=f"{_AT_ONCE} operations are running; try again when one has ended")
            self._all[fresh.id] = fresh
            for old in [one.id for one in self._all.values() if one.status != RUNNING][:-_KEPT]:
                del self._all[old]
        threading.Thread(target=self._run, args=(fresh, work), name=f"weir-{verb}", daemon=True).start()
        return fresh

    def get(self, id: str) -> Operation:
        """One of them; raises `NoSuchOperationError`."""
        with self._lock:
            found = self._all.get(id)
        if found is None:
            raise NoSuchOperationError(operation=id, kept=_KEPT)
        return found

    def of(self, job: str) -> list[Operation]:
        """Those of a job, oldest first."""
        with self._lock:
            return [one for one in self._all.values() if one.job == job]

    def _run(self, operation: Operation, work: Work) -> None:
        try:
            operation.result = work(operation)
            status = DONE
        except WeirError as error:
            operation.error, status = error, FAILED
        except Exception as error:
            operation.error = WeirError(what=error_form(error)["what"])
            status = FAILED
        operation.ended_at = self._clock.now().isoformat()
        operation.status = status
        operation.over.set()
