"""`weir list`: the jobs below a directory, as they truly stand."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, directory
from weir.clock import Clock
from weir.monitor import forms
from weir.monitor.job import LOST, Alive, JobView, jobs, running
from weir.protocol.states import JobState
from weir.storage.open import absolute

All = Annotated[bool, typer.Option("--all", "-a", help="Also list jobs that have ended.")]


_STYLES = {
    JobState.RUNNING.value: "green",
    JobState.STARTING.value: "yellow",
    JobState.RESTARTING.value: "yellow",
    JobState.CANCELLING.value: "yellow",
    JobState.FAILING.value: "bold red",
    JobState.FAILED.value: "bold red",
    LOST: "bold red",
}


def list_jobs(
    all: All = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """List the jobs and their states.

    LOST is a job whose supervisor died before the job ended: 'weir run' resumes it.
    A question mark follows the state of a job on another machine, which can't be seen from here.

    \b
    Example: weir list --all
    """
    clock = Clock()
    place = directory(dir, config, define)
    found = jobs(place, clock)
    shown = [job for job in found if all or not ended(job)]
    if json:
        say.say_json({"dir": place, "jobs": [forms.job(job, clock.now()) for job in shown]})
        return
    _say(place, shown, len(found) - len(shown), clock)


def ended(job: JobView) -> bool:
    """Whether the job has come to its end; one that is LOST has not."""
    return job.over and job.state in [state.value for state in JobState if state.final]


def state_shown(job: JobView) -> Text:
    """The state in its colour, with a question mark when this machine can't check it."""
    doubt = "?" if job.alive is Alive.UNKNOWN and not ended(job) else ""
    return Text(job.state + doubt, style=_STYLES.get(job.state, ""))


def _say(place: str, jobs: list[JobView], hidden: int, clock: Clock) -> None:
    if jobs:
        say.out.print(_table(jobs, clock))
    else:
        where = absolute(place)
        elsewhere = "; jobs that were started elsewhere: give --dir or set WEIR_DIR"
        say.say(f"no job runs in {where}" if hidden else f"there is no job in {where}{elsewhere}")
    for job in jobs:
        if job.advice:
            say.say(f"{job.name}: {job.advice}")
        for query, one in job.queries.items():
            if one.failure:
                say.say(f"{job.name}: query {query} is {one.words}: {one.failure}")
    if hidden:
        say.say(f"{hidden} ended: weir list --all")


def _table(jobs: list[JobView], clock: Clock) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("job", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("running", no_wrap=True)
    table.add_column("attempt", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    table.add_column("up", no_wrap=True)
    table.add_column("last batch", overflow="fold")
    table.add_column("process", overflow="fold")
    for job in jobs:
        table.add_row(*_row(job, clock))
    return table


def _row(job: JobView, clock: Clock) -> list[str | Text]:
    now = clock.now()
    up = "-" if job.over else say.lasting(say.seconds_since(job.started_at, now))
    batch = f"{job.batch['query']} {job.batch['batch']}" if job.batch else "-"
    process = "-" if job.over else f"{job.owner.pid} on {job.owner.host}"
    queries = "-" if job.over else running(job.queries)
    return [
        job.name,
        state_shown(job),
        queries,
        str(job.attempt),
        say.when(job.since, now),
        up,
        batch,
        process,
    ]
