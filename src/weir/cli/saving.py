"""What the verbs about savepoints share: where one is written to, how far it is, how it is shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from weir.cli import say
from weir.cli.options import overrides, settings_file
from weir.config import resolve
from weir.savepoint.verify import Verified
from weir.storage.open import is_local, local_path
from weir.supervisor.savepoints import progress_of

SavepointAt = Annotated[
    str,
    typer.Argument(metavar="PATH", help="The savepoint's directory or URL; 'weir savepoints' lists them."),
]

_PHASES = {
    "drain": "working off what the sources hold",
    "end": "waiting for the running batches",
    "checkpoint": "waiting for a checkpoint",
    "deliver": "waiting for the sinks",
    "copy": "copying",
}


def absolute(place: str) -> str:
    """As another process understands it, wherever it runs."""
    return str(Path(local_path(place)).absolute()) if is_local(place) else place


def savepoint_dir(file: Path | None, define: Sequence[str] | None) -> str | None:
    """The setting execution.checkpointing.savepoint-dir, as far as it is known here."""
    config = resolve(file=settings_file(file), environ=os.environ, overrides=overrides(define))
    return config.settings.execution_checkpointing_savepoint_dir


def watched(bar: say.Bar, dir: str, job: str) -> Callable[[str], None]:
    """Keeps a bar up to date with what the job says of a request."""

    def look(request: str) -> None:
        progress = progress_of(dir, job, request)
        if progress is not None:
            bar.phase(f"{job}: {_PHASES.get(progress['phase'], progress['phase'])}")
            if progress["full_bytes"]:
                bar(progress["done_bytes"], progress["full_bytes"])

    return look


def verified_words(verified: Verified | None, now: datetime) -> str:
    if verified is None:
        return "never"
    if not verified.whole:
        return f"damaged: {verified.damage[0]}"
    return say.when(verified.at, now) + ("" if verified.rows is None else ", loaded")
