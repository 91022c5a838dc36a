"""`weir repair`: let a job go on whose live files are lost or torn."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from weir.checkpoint.repair import Repair, carry_out, plan
from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory
from weir.cli.points import AcceptDuplicates
from weir.cli.saving import savepoint_dir
from weir.clock import Clock
from weir.errors import NotDoneError
from weir.ids import job_name
from weir.storage import generations, open_store
from weir.storage.generations import read_origin
from weir.supervisor.idle import Idle
from weir.supervisor.savepoints import known
from weir.supervisor.view import look

ToLastGood = Annotated[
    bool,
    typer.Option("--to-last-good", help="Go on from the newest point that is whole; else it is only shown."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Don't ask.")]


def repair(
    job: JobOf,
    to_last_good: ToLastGood = False,
    yes: Yes = False,
    accept_duplicates: AcceptDuplicates = False,
    dir: Directory = None,
    config: SettingsFile = None,
    define: Define = None,
    json: AsJson = False,
) -> None:
    """Let a job go on whose live files are lost or torn.

    Says what is damaged, what the job can go on from, and which batches run again; with
    --to-last-good it asks, and writes that down for the next 'weir run'. That makes new live files
    of it: the damaged ones stay as they are. Nobody may run the job meanwhile. Damage that is only
    shown is exit code 1.

    \b
    Example: weir repair wordcount --to-last-good
    """
    place = directory(dir, config, define)
    standing = look(place, job, Clock())
    idle = Idle.of(place, job, standing)
    store, name = open_store(place), job_name(job)
    if (opening := generations.opening(store, name)) is not None:
        origin = read_origin(store, name, opening)
        assert origin is not None, "an opening generation has its origin"
        _say(json, f"{job} goes on from {origin.restored_from} at its next start: that is written down", job)
        say.note(f"to take that back: {command('restore', job, place, ' --withdraw')}")
        return
    there = known(place, job, savepoint_dir(config, define))
    unread = [one.place for one in there if one.savepoint is None]  # first, so that it is said
    places = [one.place for one in reversed(there) if one.savepoint and not one.savepoint.derived]
    with say.waiting(f"checking the files of {job}"):
        found = plan(store, name, unread + places)
    if found is None:
        _say(json, f"the live files of {job} are whole", job)
        load = command("verify", job, place, " --load")
        say.note(f"whether Spark can load every row of its state is another question: {load}")
        return
    if not to_last_good:
        _say_plan(json, job, found)
        todo = command("repair", job, place, " --to-last-good")
        say.note(f"nothing was changed; to do it: {todo}")
        raise typer.Exit(1)
    if not json:
        _say_plan(json, job, found)
    _confirm(job, place, yes)
    generation = carry_out(
        store, name, found, accept_duplicates=accept_duplicates, clock=Clock(), still=idle.check
    )
    if json:
        say.say_json({**_as_json(job, found), "generation": generation})
        return
    file = standing.file or "FILE"
    say.say(f"written down: the next 'weir run {file}' goes on from there; the damaged files stay")


def _confirm(job: str, dir: str, yes: bool) -> None:
    if yes:
        return
    if say.form is say.Form.JSON or not say.err.is_terminal:
        raise NotDoneError(
            what=f"the live files of job {job!r} were not repaired",
            why="nobody can be asked here",
            hint=command("repair", job, dir, " --to-last-good --yes"),
        )
    typer.confirm("go on like this?", abort=True, err=True)


def _say(json: bool, text: str, job: str) -> None:
    if json:
        say.say_json({"job": job, "damage": [], "from": None, "queries": [], "generation": None})
    else:
        say.say(text)


def _say_plan(json: bool, job: str, found: Repair) -> None:
    if json:
        say.say_json({**_as_json(job, found), "generation": None})
        return
    for one in found.damage:
        say.say(f"damaged: {one.text}")
    for text in found.passed_over:
        say.say(f"passed over: {text}")
    say.say(f"{job} can go on from {found.source}:")
    for replay in found.replays:
        say.say(f"  {replay.text}")


def _as_json(job: str, found: Repair) -> dict[str, Any]:
    return {
        "job": job,
        "damage": [one.text for one in found.damage],
        "from": found.source,
        "passed_over": list(found.passed_over),
        "queries": [
            {"query": one.query, "back_to": one.back_to, "newest": one.newest, "offsets": list(one.offsets)}
            for one in found.replays
        ],
    }
