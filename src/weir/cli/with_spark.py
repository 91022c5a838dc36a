"""What needs Spark is done by a process of its own; this one asks and shows (`supervisor/child.py`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.options import overrides, settings_file
from weir.preflight import require_spark
from weir.supervisor.child import ask_child

Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's own, spark.*. Repeatable."),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; without it, this machine.")
]

_SHOWN = 8000
"""So many characters of what Spark printed are shown when it failed."""


def session(conf: Sequence[str] | None, master: str | None, config: Path | None) -> dict[str, Any]:
    """The part of a request that says which Spark it wants."""
    found = settings_file(config)
    given = overrides(None, conf=conf, master=master or "local[*]")
    return {"config": str(found) if found else None, "settings": given}


def ask(text: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    """What `python -m weir.state` answers to a request; its failure is this command's failure."""
    return ask_of("weir.state", text, {key: value for part in parts for key, value in part.items()})


def ask_of(module: str, text: str, request: Mapping[str, Any], *arguments: str) -> dict[str, Any]:
    """What a module answers to a request; a failure of it is said, and is this command's failure."""
    require_spark()
    with say.waiting(text):
        body, said = ask_child(module, request, *arguments)
    if "error" in body:
        error = body["error"]
        if error.get("log"):
            sys.stderr.write(said[-_SHOWN:])
        say.say_error(error["what"], error["why"], error["hint"])
        raise typer.Exit(error["exit_code"])
    return body
