"""What several verbs take, and how it becomes settings."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.config import Settings, choices, describe, resolve, text
from weir.errors import BadValueError, WeirError
from weir.monitor.job import job_names

SETTINGS_FILE = "weir.yaml"
_DIR_KEY = "execution.checkpointing.dir"


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of jobs that a shell may put in; none when there is anything wrong."""
    with suppress(WeirError):
        return beginning(incomplete, map(str, job_names(place_of(ctx))))
    return []


def complete_setting(_ctx: typer.Context, incomplete: str) -> list[str]:
    """The key of a setting; after `key=` the values of one that has few."""
    return settings_beginning(incomplete, [one.key for one in describe()])


def settings_beginning(incomplete: str, keys: Iterable[str]) -> list[str]:
    """Of these settings those that begin so, as `key=` or `key=value`."""
    known = {key: choices(key) for key in keys}
    key, sign, _ = incomplete.partition("=")
    if sign:
        return beginning(incomplete, (f"{key}={value}" for value in known.get(key, ())))
    found = beginning(incomplete, known)
    if len(found) != 1:
        return [f"{key}=" for key in found]
    # a shell puts a blank after the only completion; of two it inserts what they have in common
    values = known[found[0]] or ("", text(Settings(), found[0]).replace(" ", ""))
    return [f"{found[0]}={value}" for value in values]


def beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    """Those that begin with what is typed."""
    return [name for name in names if name.startswith(incomplete)]


def names_of(checkpoints: Iterable[int], incomplete: str) -> list[str]:
    """Those that begin so, the newest first: as `chk-41`, or as `41` where a number was begun."""
    before = "" if incomplete.isdigit() else "chk-"
    return beginning(incomplete, (f"{before}{id}" for id in sorted(checkpoints, reverse=True)))


def place_of(ctx: typer.Context) -> str:
    """Where jobs are kept, as the command line says that a shell completes."""
    return directory(ctx.params.get("dir"), ctx.params.get("config"), ctx.params.get("define"))


JobOf = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's name; 'weir list' shows them.", autocompletion=complete_job
    ),
]
Define = Annotated[
    list[str] | None,
    typer.Option(
        "-D",
        metavar="KEY=VALUE",
        help="A weir setting, KEY=VALUE; overrides every other source. Repeatable.",
        autocompletion=complete_setting,
    ),
]
Directory = Annotated[
    str | None,
    typer.Option(
        "--dir", metavar="DIR", help="The directory that holds the jobs: execution.checkpointing.dir."
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file to use instead of weir.yaml in this directory."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting, spark.*=VALUE. Repeatable."),
]
HereMaster = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; default: this machine.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, also for errors.")]


def overrides(
    define: Sequence[str] | None,
    *,
    conf: Sequence[str] | None = None,
    master: str | None = None,
    dir: str | None = None,
) -> dict[str, str]:
    """The settings of the command line, the strongest layer."""
    given = pairs("-D", define) | pairs("--conf", conf)
    for key in pairs("--conf", conf):
        if not key.startswith("spark."):
            raise _bad("--conf", key, "--conf takes spark.* keys only; set weir's own keys with -D")
    if master:
        given["spark.master"] = master
    if dir:
        given[_DIR_KEY] = dir
    return given


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """What a repeatable option of the form key=value gives."""
    found = {}
    for item in given or ():
        key, sign, value = item.partition("=")
        if not sign or not key.strip():
            raise _bad(option, item, f"it should be key=value, like {option} {_EXAMPLES[option]}")
        found[key.strip()] = value
    return found


_EXAMPLES = {
    "-D": "heartbeat.timeout=30s",
    "--conf": "spark.executor.memory=4g",
    "--set-offsets": "counts/orders=latest",
}


def _bad(option: str, value: str, reason: str) -> BadValueError:
    return BadValueError(key=option, value=value, origin="the command line", reason=reason)


def settings_file(given: Path | None, beside: Path | None = None) -> Path | None:
    """The settings file: the one that was named, else in this directory, else beside the job file."""
    if given is not None:
        return given
    places = [Path.cwd()] + ([beside.absolute().parent] if beside else [])
    return next((place / SETTINGS_FILE for place in places if (place / SETTINGS_FILE).is_file()), None)


def directory(dir: str | None, file: Path | None = None, define: Sequence[str] | None = None) -> str:
    """Where jobs are kept."""
    if dir:
        return dir
    config = resolve(file=settings_file(file), environ=os.environ, overrides=overrides(define))
    return config.settings.execution_checkpointing_dir


def savepoint_dir(file: Path | None, define: Sequence[str] | None) -> str | None:
    """The setting execution.checkpointing.savepoint-dir, as far as it is known here."""
    config = resolve(file=settings_file(file), environ=os.environ, overrides=overrides(define))
    return config.settings.execution_checkpointing_savepoint_dir


def session(conf: Sequence[str] | None, master: str | None, config: Path | None) -> dict[str, Any]:
    """The part of a request to a process with Spark that names the Spark it wants."""
    found = settings_file(config)
    given = overrides(None, conf=conf, master=master or "local[*]")
    return {"config": str(found) if found else None, "settings": given}


def command(verb: str, job: str, dir: str, rest: str = "") -> str:
    """The command that does this to a job, as one can type it here."""
    try:
        there = directory(None) == dir
    except WeirError:
        there = False
    where = "" if there else f" --dir {shlex.quote(dir)}"
    return f"weir {verb} {job}{rest}{where}"
