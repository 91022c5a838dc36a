"""How a terminal waits for what it has asked for: what the verbs that ask a job share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.options import command
from weir.client.ask import Caller, Progress

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        help="How long to wait. After that, the operation continues without you.",
    ),
]

_PHASES = {
    "drain": "processing the remaining input",
    "end": "waiting for the running batches",
    "checkpoint": "waiting for a checkpoint",
    "deliver": "waiting for the sinks",
    "copy": "copying",
}


def caller(
    dir: str, job: str, verb: str, text: str, timeout: float | None = None, *, bar: bool = False
) -> Caller:
    """The job that a verb asks; `text` is shown while it waits, with a `bar` how far it is."""

    @contextmanager
    def waiting() -> Iterator[Progress | None]:
        try:
            if bar:
                with say.bar(text) as shown:
                    yield reached(shown, job)
            else:
                with say.waiting(text):
                    yield None
        except KeyboardInterrupt:
            say.note(f"no longer waiting; the {verb} of {job} continues: {shown_by(job, dir)}")
            raise

    return Caller(dir, job, timeout, waiting, shown_by(job, dir))


def shown_by(job: str, dir: str) -> str:
    return f"'{command('status', job, dir)}' shows its state"


def reached(bar: say.Bar, job: str) -> Callable[[Mapping[str, Any]], None]:
    """Keeps a bar up to date with how far the job is."""

    def show(progress: Mapping[str, Any]) -> None:
        bar.phase(f"{job}: {_PHASES.get(progress['phase'], progress['phase'])}")
        if progress["full_bytes"]:
            bar(progress["done_bytes"], progress["full_bytes"])

    return show
