"""`weir top`: a job in the terminal, live."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.clock import Clock
from weir.monitor import checkpoints, forms, measures
from weir.monitor.checkpoints import PHASES, Checkpoint
from weir.monitor.events import Event, timeline
from weir.monitor.health import Health, HealthLevel, health
from weir.monitor.report import JobReport, report

Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often to refresh.")]
Once = Annotated[bool, typer.Option("--once", help="Show it once and exit.")]

_STYLES = {
    HealthLevel.OK: "green",
    HealthLevel.WARN: "yellow",
    HealthLevel.BAD: "bold red",
    HealthLevel.OVER: "cyan",
}
_SHOWN = 6
"""Checkpoints with a line of their own."""
_BAR = 24


def top(
    job: JobOf,
    every: Every = 1.0,
    once: Once = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Show a job live in the terminal.

    Health, queries with rate and lag, checkpoints, the last recovery. Ctrl-C ends the view, not the
    job. Without a terminal, or with --once, it is shown once.

    \b
    Example: weir top wordcount --every 2
    """
    place, clock = directory(dir, config, define), Clock()
    if json:
        say.say_json(_form(place, job, clock))
        return
    if once or not say.out.is_terminal:
        say.out.print(_screen(place, job, clock))
        return
    rest = threading.Event()
    with Live(_screen(place, job, clock), console=say.out, screen=True, auto_refresh=False) as live:
        try:
            while not rest.wait(every):
                live.update(_screen(place, job, clock), refresh=True)
        except KeyboardInterrupt:
            return


def _form(dir: str, job: str, clock: Clock) -> dict[str, Any]:
    seen = report(dir, job, clock)
    verdict = health(dir, seen, clock)
    status = forms.report(dir, seen, clock.now())
    known = {one["query"]: one for one in status["queries"]}
    not_started: dict[str, Any] = {"total_rows": None, "lag": {}}
    return {
        **status,
        "health": {"level": verdict.level.value, "words": verdict.words},
        "queries": [
            {**one.form(), **known.get(one.name, not_started)} for one in measures.queries(dir, job, clock)
        ],
    }


def _screen(dir: str, job: str, clock: Clock) -> Group:
    seen = report(dir, job, clock, recoveries=1)
    queries = measures.queries(dir, job, clock)
    newest = checkpoints.newest(dir, job, clock, _SHOWN)
    parts: list[Text | Table] = [_headline(seen, health(dir, seen, clock), clock), Text(), _queries(queries)]
    if newest:
        parts += [Text(), _checkpoints(newest, clock)]
    if seen.recoveries:
        parts += [Text(), *_recovery(seen.recoveries[-1], clock)]
    return Group(*parts)


def _headline(seen: JobReport, verdict: Health, clock: Clock) -> Text:
    job = seen.job
    up = "" if job.over else f"  up {say.lasting(say.seconds_since(job.started_at, clock.now()))}"
    style = _STYLES[verdict.level]
    head = Text.assemble(
        (job.name, "bold"),
        "  ",
        (job.state, style),
        f"  attempt {job.attempt}{up}, {say.counted(seen.restarts, 'restart')}\n",
    )
    return head.append(verdict.words, style=style)


def _queries(queries: list[measures.Query]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("query", overflow="fold")
    table.add_column("is", overflow="fold")
    for name in ("batch", "rows/s", "time", "p99", "lag", "state rows", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    for query in queries:
        one = query.form()
        if one["batch"] is None:
            table.add_row(query.name, query.standing.words or "-", *["-"] * 7)
            continue
        lag = one["behind"]
        table.add_row(
            query.name,
            query.standing.words or "-",
            str(one["batch"]),
            say.number(one["rate"] or 0),
            f"{one['seconds']:.2f}",
            f"{one['batch_seconds']['p99']:.2f}",
            say.number(lag["count"]) if lag else "-",
            say.number(one["state_rows"]),
            say.size(one["state_bytes"]),
        )
    return table


def _checkpoints(newest: list[Checkpoint], clock: Clock) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("checkpoint", "", "at"):
        table.add_column(name, no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("new", justify="right", no_wrap=True)
    table.add_column("mostly", overflow="fold")
    for one in reversed(newest):
        table.add_row(
            str(one.id),
            one.status.value,
            say.when(one.ended_at or one.begun_at, clock.now()) if one.ended_at or one.begun_at else "-",
            "-" if one.seconds is None else say.took(one.seconds),
            "-" if one.new_bytes is None else say.size(one.new_bytes),
            one.reason or _mostly(one),
        )
    return table


def _mostly(one: Checkpoint) -> str:
    """The phase that took longest, of the query in which it did."""
    found = [
        (body.get("phases", {}).get(phase, 0.0), phase, query)
        for query, body in one.queries.items()
        for phase in PHASES
    ]
    if not found:
        return ""
    seconds, phase, query = max(found)
    return f"{phase} of {query}, {say.took(seconds)}"


def _recovery(event: Event, clock: Clock) -> list[Text]:
    body = event.body
    lines = [
        Text(f"last recovery, {say.when(event.at, clock.now())}: {body['seconds']:.1f} s, {body['cause']}")
    ]
    for part, seconds, bar in timeline(body["parts"], _BAR):
        if seconds >= 0.005:
            lines.append(Text(f"  {part:<13} {seconds:6.2f} s  {bar}", style="dim"))
    return lines
