"""`weir cancel`: end a job, with every running batch finished and committed."""

from __future__ import annotations

import typer

from weir.cli import say
from weir.cli.ask import Timeout, caller
from weir.cli.list import ended
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.client import running_job
from weir.client.running_job import JobEnded
from weir.protocol.states import JobState


def cancel(
    job: JobOf,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """End a job cleanly.

    The running batches finish and commit, and no new batch starts. Waits until the job has ended.
    A batch that takes longer than task.cancellation.timeout is cut off with a note, and runs again
    at the next start. A job that has already ended is not changed.

    \b
    Example: weir cancel wordcount
    """
    place = directory(dir, config, define)
    asked = caller(place, job, "cancel", f"waiting for {job} to finish its running batches", timeout)
    standing, already = asked.look(), ""
    if ended(standing):
        done, already = JobEnded(job, standing.state, standing.attempt), " already"
    else:
        done = running_job.cancel(asked)
    if json:
        say.say_json(done.form())
    else:
        say.say(f"{job} is {done.state}{already}")
    if done.state == JobState.FAILED.value:
        raise typer.Exit(1)
