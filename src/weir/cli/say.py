"""How the command line speaks: people get lines and tables, programs one JSON object.

With `--json` standard output carries one object and nothing else, also when the command fails; notes
on the way go to standard error in both forms. Every failure is what / why / what to do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from weir.text import counted, lasting, number, seconds_since, size, took, when, without_escapes

if TYPE_CHECKING:
    from datetime import datetime

    from rich.progress import Progress

    from weir.savepoint.verify import Verified

__all__ = [
    "Bar",
    "OutputForm",
    "bar",
    "counted",
    "err",
    "form",
    "lasting",
    "note",
    "number",
    "out",
    "say",
    "say_error",
    "say_json",
    "say_styled",
    "seconds_since",
    "size",
    "speak",
    "took",
    "verified",
    "waiting",
    "when",
]


class _Console(Console):
    """A console that prints no text of somebody else's as a command to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else without_escapes(text), style, control)


err = _Console(stderr=True, highlight=False, soft_wrap=True)
out = _Console(highlight=False)


class OutputForm(Enum):
    """For whom this command speaks."""

    PEOPLE = "lines and tables"
    JSON = "one JSON object"


form = OutputForm.PEOPLE


def speak(chosen: OutputForm) -> None:
    """From now on, speak in this form."""
    global form
    form = chosen


def say_error(what: str, why: str, hint: str, **more: Any) -> None:
    """What happened, why, what to do: a line each, or `{"error": {...}}` with `more` beside it."""
    if form is OutputForm.JSON:
        say_json({**more, "error": {"what": what, "why": why, "hint": hint}})
        return
    err.print("[bold red]error[/]:", end=" ")
    err.print(what, markup=False)
    if why:
        err.print(f"  why: {why}", markup=False)
    if hint:
        err.print(f"  what to do: {hint}", markup=False)


def say_json(body: dict[str, Any]) -> None:
    """The one object of a command."""
    sys.stdout.write(json.dumps(body, indent=2, default=str) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Something on the way, for whoever looks."""
    err.print(f"weir: {text}", markup=False)


def say(text: str = "") -> None:
    """A line of the answer."""
    out.print(text, markup=False, soft_wrap=True)


def say_styled(*parts: str | Text) -> None:
    """A line of the answer with colours, where there is a terminal."""
    out.print(Text.assemble(*parts), soft_wrap=True)


def verified(found: Verified | None, now: datetime) -> str:
    """When a savepoint was verified, and what was found."""
    if found is None:
        return "never"
    if not found.whole:
        return f"damaged: {found.damage[0]}"
    return when(found.at, now) + ("" if found.rows is None else ", loaded")


class Bar:
    """How far something is, in bytes. Any thread may call."""

    def __init__(self, text: str, shown: Progress | None) -> None:
        self._shown = shown
        self._task = shown.add_task(text, total=None) if shown else None
        self._done, self._waits = 0, False

    def __call__(self, done: int, total: int) -> None:
        self._done = max(self._done, done)
        if self._shown is not None and self._task is not None and not self._waits:
            self._shown.update(self._task, completed=done, total=total)

    def phase(self, text: str) -> None:
        """What it does now."""
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, description=text)

    def wait(self, text: str) -> None:
        """All is read, and how long the rest takes is not known: the bar moves, and shows no time."""
        if self._shown is not None and self._task is not None:
            self._waits = True  # another thread may still report what it has read
            self._shown.update(self._task, visible=False)  # a total can't be taken away from it
            self._task = self._shown.add_task(text, total=None, completed=self._done)


@contextmanager
def bar(text: str) -> Iterator[Bar]:
    """A bar that grows while something takes long; a plain note where there is no terminal."""
    if not err.is_terminal:
        note(text)
        yield Bar(text, None)
        return
    from rich.progress import (  # noqa: PLC0415  only where something takes long
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as shown:
        yield Bar(text, shown)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A line that moves while something takes long; a plain note where there is no terminal."""
    if not err.is_terminal:
        note(text)
        yield
        return
    with err.status(text):
        yield
