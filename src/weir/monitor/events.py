"""What the journal of a job has kept, as it is seen from outside. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weir.clock import Clock
from weir.ids import job_name
from weir.monitor import forms
from weir.monitor.job import look
from weir.supervisor.history import Event, history_of
from weir.supervisor.recovery import PARTS, timeline

__all__ = ["PARTS", "Event", "News", "begun", "kept", "listed", "news", "since", "timeline"]


@dataclass(frozen=True)
class News:
    """What there is since an event, and how far the journal is."""

    events: list[Event]
    event: int
    """The number of the newest event."""
    batch: int
    """The number of the newest batch."""
    state: str


def kept(dir: str, job: str, clock: Clock, *kinds: str, limit: int, before: int | None = None) -> list[Event]:
    """The newest events of these kinds (with ids below `before`), oldest first; raises `NoSuchJobError`."""
    look(dir, job, clock)
    with history_of(dir, job_name(job)) as history:
        return history.events(*kinds, limit=limit, before=before) if history else []


def listed(dir: str, job: str, clock: Clock, *kinds: str, limit: int) -> list[dict[str, Any]]:
    """The same as plain values, newest first."""
    return [forms.happened(one) for one in reversed(kept(dir, job, clock, *kinds, limit=limit))]


def since(dir: str, job: str, clock: Clock, after: int, limit: int) -> list[Event]:
    """The events with ids above `after`, oldest first; raises `NoSuchJobError`."""
    look(dir, job, clock)
    with history_of(dir, job_name(job)) as history:
        return history.since(after, limit) if history else []


def begun(dir: str, job: str) -> int:
    """How many checkpoints the job has begun, as far as its journal has counted."""
    with history_of(dir, job_name(job)) as history:
        counted = history.totals() if history else []
    return next((int(one["count"]) for one in counted if one["kind"] == "checkpoint begun"), 0)


def news(dir: str, job: str, clock: Clock, after: int | None) -> News:
    """What is new since the event `after`; with None no events, but where the journal stands."""
    state = look(dir, job, clock).state
    with history_of(dir, job_name(job)) as history:
        if history is None:
            return News([], 0, 0, state)
        event, batch = history.newest()
        events = history.since(after) if after is not None else []
    return News(events, events[-1].id if events else event, batch, state)
