"""`weir run`: run a job file under a supervisor, in this terminal or detached."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import randbelow
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.detach import Ready, start_detached
from weir.cli.options import AsJson, Conf, Define, Directory, SettingsFile, overrides, settings_file
from weir.cli.restore_options import (
    AcceptDuplicates,
    AllowDropped,
    Backend,
    Claim,
    Maps,
    Parallelism,
    SetOffsets,
    as_point,
    check_claim,
    offsets_of,
    shape_of,
)
from weir.cli.watch import terminal
from weir.clock import Clock
from weir.errors import BadOffsetsError, BadValueError, JobFileError, TakeOverError, error_form
from weir.ids import MAX_ATTEMPT, job_name
from weir.preflight import require_spark
from weir.protocol.messages import Failure
from weir.protocol.states import JobState
from weir.restore.point import attempt_of
from weir.restore.request import RestoreRequest
from weir.supervisor.loop import Supervisor
from weir.supervisor.supervised_job import Inputs

File = Annotated[Path, typer.Argument(metavar="FILE", help="The job file.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS", help="Arguments for the job file; put them after '--' if they look like options."
    ),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master, like local[4] or yarn.")
]
Detached = Annotated[
    bool, typer.Option("-d", "--detached", help="Return as soon as the job is running; it keeps running.")
]
Point = Annotated[
    str | None,
    typer.Option(
        "-s",
        "--from-savepoint",
        metavar="POINT",
        help="Resume from a savepoint's directory, chk-41 or latest, instead of the live files.",
    ),
]
As = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Run it under another name; with -s that is a fork."),
]
TakeOver = Annotated[
    int | None,
    typer.Option(
        "--take-over",
        min=1,
        max=MAX_ATTEMPT // 2,
        metavar="ATTEMPT",
        help="With -s: the job has ended for good in another directory, where this was its last "
        "attempt; resume it here.",
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
    from_savepoint: Point = None,
    allow_dropped: AllowDropped = False,
    map: Maps = None,
    set_offsets: SetOffsets = None,
    parallelism: Parallelism = None,
    state_backend: Backend = None,
    accept_duplicates: AcceptDuplicates = False,
    claim: Claim = False,
    name: As = None,
    take_over: TakeOver = None,
    json: AsJson = False,
) -> None:
    """Run a job, and restart it when it fails.

    Ctrl-C, SIGTERM and 'weir cancel' let the running batches finish and commit, then end the job.
    What the job prints goes to standard output (with --json: to standard error), and is kept for
    'weir logs'. Settings: defaults < weir.yaml (in this directory, else beside the job file) <
    the job file < WEIR_* environment < -D.

    With -s the job resumes from a savepoint or checkpoint, with its present code, parallelism and
    state backend. It first shows what becomes of each piece of state; if the point does not fit,
    nothing is changed. 'weir plan' shows the same without starting the job.

    \b
    Example: weir run wordcount.py --master 'local[4]' -D state.backend.type=hashmap
             weir run wordcount.py -s savepoints/wordcount-12 --parallelism 8
    """
    if not file.is_file():
        reason = "it is a directory" if file.is_dir() else "there is no such file"
        raise JobFileError(file=file, reason=reason, todo="name the Python file that makes the job")
    given = overrides(define, conf=conf, master=master, dir=dir) | shape_of(parallelism, state_backend)
    offsets = offsets_of(set_offsets)
    if offsets and not from_savepoint:
        reason = "it needs -s; without -s the job resumes from its live files"
        raise BadOffsetsError(given=next(iter(offsets)), reason=reason)
    point = as_point(from_savepoint) if from_savepoint else None
    check_claim(claim, point)
    if point is None:
        if take_over is not None:
            raise TakeOverError(file=file, attempt=take_over)
        _check_no_changes(map, allow_dropped=allow_dropped, accept_duplicates=accept_duplicates)
    require_spark()
    ready = Ready.inherited()
    wanted = None
    if point:
        maps = tuple(map or ())
        wanted = RestoreRequest(point, accept_duplicates, maps, allow_dropped, offsets=offsets, claim=claim)
    # no other directory's attempts come near those of one that takes over
    above = 0 if take_over is None else take_over + 1000 + randbelow(9000)
    inputs = Inputs(
        file.absolute(),
        arguments or [],
        settings_file(config, beside=file),
        dict(os.environ),
        given,
        wanted,
        job_name(name) if name else "",
        max(above, attempt_of(wanted.point) if wanted else 0),
        take_over,
    )
    if ready is not None:
        raise typer.Exit(ready.supervise(inputs))
    if detached:
        start_detached(inputs)
    else:
        raise typer.Exit(_foreground(inputs))


def _check_no_changes(map: list[str] | None, *, allow_dropped: bool, accept_duplicates: bool) -> None:
    """Refuse what only a restore can do: a plain start would pass it over, and do something else."""
    given = {
        "--map": next(iter(map or ()), ""),
        "-n": "true" if allow_dropped else "",
        "--accept-duplicates": "true" if accept_duplicates else "",
    }
    for key, value in given.items():
        if value:
            reason = "it goes with -s POINT; a start without it resumes from the live files, as they are"
            raise BadValueError(key=key, value=value, origin="the command line", reason=reason)


def _foreground(inputs: Inputs) -> int:
    with terminal() as watcher:
        state, failure = Supervisor(inputs, watcher, Clock()).run()
    body: dict[str, Any] = {"job": watcher.job, "state": state.value}
    body |= {"attempt": watcher.attempt, "batches": watcher.batches}
    if failure is not None and state is JobState.FAILED:
        say.say_error(**error_form(failure), **body)
    elif say.form is say.OutputForm.JSON:
        say.say_json(body)
    return exit_code(state, failure)


def exit_code(state: JobState, failure: Failure | None) -> int:
    """What the end of a job means for whoever started it."""
    if state is not JobState.FAILED:
        return 0
    return failure.exit_code if failure else 1
