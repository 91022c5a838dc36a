"""`weir logs`: what a job's driver printed, attempt after attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory
from weir.cli.tail import Chain, follow, last_lines
from weir.clock import Clock
from weir.errors import BadValueError, NoOutputError
from weir.ids import job_name
from weir.storage import paths
from weir.storage.open import beside
from weir.supervisor.view import look

Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, across attempts.")]
Lines = Annotated[int, typer.Option("-n", "--lines", min=-1, help="How many of the last lines; -1 for all.")]
OfAttempt = Annotated[
    int | None, typer.Option("--attempt", min=1, metavar="N", help="Of this attempt instead of the newest.")
]
OfSupervisor = Annotated[
    bool, typer.Option("--supervisor", help="The notes of the supervisor, which a detached run keeps.")
]


def logs(
    job: JobOf,
    follows: Follow = False,
    lines: Lines = 100,
    attempt: OfAttempt = None,
    supervisor: OfSupervisor = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Show what a job's driver printed.

    Standard output and standard error of the newest attempt, unless another one is asked for.
    With -f it goes on, also when the driver is started again, until the job has ended.

    \b
    Example: weir logs wordcount -f -n 20
    """
    if json and follows:
        reason = "what is followed has no end, and one JSON object needs one"
        raise BadValueError(key="--json", value="-f", origin="the command line", reason=reason)
    place = directory(dir, config, define)
    standing = look(place, job, Clock())
    chain = _chain(beside(place, paths.logs(job_name(job))), supervisor, attempt)
    if not chain.files():
        raise _nothing(job, place, chain, attempt, supervisor)
    if json:
        with open(chain.files()[-1], "rb") as newest:
            text = b"".join(last_lines(chain, lines, newest)).decode(errors="replace")
        said = {"job": job, "attempt": chain.attempt, "supervisor": supervisor, "state": standing.state}
        say.say_json(said | {"files": list(map(str, chain.files())), "lines": text.splitlines()})
        return
    ended = (lambda: look(place, job, Clock()).over) if follows else None
    follow(chain, lines, ended)


def _chain(folder: Path, supervisor: bool, attempt: int | None) -> Chain:
    """What to read: the supervisor's log, one attempt's, or from the newest attempt on."""
    if supervisor:
        return Chain(folder, "supervisor.log", None)
    if attempt is not None:
        return Chain(folder, f"driver-{attempt:06d}.log", attempt)
    return Chain.newest(folder)


def _nothing(job: str, dir: str, chain: Chain, attempt: int | None, supervisor: bool) -> NoOutputError:
    if supervisor:
        reason, todo = "only a run with -d keeps the supervisor's notes", _shows("status", job, dir)
        return NoOutputError(whose="the supervisor", job=job, reason=reason, todo=todo)
    there = ", ".join(map(str, Chain.attempts(chain.folder)))
    reason = f"there is output of attempt {there}" if there else "no driver has been started by a supervisor"
    whose = f"attempt {attempt}" if attempt else "any attempt"
    return NoOutputError(whose=whose, job=job, reason=reason, todo=_shows("logs", job, dir))


def _shows(verb: str, job: str, dir: str) -> str:
    return f"'{command(verb, job, dir)}' shows what there is"
