"""`weir configure`: change settings of a running job."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.ask import Timeout, caller
from weir.cli.options import AsJson, Directory, JobOf, SettingsFile, directory, overrides, settings_beginning
from weir.client import running_job
from weir.config import RUNTIME_KEYS
from weir.errors import BadValueError


def complete_change(_ctx: typer.Context, incomplete: str) -> list[str]:
    """The settings that can be changed while a job runs, and their values."""
    return settings_beginning(incomplete, RUNTIME_KEYS)


Change = Annotated[
    list[str] | None,
    typer.Option(
        "-D",
        metavar="KEY=VALUE",
        help="A setting and its new value, KEY=VALUE. Repeatable.",
        autocompletion=complete_change,
    ),
]


def configure(
    job: JobOf,
    change: Change = None,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Change settings of a running job.

    execution.checkpointing.interval, .timeout and .min-pause can be changed without a restart. The
    change holds until the supervisor ends, also over restarts of the driver; to keep it, change the
    settings file, the job file or the command that runs the job.

    \b
    Example: weir configure wordcount -D execution.checkpointing.interval=5s
    """
    given = overrides(change)
    if not given:
        reason = f"no setting is given; these can be changed: {', '.join(RUNTIME_KEYS)}"
        raise BadValueError(key="-D", value="", origin="the command line", reason=reason)
    place = directory(dir, config)
    asked = caller(place, job, "configure", f"waiting for {job} to apply the change", timeout)
    done = running_job.configure(asked, given)
    if json:
        say.say_json(done.form())
        return
    for key, value in done.settings.items():
        say.say(f"{job}: {key} = {value}, until its supervisor ends")
