"""Requests to a running job, through its own storage.

Whoever may write the job's directory may command the job, from any machine, without a port or a
password. A request names the supervisor it is meant for, so that one which came too late never
reaches the next; it is answered once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from weir.ids import JobName
from weir.storage import paths
from weir.storage.store import Store

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Request:
    """One request, as the supervisor finds it."""

    id: str
    verb: str
    session: str
    arguments: dict[str, Any] = field(default_factory=dict)


class Requests:
    """The requests of one job."""

    def __init__(self, store: Store, job: JobName) -> None:
        self._store = store
        self._folder = paths.requests(job)

    def ask(self, verb: str, session: str, arguments: Mapping[str, Any] = _NOTHING) -> str:
        """Leave a request; returns its id."""
        identity = uuid.uuid4().hex
        body = {"verb": verb, "session": session, "arguments": dict(arguments)}
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
        """Take a request back that nobody will answer."""
        self._store.delete(f"{self._folder}/{identity}.json")

    def pending(self) -> list[Request]:
        """Every request without an answer."""
        found = []
        for key in self._store.list(self._folder):
            data = self._store.get(key) if key.endswith(".json") else None
            if data is not None:
                found.append(Request(key.rsplit("/", 1)[1].removesuffix(".json"), **json.loads(data)))
        return found

    def answer(self, request: Request, **body: Any) -> None:
        """Answer a request, then take it away."""
        self._store.put(f"{self._folder}/{request.id}.answer", json.dumps(body).encode())
        self._store.delete(f"{self._folder}/{request.id}.json")
