"""One recovery, part by part: from the last sign of life to the first commit.

It begins with the last sign of life before a failure and ends with the first batch that commits
after it. The parts are measured where they happen: the supervisor sees the failure and waits, the
driver times its steps, Spark reports how long the first batch took to find its offsets and to load
its state. What is left of the first batch is its own work: "first commit".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.protocol.messages import BatchCommitted, QueryStarted

PARTS = (
    "detect",
    "process",
    "session",
    "wait",
    "load",
    "graph",
    "rewind sinks",
    "reset sinks",
    "reset sources",
    "load state",
    "first commit",
)
"""In the order in which they pass; process + session + graph is what Flink calls redeploy.

Load brings back the files of a checkpoint; that and the rewind are nothing unless the job goes back to one.
"""


@dataclass
class Recovery:
    """A recovery under way. Times are monotonic seconds of the supervisor."""

    query: str
    """The query that was restarted alone, or "" for the whole driver."""
    cause: str
    began_at: float
    parts: dict[str, float] = field(default_factory=dict)
    running_at: float = 0.0
    """When the queries were running again."""
    replayed: dict[str, int] = field(default_factory=dict)
    """For each query the batch that was planned before the failure and not committed: it runs again."""

    def started(self, query: QueryStarted, now: float) -> None:
        self.running_at = now
        if query.last_planned > query.last_committed:
            self.replayed[query.query] = query.last_planned

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def finish(self, first: BatchCommitted, now: float) -> dict[str, object]:
        """Close it with the first committed batch; the record as the journal keeps it."""
        sources = first.durations.get("latestOffset", 0) + first.durations.get("getBatch", 0)
        self.add("reset sources", sources / 1000)
        self.add("load state", first.state_load_ms / 1000)
        self.parts["first commit"] = max(0.0, now - self.began_at - sum(self.parts.values()))
        return self._record(now, {"query": first.query, "batch": first.batch, "rows": first.rows})

    def finish_idle(self) -> dict[str, object]:
        """Close it for a job that runs again and has nothing to read: there is no first commit."""
        return self._record(self.running_at, None)

    def _record(self, now: float, first: dict[str, object] | None) -> dict[str, object]:
        return {
            "query": self.query,
            "cause": self.cause,
            "seconds": round(now - self.began_at, 3),
            "parts": {part: round(self.parts.get(part, 0.0), 3) for part in PARTS},
            "first": first,
            "replayed": dict(self.replayed),
        }


class Recoveries:
    """Those under way: of queries by name, and "" for the whole driver."""

    def __init__(self) -> None:
        self._found: dict[str, Recovery] = {}

    def begin(self, query: str, cause: str, began_at: float) -> None:
        """One of a driver replaces all; one of a query that is under way continues."""
        if not query:
            self.clear()
        self._found.setdefault(query, Recovery(query, cause, began_at))

    def drop(self, query: str) -> None:
        """The query will not recover."""
        self._found.pop(query, None)

    def clear(self) -> None:
        self._found.clear()

    def add(self, part: str, seconds: float, query: str = "") -> None:
        """A part of the recovery of the query, or else of the driver."""
        for recovery in self._of(query)[-1:]:
            recovery.add(part, seconds)

    def started(self, query: QueryStarted, now: float) -> None:
        for recovery in self._of(query.query):
            recovery.started(query, now)

    def committed(self, batch: BatchCommitted, now: float) -> list[dict[str, object]]:
        """The records of those that end with this batch."""
        return [self._found.pop(one.query).finish(batch, now) for one in self._of(batch.query)]

    def idle(self, query: str) -> list[dict[str, object]]:
        """The records of those that end because the query runs and has nothing to read."""
        ready = [one for one in self._of(query) if one.running_at]
        return [self._found.pop(one.query).finish_idle() for one in ready]

    def _of(self, query: str) -> list[Recovery]:
        """The driver's and the query's own, as far as they are under way."""
        return [self._found[name] for name in ("", query) if name in self._found]


def timeline(parts: Mapping[str, float], width: int = 40) -> list[tuple[str, float, str]]:
    """The parts as bars of one line each, for a terminal: (part, seconds, bar)."""
    total = sum(parts.values()) or 1.0
    lines, start = [], 0.0
    for part in PARTS:
        seconds = parts.get(part, 0.0)
        left, length = round(start / total * width), round(seconds / total * width)
        lines.append((part, seconds, " " * min(left, width - 1) + ("█" * length or "▏")))
        start += seconds
    return lines
