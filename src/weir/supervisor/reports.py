"""What the supervisor reports: to the journal, and to whoever watches.

Some of what a driver reports asks for no decision, only to be kept and shown: `report` does that. A
checkpoint that completed is no news for a terminal, where one a second would fill it; an abort is,
unless the job is ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from weir.config import Config, describe
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason
from weir.protocol.states import JobState
from weir.supervisor.home import Home
from weir.text import without_secrets


class Watcher:
    """What a terminal may want to know; the base ignores everything."""

    def opened(self, job: str, config: Config) -> None:
        """The job is held, with these settings: from now on it may be written below its directory."""

    def state(self, job: str, state: JobState, attempt: int) -> None:
        """The job moved."""

    def batch(self, batch: m.BatchCommitted) -> None:
        """A batch was committed."""

    def checkpoint(self, completed: m.CheckpointCompleted) -> None:
        """A checkpoint completed."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def output(self, data: bytes) -> None:
        """The driver printed this on its standard output."""


class Reports:
    """The journal, as soon as the job is held, and the watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.home: Home | None = None

    def event(self, kind: str, body: Mapping[str, object], query: str = "") -> None:
        """Keep it in the journal."""
        if self.home is not None:
            self.home.journal.event(self.home.attempt, kind, body, query)

    def progress(self, kind: str, body: Mapping[str, object]) -> None:
        """Keep how something stands; only the newest of a kind is kept."""
        if self.home is not None:
            self.home.journal.event(self.home.attempt, kind, body, alone=True)

    def settings(self, config: Config | None) -> None:
        """Keep weir's own settings as they hold now, and who gave them; Spark's may have secrets in them."""
        if config is not None:
            keys = [one.key for one in describe()]
            body = {key: {"value": config.text(key), "origin": config.origins[key].value} for key in keys}
            self.progress("settings", body)

    def note(self, text: str) -> None:
        """Keep it, and show it as a line."""
        text = without_secrets(text)
        self.event("note", {"text": text})
        self.watcher.note(text)

    def report(self, message: m.Message) -> None:
        """Keep and show a report that asks for no decision."""
        if isinstance(message, m.CheckpointBegun):
            self.event("checkpoint begun", asdict(message))
        elif isinstance(message, m.CheckpointsAcked):
            self.progress("checkpoints acked", asdict(message))
        elif isinstance(message, m.CheckpointCompleted):
            self.event("checkpoint completed", asdict(message))
            self.watcher.checkpoint(message)
        elif isinstance(message, m.CheckpointAborted):
            self.event("checkpoint aborted", asdict(message))
            detail = f" ({message.detail})" if message.detail else ""
            if message.reason != AbortReason.STOPPING.value:
                self.note(f"checkpoint {message.id} was aborted: {message.reason}{detail}")
        elif isinstance(message, m.SavepointProgress):
            self.progress("savepoint progress", asdict(message))
        elif isinstance(message, m.SavepointTaken):
            self.event("savepoint taken", asdict(message))
            self.note(f"savepoint {message.path} was taken in {message.seconds:.1f} s")
        elif isinstance(message, m.SavepointFailed):
            self.event("savepoint failed", asdict(message))
            self.note(f"a savepoint was not taken: {message.reason}")
        elif isinstance(message, m.SavepointsDeleted):
            self.event("savepoints deleted", asdict(message))
            self.note(f"made room for newer savepoints: {', '.join(message.paths)}")
        elif isinstance(message, m.Restored):
            self.event("restored", asdict(message))
            self.note(
                f"restored from checkpoint {message.checkpoint} in {message.seconds:.1f} s, "
                f"as generation {message.generation}: {message.why}"
            )
        elif isinstance(message, m.GraphLearnt):
            self.progress("graph", asdict(message))
        elif isinstance(message, m.SparkUi):
            self.progress("spark ui", asdict(message))
        elif isinstance(message, m.QueryEnded):
            self.event("query ended", asdict(message), message.query)
        elif isinstance(message, m.CutOff):
            self.event("cut off", asdict(message), message.query)
            self.note(message.text)
        elif isinstance(message, m.RestorePlanned):
            self.event("plan", message.plan)
            self.watcher.note(f"what becomes of the state:\n{message.text}")
        elif isinstance(message, m.Noted):
            self.note(message.text)
