"""`weir restore`: take a job back to a checkpoint or savepoint; or take such a wish back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from weir.checkpoint.restore import Changes, From, intend
from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.options import (
    AsJson,
    Define,
    Directory,
    JobOf,
    SettingsFile,
    command,
    directory,
    overrides,
    settings_file,
)
from weir.cli.points import (
    AcceptDuplicates,
    AllowDropped,
    Backend,
    Claim,
    Maps,
    Parallelism,
    SetOffsets,
    as_point,
    check_claim,
    elsewhere,
    offsets_of,
    shape_of,
)
from weir.cli.saving import savepoint_dir
from weir.clock import Clock
from weir.config import resolve
from weir.errors import BadValueError, NoSuchJobError, NotDoneError
from weir.ids import job_name
from weir.storage import generations, open_store
from weir.storage.generations import read_origin
from weir.supervisor.asking import RESTORE
from weir.supervisor.idle import Idle
from weir.supervisor.restoring import WHY
from weir.supervisor.view import Standing, look

Point = Annotated[
    str | None,
    typer.Argument(metavar="POINT", help="chk-41, 41, latest, a savepoint, or a chk-41.json in a copy-dir."),
]
Withdraw = Annotated[
    bool,
    typer.Option("--withdraw", help="Give up a restore that was asked for and has not been done yet."),
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
    """Take a job back to a checkpoint or savepoint.

    All queries, the streams between them and what was delivered go back together; the files from
    before are left as they are. A running job finishes its batches, and goes on from the checkpoint
    at once, with its file as it is now; if that can't be done, it goes on where it was. A job that
    has ended goes back at its next 'weir run'; until then --withdraw takes that back. 'weir
    checkpoints' shows where a job can go back to, and 'weir plan' what becomes of the state of a job
    that has changed.

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
    changes = Changes(
        maps=tuple(map or ()),
        allow_dropped=allow_dropped,
        parallelism=parallelism,
        backend=settings.state_backend_type.value if state_backend else None,
        offsets=offsets_of(set_offsets),
        claim=claim,
    )
    wanted = From(wanted_point, accept_duplicates, changes)
    standing = _standing(place, job, wanted.point)
    if standing is None or standing.over:
        idle = Idle.of(place, job, standing)
        _intend(idle, standing.file if standing else "", wanted, savepoint_dir(config, define) or "")
        return
    refuse_without_supervisor(standing, place, "restore")
    with say.waiting(f"waiting for {job} to go on from {wanted.point}"):
        answer = ask(place, standing, RESTORE, wanted.to_wire(), timeout)
    if not answer["done"]:
        raise not_done(standing, place, RESTORE, answer)
    body = {key: answer[key] for key in ("checkpoint", "generation", "seconds")}
    if json:
        say.say_json({"job": job, "point": wanted.point, **body, "live": True})
        return
    say.say(f"{job} goes on from checkpoint {body['checkpoint']}, as generation {body['generation']}")


def _standing(dir: str, job: str, point: str) -> Standing | None:
    """How the job stands; None for one whose directory is lost, and that comes back from its copies."""
    try:
        return look(dir, job, Clock())
    except NoSuchJobError:
        if elsewhere(point):
            return None
        raise


def _intend(idle: Idle, file: str, wanted: From, saved_to: str) -> None:
    """Nobody runs the job: write down where its next start goes on."""
    dir, job = idle.dir, idle.job
    store, name = open_store(dir), job_name(job)
    with say.waiting(f"checking {wanted.point}"):
        generation = intend(
            store,
            name,
            wanted.point,
            accept_duplicates=wanted.accept_duplicates,
            clock=Clock(),
            why=WHY,
            changes=wanted.changes,
            savepoint_dir=saved_to,
            still=idle.check,
        )
    origin = read_origin(store, name, generation)
    checkpoint = origin.checkpoint if origin else None
    if say.form is say.Form.JSON:
        body = {"job": job, "point": wanted.point, "checkpoint": checkpoint, "generation": generation}
        say.say_json(body | {"seconds": None, "live": False})
        return
    source = f"savepoint {origin.restored_from}" if origin and origin.saved else f"checkpoint {checkpoint}"
    run = " ".join(["weir run", file or "FILE", *_shape_options(wanted.changes)])
    say.say(f"the next '{run}' goes on from {source}")
    say.note(f"to take that back: {command('restore', job, dir, ' --withdraw')}")


def _shape_options(changes: Changes) -> Sequence[str]:
    """What the next start must be told, too, so that its settings are those of the new state."""
    given = {"--parallelism": changes.parallelism, "--state-backend": changes.backend}
    return [f"{option} {value}" for option, value in given.items() if value is not None]


def _withdraw(dir: str, job: str, point: str | None, withdraw: bool) -> None:
    """Give up what is written down for the next start; nobody may run the job meanwhile."""
    if withdraw == (point is not None):
        reason = "it takes back what was asked for before" if withdraw else "where to go on must be said"
        raise BadValueError(key="POINT", value=point or "", origin="the command line", reason=reason)
    standing = look(dir, job, Clock())
    idle = Idle.of(dir, job, standing)
    store, name = open_store(dir), job_name(job)
    opening = generations.opening(store, name)
    origin = read_origin(store, name, opening) if opening else None
    what = f"no restore of job {job!r} was withdrawn"
    if opening is None or origin is None:
        raise NotDoneError(
            what=what, why="none is written down", hint=f"'weir status {job}' shows how it stands"
        )
    idle.check()
    if not generations.drop(store, name, opening, "withdrawn by the user"):
        why = f"sinks are being rewound to {origin.restored_from}, so the live files are ahead of them"
        raise NotDoneError(what=what, why=why, hint=f"'weir run {standing.file or 'FILE'}' takes it up again")
    begun = generations.awaited(store, name)
    if say.form is say.Form.JSON:
        say.say_json({"job": job, "withdrawn": origin.restored_from, "generation": opening})
        return
    where = f"resumes the restore from {begun}, which has begun" if begun else f"goes on where {job} was"
    say.say(f"withdrawn: the next 'weir run {standing.file or 'FILE'}' {where}")
