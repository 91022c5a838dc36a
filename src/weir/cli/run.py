"""`weir run`: run a job file under a supervisor, in this terminal or detached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from weir.cli import say
from weir.cli.detach import Ready, start_detached
from weir.cli.options import AsJson, Define, Directory, SettingsFile, overrides, settings_file
from weir.cli.restore import AcceptDuplicates, as_point
from weir.cli.watch import Terminal, terminal
from weir.clock import Clock
from weir.errors import JobFileError
from weir.preflight import require_java
from weir.protocol.messages import Failure
from weir.protocol.states import JobState
from weir.supervisor.loop import Inputs, Supervisor

File = Annotated[Path, typer.Argument(metavar="FILE", help="The job file.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS", help="Arguments for the job file; behind '--' when they look like options."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's own, spark.*. Repeatable."),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master, like local[4] or yarn.")
]
Detached = Annotated[
    bool, typer.Option("-d", "--detached", help="Return when the job is running, and leave it running.")
]
From = Annotated[
    str | None,
    typer.Option(
        "-s",
        "--from-savepoint",
        metavar="POINT",
        help="Go on from a savepoint's directory, chk-41 or latest, instead of the live files.",
    ),
]


def run(
    file: File,
    arguments: Arguments = None,
    define: Define = None,
    conf: Conf = None,
    master: Master = None,
    dir: Directory = None,
    config: SettingsFile = None,
    detached: Detached = False,
    from_savepoint: From = None,
    accept_duplicates: AcceptDuplicates = False,
    json: AsJson = False,
) -> None:
    """Run a job, and start it again when it fails.

    Ctrl-C, SIGTERM and 'weir cancel' let the running batches finish and commit, then end the job.
    What the job prints comes out on standard output (with --json: on standard error), and is kept
    for 'weir logs'. Settings: defaults < weir.yaml (in this directory, else beside the job file) <
    the job file < WEIR_* environment < -D.

    \b
    Example: weir run wordcount.py --master 'local[4]' -D state.backend.type=hashmap
    """
    if not file.is_file():
        raise JobFileError(file=file, reason="there is no such file", todo="check the path")
    given = overrides(define, conf=conf, master=master, dir=dir)
    require_java()
    ready = Ready.inherited()
    found = settings_file(config, beside=file)
    point = as_point(from_savepoint) if from_savepoint else ""
    inputs = Inputs(
        file.absolute(), arguments or [], found, dict(os.environ), given, point, accept_duplicates
    )
    if ready is not None:
        raise typer.Exit(ready.supervise(inputs))
    if detached:
        start_detached(inputs)
    else:
        raise typer.Exit(_foreground(inputs))


def _foreground(inputs: Inputs) -> int:
    with terminal() as watcher:
        state, failure = Supervisor(inputs, watcher, Clock()).run()
    _say_end(watcher, state, failure)
    return exit_code(state, failure)


def exit_code(state: JobState, failure: Failure | None) -> int:
    """What the end of a job means for whoever started it."""
    if state is not JobState.FAILED:
        return 0
    return failure.exit_code if failure else 1


def _say_end(watcher: Terminal, state: JobState, failure: Failure | None) -> None:
    body = {"job": watcher.job, "state": state.value, "attempt": watcher.attempt, "batches": watcher.batches}
    if failure is not None and state is JobState.FAILED:
        say.say_error(failure.what, failure.why, failure.hint, **body)
    elif say.form is say.Form.JSON:
        say.say_json(body)
