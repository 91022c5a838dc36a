"""`weir cancel`: end a job, with every running batch finished and committed."""

from __future__ import annotations

import typer

from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.clock import Clock
from weir.protocol.states import JobState
from weir.supervisor.asking import CANCEL
from weir.supervisor.view import look


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
    again at the next start.

    \b
    Example: weir cancel wordcount
    """
    place = directory(dir, config, define)
    clock = Clock()
    standing = look(place, job, clock)
    refuse_without_supervisor(standing, place, "cancel")
    with say.waiting(f"waiting for {job} to finish its running batches"):
        answer = ask(place, standing, CANCEL, {}, timeout)
    if not answer["done"]:
        raise not_done(standing, place, CANCEL, answer)
    state = str(answer.get("state", ""))
    if json:
        say.say_json({"job": job, "state": state, "attempt": look(place, job, clock).attempt})
    else:
        say.say(f"{job} is {state}")
    if state == JobState.FAILED.value:
        raise typer.Exit(1)
