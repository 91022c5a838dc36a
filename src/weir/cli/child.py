"""Asking a process that has Spark, from a terminal: its failure is this command's failure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer

from weir.cli import say
from weir.preflight import require_java
from weir.supervisor.planning import child

_SHOWN = 8000


def ask_child(module: str, request: Mapping[str, Any], waiting: str, *arguments: str) -> dict[str, Any]:
    """What `python -m MODULE REQUEST RESULT ARGUMENTS` answers; its failure is this command's failure."""
    require_java()
    with say.waiting(waiting):
        body, said = child(module, request, *arguments)
    if "error" in body:
        error = body["error"]
        if error.get("log"):
            sys.stderr.write(said[-_SHOWN:])
        say.say_error(error["what"], error["why"], error["hint"])
        raise typer.Exit(error["exit_code"])
    return body
