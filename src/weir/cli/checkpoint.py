"""`weir checkpoint`: take a checkpoint of a running job now."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.ask import Timeout, caller
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.client import running_job
from weir.errors import NotDoneError, error_form

Full = Annotated[
    bool, typer.Option("--full", help="Copy all files that a restore needs, not only the new ones.")
]


def checkpoint(
    job: JobOf,
    full: Full = False,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Take a checkpoint of a running job now.

    Waits until it has completed or was aborted; an abort is exit code 1, with its reason. The job
    keeps running. A checkpoint that is already pending completes first.

    \b
    Example: weir checkpoint wordcount --full
    """
    place = directory(dir, config, define)
    asked = caller(place, job, "checkpoint", f"waiting for a checkpoint of {job}", timeout)
    try:
        done = running_job.checkpoint(asked, full=full)
    except NotDoneError as error:
        id = error.fields["id"]
        say.say_error(**error_form(error), job=job, id=id, status=None if id is None else "aborted")
        raise typer.Exit(error.exit_code) from error
    if json:
        say.say_json(done.form())
        return
    sizes = f"{say.size(done.new_bytes)} new of {say.size(done.full_bytes)}"
    say.say(f"checkpoint {done.id} of {job} completed in {done.seconds:.2f} s: {sizes}")
