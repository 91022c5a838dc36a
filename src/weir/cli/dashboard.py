"""`weir dashboard`: REST and pages of all jobs of a storage, running or not."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, overrides, settings_file
from weir.clock import Clock
from weir.config import resolve
from weir.errors import BadValueError
from weir.storage.open import absolute, is_local, local_path
from weir.web.site import Site

Port = Annotated[
    str | None,
    typer.Option("--port", metavar="PORT", help="Short for -D rest.port=: a port, a range, 0 for any."),
]


def dashboard(
    port: Port = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Serve the pages of all jobs of a storage.

    It also shows jobs that have ended, or whose supervisor is gone: everything is read from the
    storage, and requests go through the storage. Serves until Ctrl-C. On a terminal the address is a
    link that logs a browser in, once; programs send the token, which is in ~/.local/state/weir/token.
    Only this machine can reach it; to change that, set rest.address and rest.token-file.

    \b
    Example: weir dashboard --dir /mnt/jobs --port 9000
    """
    given = overrides(define, dir=dir) | ({"rest.port": port} if port is not None else {})
    settings = resolve(file=settings_file(config), environ=os.environ, overrides=given).settings
    if settings.rest_port is None:
        reason = "the dashboard needs a port; set one with --port"
        raise BadValueError(key="rest.port", value="off", origin="the settings", reason=reason)
    from weir.web.server import Server  # noqa: PLC0415  loads FastAPI

    place = settings.execution_checkpointing_dir
    if is_local(place) and not os.path.isdir(local_path(place)):
        reason = "there is no such directory; it must be the directory that holds the jobs"
        raise BadValueError(key="--dir", value=absolute(place), origin="the command line", reason=reason)
    site = Site(place, Clock())
    server = Server(site, settings.rest_address, settings.rest_port, settings.rest_token_file)
    if json:
        say.say_json({"url": server.url, "dir": place})
    else:
        say.say(
            f"the jobs of {place}: {server.link() if say.out.is_terminal else server.url}  (Ctrl-C stops it)"
        )
    server.run()
