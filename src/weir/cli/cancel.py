"""`weir cancel`: end a job, with every running batch finished and committed."""

from __future__ import annotations

import typer

from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.list import ended
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.clock import Clock
from weir.protocol.states import JobState
from weir.supervisor.asking import CANCEL
from weir.supervisor.view import Standing, look


def _cancelled(place: str, standing: Standing, timeout: float | None) -> str:
    """The state in which the job has ended."""
    refuse_without_supervisor(standing, place, "cancel")
    with say.waiting(f"waiting for {standing.name} to finish its running batches"):
        answer = ask(place, standing, CANCEL, {}, timeout)
    if not answer["done"]:
        raise not_done(standing, place, CANCEL, answer)
    return str(answer.get("state", ""))


def cancel(
    job: JobOf,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """End a job cleanly.

    The running batches finish and commit, and no other is started. Waits until the job has ended.
    A batch that takes longer than task.cancellation.timeout is cut off, which is said, and runs
    again at the next start. A job that has ended already is left as it is.

    \b
    Example: weir cancel wordcount
    """
    place = directory(dir, config, define)
    clock = Clock()
    standing = look(place, job, clock)
    if ended(standing):
        state, already = standing.state, " already"
    else:
        state, already = _cancelled(place, standing, timeout), ""
    if json:
        say.say_json({"job": job, "state": state, "attempt": look(place, job, clock).attempt})
    else:
        say.say(f"{job} is {state}{already}")
    if state == JobState.FAILED.value:
        raise typer.Exit(1)
