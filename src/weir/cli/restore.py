"""`weir restore`: restore a job to a checkpoint or savepoint; or cancel such a restore."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from weir.cli import say
from weir.cli.ask import Timeout, caller
from weir.cli.complete import complete_point
from weir.cli.options import (
    AsJson,
    Define,
    Directory,
    JobOf,
    SettingsFile,
    command,
    directory,
    overrides,
    savepoint_dir,
    settings_file,
)
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
from weir.client import restore as verbs
from weir.client.ask import Caller
from weir.config import resolve
from weir.errors import BadValueError
from weir.restore.request import RestoreRequest

Point = Annotated[
    str | None,
    typer.Argument(
        metavar="POINT",
        help="chk-41, 41, latest, a savepoint, or a chk-41.json in a copy-dir.",
        autocompletion=complete_point,
    ),
]
Withdraw = Annotated[
    bool,
    typer.Option("--withdraw", help="Cancel a restore that was requested and has not taken effect."),
]


def restore(
    job: JobOf,
    point: Point = None,
    accept_duplicates: AcceptDuplicates = False,
    allow_dropped: AllowDropped = False,
    map: Maps = None,
    set_offsets: SetOffsets = None,
    parallelism: Parallelism = None,
    state_backend: Backend = None,
    claim: Claim = False,
    withdraw: Withdraw = False,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Restore a job to a checkpoint or savepoint.

    All queries, the streams between them and the delivered output are rewound together; the earlier
    files are not changed. A running job finishes its batches and resumes from the checkpoint at once,
    with its present job file; if that fails, it continues where it was. A job that has ended is
    restored at its next 'weir run'; until then --withdraw cancels the restore. 'weir checkpoints' lists
    the checkpoints, and 'weir plan' shows what becomes of the state if the job has changed.

    \b
    Example: weir restore wordcount chk-41
             weir restore wordcount latest --parallelism 8
    """
    place = directory(dir, config, define)
    if withdraw or point is None:
        _withdraw(place, job, point, withdraw)
        return
    wanted_point = as_point(point)
    check_claim(claim, wanted_point)
    shape = shape_of(parallelism, state_backend)
    settings = resolve(
        file=settings_file(config), environ=os.environ, overrides=overrides(define) | shape
    ).settings
    wanted = RestoreRequest(
        wanted_point,
        accept_duplicates,
        maps=tuple(map or ()),
        allow_dropped=allow_dropped,
        parallelism=parallelism,
        backend=settings.state_backend_type.value if state_backend else None,
        offsets=offsets_of(set_offsets),
        claim=claim,
    )
    text = f"waiting for {job} to resume from {wanted.point}"
    done = verbs.restore(
        caller(place, job, "restore", text, timeout),
        wanted,
        savepoint_dir=savepoint_dir(config, define) or "",
        checking=lambda: say.waiting(f"checking {wanted.point}"),
    )
    if json:
        say.say_json(done.form())
    elif done.live:
        say.say(f"{job} resumes from checkpoint {done.checkpoint}, as generation {done.generation}")
    else:
        source = f"savepoint {done.savepoint}" if done.savepoint else f"checkpoint {done.checkpoint}"
        # the next start needs them too, so that its settings are those of the new state
        given = {"--parallelism": wanted.parallelism, "--state-backend": wanted.backend}
        options = [f"{option} {value}" for option, value in given.items() if value is not None]
        run = " ".join(["weir run", done.file or "FILE", *options])
        say.say(f"the next '{run}' resumes from {source}")
        say.note(f"to cancel it: {command('restore', job, place, ' --withdraw')}")


def _withdraw(dir: str, job: str, point: str | None, withdraw: bool) -> None:
    """Withdraw the restore that is recorded for the next start; nobody may run the job meanwhile."""
    if withdraw == (point is not None):
        reason = "--withdraw takes no point" if withdraw else "name the point to resume from"
        raise BadValueError(key="POINT", value=point or "", origin="the command line", reason=reason)
    done = verbs.withdraw(Caller(dir, job))
    if say.form is say.OutputForm.JSON:
        say.say_json(done.form())
        return
    begun = f"resumes the restore from {done.begun}, which has begun"
    where = begun if done.begun else f"resumes where {job} was"
    say.say(f"cancelled: the next 'weir run {done.file or 'FILE'}' {where}")
