"""`weir plan`: what will become of every piece of state, before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, overrides, settings_file
from weir.cli.points import (
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
from weir.cli.run import Arguments, As, Conf, File, Master
from weir.cli.with_spark import ask_of
from weir.errors import JobFileError

Point = Annotated[
    str,
    typer.Option(
        "-s", "--from-savepoint", metavar="POINT", help="A savepoint's directory, chk-41 or latest (default)."
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

    What 'weir run -s' would make of every source, operator and sink, before anything is touched.

    Spark's planner is asked what each query of the job file is now, and that is compared with what
    the savepoint or checkpoint has. Nothing is written, and no job need be stopped for it. Exit code:
    0 it fits, 10 something would be lost (-n allows it), 11 it must be said what becomes of what
    (--map), or that a source is read from its beginning (--set-offsets), 12 it does not fit.

    \b
    Example: weir plan wordcount.py -s savepoints/wordcount-12 --parallelism 8
    """
    answer = ask_planner(
        file,
        arguments,
        config,
        settings=overrides(define, conf=conf, master=master, dir=dir) | shape_of(parallelism, state_backend),
        point=as_point(point),
        maps=list(map or ()),
        allow_dropped=allow_dropped,
        accept_duplicates=accept_duplicates,
        offsets=offsets_of(set_offsets),
        name=name or "",
    )
    if json:
        say.say_json({key: answer[key] for key in ("job", "point", "checkpoint", "plan")})
    else:
        if point == "latest":
            say.note(f"the latest point is {answer['point']}")
        say.say(answer["text"])
    raise typer.Exit(answer["code"])


def ask_planner(
    file: Path, arguments: list[str] | None, config: Path | None, **request: Any
) -> dict[str, Any]:
    """What `weir.driver.planning` answers of a job file; its failure is this command's failure."""
    if not file.is_file():
        raise JobFileError(file=file, reason="there is no such file", todo="check the path")
    found = settings_file(config, beside=file)
    return ask_of(
        "weir.driver.planning",
        "asking Spark's planner",
        {**request, "config": str(found) if found else ""},
        str(file.absolute()),
        *(arguments or ()),
    )
