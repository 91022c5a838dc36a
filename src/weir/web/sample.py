"""A process with Spark for a sample of state: one at a time, not for long, never longer than this process.

It runs beside the job, on the same machine: sixteen of them would take the memory that the job needs.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from weir.errors import NotDoneError

LIMIT = 180.0
"""Seconds that it may take."""
_one = threading.Lock()


@dataclass(frozen=True)
class Said:
    """What the process printed."""

    out: str
    err: str


def run(command: Sequence[str], instead: str) -> Said:
    """Run it to its end; raises `NotDoneError` while another one runs, and when it takes too long.

    `instead` is what can be done then.
    """
    if not _one.acquire(blocking=False):
        raise NotDoneError(
            what="another sample of state is being read",
            why="each needs a Spark of its own beside the job, so that there is one at a time",
            hint="ask again when it has ended",
        )
    try:
        return _run(command, instead)
    finally:
        _one.release()


def _run(command: Sequence[str], instead: str) -> Said:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        end = partial(_kill, process.pid)
        atexit.register(end)
        try:
            return Said(*process.communicate(timeout=LIMIT))
        except subprocess.TimeoutExpired as late:
            raise NotDoneError(
                what=f"the state was not read within {LIMIT:g} s",
                why="Spark was given up",
                hint=instead,
            ) from late
        finally:
            if process.poll() is None:
                end()
            atexit.unregister(end)


def _kill(group: int) -> None:
    """End the process and its JVM."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
