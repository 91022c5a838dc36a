"""The supervisor's desk: requests from their arrival to their answer.

Each request for this supervisor is taken once and answered once; one that was meant for an earlier
supervisor, or that can't be read, is answered here, at once. A store that fails does not stop the job:
what could not be read or written is tried again at the next look.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from weir.errors import ExternalError
from weir.supervisor.inbox import Request, Requests


class Desk:
    """The requests of one job, for one supervisor. Called from one thread."""

    def __init__(self, requests: Requests, session: str) -> None:
        self._requests = requests
        self._session = session
        self._open: dict[str, Request] = {}
        self._answers: dict[str, tuple[Request, dict[str, Any]]] = {}
        """Answers that are not written yet."""

    def arrived(self) -> list[Request]:
        """The requests that came since the last look."""
        fresh = []
        with suppress(ExternalError):
            self._write()
            for request in self._requests.pending():
                if request.unreadable:
                    self._requests.answer(request, done=False, reason=request.unreadable)
                elif request.session != self._session:
                    reason = "it was meant for a supervisor that is gone"
                    self._requests.answer(request, done=False, gone=True, reason=reason)
                elif request.id not in self._open and request.id not in self._answers:
                    self._open[request.id] = request
                    fresh.append(request)
        return fresh

    def open(self, *verbs: str) -> list[Request]:
        """The requests with these verbs that wait for their answer."""
        return [request for request in self._open.values() if request.verb in verbs]

    def answer(self, identity: str, done: bool, /, **body: Any) -> Request | None:
        """Answer a request and give it back; None when it has its answer already."""
        request = self._open.pop(identity, None)
        if request is not None:
            self._answers[identity] = (request, {**body, "done": done})
            with suppress(ExternalError):
                self._write()
        return request

    def refuse(self, *verbs: str, reason: str) -> None:
        """Answer the requests with these verbs that wait: it was not done."""
        for request in self.open(*verbs):
            self.answer(request.id, False, reason=reason)

    def _write(self) -> None:
        for identity, (request, body) in list(self._answers.items()):
            self._requests.answer(request, **body)
            del self._answers[identity]
