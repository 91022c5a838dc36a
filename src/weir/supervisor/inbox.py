"""Requests to a running job, through its own storage, from who asks to the supervisor's desk.

Whoever may write the job's directory may command the job, from any machine, without a port or a
password. A request names the supervisor it is meant for, so that one which came too late never
reaches the next; it is answered once.

A supervisor lives for months, and the command line is upgraded under it. So a request is read here, in
one place, and reading never raises: keys that this version does not know are ignored, and what it
can't take comes out as a request that is `unreadable`, with the reason for the answer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from weir.errors import ExternalError
from weir.ids import JobName
from weir.storage import paths
from weir.storage.store import Store

VERSION = 1
"""Of requests. It is raised when a supervisor that ignores what is new would do the wrong thing."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Request:
    """One request, as the supervisor finds it; its arguments have the types that its verb needs."""

    id: str
    verb: str
    session: str
    arguments: dict[str, Any] = field(default_factory=dict)
    unreadable: str = ""
    """Why it can't be read; then nothing else of it counts."""


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Checkpoint(_Arguments):
    full: bool = False


class _Configure(_Arguments):
    settings: dict[str, str]


class _Savepoint(_Arguments):
    path: str | None = ""
    by: str = ""
    detached: bool = False


class _Stop(_Savepoint):
    savepoint: bool = False
    drain: bool = False


class _Plan(_Arguments):
    point: str = "latest"
    maps: list[str] = []
    allow_dropped: bool = False


class _Changes(_Arguments):
    maps: list[str] = []
    allow_dropped: bool = False
    parallelism: int | None = None
    backend: str | None = None
    offsets: dict[str, str] = {}
    claim: bool = False
    forked_from: str = ""


class _Restore(_Arguments):
    point: str
    accept_duplicates: bool = False
    changes: _Changes = _Changes()


_FORMS: Mapping[str, type[_Arguments]] = {
    "cancel": _Arguments,
    "checkpoint": _Checkpoint,
    "configure": _Configure,
    "savepoint": _Savepoint,
    "stop": _Stop,
    "plan": _Plan,
    "restore": _Restore,
}
"""What each verb takes; one that is not here is refused by whoever is asked."""


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="ignore")

    verb: str
    session: str
    version: int = 1
    arguments: dict[str, Any] = {}


def read(identity: str, data: bytes) -> Request:
    """The request in a file. Never raises."""
    try:
        sent = _Envelope.model_validate_json(data)
    except (ValidationError, ValueError, RecursionError) as error:
        return _unreadable(identity, "", f"it can't be read: {_first(error)}")
    if sent.version > VERSION:
        reason = f"it is of version {sent.version}, and this job's supervisor knows version {VERSION}: "
        return _unreadable(identity, sent.session, f"{reason}start the job again with the newer weir")
    form = _FORMS.get(sent.verb)
    if form is None:
        return Request(identity, sent.verb, sent.session, sent.arguments)
    try:
        arguments = form.model_validate(sent.arguments).model_dump(exclude_unset=True)
    except (ValidationError, ValueError, RecursionError) as error:
        return _unreadable(identity, sent.session, f"its arguments don't fit {sent.verb!r}: {_first(error)}")
    return Request(identity, sent.verb, sent.session, arguments)


def _unreadable(identity: str, session: str, reason: str) -> Request:
    return Request(identity, "", session, {}, reason)


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return type(error).__name__
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


class Requests:
    """The requests of one job."""

    def __init__(self, store: Store, job: JobName) -> None:
        self._store = store
        self._folder = paths.requests(job)

    def ask(self, verb: str, session: str, arguments: Mapping[str, Any] = _NOTHING) -> str:
        """Leave a request; returns its id."""
        identity = uuid.uuid4().hex
        body = {"version": VERSION, "verb": verb, "session": session, "arguments": dict(arguments)}
        self._store.create(f"{self._folder}/{identity}.json", json.dumps(body).encode())
        return identity

    def answer_to(self, identity: str) -> dict[str, Any] | None:
        """The answer, or None while there is none; taking it removes it."""
        data = self._store.get(f"{self._folder}/{identity}.answer")
        if data is None:
            return None
        self._store.delete(f"{self._folder}/{identity}.answer")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def withdraw(self, identity: str) -> None:
        """Delete a request that nobody will answer."""
        self._store.delete(f"{self._folder}/{identity}.json")

    def pending(self) -> list[Request]:
        """Every request without an answer. One file that the store refuses to read holds up no other."""
        requests = []
        for key in self._store.list(self._folder):
            with suppress(ExternalError):
                data = self._store.get(key) if key.endswith(".json") else None
                if data is not None:
                    requests.append(read(key.rsplit("/", 1)[1].removesuffix(".json"), data))
        return requests

    def answer(self, request: Request, **body: Any) -> None:
        """Answer a request, then delete it."""
        self._store.put(f"{self._folder}/{request.id}.answer", json.dumps(body, default=str).encode())
        self._store.delete(f"{self._folder}/{request.id}.json")


class Desk:
    """The requests of one job at one supervisor, from their arrival to their answer. Called from one thread.

    Each request for this supervisor is taken once and answered once; one that was meant for an earlier
    supervisor, or that can't be read, is answered here, at once. A store that fails does not stop the job:
    what could not be read or written is tried again at the next look.
    """

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
