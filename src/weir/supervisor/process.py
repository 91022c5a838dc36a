"""The processes with Spark that a supervisor or a command starts.

The driver of a job is started in a process group of its own, its output is kept, and the group is ended
as one. The JVM is a child of the driver: a driver that is killed leaves it running for moments in which
it could still commit. So the whole group is killed, and seen dead, before another driver starts.

A child is asked one question: a JSON object goes in, one comes out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

from weir.link import Link
from weir.protocol.messages import Message
from weir.storage.files import write_all
from weir.storage.scratch import Scratch
from weir.text import Scrubber

JOB_NAME = "WEIR_JOB_NAME"
"""Gives a driver another name for its job than the one in its file."""

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


class OutputFile:
    """What the driver prints, without secrets, in files of bounded size: the newest, and a few older ones.

    Nothing here raises for a file system that refuses (a full disk): what can't be kept is left out, and
    the file notes it once there is room again. Whoever prints must not wait for that, and no supervisor end.
    """

    def __init__(self, path: Path, limit: int = 16 * 2**20, keep: int = 3) -> None:
        self._path, self._limit, self._keep = path, limit, keep
        self._lock = threading.Lock()
        self._file: FileIO | None = None
        self._left_out = 0
        self.write(b"")  # so that the file is there, also for a driver that prints nothing

    def write(self, data: bytes) -> None:
        with self._lock:
            try:
                file = self._with_room_for(data)
                if self._left_out:
                    gap = f"weir: {self._left_out} bytes could not be kept here\n"
                    write_all(file.fileno(), gap.encode())
                    self._left_out = 0
                write_all(file.fileno(), data)
            except OSError:
                self._left_out += len(data)

    def close(self) -> None:
        with self._lock, suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _with_room_for(self, data: bytes) -> FileIO:
        if self._file is not None and self._file.tell() + len(data) > self._limit:
            self._file.close()
            self._file = None
            for number in reversed(range(1, self._keep)):
                with suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self._path, "a")
        return self._file


def ask_child(module: str, request: Mapping[str, Any], *arguments: str) -> tuple[dict[str, Any], str]:
    """What `python -m MODULE RESULT ARGUMENTS` answers, `error` when it failed; and what it printed.

    The request goes through standard input, where no list of processes shows what is in it, and the answer
    comes in a file, because what Spark and its JVM print must not come in between. An error has `what`,
    `why`, `hint`, `exit_code`, and `log` when what was printed should be shown.
    """
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", module, str(result), *arguments]
        environment = os.environ | {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        scratch = Scratch.make()
        given = json.dumps(request).encode()
        try:
            with log.open("wb") as output:
                done = subprocess.run(
                    command,
                    input=given,
                    stdout=output,
                    stderr=output,
                    env=environment | scratch.environment(),
                    pass_fds=(scratch.handle,),
                    check=False,
                )
        finally:
            scratch.delete()
        body: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        printed = log.read_text(errors="replace")
    if not body:
        what = f"the process with Spark ended with exit code {done.returncode}"
        body = {
            "error": {"what": what, "why": "", "hint": "its output is above", "exit_code": 4, "log": True}
        }
    return body, printed


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
