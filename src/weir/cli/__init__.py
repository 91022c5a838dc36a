"""The command line: one file a verb. No verb imports pyspark; those that need Spark start a driver.

A verb's file is loaded when the verb is asked for, so that `weir list` does not pay for `weir run`.
`main` turns every failure into what / why / what to do and an exit code; the codes are in
`EXIT_CODES`.
"""

from __future__ import annotations

import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from weir.cli import say, shell
from weir.errors import SparkToolError, WeirError, error_form

VERBS = {
    "run": "run",
    "list": "list_jobs",
    "status": "status",
    "top": "top",
    "dashboard": "dashboard",
    "cancel": "cancel",
    "stop": "stop",
    "checkpoint": "checkpoint",
    "checkpoints": "checkpoints",
    "savepoint": "savepoint",
    "savepoint show": "show",
    "savepoint copy": "copy",
    "savepoint convert": "convert",
    "savepoint dispose": "dispose",
    "savepoints": "savepoints",
    "verify": "verify",
    "plan": "plan",
    "repair": "repair",
    "restore": "restore",
    "state show": "show",
    "state export": "export",
    "state diff": "diff",
    "state edit": "edit",
    "configure": "configure",
    "logs": "logs",
    "clean": "clean",
    "config": "config",
    "doctor": "doctor",
}
"""Each verb with the function that does it, in the file of the verb's first word.

A second word is one only directly after the first: 'weir savepoint show PATH' looks into a savepoint,
'weir savepoint -- show' takes one of a job that is called show.
"""

EXIT_CODES = {
    0: "done; for 'run': the job was FINISHED or CANCELED",
    1: "the request failed: a check of 'doctor' failed, a checkpoint was aborted, a savepoint "
    "was not taken, 'verify' or 'repair' found damage, or the cancelled job ended as FAILED; "
    "also an internal error in weir",
    2: "the command, the job, its file or a setting must be changed",
    3: "something outside weir failed (storage, Java, a process); a retry may help",
    4: "weir's or Spark's own fault",
    5: "the job is already running ('run', 'repair'), or is not running ('cancel', 'stop', 'checkpoint',"
    " 'savepoint', 'configure')",
    6: "a newer attempt has taken over the job",
    10: "'plan', 'savepoint convert': the point fits, but something would be lost",
    11: "'plan', 'savepoint convert': something must be mapped first (--map)",
    12: "'plan', 'savepoint convert': the point does not fit the job",
    130: "interrupted with Ctrl-C",
}


_SHOWN = 8000
"""How many of the last characters are shown that a failed Spark has printed."""


class _Verbs(TyperGroup):
    """The verbs, each loaded when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*VERBS]  # `list` is a module of this package once the verb is loaded

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        both = " ".join(args[:2])
        if len(args) > 1 and both in VERBS:
            return both, load(both), args[2:]
        return super().resolve_command(ctx, args)


def load(verb: str) -> Any:
    """The command of a verb."""
    function = getattr(import_module(f"weir.cli.{verb.partition(' ')[0]}"), VERBS[verb])
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.command(name=verb)(function)
    return typer.main.get_command(holder)


app = typer.Typer(cls=_Verbs, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"weir {sys.modules['weir'].__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def weir(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fault tolerance for PySpark Structured Streaming jobs."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """The entry point: every failure in one form, and an exit code."""
    if "complete" in os.environ.get(shell.ASKED, ""):
        shell.answer(app)
    given = sys.argv[1:] if arguments is None else arguments
    # looked for here, because a command that can't be parsed must be answered in the right form too
    json = "--json" in takewhile(lambda one: one != "--", given)
    say.speak(say.OutputForm.JSON if json else say.OutputForm.PEOPLE)
    try:
        code = app(given, prog_name="weir", standalone_mode=False)
    except WeirError as error:
        if isinstance(error, SparkToolError):
            sys.stderr.write(error.printed[-_SHOWN:])
        say.say_error(**error_form(error))
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        say.say_error(*_usage(error))
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: typer.TyperException) -> tuple[str, str, str]:
    """A command that can't be understood, as what / why / what to do."""
    message = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "weir"
    hint = f"'{path} --help' shows how it is used"
    if context is not None and path == "weir":
        asked = re.search(r"'(.+)'", message)
        near = get_close_matches(asked[1], VERBS, n=1) if asked else []
        near = [verb for verb in VERBS if asked and verb.startswith(f"{asked[1]} ")] or near
        meant = "' or 'weir ".join(near)
        hint = f"did you mean 'weir {meant}'? {hint}" if near else hint
    if path == "weir run" and hasattr(error, "option_name"):
        hint += "; options of the job's own go after '--': weir run FILE -- --option"
    return message[:1].lower() + message[1:], "", hint
