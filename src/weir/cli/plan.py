"""`weir plan`: what will become of every piece of state, before anything is touched."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.complete import complete_savepoint
from weir.cli.options import AsJson, Conf, Define, Directory, SettingsFile, overrides, settings_file
from weir.cli.restore_options import (
    AcceptDuplicates,
    AllowDropped,
    Backend,
    Maps,
    Parallelism,
    SetOffsets,
    as_point,
    offsets_of,
    shape_of,
)
from weir.cli.run import Arguments, As, File, Master
from weir.client.spark import plan_of

ASKING = "asking Spark's planner"
Point = Annotated[
    str,
    typer.Option(
        "-s",
        "--from-savepoint",
        metavar="POINT",
        help="A savepoint's directory, chk-41 or latest (default).",
        autocompletion=complete_savepoint,
    ),
]


def plan(
    file: File,
    arguments: Arguments = None,
    point: Point = "latest",
    allow_dropped: AllowDropped = False,
    map: Maps = None,
    set_offsets: SetOffsets = None,
    parallelism: Parallelism = None,
    state_backend: Backend = None,
    accept_duplicates: AcceptDuplicates = False,
    name: As = None,
    define: Define = None,
    conf: Conf = None,
    master: Master = None,
    dir: Directory = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Show what becomes of the state of a changed job.

    Shows what 'weir run -s' would do with every source, operator and sink, before anything is changed.

    Spark's planner describes each query of the job file, and this is compared with what the savepoint
    or checkpoint has. Nothing is written, and the job may keep running. Exit code: 0 it fits, 10
    something would be lost (-n allows it), 11 something must be mapped (--map), or a source must be
    read from its beginning (--set-offsets), 12 it does not fit.

    \b
    Example: weir plan wordcount.py -s savepoints/wordcount-12 --parallelism 8
    """
    made = plan_of(
        file,
        arguments or (),
        settings=overrides(define, conf=conf, master=master, dir=dir) | shape_of(parallelism, state_backend),
        settings_file=settings_file(config, beside=file),
        point=as_point(point),
        maps=map or (),
        allow_dropped=allow_dropped,
        accept_duplicates=accept_duplicates,
        offsets=offsets_of(set_offsets),
        name=name or "",
        waiting=lambda: say.waiting(ASKING),
    )
    if json:
        say.say_json({key: made.form()[key] for key in ("job", "point", "checkpoint", "plan")})
    else:
        if point == "latest":
            say.note(f"the latest point is {made.point}")
        say.say(made.text)
    raise typer.Exit(made.code)
