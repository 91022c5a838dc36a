"""The driver as a process: started in a group of its own, its output kept, ended as a whole.

The JVM is a child of the driver. A driver that is killed leaves it running for moments in which it
could still commit; so the whole group is killed, and seen dead, before another driver starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from weir.link import Link
from weir.protocol.messages import Message
from weir.storage.scratch import Scratch
from weir.supervisor.output import OutputFile
from weir.text import Scrubber

JOB_NAME = "WEIR_JOB_NAME"
"""Tells a driver that its job is called otherwise than in its file."""

Heard = Callable[["Message | None"], None]
"""Called for each message, and once with None when the driver's end of the link is closed."""


class DriverProcess:
    """One driver, from its start to its certain end."""

    def __init__(
        self, file: Path, arguments: list[str], name: str, heard: Heard, show: Callable[[bytes], None]
    ) -> None:
        self._link, theirs = Link.pair()
        self._output: OutputFile | None = None
        self._early: list[bytes] = []
        self._show = show
        environment = os.environ | {"WEIR_LINK_FD": str(theirs.fileno()), "PYTHONUNBUFFERED": "1"}
        environment |= {JOB_NAME: name} if name else {}
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        self._scratch = Scratch.make()
        environment |= self._scratch.environment()
        with theirs, self._scratch.unless_started():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "weir.driver", str(file), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=(theirs.fileno(), self._scratch.handle),
                start_new_session=True,
            )
        self._scratch.belongs_to(self.group)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, True), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, False), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    @property
    def group(self) -> int:
        """The process group of the driver and its JVM."""
        return self._process.pid

    def send(self, message: Message) -> None:
        self._link.send(message)

    def keep_output(self, output: OutputFile) -> None:
        """From now on, and for what was printed so far: keep the output there."""
        self._output = output
        for data in self._early:
            output.write(data)
        self._early.clear()

    def last_words(self) -> str:
        """What was printed before there was a place to keep it."""
        return b"".join(self._early).decode(errors="replace")

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None when it still runs after that."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> int:
        """Kill the whole group; returns its exit code when every process of it is gone.

        What it has left in its scratch directory is deleted, in a thread: it may be much.
        """
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        code = self._process.wait()
        while _members(self.group):
            time.sleep(0.005)
        self._link.close()
        for reader in self._readers:
            reader.join(timeout=1)
        self._scratch.delete()
        return code

    def _listen(self, heard: Heard) -> None:
        for message in self._link.receive():
            heard(message)
        heard(None)

    def _read(self, stream: IO[bytes], shown: bool) -> None:
        handle, scrubber = stream.fileno(), Scrubber()
        while data := os.read(handle, 65536):
            self._keep(scrubber.feed(data))
            if shown:
                with suppress(OSError):  # as above: the pipe must be drained, or the driver blocks
                    self._show(data)
        self._keep(scrubber.end())

    def _keep(self, data: bytes) -> None:
        if self._output is not None:
            self._output.write(data)
        elif data and sum(map(len, self._early)) < 2**20:
            self._early.append(data)


def _members(group: int) -> bool:
    """Whether any process of the group lives; dead ones that nobody has reaped don't count."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in ("Z", "X"):
                return True
    return False
