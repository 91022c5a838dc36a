"""One recovery, part by part: from the last sign of life to the first commit.

It begins with the last sign of life before a failure and ends with the first batch that commits
after it. The parts are measured where they happen: the supervisor sees the failure and waits, the
driver times its steps, Spark tells how long the first batch took to find its offsets and to load
its state. What is left of the first batch is its own work: "first commit".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.protocol.messages import BatchCommitted

PARTS = (
    "detect",
    "wait",
    "process",
    "session",
    "graph",
    "reset sinks",
    "reset sources",
    "load state",
    "first commit",
)
"""In the order in which they pass; process + session + graph is what Flink calls redeploy."""


@dataclass
class Recovery:
    """A recovery under way. Times are monotonic seconds of the supervisor."""

    query: str
    """The query that was restarted alone, or "" for the whole driver."""
    cause: str
    began_at: float
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def finish(self, first: BatchCommitted, now: float) -> dict[str, object]:
        """Close it with the first committed batch; the record as the journal keeps it."""
        durations = first.durations
        sources = (durations.get("latestOffset", 0) + durations.get("getBatch", 0)) / 1000
        self.add("reset sources", sources)
        self.add("load state", first.state_load_ms / 1000)
        total = now - self.began_at
        self.parts["first commit"] = max(0.0, total - sum(self.parts.values()))
        return {
            "query": self.query,
            "cause": self.cause,
            "seconds": round(total, 3),
            "parts": {part: round(self.parts.get(part, 0.0), 3) for part in PARTS},
            "first": {"query": first.query, "batch": first.batch, "rows": first.rows},
        }


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
