"""A job directory as a supervisor leaves it, without Spark; the test's own process plays the supervisor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.clock import Clock
from weir.ids import job_name
from weir.protocol.messages import BatchCommitted
from weir.storage import paths
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.supervisor.inbox import Requests
from weir.supervisor.journal import JobJournal


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out)
        return answer


Weir = Callable[..., Answer]


class FakeJob:
    """A job directory as a supervisor leaves it; this process plays the supervisor."""

    def __init__(
        self,
        dir: Path,
        name: str = "wordcount",
        session: str = "first",
        file: str = "/jobs/wordcount.py",
    ) -> None:
        self.dir, self.name, self.file = dir, job_name(name), file
        self.clock = Clock()
        self.lock = AttemptLock(LocalStore(dir), self.name, self.clock)
        self.lock.acquire(session, 0.0, lambda *_: None)
        self.lock.beat()
        self.journal = JobJournal(dir / paths.journal(self.name), self.clock)
        self.session = session
        self.requests = Requests(LocalStore(dir), self.name)
        self.attempt()

    def attempt(self) -> None:
        self.event("attempt", {"session": self.session, "file": self.file, "driver": 0})

    def event(self, kind: str, body: dict[str, Any], query: str = "") -> None:
        self.journal.event(self.lock.held, kind, body, query)

    def state(self, state: str) -> FakeJob:
        self.event("state", {"state": state})
        return self

    def queries(self, restart_at: str = "", what: str = "", waits_for: str = "", **states: str) -> FakeJob:
        """How the queries stand; those that are RESTARTING or FAILED have `what` as their failure."""
        at = self.clock.now().isoformat()
        bodies = {
            name: {
                "state": state,
                "since": at,
                "run": 1,
                "restart_at": restart_at if state == "RESTARTING" else "",
                "waits_for": waits_for if state == "RESTARTING" else "",
                "what": what if state in ("RESTARTING", "FAILED") else "",
                "reason": "",
            }
            for name, state in states.items()
        }
        self.journal.event(self.lock.held, "queries", bodies, alone=True)
        return self

    def batch(self, number: int, query: str = "counts", lag: dict[str, int] | None = None) -> FakeJob:
        at = self.clock.now().isoformat()
        self.journal.batch(
            self.lock.held,
            BatchCommitted(query, 1, number, 1500, 0.5, {}, 300_000, 2**21, at=at, lag=lag or {}),
        )
        self.journal.flush()
        return self

    def restart(self) -> FakeJob:
        self.lock.advance(self.session, 0.0)
        self.lock.beat()
        self.attempt()
        return self

    def end(self) -> None:
        self.lock.release()
        self.journal.close()

    def rewrite(self, **fields: object) -> FakeJob:
        """Change who is said to hold the newest attempt."""
        file = self.dir / paths.attempt(self.name, self.lock.held)
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
        return self

    def killed(self) -> FakeJob:
        self.rewrite(pid=a_dead_pid())
        return self

    def log(self, attempt: int, text: str, turned: int = 0) -> None:
        suffix = f".{turned}" if turned else ""
        file = self.dir / paths.logs(self.name) / f"driver-{attempt:06d}.log{suffix}"
        file.parent.mkdir(exist_ok=True)
        with open(file, "a") as stream:
            stream.write(text)


def a_dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid
