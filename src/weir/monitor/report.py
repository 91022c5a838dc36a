"""What a job has reported: its queries, its failures and restarts, its settings, and Spark's own pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.clock import Clock
from weir.config import RUNTIME_KEYS, describe
from weir.ids import job_name
from weir.monitor.job import UNKNOWN_QUERY, JobView, QueryView, look, newest_attempt, session_start, view
from weir.protocol.states import JobState
from weir.supervisor.history import Event, History, history_of
from weir.text import moment_of

_CHECKPOINTING = ("execution.checkpointing.", "savepoint.", "state.")
"""The settings that are about checkpoints begin with one of these."""

_ENDS = frozenset(one.value for one in JobState if one.final)
_MOVES = 10_000
"""How many moves of a job are looked at: the time before them is in no state."""


@dataclass(frozen=True)
class JobReport:
    """A job with its queries and its troubles."""

    job: JobView
    queries: list[dict[str, Any]]
    failure: Event | None
    gave_up: str
    restarts: int
    """Since the supervisor took the job; one cause that hit several queries at once is one."""
    recoveries: list[Event]
    checkpoint: Event | None = None
    """The last one that completed."""
    restored: Event | None = None
    """The last time that the job resumed from a checkpoint."""
    machine_restarts: int = 0
    """Of the restarts, those that followed a failure of the machine."""
    ended_at: str = ""
    """When the job reached its end; "" while it has not, or when that was not recorded."""
    state_seconds: Mapping[str, float] = field(default_factory=dict)
    """For how long the job has been in each state since its supervisor took it."""


def report(dir: str, name: str, clock: Clock, recoveries: int = 3) -> JobReport:
    """The job with its queries, its last failure and its last recoveries."""
    job = job_name(name)
    newest, beat = newest_attempt(dir, job, clock)
    with history_of(dir, job) as history:
        job_view = view(dir, job, newest, beat, history, clock.now())
        if history is None:
            return JobReport(job_view, [], None, "", 0, [])
        gave_up = history.last("gave up")
        first = session_start(newest, history).attempt
        moves = [one for one in history.events("state", limit=_MOVES) if one.attempt >= first]
        ended = bool(moves) and job_view.state in _ENDS
        until = job_view.since if job_view.over else clock.now().isoformat()
        restarts = [event.body for event in history.events("restart") if event.attempt >= first]
        return JobReport(
            job_view,
            _queries(history, job_view),
            history.last("failure"),
            gave_up.body["reason"] if gave_up and gave_up.attempt == newest.attempt else "",
            _counted(restarts),
            history.events("recovery", limit=recoveries),
            history.last("checkpoint completed"),
            history.last("restored"),
            _counted(restarts, machine=True),
            moves[-1].at if ended else "",
            state_seconds(moves, until),
        )


def state_seconds(moves: Sequence[Event], until: str) -> dict[str, float]:
    """How long each state lasted, from the moves of a job, oldest first; a final one lasts no time."""
    found: dict[str, float] = {}
    ends = [*(one.at for one in moves), until][1:]
    for one, end in zip(moves, ends, strict=True):
        state = str(one.body.get("state", ""))
        if state not in _ENDS:
            lasted = max(0.0, (moment_of(end) - moment_of(one.at)).total_seconds())
            found[state] = found.get(state, 0.0) + lasted
    return found


def _counted(restarts: Sequence[Mapping[str, Any]], *, machine: bool = False) -> int:
    """How many causes these restarts had; `machine`: only those that were failures of the machine."""
    return sum(not one.get("same_cause") and bool(one.get("machine")) >= machine for one in restarts)


def _queries(history: History, job: JobView) -> list[dict[str, Any]]:
    """The queries of the job, each with its state, and its newest batch if it has one."""
    started = history.events("query started")
    newest = max((event.attempt for event in started), default=0)
    runs = {event.query: event.body for event in started if event.attempt == newest}
    batches = {row["query"]: row for row in history.queries()}
    lags = history.lags()
    names = sorted(job.queries or runs or batches)
    return [
        _query(name, job.queries.get(name), runs.get(name, {}), batches.get(name), lags.get(name, {}))
        for name in names
    ]


def _query(
    name: str,
    shown: QueryView | None,
    run: dict[str, Any],
    batch: dict[str, Any] | None,
    lag: dict[str, int],
) -> dict[str, Any]:
    kept = ("batch", "at", "rows", "seconds", "state_rows", "state_bytes", "watermark", "total_rows")
    row = batch or {"watermark": ""}
    about = {"query": name, "run": run.get("run", row.get("run"))}
    about |= (shown or UNKNOWN_QUERY).form()
    return about | {key: row.get(key) for key in kept} | {"lag": lag}


def settings_of(dir: str, name: str) -> dict[str, dict[str, str]]:
    """The settings with which the job ran last, by key: `value` and `origin`; empty when it recorded none."""
    with history_of(dir, job_name(name)) as history:
        event = history.last("settings") if history else None
    return event.body if event else {}


def checkpoint_settings(dir: str, name: str, clock: Clock) -> list[dict[str, Any]]:
    """The settings about checkpoints as the job has them, and whether each can be changed now."""
    job = look(dir, name, clock)
    known = settings_of(dir, name)
    live = job.supervised and not job.over
    return [
        {
            "key": one.key,
            "value": known[one.key]["value"],
            "origin": known[one.key]["origin"],
            "meaning": one.meaning,
            "type": one.type,
            "changeable": live and one.key in RUNTIME_KEYS,
        }
        for one in describe()
        if one.key in known and one.key.startswith(_CHECKPOINTING)
    ]


def spark_ui(dir: str, job: JobView) -> str:
    """The address of Spark's own pages of the running driver; "" when they are off or it is not known."""
    with history_of(dir, job_name(job.name)) as history:
        event = history.last("spark ui") if history else None
    if event is None or job.over or event.attempt != job.attempt:
        return ""
    url = str(event.body.get("url", ""))
    return url if url.startswith(("http://", "https://")) else ""
