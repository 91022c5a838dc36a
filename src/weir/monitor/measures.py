"""What follows from the journal's figures: percentiles, rates, growth, lag, and the graph with all of them.

Facts in, plain values out; what is not known is None. Nothing here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from weir.clock import Clock
from weir.ids import job_name
from weir.monitor.checkpoints import abort_reason
from weir.monitor.job import UNKNOWN_QUERY, JobView, QueryView, look
from weir.protocol.states import JobState, QueryState
from weir.supervisor.history import CHECKPOINTS, Event, History, history_of
from weir.text import moment_of

PERCENTILES = (50, 90, 95, 99)
_WINDOW = timedelta(seconds=60)
_LONG_ENOUGH = timedelta(minutes=10)
"""For a growth an hour."""
_RECENT = 300
"""How many batches of a query are looked at."""
_CHECKPOINTS = 1000
"""How many completed checkpoints are summed up."""
PHASED = 100
"""Of how many of them the phases."""
_LATEST = {
    "completed": "checkpoint completed",
    "aborted": "checkpoint aborted",
    "savepoint": "savepoint taken",
    "restored": "restored",
}
"""What the newest of is summed up, by the kind of its event."""
_SPREAD = ("seconds", "new_bytes", "full_bytes")
_HALF = 10
"""How many of the newest batches are compared with as many before them."""
_OUTAGES = 100
"""Recoveries and states that are looked at for outages."""
_RUNNING = JobState.RUNNING.value
_DOWN = (JobState.STARTING.value, JobState.RESTARTING.value)
_NO_WATERMARK = "1970-01-01"


def begun(watermark: str | None) -> bool:
    """Whether event time has begun; Spark reports 1970 before the first event."""
    return bool(watermark) and not str(watermark).startswith(_NO_WATERMARK)


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Least, average, percentiles and most; None when there is nothing."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    points = {f"p{p}": found[min(len(found) - 1, round(p / 100 * (len(found) - 1)))] for p in PERCENTILES}
    return {"min": found[0], "avg": sum(found) / len(found), **points, "max": found[-1]}


def checkpoints(dir: str, name: str) -> dict[str, Any]:
    """The completed checkpoints summed up, and their course for a chart."""
    course: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    totals: dict[str, int] = {}
    latest: dict[str, Any] = dict.fromkeys(_LATEST)
    with history_of(dir, job_name(name)) as history:
        if history is not None:
            latest = {key: _latest(history.last(kind)) for key, kind in _LATEST.items()}
            course = history.figures("checkpoint completed", "id", *_SPREAD, limit=_CHECKPOINTS)
            totals = {one["kind"]: one["count"] for one in history.totals()}
            queries = [
                event.body["queries"] for event in history.events("checkpoint completed", limit=PHASED)
            ]
    return {
        "counts": {kind.removeprefix("checkpoint "): totals.get(kind, 0) for kind in CHECKPOINTS}
        | {"savepoints": totals.get("savepoint taken", 0), "restored": totals.get("restored", 0)},
        "latest": latest,
        "summary": {key: spread(one[key] for one in course) for key in _SPREAD},
        "phases": _phases(queries),
        "course": course,
    }


def _latest(event: Event | None) -> dict[str, Any] | None:
    """The newest of a kind, without what there is of each query; None when there is none."""
    if event is None:
        return None
    left_out = ("queries", "phases", "subsumed", "acked", "detail")
    body = {key: value for key, value in event.body.items() if key not in left_out}
    if event.kind == "checkpoint aborted":
        body["reason"] = abort_reason(event.body)
    return {"at": event.at, "attempt": event.attempt, **body}


def _phases(checkpoints: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """For each query and phase the spread of the last hundred checkpoints."""
    seen: dict[str, dict[str, list[float]]] = {}
    for queries in checkpoints:
        for query, body in queries.items():
            for phase, seconds in body.get("phases", {}).items():
                seen.setdefault(query, {}).setdefault(phase, []).append(seconds)
    return {query: {phase: spread(all) for phase, all in phases.items()} for query, phases in seen.items()}


@dataclass(frozen=True)
class Query:
    """One query with its figures."""

    name: str
    batches: list[dict[str, Any]]
    """The newest, oldest first."""
    now: datetime
    standing: QueryView = UNKNOWN_QUERY

    @property
    def last(self) -> dict[str, Any] | None:
        return self.batches[-1] if self.batches else None

    @property
    def rate(self) -> float | None:
        """Rows a second over the last minute."""
        if not self.batches:
            return None
        since = self.now - _WINDOW
        rows: int = sum(b["rows"] for b in self.batches if moment_of(b["at"]) >= since)
        return rows / _WINDOW.total_seconds()

    @property
    def watermark_lag(self) -> float | None:
        """Seconds from the watermark to now; None without event time."""
        mark = self.last["watermark"] if self.last else ""
        if not begun(mark):
            return None
        return max(0.0, (self.now - moment_of(mark)).total_seconds())

    @property
    def behind(self) -> dict[str, Any] | None:
        """What the sources of the last batch held beyond it, when any of them reports it."""
        left = _left(self.last) if self.last else None
        if self.last is None or left is None:
            return None
        units = [one["unit"] for one in self.last["sources"] if one["behind"] is not None]
        return {"count": left, "unit": units[0]}

    @property
    def growth(self) -> float | None:
        """Bytes of state an hour, over the batches that are looked at."""
        return _hourly([(one["at"], one["state_bytes"]) for one in self.batches])

    @property
    def operators(self) -> list[dict[str, Any]]:
        """The operators that keep state, each with its growth since the query has just these."""
        names = _operators_of(self.last or {})
        same = [one for one in self.batches if _operators_of(one) == names]
        return [
            {**one, "growth_bytes_per_hour": _hourly([(b["at"], b["operators"][at]["bytes"]) for b in same])}
            for at, one in enumerate((self.last or {}).get("operators", []))
        ]

    @property
    def falling_behind(self) -> bool:
        """Whether more is left over at each of its newest batches than at any of as many before them."""
        newest = self.batches[-2 * _HALF :]
        unread = [left for left in map(_left, newest) if left is not None]
        if len(unread) < 2 * _HALF or self.now - moment_of(newest[0]["at"]) < _WINDOW:
            return False
        return min(unread[_HALF:]) > max(unread[:_HALF])

    def form(self) -> dict[str, Any]:
        last = self.last or {}
        shown = ("run", "batch", "at", "rows", "seconds", "state_rows", "state_bytes", "watermark")
        return {
            "query": self.name,
            **self.standing.form(),
            **{key: last.get(key) for key in shown},
            "watermark": last["watermark"] if begun(last.get("watermark")) else None,
            "durations": last.get("durations", {}),
            "rate": self.rate,
            "behind": self.behind,
            "watermark_lag_seconds": self.watermark_lag,
            "state_growth_bytes_per_hour": self.growth,
            "batch_seconds": spread(b["seconds"] for b in self.batches),
            "sources": last.get("sources", []),
            "operators": self.operators,
        }


def _left(batch: Mapping[str, Any]) -> int | None:
    """What the sources held beyond a batch, when any of them reports it."""
    unread = [int(one["behind"]) for one in batch["sources"] if one["behind"] is not None]
    return sum(unread) if unread else None


def _operators_of(batch: Mapping[str, Any]) -> list[str]:
    return [one["name"] for one in batch.get("operators", [])]


def _hourly(course: Sequence[tuple[str, float]]) -> float | None:
    """How much a figure grows in an hour, from its first to its last value, oldest first.

    None when they are less than ten minutes apart: a job that has just begun grows from nothing.
    """
    if len(course) < 2:
        return None
    (began, first), (ended, last) = course[0], course[-1]
    seconds = (moment_of(ended) - moment_of(began)).total_seconds()
    return (last - first) / seconds * 3600 if seconds >= _LONG_ENOUGH.total_seconds() else None


def queries(dir: str, name: str, clock: Clock, recent: int = _RECENT) -> list[Query]:
    """The queries of a job in the order of its graph; raises `NoSuchJobError`."""
    standing = look(dir, name, clock).queries
    with history_of(dir, job_name(name)) as history:
        if history is None:
            return []
        return [_measured(query, history, recent, clock, standing) for query in _names(history)]


def _measured(
    query: str, history: History, recent: int, clock: Clock, standing: Mapping[str, QueryView]
) -> Query:
    return Query(query, history.batches(query, recent), clock.now(), standing.get(query, UNKNOWN_QUERY))


def graph(dir: str, name: str, clock: Clock) -> dict[str, Any]:
    """The graph: its queries, what they read and where they deliver, each with its figures."""
    standing = look(dir, name, clock).queries
    with history_of(dir, job_name(name)) as history:
        if history is None:
            return {"queries": []}
        learnt = {one["name"]: one for one in _learnt(history)}
        found = [_measured(query, history, 100, clock, standing) for query in _names(history)]
    return {"queries": [_vertex(learnt.get(query.name, {}), query) for query in found]}


def unread(queries: Sequence[Query], author: Mapping[str, str]) -> dict[str, dict[str, list[list[Any]]]]:
    """What each source held past each batch, by the source's unit and name; oldest first.

    `author` has the names that the author gave, by query, where it is known which source they are of. A
    source that several queries read has a line for each.
    """
    found: dict[str, dict[tuple[str, str], list[list[Any]]]] = {}
    for query in queries:
        for batch in query.batches:
            for source in batch["sources"]:
                if source["behind"] is not None:
                    name = str(source["name"])
                    if not name.startswith("channel "):
                        name = author.get(query.name, name)
                    line = found.setdefault(str(source["unit"]), {}).setdefault((name, query.name), [])
                    line.append([batch["at"], source["behind"]])
    return {unit: _named(lines) for unit, lines in sorted(found.items(), reverse=True)}


def _named(lines: Mapping[tuple[str, str], list[list[Any]]]) -> dict[str, list[list[Any]]]:
    readers = Counter(name for name, _ in lines)
    return {
        name if readers[name] == 1 else f"{name} ({query})": points for (name, query), points in lines.items()
    }


def outages(dir: str, name: str, clock: Clock) -> list[tuple[str, str, str]]:
    """When the job was down, oldest first: from, to and why; the last one may last until now."""
    with history_of(dir, job_name(name)) as history:
        if history is None:
            return []
        recoveries = history.events("recovery", limit=_OUTAGES)
        states = history.events("state", limit=_OUTAGES)
        failure = history.last("failure")
    past = []
    for one in recoveries:
        if not one.body.get("query"):  # else the other queries ran
            began = moment_of(one.at) - timedelta(seconds=one.body["seconds"])
            past.append((began.isoformat(), one.at, str(one.body["cause"])))
    since = down_since(states, failure)
    why = str(failure.body["what"]) if failure else ""
    now_down = since and down(look(dir, name, clock))
    return [*past, (since, clock.now().isoformat(), why)] if now_down else past


def down(job: JobView) -> bool:
    """Whether somebody works on the job, and none of its queries runs."""
    running = any(one.state == QueryState.RUNNING.value for one in job.queries.values())
    return not job.over and job.state in _DOWN and not running


def down_since(states: Sequence[Event], failure: Event | None) -> str:
    """Since when a job that ran is down; empty when it is up, or has not been up yet.

    `states` are its newest events of that kind, oldest first.
    """
    ran = max((at for at, one in enumerate(states) if one.body["state"] == _RUNNING), default=None)
    after = states[ran + 1 :] if ran is not None else []
    if not after or any(one.body["state"] not in _DOWN for one in after):
        return ""  # one that was ended and started again was not down meanwhile
    left = after[0].at
    return min(left, failure.at) if failure and failure.at > states[ran or 0].at else left


def _vertex(learnt: Mapping[str, Any], query: Query) -> dict[str, Any]:
    external = [one["name"] for one in query.form()["sources"] if not one["name"].startswith("channel ")]
    named = learnt.get("sources", [])
    sources = [*named, *external[len(named) :]]
    author = learnt.get("named", [])
    if len(sources) == len(author) == 1:  # with more, it is not known which of them this query reads
        sources = author
    return {
        **query.form(),
        "inputs": learnt.get("inputs", []),
        "reads": sources,
        "channel": learnt.get("channel", False),
        "sink": learnt.get("sink"),
        "output_mode": learnt.get("output_mode", ""),
    }


def _learnt(history: History) -> list[dict[str, Any]]:
    event = history.last("graph")
    found: list[dict[str, Any]] = event.body["queries"] if event else []
    return found


def _names(history: History) -> list[str]:
    """The queries of the newest graph; of a journal without one, those that committed a batch."""
    return [one["name"] for one in _learnt(history)] or [row["query"] for row in history.queries()]
