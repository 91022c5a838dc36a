"""`weir savepoints`: the catalogue of savepoints."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich.table import Table

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, directory, savepoint_dir
from weir.clock import Clock
from weir.monitor import forms
from weir.monitor.job import look
from weir.monitor.savepoints import known
from weir.savepoint.catalogue import CatalogueEntry
from weir.savepoint.restorable import Restorability

Job = Annotated[str | None, typer.Argument(metavar="JOB", help="List only those of this job.")]


def savepoints(
    job: Job = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """List the savepoints, and what can be restored.

    Lists the savepoints below execution.checkpointing.savepoint-dir, and those that the jobs have
    taken elsewhere: when, why and by whom each was taken, its size, when it was verified, and whether
    the present code can restore it. The version is that of the job file at that time. Whether one can
    be restored follows from what the job's last start recorded about its queries, as long as the job
    file is the same; if it is unknown, 'weir plan' asks Spark. 'weir verify' checks the files of one.

    \b
    Example: weir savepoints wordcount
    """
    place = directory(dir, config, define)
    found = known(place, job, savepoint_dir(config, define))
    if job and not found:
        look(place, job, Clock())  # raises when there is no such job either
    if json:
        say.say_json({"savepoints": [forms.savepoint(one) for one in found]})
    elif not found:
        say.say(f"{job} has no savepoint" if job else "there is no savepoint")
    else:
        _say(found)


def _say(found: list[CatalogueEntry]) -> None:
    now = Clock().now()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("job", "id", "taken", "by", "why", "version"):
        table.add_column(name, overflow="fold", no_wrap=name in ("id", "taken"))
    table.add_column("size", justify="right", no_wrap=True)
    for name in ("verified", "restorable"):
        table.add_column(name, overflow="fold")
    for one in found:
        saved = one.savepoint
        if saved is not None:
            table.add_row(
                saved.job,
                str(saved.id),
                say.when(saved.taken_at, now),
                saved.taken_by,
                saved.trigger,
                saved.job_version[:7] or "-",
                say.size(saved.bytes),
                say.verified(one.verified, now),
                one.restorable.answer.value if one.restorable else "-",
            )
    if table.row_count:
        say.out.print(table)
    for one in found:
        say.say(f"{one.place}: {one.trouble}" if one.trouble else one.place)
        if one.restorable is None or one.restorable.answer is Restorability.YES:
            continue
        if one.restorable.answer is Restorability.UNKNOWN:
            command = f"weir plan FILE -s {shlex.quote(one.place)}"
            say.say(f"  {one.restorable.why}; to find out: {command}")
        else:
            say.say(f"  {one.restorable.answer.value}: {one.restorable.why}")
