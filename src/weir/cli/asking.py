"""Asking a running job for something from a terminal: what several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.options import command
from weir.errors import NotDoneError
from weir.supervisor import asking
from weir.supervisor.asking import Wish
from weir.supervisor.view import Standing

__all__ = ["Timeout", "Wish", "ask", "not_done", "refuse_without_supervisor", "shown_by"]

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0, help="Stop waiting after so long; what was asked for goes on."
    ),
]


def refuse_without_supervisor(job: Standing, dir: str, verb: str) -> None:
    """Raise when nobody is there who could do this to the job."""
    asking.refuse_without_supervisor(job, verb, shown_by(job.name, dir))


def ask(
    dir: str,
    job: Standing,
    wish: Wish,
    arguments: Mapping[str, Any],
    timeout: float | None,
    meanwhile: Callable[[str], None] = asking.nothing,
) -> dict[str, Any]:
    """Ask, and wait for the answer, whatever it is; raises when there will be none, or none in time.

    Ctrl-C ends the waiting, and says that what was asked for continues.
    """
    try:
        return asking.ask(dir, job, wish, arguments, timeout, shown_by(job.name, dir), meanwhile)
    except KeyboardInterrupt:
        say.note(f"no longer waiting; the {wish.verb} of {job.name} continues: {shown_by(job.name, dir)}")
        raise


def not_done(job: Standing, dir: str, wish: Wish, answer: Mapping[str, Any]) -> NotDoneError:
    """The answer of a job that could not do it, as an error."""
    return asking.not_done(job, wish, answer, shown_by(job.name, dir))


def shown_by(job: str, dir: str) -> str:
    return f"'{command('status', job, dir)}' shows how it stands"
