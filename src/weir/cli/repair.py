"""`weir repair`: repair a job whose live files are lost or damaged."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, command, directory, savepoint_dir
from weir.cli.restore_options import AcceptDuplicates
from weir.client import upkeep as verbs
from weir.client.ask import Caller
from weir.client.upkeep import Examined
from weir.errors import NotDoneError

ToLastGood = Annotated[
    bool,
    typer.Option(
        "--to-last-good",
        help="Record that the job resumes from the newest intact point; without it, the point is only shown.",
    ),
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
    """Repair a job whose live files are lost or damaged.

    Shows what is damaged, what the job can resume from, and which batches run again. With
    --to-last-good it asks for confirmation and records the repair for the next 'weir run', which makes
    new live files: the damaged ones are not changed. The job must not be running. Damage that is only
    shown is exit code 1.

    \b
    Example: weir repair wordcount --to-last-good
    """
    place = directory(dir, config, define)
    found = verbs.examine(
        Caller(place, job),
        savepoint_dir=savepoint_dir(config, define),
        checking=lambda: say.waiting(f"checking the files of {job}"),
    )
    _show(json, job, found)
    if found.opening:
        say.note(f"to cancel it: {command('restore', job, place, ' --withdraw')}")
        return
    if found.repair is None:
        load = command("verify", job, place, " --load")
        say.note(f"this does not check whether Spark can load every row of its state; to check that: {load}")
        return
    if not to_last_good:
        if json:
            say.say_json(found.form())
        todo = command("repair", job, place, " --to-last-good")
        say.note(f"nothing was changed; to do it: {todo}")
        raise typer.Exit(1)
    _confirm(job, place, yes)
    generation = verbs.carry_out(found, accept_duplicates=accept_duplicates)
    if json:
        say.say_json(found.form(generation))
        return
    say.say(
        f"recorded: the next 'weir run {found.file or 'FILE'}' resumes from there; the damaged files stay"
    )


def _confirm(job: str, dir: str, yes: bool) -> None:
    if yes:
        return
    if say.form is say.OutputForm.JSON or not say.err.is_terminal:
        raise NotDoneError(
            what=f"the live files of job {job!r} were not repaired",
            why="there is no terminal on which to ask",
            hint=command("repair", job, dir, " --to-last-good --yes"),
        )
    typer.confirm("repair it like this?", abort=True, err=True)


def _show(json: bool, job: str, found: Examined) -> None:
    """What is damaged and how the job can continue; as JSON only when there is nothing more to do."""
    if json:
        if found.repair is None:
            say.say_json(found.form())
        return
    if found.opening:
        say.say(f"{job} resumes from {found.opening} at its next start: that is recorded")
        return
    if found.repair is None:
        say.say(f"the live files of {job} are intact")
        return
    for one in found.repair.damage:
        say.say(f"damaged: {one.text}")
    for text in found.repair.passed_over:
        say.say(f"skipped: {text}")
    say.say(f"{job} can resume from {found.repair.source}:")
    for replay in found.repair.replays:
        say.say(f"  {replay.text}")
