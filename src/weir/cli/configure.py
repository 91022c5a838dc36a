"""`weir configure`: change settings of a running job."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.options import AsJson, Directory, JobOf, SettingsFile, directory, overrides
from weir.clock import Clock
from weir.config import RUNTIME_KEYS, Settings, changed, text
from weir.errors import BadValueError
from weir.supervisor.asking import CONFIGURE
from weir.supervisor.view import look

Change = Annotated[
    list[str] | None,
    typer.Option("-D", metavar="KEY=VALUE", help="A setting of the job, and its new value. Repeatable."),
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
    change holds until the supervisor ends, over restarts of the driver; to make it last, change the
    settings file, the job file or the command that runs the job.

    \b
    Example: weir configure wordcount -D execution.checkpointing.interval=5s
    """
    given = overrides(change)
    if not given:
        reason = f"there is nothing to change; these can be: {', '.join(RUNTIME_KEYS)}"
        raise BadValueError(key="-D", value="", origin="the command line", reason=reason)
    settings = changed(Settings(), given)
    place = directory(dir, config)
    standing = look(place, job, Clock())
    refuse_without_supervisor(standing, place, "configure")
    with say.waiting(f"waiting for {job} to take the change"):
        answer = ask(place, standing, CONFIGURE, {"settings": given}, timeout)
    if not answer["done"]:
        raise not_done(standing, place, CONFIGURE, answer)
    taken = {key: text(settings, key) for key in given}
    if json:
        say.say_json({"job": job, "settings": taken})
        return
    for key, value in taken.items():
        say.say(f"{job}: {key} = {value}, until its supervisor ends")
