"""How the command line speaks: to people on standard error, in one form for every failure."""

from __future__ import annotations

from rich.console import Console

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, soft_wrap=True)


def say_error(what: str, why: str, hint: str) -> None:
    """What happened, why, what to do: a line each."""
    err.print(f"[bold red]error[/]: {_plain(what)}", markup=True)
    if why:
        err.print(f"  why: {_plain(why)}", markup=True)
    if hint:
        err.print(f"  what to do: {_plain(hint)}", markup=True)


def note(text: str) -> None:
    err.print(f"weir: {text}", markup=False)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
