"""A served storage for tests: a job directory as a supervisor leaves it, and who plays the supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.fake_job import FakeJob
from weir.clock import Clock
from weir.config import Ports, describe, resolve
from weir.ids import CheckpointId
from weir.protocol.messages import CheckpointAborted, CheckpointBegun, CheckpointCompleted, Failure
from weir.storage import paths
from weir.supervisor.inbox import Request
from weir.web.app import application, guarded
from weir.web.guard import Sessions
from weir.web.server import Server
from weir.web.site import Site

HERE = "http://127.0.0.1:8081"
ASKS = {"X-Weir-Request": "1"}
PHASES = {"barrier": 0.01, "alignment": 0.25, "commit": 0.1, "listing": 0.02, "pinning": 0.03, "copying": 0.0}
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>"


def client(site: Site, token: str | None = None, address: str = "127.0.0.1") -> TestClient:
    """A client that talks to the application with its guard, without a port."""
    app = guarded(application(site), Sessions(token) if token else None, address)
    return TestClient(app, base_url=HERE, raise_server_exceptions=False, follow_redirects=False)


@contextmanager
def served(site: Site, token_file: str | None = "off") -> Iterator[str]:
    """A real server at a free port, as a supervisor has it; its address. By default it asks for no token."""
    server = Server(site, "127.0.0.1", Ports(0, 0), token_file)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join(20)


def described(job: FakeJob, rewindable: bool = True, /, **settings: str) -> FakeJob:
    """The job has told its settings and its graph, as a supervisor does."""
    config = resolve(file=None, overrides=settings)
    body = {one.key: {"value": config.text(one.key), "origin": "default"} for one in describe()}
    job.journal.event(job.lock.held, "settings", body, alone=True)
    sink = {"kind": "files", "description": "parquet files in out", "rewindable": rewindable}
    query = {"name": "counts", "inputs": [], "sources": ["lines"], "channel": False, "sink": sink}
    job.journal.event(job.lock.held, "graph", {"queries": [{**query, "output_mode": "update"}]}, alone=True)
    return job


def checkpointed(job: FakeJob, first: int, last: int) -> FakeJob:
    """So many checkpoints, every tenth aborted."""
    for id in range(first, last + 1):
        job.event("checkpoint begun", asdict(CheckpointBegun(id, "aligned", "interval")))
        if id % 10 == 0:
            reason = "its files could not be kept"
            job.event("checkpoint aborted", asdict(CheckpointAborted(id, "aligned", "interval", 2.0, reason)))
            continue
        query = {"batch": id, "unaligned": False, "new_bytes": 10, "full_bytes": 90, "phases": PHASES}
        done = CheckpointCompleted(id, "aligned", "interval", False, id / 100, 1000 + id, 9000 + id)
        phases = {"trigger": 0.01, "barrier": 0.02, "ack": 0.3, "complete": 0.01, "notify": 0.01}
        manifest = job.dir / paths.completed(job.name, CheckpointId(id))
        manifest.parent.mkdir(exist_ok=True)
        manifest.touch()  # it is there, so that the checkpoint is retained; what is in it, the journal says
        job.event("checkpoint completed", {**asdict(done), "phases": phases, "queries": {"counts": query}})
    return job


def failed(job: FakeJob, what: str = EVIL, batch: int = 41) -> FakeJob:
    """A failure with everything in it that a page could be tricked with, and the recovery from it."""
    stack = 'Traceback:\n  File "/lib/python3.11/run.py", line 1, in go\n    go()\n'
    stack += f'  File "/jobs/{EVIL}.py", line 7, in {EVIL}\n    return float(row)\n'
    failure = Failure(what, EVIL, EVIL, error="PythonException", stack=stack)
    job.event("failure", {**asdict(failure), "domain": "user", "batch": batch}, "counts")
    job.event("restart", {"delay": 1.0, "query": "counts"}, "counts")
    first = {"query": "counts", "batch": batch, "rows": 10}
    parts = {"detect": 0.1, "wait": 1.0, "first commit": 0.4}
    body = {
        "query": "counts",
        "cause": what,
        "seconds": 1.5,
        "parts": parts,
        "first": first,
        "replayed": {"counts": batch},
    }
    job.event("recovery", body, "counts")
    job.event("note", {"text": what})
    return job


class Answering(threading.Thread):
    """Plays the supervisor: answers every request that comes until it is told to end."""

    def __init__(self, job: FakeJob, answer: Callable[[Request], dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self.job, self.answer = job, answer
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.01):
            for request in self.job.requests.pending():
                self.heard.append((request.verb, request.arguments))
                self.gate.wait(20)
                self.job.requests.answer(request, **self.answer(request))

    def end(self) -> None:
        self._over.set()
        self.gate.set()
        self.join(20)


def site(dir: Path, job: str = "") -> Site:
    return Site(str(dir), Clock(), job)
