"""`weir restore`: take a job back to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.checkpoint.restore import intend
from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.clock import Clock
from weir.errors import NoSuchJobError
from weir.ids import job_name
from weir.storage import open_store
from weir.storage.generations import read_origin
from weir.supervisor.asking import RESTORE
from weir.supervisor.restoring import WHY
from weir.supervisor.view import Standing, look

Point = Annotated[
    str,
    typer.Argument(metavar="POINT", help="chk-41, 41, latest, a savepoint, or a chk-41.json in a copy-dir."),
]
AcceptDuplicates = Annotated[
    bool,
    typer.Option("--accept-duplicates", help="Also behind output that can't be taken back: it comes twice."),
]


def restore(
    job: JobOf,
    point: Point,
    accept_duplicates: AcceptDuplicates = False,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Take a job back to a checkpoint.

    All queries, the streams between them and what was delivered go back together; the files from
    before are left as they are. A running job finishes its batches, and goes on from the checkpoint
    at once. A job that has ended does so at its next 'weir run'. 'weir checkpoints' shows where a
    job can go back to.

    \b
    Example: weir restore wordcount chk-41
    """
    wanted = as_point(point)
    place = directory(dir, config, define)
    standing = _standing(place, job, wanted)
    if standing is None or standing.over:
        _intend(place, job, standing.file if standing else "", wanted, accept_duplicates)
        return
    refuse_without_supervisor(standing, place, "restore")
    with say.waiting(f"waiting for {job} to go on from {wanted}"):
        arguments = {"point": wanted, "accept_duplicates": accept_duplicates}
        answer = ask(place, standing, RESTORE, arguments, timeout)
    if not answer["done"]:
        raise not_done(standing, place, RESTORE, answer)
    body = {key: answer[key] for key in ("checkpoint", "generation", "seconds")}
    if json:
        say.say_json({"job": job, "point": wanted, **body, "live": True})
        return
    say.say(f"{job} goes on from checkpoint {body['checkpoint']}, as generation {body['generation']}")


def as_point(text: str) -> str:
    """As the job understands it, wherever it runs: a file is named from the root."""
    if text.isdigit():
        return f"chk-{int(text)}"
    return str(Path(text).absolute()) if _elsewhere(text) and "://" not in text else text


def _elsewhere(point: str) -> bool:
    """Whether it is a place outside of the job: a manifest in a copy-dir, or a savepoint."""
    return "/" in point or point.endswith(".json") or Path(point).is_dir()


def _standing(dir: str, job: str, point: str) -> Standing | None:
    """How the job stands; None for one whose directory is lost, and that comes back from its copies."""
    try:
        return look(dir, job, Clock())
    except NoSuchJobError:
        if _elsewhere(point):
            return None
        raise


def _intend(dir: str, job: str, file: str, point: str, accept_duplicates: bool) -> None:
    """Nobody runs the job: write down where its next start goes on."""
    store, name = open_store(dir), job_name(job)
    with say.waiting(f"checking {point}"):
        generation = intend(store, name, point, accept_duplicates=accept_duplicates, clock=Clock(), why=WHY)
    origin = read_origin(store, name, generation)
    checkpoint = origin.checkpoint if origin else None
    if say.form is say.Form.JSON:
        body = {"job": job, "point": point, "checkpoint": checkpoint, "generation": generation}
        say.say_json(body | {"seconds": None, "live": False})
        return
    source = f"savepoint {origin.restored_from}" if origin and origin.saved else f"checkpoint {checkpoint}"
    say.say(f"the next 'weir run {file or 'FILE'}' goes on from {source}")
