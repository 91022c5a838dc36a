"""`weir run`: run a job file under a supervisor, in this terminal or detached."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from weir.cli.say import note, say_error
from weir.clock import Clock
from weir.protocol.messages import BatchCommitted
from weir.protocol.states import JobState
from weir.supervisor.loop import Inputs, Supervisor, Watcher


class _Terminal(Watcher):
    def state(self, job: str, state: JobState, attempt: int) -> None:
        note(f"{job}: {state.value}, attempt {attempt}")

    def batch(self, batch: BatchCommitted) -> None:
        pass

    def note(self, text: str) -> None:
        note(text)

    def output(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def run(
    file: Annotated[Path, typer.Argument(help="the job file")],
    arguments: Annotated[list[str] | None, typer.Argument(help="arguments for the job file")] = None,
    define: Annotated[list[str] | None, typer.Option("-D", help="a setting: key=value")] = None,
    master: Annotated[str | None, typer.Option(help="Spark's master, e.g. local[4]")] = None,
) -> None:
    """Run a job and keep it running."""
    overrides = dict(item.split("=", 1) for item in define or [])
    if master:
        overrides["spark.master"] = master
    settings = Path("weir.yaml")
    inputs = Inputs(
        file.absolute(),
        arguments or [],
        settings if settings.is_file() else None,
        dict(os.environ),
        overrides,
    )
    state, failure = Supervisor(inputs, _Terminal(), Clock()).run()
    if failure is not None:
        say_error(failure.what, failure.why, failure.hint)
    raise typer.Exit(0 if state is not JobState.FAILED else (failure.exit_code if failure else 1))
