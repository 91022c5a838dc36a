"""`weir savepoint`: take a savepoint of a running job; and show, copy, convert, dispose of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.ask import Timeout, caller
from weir.cli.complete import complete_job_or_word, complete_savepoint
from weir.cli.options import (
    AsJson,
    Conf,
    Define,
    Directory,
    SettingsFile,
    command,
    directory,
    overrides,
    settings_file,
)
from weir.cli.plan import ASKING
from weir.cli.restore_options import AllowDropped, Backend, Maps, Parallelism, as_point, elsewhere, shape_of
from weir.cli.run import Arguments, File, Master
from weir.client import running_job, savepoints
from weir.client.spark import plan_of
from weir.clock import Clock
from weir.errors import NotASavepointError
from weir.monitor import forms
from weir.protocol.operators import Operator
from weir.savepoint.manifest import SavedQuery, Savepoint
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import last_verified
from weir.storage.open import absolute

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's name; 'weir list' shows them.", autocompletion=complete_job_or_word
    ),
]
SavepointAt = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The savepoint's directory or URL; 'weir savepoints' lists them.",
        autocompletion=complete_savepoint,
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="DIR",
        help="The directory or URL below which the savepoint gets a folder of its own; default: the "
        "job's execution.checkpointing.savepoint-dir.",
    ),
]
Detached = Annotated[
    bool,
    typer.Option("-d", "--detached", help="Return at once; 'weir savepoints' shows when it is complete."),
]
Destination = Annotated[
    str, typer.Argument(metavar="DEST", help="A directory or URL; the copy gets a folder of its own there.")
]


def savepoint(
    job: Job,
    target: Target = None,
    detached: Detached = False,
    timeout: Timeout = None,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Take a savepoint of a running job.

    A savepoint is a copy that belongs to you. It holds everything needed to start the job from this
    point, also in another place and with changed code, and does not refer to the job's own files. The
    job keeps running.
    If it fails, no files are left, and the exit code is 1, with the reason. A savepoint that is
    already being taken completes first. 'weir savepoint show', 'copy', 'convert' and 'dispose' work
    on an existing one; for a job with such a name write 'weir savepoint -- show'.

    \b
    Example: weir savepoint wordcount /backup/savepoints
    """
    place = directory(dir, config, define)
    asked = caller(place, job, "savepoint", f"waiting for a savepoint of {job}", timeout, bar=True)
    done = running_job.savepoint(asked, path=absolute(target) if target else "", detached=detached)
    if json:
        say.say_json(done.form())
    elif detached:
        say.say(f"a savepoint of {job} is on its way: '{command('savepoints', job, place)}' shows it")
    else:
        say.say(
            f"savepoint of {job} in {done.seconds or 0.0:.2f} s, {say.size(done.bytes or 0)}: {done.path}"
        )


def show(path: SavepointAt, json: AsJson = False) -> None:
    """Show what is in a savepoint.

    Queries with their sources and offsets, the operators that keep state with their keys, values,
    rows and bytes, and the sinks with the last delivered batch. The job and its directory are not
    needed.

    \b
    Example: weir savepoint show /backup/savepoints/wordcount-41
    """
    place = SavepointPlace(path)
    found = place.read()
    verified = last_verified(place)
    if json:
        body = {"place": place.url, "bytes": found.bytes, "file_count": len(found.files)}
        rest = found.model_dump(mode="json", exclude={"files"})
        say.say_json({**body, "verified": forms.verified(verified), **rest})
        return
    now = Clock().now()
    say.say(f"savepoint {found.id} of {found.job}: {place.url}")
    say.say(f"  taken {say.when(found.taken_at, now)} by {found.taken_by} ({found.trigger})")
    code = f"{found.job_file} {found.job_version}".strip() or "unknown code"
    say.say(f"  from {code}; weir {found.weir}, Spark {found.spark}; generation {found.generation}")
    say.say(f"  {found.backend} state, parallelism {found.parallelism}; {found.alignment} cut")
    checked = say.verified(verified, now)
    say.say(f"  {len(found.files)} files, {say.size(found.bytes)}; verified: {checked}")
    for name, query in found.queries.items():
        _show_query(name, query, found)


def copy(path: SavepointAt, destination: Destination, json: AsJson = False) -> None:
    """Copy a savepoint to another place or storage.

    Every file is checked on the way. The copy appears when it is complete, and is equivalent to the
    original.

    \b
    Example: weir savepoint copy /backup/savepoints/wordcount-41 s3://bucket/sp
    """
    with say.bar(f"copying {SavepointPlace(path).url}") as bar:
        text = f"waiting until {destination} has stored it"
        copied = savepoints.copy(path, absolute(destination), bar, lambda: bar.wait(text))
    if json:
        say.say_json(copied.form())
    else:
        say.say(f"copied {say.size(copied.bytes)} to {copied.path}")


def convert(
    file: File,
    path: Annotated[
        str,
        typer.Option(
            "-s",
            "--from-savepoint",
            metavar="PATH",
            help="The savepoint's directory or URL.",
            autocompletion=complete_savepoint,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="DIR",
            help="A directory or URL; the new savepoint gets a folder of its own there.",
        ),
    ],
    arguments: Arguments = None,
    allow_dropped: AllowDropped = False,
    map: Maps = None,
    parallelism: Parallelism = None,
    state_backend: Backend = None,
    define: Define = None,
    conf: Conf = None,
    master: Master = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Convert a savepoint for a changed job file.

    Does to the state what 'weir run -s' would do, but into a new savepoint and without starting the
    job: operators are where the job file has them, new operators have no rows, and state has the
    requested parallelism and backend. 'weir state edit --seed' can then give rows to a new operator,
    and a start from the new savepoint only copies. The old savepoint is not changed. If the plan does
    not fit, it is shown, nothing is written, and the exit code is that of 'weir plan'.

    \b
    Example: weir savepoint convert orders.py -s saved/orders-7 --to converted
    """
    if not elsewhere(path):
        reason = "it is not a directory; 'weir savepoint JOB' takes one of a running job"
        raise NotASavepointError(place=path, reason=reason)
    made = plan_of(
        file,
        arguments or (),
        settings=overrides(define, conf=conf, master=master) | shape_of(parallelism, state_backend),
        settings_file=settings_file(config, beside=file),
        point=as_point(path),
        maps=map or (),
        allow_dropped=allow_dropped,
        to=absolute(to),
        waiting=lambda: say.waiting(ASKING),
    )
    if json:
        body = {key: made.form()[key] for key in ("job", "point", "plan")}
        say.say_json({**body, "path": made.path or None})
    else:
        say.say(made.text)
        if made.path:
            say.say(f"converted: {made.path}")
        elif not made.code:
            say.say("every query continues as it is: nothing was written")
    raise typer.Exit(made.code)


def dispose(path: SavepointAt, json: AsJson = False) -> None:
    """Delete a savepoint, intact or damaged.

    A directory that is not a savepoint, or that also holds other files, is not touched. In an object
    store this also deletes what a kill has left while a savepoint was being written or deleted.

    \b
    Example: weir savepoint dispose /backup/savepoints/wordcount-41
    """
    gone = savepoints.dispose(path)
    if json:
        say.say_json(gone.form())
    elif gone.bytes is None:
        say.say(f"deleted what was left in {gone.path}")
    else:
        say.say(f"deleted {gone.path}, {say.size(gone.bytes)}")


def _show_query(name: str, query: SavedQuery, savepoint: Savepoint) -> None:
    say.say()
    mode = f", {query.output_mode} mode" if query.output_mode else ""
    batch = "no batch yet" if query.batch < 0 else f"batch {query.batch}"
    say.say(f"query {name}: {batch}{mode}")
    for source in query.sources:
        what = f"channel {source.channel}" if source.channel else source.description or "source"
        say.say(f"  reads {source.name}, {what}: {source.offset}")
    if query.sink is not None:
        last = f"up to batch {query.sink.last_batch}" if query.sink.last_batch >= 0 else "nothing yet"
        rewindable = "" if query.sink.rewindable else ", can't be rewound"
        say.say(f"  delivers to {query.sink.description or query.sink.kind}: {last}{rewindable}")
    if name in savepoint.channels:
        channel = savepoint.channels[name]
        say.say(f"  channel: {channel.behind - channel.first} entries, up to batch {channel.batch}")
    for operator in query.operators:
        _show_operator(operator)


def _show_operator(operator: Operator) -> None:
    rows = "rows unknown" if operator.rows is None else f"{operator.rows:,} rows"
    size = "" if operator.bytes is None else f", {say.size(operator.bytes)}"
    say.say(f"  operator {operator.id}, {operator.kind}: {operator.partitions} partitions, {rows}{size}")
    for store in operator.stores:
        for family in store.families:
            names = " ".join(one for one in (store.name, family.name) if one != "default")
            label = f"{names}: " if names else ""
            say.say(f"    {label}{_columns(family.key_schema)} -> {_columns(family.value_schema)}")


def _columns(schema: Mapping[str, Any] | None) -> str:
    if schema is None:
        return "?"
    fields = (f"{one['name']} {_type(one['type'])}" for one in schema.get("fields", ()))
    return f"({', '.join(fields)})"


def _type(kind: Any) -> str:
    """Spark's type as one would write it."""
    if isinstance(kind, str):
        return kind
    if kind.get("type") == "struct":
        return _columns(kind)
    if kind.get("type") == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind.get("type") == "map":
        return f"map<{_type(kind['keyType'])}, {_type(kind['valueType'])}>"
    return str(kind.get("type"))
