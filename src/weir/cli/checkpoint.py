"""`weir checkpoint`: take a checkpoint of a running job now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.asking import Timeout, ask, not_done, refuse_without_supervisor
from weir.cli.options import AsJson, Define, Directory, JobOf, SettingsFile, directory
from weir.clock import Clock
from weir.supervisor.asking import CHECKPOINT
from weir.supervisor.view import look

Full = Annotated[bool, typer.Option("--full", help="Not only what is new: all that a restore needs, copied.")]


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
    does not stop for it. One that is under way is let through first.

    \b
    Example: weir checkpoint wordcount --full
    """
    place = directory(dir, config, define)
    standing = look(place, job, Clock())
    refuse_without_supervisor(standing, place, "checkpoint")
    with say.waiting(f"waiting for a checkpoint of {job}"):
        answer = ask(place, standing, CHECKPOINT, {"full": full}, timeout)
    body: dict[str, Any] = {"job": job, "id": answer.get("id"), "status": "completed"}
    if not answer["done"]:
        error = not_done(standing, place, CHECKPOINT, answer)
        what = f"checkpoint {answer['id']} of {job} was aborted" if "id" in answer else error.what
        say.say_error(what, error.why, error.hint, **body | {"status": "aborted" if "id" in answer else None})
        raise typer.Exit(error.exit_code)
    sizes = {key: answer[key] for key in ("seconds", "new_bytes", "full_bytes")}
    if json:
        say.say_json(body | sizes)
        return
    new, whole = say.size(sizes["new_bytes"]), say.size(sizes["full_bytes"])
    say.say(f"checkpoint {body['id']} of {job} completed in {sizes['seconds']:.2f} s: {new} new of {whole}")
