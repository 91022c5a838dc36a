"""`weir verify`: is everything there, and as it was written?"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.options import (
    AsJson,
    Conf,
    Define,
    Directory,
    HereMaster,
    SettingsFile,
    directory,
    savepoint_dir,
    session,
)
from weir.client import verify as verbs
from weir.client.ask import Caller
from weir.client.verify import Checked
from weir.savepoint.manifest import MANIFEST
from weir.storage import open_store

What = Annotated[
    str, typer.Argument(metavar="PATH_OR_JOB", help="A savepoint's directory or URL, or the name of a job.")
]

Load = Annotated[bool, typer.Option("--load", help="Also load all state with Spark.")]


def verify(
    what: What,
    load: Load = False,
    conf: Conf = None,
    master: HereMaster = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Check every file of a savepoint or of a job.

    Each file is read and compared with the manifest. For a job: its live files (unless it is running),
    its checkpoints and its savepoints. With --load Spark also loads all state of what is intact and
    reads every row. Damage is exit code 1. Nothing is changed, except that 'weir savepoints' then shows
    when a savepoint was last verified.

    \b
    Example: weir verify /backup/savepoints/wordcount-41
    """
    if "/" in what or what in (".", "..") or open_store(what).exists(MANIFEST):  # a path, not a job
        checked = [verbs.of_savepoint(what, say.bar)]
    else:
        asked = Caller(directory(dir, config, define), what)
        found = verbs.of_job(asked, savepoint_dir=savepoint_dir(config, define), show=say.bar)
        checked = list(found)
    if load:
        spark = session(conf, master, config)
        checked = verbs.load(checked, spark, lambda: say.waiting("loading the state with Spark"))
    ok = not any(one.damage for one in checked)
    if json:
        say.say_json({"ok": ok, "checked": [one.form() for one in checked]})
    else:
        for one in checked:
            say.say(_lines(one))
    if not ok:
        raise typer.Exit(1)


def _lines(one: Checked) -> str:
    size = "" if one.bytes is None else f", {one.files} files, {say.size(one.bytes)}"
    loaded = "" if one.rows is None else f", {one.rows:,} rows of state loaded"
    more = [*one.damage, *(f"not checked: {text}" for text in one.left_out)]
    lines = "".join(f"\n    {text}" for text in more)
    return f"{'damaged' if one.damage else 'intact '}  {one.what} {one.name}{size}{loaded}{lines}"
