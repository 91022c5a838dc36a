"""`weir doctor`: whether a job could run here."""

from __future__ import annotations

import typer
from rich.table import Table

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, directory
from weir.preflight import CheckVerdict, Finding, run_checks
from weir.spark import local_files

_STYLES = {CheckVerdict.OK: "green", CheckVerdict.WARNING: "yellow", CheckVerdict.FAILED: "bold red"}


def doctor(
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Check whether a job can run here.

    Java, Python, packages, writable storage, free disk. Exit code 1 if a check
    failed; a warning is not a failure.

    \b
    Example: weir doctor --dir /mnt/jobs
    """
    place = directory(dir, config, define)
    checks = [*run_checks(place), local_files.check()]
    failed = any(check.verdict is CheckVerdict.FAILED for check in checks)
    if json:
        shown = [
            {"name": c.name, "verdict": c.verdict.value, "found": c.found, "todo": c.todo} for c in checks
        ]
        say.say_json({"dir": place, "ok": not failed, "checks": shown})
    else:
        say.out.print(_table(checks))
    if failed:
        raise typer.Exit(1)


def _table(checks: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        table.add_row(check.name, f"[{_STYLES[check.verdict]}]{check.verdict.value}[/]", _plain(check.found))
        if check.todo:
            table.add_row("", "", _plain(f"what to do: {check.todo}"))
    return table


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
