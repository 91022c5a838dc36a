"""`weir stop`: end a job for good, with a savepoint of exactly what it has committed."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory
from weir.cli.saving import absolute, watched
from weir.clock import Clock
from weir.errors import BadValueError
from weir.protocol.states import JobState
from weir.storage.attempts import whoami
from weir.supervisor.asking import STOP
from weir.supervisor.view import look

SavepointPath = Annotated[
    str | None,
    typer.Option(
        "--savepoint-path",
        metavar="DIR",
        help="Where the savepoint goes to; by default the job's setting"
        " execution.checkpointing.savepoint-dir.",
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain",
        help="First work off all that the sources hold, which comes to an end only when they pause."
        " Windows that are still open stay open: unlike Flink, Spark can't fire them early.",
    ),
]
Detached = Annotated[
    bool,
    typer.Option("-d", "--detached", help="Return at once; 'weir status' shows when the job has ended."),
]
NoSavepoint = Annotated[bool, typer.Option("--no-savepoint", help="Only end the job.")]


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

    The running batches finish and commit, and no other is started; the savepoint holds exactly
    what is committed; the job is FINISHED. When the savepoint can't be taken, the job goes on, and
    that is exit code 1 with the reason.

    \b
    Example: weir stop wordcount --savepoint-path /backup/savepoints
    """
    if no_savepoint and savepoint_path:
        reason = "with --no-savepoint none is taken"
        raise BadValueError(
            key="--savepoint-path", value=savepoint_path, origin="the command line", reason=reason
        )
    place = directory(dir, config, define)
    clock = Clock()
    standing = look(place, job, clock)
    refuse_without_supervisor(standing, place, "stop")
    arguments = {
        "savepoint": not no_savepoint,
        "path": absolute(savepoint_path) if savepoint_path else "",
        "drain": drain,
        "by": whoami(),
        "detached": detached,
    }
    with say.bar(f"waiting for {job} to finish its running batches") as bar:
        answer = ask(place, standing, STOP, arguments, timeout, watched(bar, place, job))
    if not answer["done"]:
        raise not_done(standing, place, STOP, answer)
    if detached:
        _say_asked(job, place, json)
        return
    saved = {key: answer[key] for key in ("id", "path", "seconds", "bytes") if key in answer}
    if json:
        body = {"job": job, "state": answer["state"], "attempt": look(place, job, clock).attempt}
        say.say_json(body | saved)
    else:
        say.say(f"{job} is {answer['state']}")
        if saved:
            say.say(f"savepoint, {say.size(saved['bytes'])}: {saved['path']}")
    if answer["state"] == JobState.FAILED.value:
        raise typer.Exit(1)


def _say_asked(job: str, dir: str, json: bool) -> None:
    if json:
        say.say_json({"job": job, "status": "asked"})
    else:
        say.say(f"{job} is ending: '{command('status', job, dir)}' shows when it has ended")
