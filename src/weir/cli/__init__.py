"""The command line: one file a verb. No verb imports pyspark; those that need Spark start a driver."""

from __future__ import annotations

import sys

import typer

from weir.cli import run
from weir.errors import WeirError

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
app.command(name="run", context_settings={"allow_extra_args": True, "ignore_unknown_options": False})(run.run)


@app.callback()
def weir() -> None:
    """Fault tolerance for PySpark Structured Streaming jobs."""


def main() -> None:
    """The entry point: every failure in three lines and an exit code."""
    try:
        app()
    except WeirError as error:
        from weir.cli.say import say_error  # noqa: PLC0415

        say_error(error.what, error.why, error.hint)
        sys.exit(error.exit_code)
