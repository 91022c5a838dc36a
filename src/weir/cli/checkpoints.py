"""`weir checkpoints`: the checkpoints of a job, the phases of one of them, and what a sweep would delete."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory, names_of, place_of
from weir.clock import Clock
from weir.errors import BadValueError, WeirError
from weir.monitor import forms
from weir.monitor.checkpoints import PHASES, WHOLE, Checkpoint, Orphans, newest, stored
from weir.monitor.checkpoints import one as the_one
from weir.monitor.checkpoints import orphans as the_orphans
from weir.protocol.checkpoint import Alignment
from weir.protocol.states import CheckpointState


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """The checkpoints that a shell may put in, the newest first; none when there is anything wrong."""
    with suppress(WeirError):
        return names_of(stored(place_of(ctx), str(ctx.params.get("job"))), incomplete)
    return []


Id = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Show only this checkpoint, with its phases: 41 or chk-41.",
        autocompletion=complete_checkpoint,
    ),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many of the newest to list.")]
Queries = Annotated[
    bool,
    typer.Option(
        "--queries", help="Show the queries of every listed checkpoint, not only of the newest three."
    ),
]
OrphansOnly = Annotated[
    bool,
    typer.Option("--orphans", help="List the files that the next cleanup would delete, and delete none."),
]

_LOOKED_INTO = 3
"""How many of the newest checkpoints the list shows the queries of."""
_ONE_LINE = 110
"""Columns of a terminal, from which on a checkpoint has one line."""
_STYLES = {
    CheckpointState.PENDING: "yellow",
    CheckpointState.COMPLETED: "green",
    CheckpointState.ABORTED: "bold red",
    CheckpointState.SUBSUMED: "dim",
}
_PHASES = ("barrier", "ack", "complete", "notify")
"""Of the phases of a checkpoint, those with a column in the list; an id shows them all."""


def checkpoints(
    job: JobOf,
    id: Id = None,
    limit: Limit = 20,
    queries: Queries = False,
    orphans: OrphansOnly = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """List the checkpoints of a job, or show one.

    The newest is first. A completed one can be restored; a subsumed one was completed, and newer ones
    have replaced it. 'new' counts the bytes that no earlier checkpoint had, 'full' all that a restore
    needs. A 'turned' one began aligned and was cut unaligned. The 'cut' of a query is where it stands
    in the checkpoint: aligned if its readers waited for each other, otherwise unaligned.

    The seconds of the checkpoint: 'barrier' lasts from the trigger until the last query had its cut,
    'ack' from the trigger until all files were safe; 'complete' and 'notify' are lengths of their own.
    Those of a query: 'wait' for the barrier and alignment, 'commit' of the batch, 'snapshot' for
    listing, pinning and copying. With an ID every phase of every query has its own column: 'listing'
    looks up the files of the cut, 'pinning' links them, so that Spark does not delete them, 'copying'
    copies them where that is set. It also shows where the manifest is, which 'weir run -s PATH' takes,
    who has acknowledged a checkpoint that is pending or was aborted, and what an unaligned one holds in
    flight between the queries.

    Orphans are files that no checkpoint needs, left by aborted ones and kills. They are deleted at every
    start and every ten minutes while the job runs.

    \b
    Example: weir checkpoints wordcount 41
    """
    place = directory(dir, config, define)
    clock = Clock()
    if orphans:
        if id:
            reason = "orphans belong to no checkpoint: use --orphans without an ID"
            raise BadValueError(key="ID", value=id, origin="the command line", reason=reason)
        _say_orphans(job, the_orphans(place, job, clock), json)
        return
    number = _number(id) if id else None
    found = newest(place, job, clock, limit) if number is None else [the_one(place, job, clock, number)]
    if json:
        say.say_json({"job": job, "checkpoints": [forms.checkpoint(one) for one in found]})
    elif number is not None:
        _say_one(job, found[0], clock)
    else:
        _say(job, found, clock, len(found) if queries else _LOOKED_INTO)


def _say_orphans(job: str, seen: Orphans, json: bool) -> None:
    if json:
        found = [asdict(one) for one in seen.found]
        say.say_json({"job": job, "orphans": found, "bytes": seen.bytes, "under_way": seen.under_way})
        return
    for one in seen.found:
        say.say(f"{_size(one.bytes):>9}  {one.key}")
    count = len(seen.found)
    total = f"{count} file{'s' if count > 1 else ''}, {say.size(seen.bytes)}" if count else "nothing"
    say.say(f"the next cleanup of {job} would delete {total}")
    if seen.under_way:
        ids = ", ".join(map(str, seen.under_way))
        say.say(f"under way: checkpoint {ids}; pins and copies are left out, ask again when it has ended")


def _number(text: str) -> int:
    found = re.fullmatch(r"(?:chk-)?([0-9]{1,18})", text)
    if found is None:
        reason = "it must be the number of a checkpoint, like 41 or chk-41"
        raise BadValueError(key="ID", value=text, origin="the command line", reason=reason)
    return int(found[1])


def _say(job: str, found: list[Checkpoint], clock: Clock, looked_into: int) -> None:
    if not found:
        say.say(f"{job} has no checkpoint yet")
        return
    say.out.print(_list(found, clock, say.out.width))
    for one in found:
        if one.status is CheckpointState.PENDING and one.acks:
            say.say(f"checkpoint {one.id} is pending: {one.acks}")
    aborted = [one for one in found if one.status is CheckpointState.ABORTED]
    if aborted:
        say.say(f"the last abort, checkpoint {aborted[-1].id}: {aborted[-1].reason}")
    known = [one for one in found if one.queries][-looked_into:]
    if known:
        say.say()
        say.out.print(_list_of_queries(known))


def _list(found: list[Checkpoint], clock: Clock, width: int) -> Table:
    """A line for each checkpoint where the terminal is wide enough for it, else two; newest first."""
    wide = width >= _ONE_LINE
    both = ["kind", "trigger", "status", "at"] if wide else ["kind\ntrigger", "status\nat"]
    table = _table(["id", *both], ["seconds", *_PHASES, *(["new", "full"] if wide else ["new\nfull"])])
    for one in reversed(found):
        status = Text(one.status.value, style=_STYLES.get(one.status, ""))
        at = say.when(one.ended_at or one.begun_at, clock.now())
        kind, trigger, new, full = _kind(one), one.trigger or "-", _size(one.new_bytes), _size(one.full_bytes)
        phases = [_seconds(one.seconds), *(_seconds(one.phases.get(phase)) for phase in _PHASES)]
        if wide:
            table.add_row(str(one.id), kind, trigger, status, at, *phases, new, full)
        else:
            shown = status.append(f"\n{at}", style="default")
            table.add_row(str(one.id), f"{kind}\n{trigger}", shown, *phases, f"{new}\n{full}")
    return table


def _list_of_queries(found: list[Checkpoint]) -> Table:
    """A line for each query of each checkpoint."""
    table = _table(["id", "query"], ["batch", "wait", "commit", "snapshot", "new", "full"])
    for one in reversed(found):
        for row, (name, query) in enumerate(one.queries.items()):
            phases = query.get("phases", {})
            table.add_row(
                str(one.id) if row == 0 else "",
                name,
                _batch(query),
                _sum(phases, "barrier", "alignment"),
                _sum(phases, "commit"),
                _sum(phases, "listing", "pinning", "copying"),
                _size(query.get("new_bytes")),
                _size(query.get("full_bytes")),
            )
    return table


def _say_one(job: str, one: Checkpoint, clock: Clock) -> None:
    at = say.when(one.ended_at or one.begun_at, clock.now())
    since = "since" if one.status is CheckpointState.PENDING else "at"
    say.say(f"checkpoint {one.id} of {job} is {one.status.value}, {since} {at}")
    if one.reason:
        say.say(f"  {one.reason}")
    say.say(f"  {_kind(one)}; trigger: {one.trigger or '-'}; attempt {one.attempt}")
    if one.seconds is not None:
        phases = ", ".join(f"{phase} {one.phases[phase]:.3f}" for phase in WHOLE if phase in one.phases)
        say.say(f"  {one.seconds:.3f} s" + (f": {phases}" if phases else ""))
    if one.new_bytes is not None:
        say.say(f"  {_size(one.new_bytes)} new of {_size(one.full_bytes)}")
    if one.acks and one.status in (CheckpointState.PENDING, CheckpointState.ABORTED):
        say.say(f"  {one.acks}")
    if one.in_flight_bytes:
        rows = "" if one.in_flight_rows is None else f"{say.counted(one.in_flight_rows, 'row')}, "
        say.say(f"  in flight: {rows}{_size(one.in_flight_bytes)} in channels")
    for label, path in (("path", one.path), ("copy", one.copy)):
        if path:
            say.say(f"  {label}: {path}")
    if one.queries:
        say.say()
        say.out.print(_query_table(one.queries))
        say.say()
        say.out.print(_phase_table(one.queries))


def _query_table(queries: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table(["query"], ["batch", "cut", "new", "full"])
    for name, query in queries.items():
        cut = "unaligned" if query.get("unaligned") else "aligned"
        table.add_row(name, _batch(query), cut, _size(query.get("new_bytes")), _size(query.get("full_bytes")))
    return table


def _phase_table(queries: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table(["seconds"], PHASES)
    for name, query in queries.items():
        phases = query.get("phases", {})
        table.add_row(name, *(_seconds(phases.get(phase)) for phase in PHASES))
    return table


_GIVE_WAY = ("query", "seconds", "kind\ntrigger")


def _table(left: Iterable[str], right: Iterable[str]) -> Table:
    """Narrow enough for eighty columns; columns of words give way."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name not in _GIVE_WAY)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _kind(one: Checkpoint) -> str:
    cuts = [bool(query.get("unaligned")) for query in one.queries.values()]
    # of one that began aligned and was cut unaligned not every query was: the roots never are
    turned = one.alignment == Alignment.UNALIGNED.value and not all(cuts)
    return ("turned" if turned else one.alignment or "-") + (", full" if one.full else "")


def _batch(query: Mapping[str, Any]) -> str:
    return "-" if query.get("batch", -1) < 0 else str(query["batch"])


def _sum(phases: Mapping[str, float], *names: str) -> str:
    known = [phases[name] for name in names if name in phases]
    return _seconds(sum(known) if known else None)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}" if seconds < 100 else f"{seconds:.0f}"


def _size(count: int | None) -> str:
    return "-" if count is None else say.size(count)
