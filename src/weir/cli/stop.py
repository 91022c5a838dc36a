"""`weir stop`: end a job for good, with a savepoint of exactly what it has committed."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.ask import Timeout, caller
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory
from weir.client import running_job
from weir.errors import BadValueError
from weir.protocol.states import JobState
from weir.storage.open import absolute

SavepointPath = Annotated[
    str | None,
    typer.Option(
        "--savepoint-path",
        metavar="DIR",
        help="The directory or URL for the savepoint; default: the job's "
        "execution.checkpointing.savepoint-dir.",
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain",
        help="First process all input that the sources hold; this ends only when they pause. Open "
        "windows stay open: unlike Flink, Spark can't fire them early.",
    ),
]
Detached = Annotated[
    bool,
    typer.Option("-d", "--detached", help="Return at once; 'weir status' shows when the job has ended."),
]
NoSavepoint = Annotated[bool, typer.Option("--no-savepoint", help="End the job without a savepoint.")]


def stop(
    job: JobOf,
    savepoint_path: SavepointPath = None,
    drain: Drain = False,
    no_savepoint: NoSavepoint = False,
    detached: Detached = False,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """End a job for good, with a savepoint.

    The running batches finish and commit, and no new batch starts; the savepoint holds exactly
    what is committed; the job is FINISHED. If the savepoint can't be taken, the job continues, and
    the exit code is 1, with the reason.

    \b
    Example: weir stop wordcount --savepoint-path /backup/savepoints
    """
    if no_savepoint and savepoint_path:
        reason = "with --no-savepoint none is taken"
        raise BadValueError(
            key="--savepoint-path", value=savepoint_path, origin="the command line", reason=reason
        )
    place = directory(dir, config, define)
    asked = caller(place, job, "stop", f"waiting for {job} to finish its running batches", timeout, bar=True)
    done = running_job.stop(
        asked,
        savepoint=not no_savepoint,
        path=absolute(savepoint_path) if savepoint_path else "",
        drain=drain,
        detached=detached,
    )
    if json:
        say.say_json(done.form())
    elif detached:
        say.say(f"{job} is ending: '{command('status', job, place)}' shows when it has ended")
    else:
        say.say(f"{job} is {done.state}")
        if done.saved is not None:
            say.say(f"savepoint, {say.size(done.saved.bytes or 0)}: {done.saved.path}")
    if done.state == JobState.FAILED.value:
        raise typer.Exit(1)
