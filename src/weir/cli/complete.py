"""What of a job's checkpoints and savepoints a shell may complete.

The functions return what begins with what is typed, or nothing: then the shell offers files. They open no
savepoint, and look at no other place than the directory of the jobs.
"""

from __future__ import annotations

from contextlib import suppress

import typer

from weir.checkpoint import manifest as mf
from weir.cli.options import beginning, complete_job, names_of, place_of
from weir.errors import WeirError
from weir.ids import job_name
from weir.monitor.savepoints import places
from weir.restore.request import LATEST
from weir.storage import open_store

_ON_SAVEPOINTS = ("show", "copy", "convert", "dispose")
"""The second words of 'weir savepoint'."""


def complete_point(ctx: typer.Context, incomplete: str) -> list[str]:
    """What a job can be restored to: its completed checkpoints, the newest first, and its savepoints."""
    found: list[str] = []
    with suppress(WeirError):
        place, job = place_of(ctx), job_name(str(ctx.params.get("job")))
        found = names_of(mf.completed(open_store(place), job), incomplete)
        found += beginning(incomplete, [LATEST, *places(place, job)])
    return found


def complete_savepoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """The savepoints that the jobs have taken, where they were written; the newest of a job first."""
    with suppress(WeirError):
        return beginning(incomplete, places(place_of(ctx)))
    return []


def complete_job_or_word(ctx: typer.Context, incomplete: str) -> list[str]:
    """After 'weir savepoint': the names of jobs, and its second words."""
    return [*complete_job(ctx, incomplete), *beginning(incomplete, _ON_SAVEPOINTS)]
