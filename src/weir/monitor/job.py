"""A job as it stands, seen from outside: what its journal has, checked against who is alive.

The journal's last word may be RUNNING though its writer was killed; so it is shown only together
with the newest attempt's beat. Nothing here writes, and nothing needs the job's own process: the
command line and the pages read the same views.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from weir.clock import Clock
from weir.errors import BadNameError, NoSuchJobError, StorageError, WeirError
from weir.ids import JobName, job_name
from weir.protocol.states import JobState, QueryState
from weir.storage import open_store, paths
from weir.storage.attempts import AttemptLock, AttemptRecord, Beat, gone, visible
from weir.storage.open import absolute, is_local, local_path
from weir.supervisor.history import Event, History, history_of
from weir.text import moment_of

LOST = "LOST"
"""Shown for a job that was not at its end when its supervisor died."""


UNREADABLE = "UNREADABLE"
"""Shown for a job whose files can't be read."""


class Alive(str, Enum):
    """Whether the supervisor of the newest attempt lives, as far as this machine can tell."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """It runs on another machine (or before a reboot): only its beat could tell, with patience."""


@dataclass(frozen=True)
class JobOwner:
    """The process that took a job last: its supervisor, or a notebook."""

    pid: int = 0
    host: str = ""
    user: str = ""
    session: str = ""
    driver: int = 0
    """The process group of the driver that was started last, or 0."""


@dataclass(frozen=True)
class JobView:
    """One job as it stands now."""

    name: str
    state: str
    alive: Alive
    advice: str
    """What to do about it; empty when there is nothing to do."""
    attempt: int
    since: str
    """When this state began; of a LOST job when it was last seen alive."""
    started_at: str
    """When the supervisor took the job."""
    owner: JobOwner
    file: str
    supervised: bool
    """It takes requests; a job in a notebook does not."""
    batch: dict[str, Any] | None
    """The newest committed batch of any query."""
    queries: dict[str, QueryView] = field(default_factory=dict)
    """How each query stands, in the order of the graph; empty when nothing was reported yet."""

    @property
    def over(self) -> bool:
        """Nobody works on it any more."""
        return self.alive is Alive.NO


@dataclass(frozen=True)
class QueryView:
    """One query as it stands now."""

    state: str
    restart_in: float | None = None
    """Seconds until it starts again."""
    failure: str = ""
    """What it failed with, while it is RESTARTING or FAILED."""
    waits_for: str = ""
    """"machine" while it starts again as soon as the machine can start a process in time."""

    @property
    def words(self) -> str:
        """The state for a table."""
        if self.waits_for:
            return f"{self.state}, waits for the {self.waits_for}"
        return f"{self.state} in {self.restart_in:.0f} s" if self.restart_in is not None else self.state

    def form(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "restart_in_seconds": self.restart_in,
            "waits_for": self.waits_for or None,
            "failure": self.failure or None,
        }


UNKNOWN_QUERY = QueryView("")
"""Of a query that nobody has reported a state of: in a notebook, or of an earlier weir."""


def alive(record: AttemptRecord, beat: Beat) -> Alive:
    """Whether the owner of an attempt lives; its driver ends itself when it does not."""
    if beat.released or gone(record, Beat()):
        return Alive.NO
    return Alive.YES if visible(record) else Alive.UNKNOWN


def true_state(written: JobState | None, released: bool, life: Alive, failed: bool = False) -> str:
    """The state to show: what was written last, unless its writer died before the end.

    A job in a notebook (`Job.start`) writes no journal, so that nothing is `written`: `failed` is what
    its release recorded.
    """
    if written is not None and (written.final or life is not Alive.NO):
        return written.value
    if written is not None or (life is Alive.NO and not released):
        return LOST
    ended = JobState.FAILED if failed else JobState.CANCELED
    return ended.value if released else JobState.RUNNING.value


def job_names(dir: str) -> list[JobName]:
    """Every job below the directory: a folder that has held an attempt."""
    if not is_local(dir):
        keys = (key.split("/") for key in open_store(dir).list(""))
        return sorted({job_name(key[0]) for key in keys if key[1:2] == ["attempts"]})
    try:
        with os.scandir(local_path(dir)) as entries:
            return sorted(_valid(e.name for e in entries if os.path.isdir(os.path.join(e, "attempts"))))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(verb="list", path=dir, reason=error.strerror or str(error), root=dir) from error


def _valid(names: Iterator[str]) -> Iterator[JobName]:
    for name in names:
        try:
            yield job_name(name)
        except BadNameError:
            continue


def look(dir: str, name: str, clock: Clock) -> JobView:
    """The job as it stands; raises `NoSuchJobError` when nothing has ever run under this name."""
    job = job_name(name)
    newest, beat = newest_attempt(dir, job, clock)
    try:
        with history_of(dir, job) as history:
            return view(dir, job, newest, beat, history, clock.now())
    except StorageError as error:  # what is known without a journal is shown all the same
        known = view(dir, job, newest, beat, None, clock.now())
        lost = f"its history can't be read ({error.why}): the next start moves it aside and begins a new one"
        return replace(known, advice=f"{known.advice}; {lost}" if known.advice else lost)


def jobs(dir: str, clock: Clock) -> list[JobView]:
    """Every job below the directory as it stands; one that can't be read is shown, and hides no other."""
    views = []
    for name in job_names(dir):
        try:
            views.append(look(dir, name, clock))
        except NoSuchJobError:  # its folder has no attempt: a start that never got that far
            continue
        except WeirError as error:
            views.append(_unreadable(name, error, clock.now().isoformat()))
    return views


def _unreadable(name: JobName, error: WeirError, now: str) -> JobView:
    return JobView(
        name=name,
        state=UNREADABLE,
        alive=Alive.UNKNOWN,
        advice=error.text,
        attempt=0,
        since=now,
        started_at=now,
        owner=JobOwner(),
        file="",
        supervised=False,
        batch=None,
    )


def newest_attempt(dir: str, job: JobName, clock: Clock) -> tuple[AttemptRecord, Beat]:
    """Who took the job last, and its last beat; raises `NoSuchJobError` when nobody ever has."""
    lock = AttemptLock(open_store(dir), job, clock)
    newest = lock.newest()
    if newest is None:
        raise NoSuchJobError(job=job, dir=absolute(dir))
    return newest, lock.last_beat(newest.attempt)


def view(
    dir: str, job: JobName, newest: AttemptRecord, beat: Beat, history: History | None, now: datetime
) -> JobView:
    """The job as it stands, out of what was read already."""
    state = history.last("state") if history else None
    written = _written(state)
    start = session_start(newest, history)
    if state is not None and state.attempt < start.attempt:
        state, written = None, None  # an earlier life means nothing for this one
    life = alive(newest, beat)
    shown = true_state(written, beat.released, life, beat.failed)
    file = str(start.body.get("file", ""))
    batches = history.batches(limit=1) if history else []
    return JobView(
        name=job,
        state=shown,
        alive=life,
        advice=_advice(shown, life, newest, beat, file),
        attempt=newest.attempt,
        since=_last_seen(dir, job, newest, history) if shown == LOST else state.at if state else newest.since,
        started_at=start.at,
        owner=JobOwner(newest.pid, newest.host, newest.user, newest.session, beat.group),
        file=file,
        supervised=bool(start.body),
        batch={key: batches[0][key] for key in ("query", "batch", "rows", "at")} if batches else None,
        queries=_standings(history, start.attempt, shown, life, now) if history else {},
    )


def _standings(history: History, first: int, job: str, life: Alive, now: datetime) -> dict[str, QueryView]:
    """What the supervisor recorded last of each query; where it is gone, no query runs any more."""
    event = history.last("queries")
    if event is None or event.attempt < first:
        return {}
    return {name: _view(body, job, life, now) for name, body in event.body.items()}


def _view(body: dict[str, Any], job: str, life: Alive, now: datetime) -> QueryView:
    state, what = str(body["state"]), str(body["what"])
    if life is Alive.NO and state != QueryState.FAILED.value:
        return QueryView(LOST if job == LOST else QueryState.ENDED.value)
    left = None
    if state == QueryState.RESTARTING.value and body["restart_at"]:
        left = round(max(0.0, (moment_of(str(body["restart_at"])) - now).total_seconds()), 1)
    return QueryView(state, left, what, str(body.get("waits_for", "")))


def running(queries: Mapping[str, QueryView]) -> str:
    """How many of the queries of a job run, for a table."""
    count = sum(one.state == QueryState.RUNNING.value for one in queries.values())
    return f"{count} of {len(queries)}" if queries else "-"


def _last_seen(dir: str, job: JobName, newest: AttemptRecord, history: History | None) -> str:
    """When the newest attempt was last seen alive: its newest event, batch or beat."""
    events, batches = (history.events(limit=1), history.batches(limit=1)) if history else ([], [])
    seen = [moment_of(newest.since), *(moment_of(one.at) for one in events)]
    seen += [moment_of(one["at"]) for one in batches if one["at"]]
    if is_local(dir):
        with suppress(OSError):  # it died before its first beat
            beaten = os.stat(os.path.join(local_path(dir), paths.beat(job, newest.attempt))).st_mtime
            seen.append(datetime.fromtimestamp(beaten, timezone.utc))
    return max(seen).isoformat()


def _written(state: Event | None) -> JobState | None:
    try:
        return JobState(state.body["state"]) if state else None
    except (ValueError, KeyError):  # the disk has changed it
        return None


def session_start(newest: AttemptRecord, history: History | None) -> Event:
    """The first attempt of whoever holds the newest one; with an empty body when it keeps no journal."""
    written = history.events("attempt") if history else []
    mine = [event for event in written if event.body.get("session") == newest.session]
    return mine[0] if mine else Event(0, newest.since, newest.attempt, "attempt", "", {})


def _advice(state: str, life: Alive, newest: AttemptRecord, beat: Beat, file: str) -> str:
    who = f"process {newest.pid} on {newest.host}"
    if state == LOST:
        ending = "" if beat.released or gone(newest, beat) else "; its driver ends itself about now"
        again = f"'weir run {file or 'FILE'}' resumes it"
        return f"its supervisor ({who}) died before the job ended{ending}: {again}"
    if life is Alive.UNKNOWN:
        return f"it is held by {who}, which can't be seen from here: this is what it reported last"
    return ""
