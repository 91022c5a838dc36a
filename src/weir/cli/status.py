"""`weir status`: one job with its queries, its last failure and its last recoveries."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from weir.cli import say
from weir.cli.list import state_shown
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.clock import Clock
from weir.monitor import forms, measures
from weir.monitor.events import Event, timeline
from weir.monitor.report import JobReport, report

_LAGS = 8
"""How many partitions are named."""


def status(
    job: JobOf,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Show a job with its queries, checkpoint and failures.

    \b
    Example: weir status wordcount
    """
    clock = Clock()
    place = directory(dir, config, define)
    seen = report(place, job, clock)
    if json:
        say.say_json(forms.report(place, seen, clock.now()))
    else:
        _say(seen, clock)


def _say(seen: JobReport, clock: Clock) -> None:
    job, now = seen.job, clock.now()
    say.say_styled(f"{job.name} is ", state_shown(job), f" since {say.when(job.since, now)}")
    if job.advice:
        say.say(f"  {job.advice}")
    up = "" if job.over else f", up {say.lasting(say.seconds_since(job.started_at, now))}"
    restarts = say.counted(seen.restarts, "restart")
    if seen.machine_restarts:
        restarts += f", {seen.machine_restarts} of them because of the machine"
    say.say(f"  started {say.when(job.started_at, now)}{up}, attempt {job.attempt}, {restarts}")
    if not job.over:
        who = f"supervisor {job.owner.pid}" if job.supervised else f"process {job.owner.pid}"
        driver = f", driver {job.owner.driver}" if job.owner.driver else ""
        say.say(f"  {who}{driver} on {job.owner.host}, started by {job.owner.user or '?'}")
    if len(seen.state_seconds) > 1:
        times = (f"{state} {say.lasting(seconds)}" for state, seconds in seen.state_seconds.items())
        say.say(f"  time in each state: {', '.join(times)}")
    if job.file:
        say.say(f"  file {job.file}")
    if seen.checkpoint is not None:
        body = seen.checkpoint.body
        ago = say.lasting(say.seconds_since(seen.checkpoint.at, now))
        sizes = f"{say.size(body['new_bytes'])} new of {say.size(body['full_bytes'])}"
        say.say(f"  last checkpoint {body['id']}, {ago} ago: {say.took(body['seconds'])}, {sizes}")
    if seen.restored is not None:
        body = seen.restored.body
        at = say.when(seen.restored.at, now)
        say.say(
            f"  last restore, {at}: from checkpoint {body['checkpoint']} in {body['seconds']:.1f} s,"
            f" as generation {body['generation']}: {body['why']}"
        )
    if seen.queries:
        say.say()
        say.out.print(_query_table(seen, clock))
        for query in seen.queries:
            if query["failure"]:
                say.say(f"{query['query']} {_then(query)}: {query['failure']}")
        _say_lags(seen)
    if seen.failure is not None:
        _say_failure(seen.failure, seen.gave_up, clock)
    if seen.recoveries:
        _say_recoveries(seen.recoveries, clock)


def _then(query: dict[str, Any]) -> str:
    """What becomes of a query that has failed."""
    if query["waits_for"]:
        return "starts again when the machine can start a process in time"
    wait = query["restart_in_seconds"]
    return str(query["state"]) if wait is None else f"starts again in {wait:.0f} s"


def _query_table(seen: JobReport, clock: Clock) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("query", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("batch", "at", "rows", "seconds", "state rows", "bytes", "watermark"):
        table.add_column(name, justify="right", no_wrap=True)
    for query in seen.queries:
        table.add_row(*_query_row(query, clock))
    return table


def _say_lags(seen: JobReport) -> None:
    """The lag of each query at its newest batch: in all, and where it is most."""
    for query in seen.queries:
        lag = query["lag"]
        if lag:
            worst = sorted(lag.items(), key=lambda item: (-item[1], item[0]))[:_LAGS]
            parts = ", ".join(f"{name} {say.number(count)}" for name, count in worst)
            more = f", {len(lag) - _LAGS} more" if len(lag) > _LAGS else ""
            say.say(f"lag of {query['query']}: {say.number(sum(lag.values()))} records ({parts}{more})")


def _query_row(query: dict[str, Any], clock: Clock) -> list[str]:
    state = query["state"] or "-"
    if query["batch"] is None:
        return [query["query"], state, *["-"] * 7]
    return [
        query["query"],
        state,
        str(query["batch"]),
        say.when(query["at"], clock.now()),
        say.number(query["rows"]),
        f"{query['seconds']:.2f}",
        say.number(query["state_rows"]),
        say.size(query["state_bytes"]),
        _watermark(query["watermark"], clock),
    ]


def _watermark(mark: str, clock: Clock) -> str:
    """Where event time stands, and how long ago that is; before the first event it is nowhere."""
    if not measures.begun(mark):
        return "-"
    now = clock.now()
    return f"{say.when(mark, now)} ({say.lasting(say.seconds_since(mark, now))} ago)"


def _say_failure(failure: Event, gave_up: str, clock: Clock) -> None:
    where = f" in query {failure.query}" if failure.query else ""
    say.say(f"\nlast failure, {say.when(failure.at, clock.now())}, attempt {failure.attempt}{where}")
    shown = forms.failure(failure)
    say.say(f"  {shown['what']}")
    for label, text in (("why", shown["why"]), ("what to do", shown["hint"])):
        if text:
            say.say(f"  {label}: {text}")
    if gave_up:
        say.say(f"  no restart: {gave_up}")


def _say_recoveries(recoveries: list[Event], clock: Clock) -> None:
    say.say("\nlast recoveries")
    for event in recoveries:
        body, first = event.body, event.body["first"]
        what = f"{body['query']}: " if body["query"] else ""
        back = f"back with batch {first['batch']} of {first['query']}" if first else "back, nothing to read"
        say.say(
            f"  {say.when(event.at, clock.now())}  {body['seconds']:.1f} s  {what}{body['cause']}; {back}"
        )
    for part, seconds, bar in timeline(recoveries[-1].body["parts"]):
        say.say(f"    {part:<13} {seconds:6.2f} s  {bar}")
