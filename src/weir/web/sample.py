"""A sample of state, read by a process with Spark: one at a time and with a time limit.

It runs beside the job, on the same machine: sixteen of them would take the memory that the job needs.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from weir.errors import NotDoneError

WEIR = (sys.executable, "-m", "weir")
LIMIT = 180.0
"""Seconds that it may take."""
_one = threading.Lock()


@dataclass(frozen=True)
class Printed:
    """What the process printed."""

    out: str
    err: str


def sample_of(dir: str, job: str, query: str, operator: int, limit: int) -> Mapping[str, Any]:
    """Some rows of an operator's state, as `weir state show --json` has them; raises `NotDoneError`."""
    asked = [f"--query={query}", f"--operator={operator}", f"--limit={limit}"]
    command = [*WEIR, "state", "show", job, *asked, "--dir", dir, "--json"]
    printed = run(command, f"'weir state show {job}' has no time limit")
    try:
        body: dict[str, Any] = json.loads(printed.out)
    except ValueError:
        raise NotDoneError(what="the state could not be read", why=printed.err[-500:], hint="") from None
    if "error" in body:
        raise NotDoneError(**body["error"])
    return body


def run(command: Sequence[str], instead: str) -> Printed:
    """Run it to its end; raises `NotDoneError` while another one runs, and when it takes too long.

    `instead` is what can be done then.
    """
    if not _one.acquire(blocking=False):
        raise NotDoneError(
            what="another sample of state is being read",
            why="each one starts a Spark of its own beside the job, so only one runs at a time",
            hint="ask again when it has ended",
        )
    try:
        return _run(command, instead)
    finally:
        _one.release()


def _run(command: Sequence[str], instead: str) -> Printed:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        end = partial(_kill, process.pid)
        atexit.register(end)
        try:
            return Printed(*process.communicate(timeout=LIMIT))
        except subprocess.TimeoutExpired as late:
            raise NotDoneError(
                what=f"the state was not read within {LIMIT:g} s",
                why="its process was ended",
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
