"""Is a job healthy? One word and one sentence, for whoever has ten seconds.

Facts in, verdict out; the worst that is found is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from weir.clock import Clock
from weir.config import parse_duration
from weir.ids import job_name
from weir.monitor import measures
from weir.monitor.job import LOST, QueryView
from weir.monitor.report import JobReport, settings_of
from weir.protocol.checkpoint import COUNTED
from weir.protocol.states import JobState, QueryState
from weir.supervisor.history import CHECKPOINTS, Event, history_of
from weir.text import lasting, moment_of, number, seconds_since

INTERVAL = "execution.checkpointing.interval"
_FAILED = {reason.value for reason in COUNTED}
_HOUR = timedelta(hours=1)
_COMING_BACK = {
    JobState.RESTARTING.value: "it waits before it restarts",
    JobState.STARTING.value: "attempt {attempt} is starting",
}
_STATES = 50
"""How many changes of state are looked at for the last time that it ran."""
_OFTEN = 3
"""This many restarts within an hour are worth a warning."""
_PATIENCE = 30.0
"""A checkpoint is overdue this many seconds after three intervals."""


class HealthLevel(str, Enum):
    """How it stands, from the best to the worst."""

    OK = "ok"
    OVER = "over"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Health:
    level: HealthLevel
    words: str


def health(dir: str, seen: JobReport, clock: Clock) -> Health:
    """The verdict on a job."""
    job = seen.job.name
    with history_of(dir, job_name(job)) as history:
        ended = history.events(*CHECKPOINTS[1:], limit=50) if history else []
        restarts = history.events("restart", limit=_OFTEN) if history else []
        states = history.events("state", limit=_STATES) if history else []
    interval = settings_of(dir, job).get(INTERVAL, {}).get("value", "off")
    late = [one for one in measures.queries(dir, job, clock) if one.falling_behind]
    down_since = measures.down_since(states, seen.failure)
    return judge(seen, ended, restarts, interval, clock.now(), late, down_since)


def judge(
    seen: JobReport,
    ended: Sequence[Event],
    restarts: Sequence[Event],
    interval: str,
    now: datetime,
    late: Sequence[measures.Query] = (),
    down_since: str = "",
) -> Health:
    """`ended` are the newest checkpoints that completed or were aborted, `restarts` the newest ones.

    `late` are the queries that lag more and more; `down_since` is when the job went down, if it is.
    """
    job, failure = seen.job, seen.failure
    if job.state == LOST:
        return Health(HealthLevel.BAD, job.advice)
    if job.state in (JobState.FAILED.value, JobState.FAILING.value):
        why = f": {seen.gave_up}" if seen.gave_up else ""
        return Health(HealthLevel.BAD, (str(failure.body["what"]) if failure else "it failed") + why)
    if job.over:
        return Health(HealthLevel.OVER, f"it ended as {job.state}")
    if failed := [name for name, one in job.queries.items() if one.state == QueryState.FAILED.value]:
        rest = "; the others run, without checkpoints" if len(job.queries) > 1 else ""
        return Health(
            HealthLevel.BAD, f"query {failed[0]} has FAILED: {job.queries[failed[0]].failure}{rest}"
        )
    if down_since and measures.down(job):
        what = failure.body["what"] if failure else "as asked"
        coming = _COMING_BACK[job.state].format(attempt=job.attempt)
        return Health(
            HealthLevel.WARN, f"down for {lasting(seconds_since(down_since, now))}: {what}; {coming}"
        )
    if job.state == JobState.RESTARTING.value:
        return Health(HealthLevel.WARN, _restarting(job.queries, failure))
    if job.state != JobState.RUNNING.value:
        return Health(HealthLevel.OVER, "it is starting" if job.state != "CANCELLING" else "it is ending")
    aborted = _aborted_in_a_row(ended)
    if aborted:
        count = len(aborted)
        which = "the last checkpoint was" if count == 1 else f"the last {count} checkpoints were"
        return Health(HealthLevel.WARN, f"{which} aborted: {aborted[-1]['reason']}")
    if overdue := _overdue(seen, interval, now):
        return Health(HealthLevel.WARN, f"no checkpoint has completed for {overdue}")
    recent = [one for one in restarts if now - moment_of(one.at) < _HOUR]
    if len(recent) >= _OFTEN:
        return Health(HealthLevel.WARN, f"{len(recent)} restarts or more within the last hour")
    if late and (behind := late[0].behind):
        waiting = f"{number(behind['count'])} {behind['unit']} are unread, the most in its last batches"
        return Health(HealthLevel.WARN, f"{late[0].name} can't keep up: {waiting}")
    if job.advice:
        return Health(HealthLevel.WARN, job.advice)
    return Health(HealthLevel.OK, "it runs, and its checkpoints complete" if seen.checkpoint else "it runs")


def _restarting(queries: Mapping[str, QueryView], failure: Event | None) -> str:
    """Which queries start again, or that all of the job does."""
    waiting = [name for name, one in queries.items() if one.state == QueryState.RESTARTING.value]
    if not waiting:
        return f"it starts again: {failure.body['what'] if failure else 'as asked'}"
    which = f"query {waiting[0]} is" if len(waiting) == 1 else f"{len(waiting)} of {len(queries)} queries are"
    return f"{which} {queries[waiting[0]].words}: {queries[waiting[0]].failure}"


def _aborted_in_a_row(ended: Sequence[Event]) -> list[Mapping[str, object]]:
    """The newest checkpoints that failed, after the last one that did not."""
    found: list[Mapping[str, object]] = []
    for event in reversed(ended):
        if event.kind != "checkpoint aborted":
            break
        if event.body["reason"] in _FAILED:
            found.insert(0, event.body)
    return found


def _overdue(seen: JobReport, interval: str, now: datetime) -> str:
    """For how long there was no checkpoint, when there should have been one; else nothing."""
    if interval == "off":
        return ""
    since = max(filter(None, (seen.checkpoint.at if seen.checkpoint else "", seen.job.since)))
    quiet = seconds_since(since, now)
    allowed = 3 * parse_duration(interval).total_seconds() + _PATIENCE
    return lasting(quiet) if quiet > allowed else ""
