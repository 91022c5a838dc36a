"""`weir clean`: what a job has left that nothing needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, overrides, settings_file
from weir.client import upkeep as verbs
from weir.client.ask import Caller
from weir.config import resolve
from weir.supervisor.leftovers import JobLeftover

Yes = Annotated[bool, typer.Option("-y", "--yes", help="Delete the files; without it they are only listed.")]
_KINDS = {
    "log": "output of old attempts",
    "attempt": "records of old attempts",
    "answer": "answers that were never read",
    "shape": "shapes of old starts",
    "generation": "files of old generations",
    "scratch": "scratch directories of drivers that have ended, of any job",
}


def clean(
    job: JobOf,
    yes: Yes = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Show or delete files that a job no longer needs.

    These are the files beyond history.retain-logs, history.retain-attempts and
    history.retain-generations, and the scratch directories that killed drivers of any of your jobs
    left in the temporary directory. Each start of the job deletes the same. Nothing is deleted that a
    checkpoint, a restore or a running driver needs, and no savepoint.

    \b
    Example: weir clean wordcount -D history.retain-logs=3 -y
    """
    given = overrides(define, dir=dir)
    settings = resolve(file=settings_file(config), environ=os.environ, overrides=given).settings
    place = settings.execution_checkpointing_dir
    done = verbs.clean(Caller(place, job), settings, delete=yes)
    found = done.leftovers
    if json:
        say.say_json(done.form())
        return
    for kind, text in _KINDS.items():
        of_kind = [one for one in found if one.kind == kind]
        if of_kind:
            say.say(f"{len(of_kind):6d}  {_size(of_kind):>8}  {text}")
            for one in of_kind[:3]:
                say.say(f"                  {one.path}")
            if len(of_kind) > 3:
                say.say(f"                  and {len(of_kind) - 3} more (--json shows them all)")
    if not found:
        say.say("there is nothing to delete")
    elif yes:
        say.say(f"deleted: {_size(found)}")
    else:
        say.say(f"nothing is deleted yet: '{command('clean', job, place, ' -y')}' does it")


def _size(found: Sequence[JobLeftover]) -> str:
    return say.size(sum(one.bytes or 0 for one in found))
