"""The two sides: a job under `weir run`, and a plain PySpark process with the same Spark settings.

Both say which batches they have committed in Spark's own words (the progress events), so that the
same thing is timed on both. Leaving the `with` block ends whatever was started, by process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import psutil

from weir.client import running_job
from weir.client.ask import Caller
from weir.config import resolve
from weir.spark import local_files, session
from weir.supervisor.history import Event
from weir.testing import JobProcess

MASTER = "local[2]"
PARTITIONS = 4
"""What weir gives 2 cores by default."""
JOBS = Path(__file__).parent.parent / "jobs"
PATIENCE = 900.0
_LOOK = 0.1


@dataclass(frozen=True)
class Batch:
    """A committed batch."""

    query: str
    rows: int
    ended_at: float


class Side(Protocol):
    """A running process that works off what a feed hands over."""

    def batches(self) -> list[Batch]: ...

    def alive(self) -> bool: ...

    def failed(self, since: float) -> bool: ...

    @property
    def pid(self) -> int: ...


def worked_off(side: Side, rows: Mapping[str, int], since: float | None = None) -> float:
    """Wait until each of these queries has read so many rows in all; when the last of them had.

    The clock of a query stops with the end of its batch, Spark's logs included. A failure `since`
    then spoils the measurement; one before it is weir's to mend.
    """
    until = time.monotonic() + PATIENCE
    while True:
        batches = side.batches()
        read = {query: sum(b.rows for b in batches if b.query == query) for query in rows}
        if all(read[query] >= wanted for query, wanted in rows.items()):
            if read != dict(rows):
                raise SystemExit(f"bench: {read} rows were read instead of {dict(rows)}")
            return max(b.ended_at for b in batches if b.query in rows)
        if not side.alive() or (since is not None and side.failed(since)):
            raise SystemExit(f"bench: it failed, with {read} rows of {dict(rows)}")
        if time.monotonic() > until:
            raise SystemExit(f"bench: {read} rows of {dict(rows)} after {PATIENCE:g} s")
        time.sleep(_LOOK)


def cpu_seconds(side: Side) -> float:
    """What a side and all that it has started have used of the processors so far.

    It says what work costs where a shared machine makes the clock say little.
    """
    used = 0.0
    for one in family(side.pid):
        with suppress(psutil.NoSuchProcess):
            used += sum(one.cpu_times()[:4])  # its own, and that of the children that have ended
    return used


class Weir:
    """A job under `weir run`."""

    def __init__(
        self,
        job: str,
        folder: Path,
        args: Sequence[str | Path],
        settings: Mapping[str, str] | None = None,
        options: Sequence[str | Path] = (),
    ) -> None:
        self.dir = folder / "store"
        base = {"spark.master": MASTER, "parallelism.default": str(PARTITIONS)}
        self._process = JobProcess(
            JOBS / f"{job}.py", self.dir, args=args, settings={**base, **(settings or {})}, options=options
        )

    def __enter__(self) -> Weir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self._process.stderr[-4000:], file=sys.stderr)
        self._process.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def job(self) -> str:
        return self._process.job

    def alive(self) -> bool:
        return psutil.pid_exists(self.pid)

    def failed(self, since: float) -> bool:
        """Whether something failed since then; what came before did no harm."""
        return any(_time(event.at) >= since for event in self._process.events("failure"))

    def batches(self) -> list[Batch]:
        found = self._process.batches()
        return [Batch(b["query"], b["rows"], _time(b["at"]) + b["seconds"]) for b in found]

    def events(self, *kinds: str) -> list[Event]:
        return self._process.events(*kinds)

    def configure(self, **settings: str) -> None:
        """Change settings of the running job. From here: a command would take its share of the cores."""
        running_job.configure(Caller(str(self.dir), self.job, PATIENCE), settings)

    def wait_for(self, what: str, there: Callable[[], Any]) -> None:
        self._process.wait_for(what, there, PATIENCE)


class Plain:
    """The same job file as a script of its own; it writes a line for each batch to `progress`."""

    def __init__(self, job: str, folder: Path, args: Sequence[str | Path]) -> None:
        config = resolve(file=None, overrides={"spark.master": MASTER})
        spark = session.builder_settings(config) | session.state_settings(config, PARTITIONS)
        self._progress = folder / "progress"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
        self._process = subprocess.Popen(
            [sys.executable, str(JOBS / f"{job}.py"), *map(str, args), str(folder / "checkpoints")],
            env=plain_environment(spark) | {"BENCH_PROGRESS": str(self._progress)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )

    def __enter__(self) -> Plain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if kind is not None:
            size = os.fstat(self._said.fileno()).st_size
            words = os.pread(self._said.fileno(), 4000, max(0, size - 4000))
            print(words.decode(errors="replace"), file=sys.stderr)
        end(self._process)
        self._said.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def failed(self, since: float) -> bool:
        return not self.alive()

    def batches(self) -> list[Batch]:
        found: dict[tuple[str, int], Batch] = {}
        with suppress(FileNotFoundError):
            for line in self._progress.read_text().splitlines():
                b = json.loads(line)
                ended_at = _time(b["timestamp"]) + b["batchDuration"] / 1000
                # an idle trigger repeats the last batch's progress
                found.setdefault((b["name"], b["batchId"]), Batch(b["name"], b["numInputRows"], ended_at))
        return list(found.values())


def plain_environment(spark: Mapping[str, str]) -> dict[str, str]:
    """What a plain process needs to get these Spark settings, and the classes that they name."""
    return {**os.environ, **local_files.environment(), "BENCH_SPARK": json.dumps(dict(spark))}


def end_on_sigterm() -> None:
    """Let SIGTERM unwind this process as an exception does, so that no `with` block is left out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started; safe when it has ended."""
    for one in family(process.pid):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(30)


def family(pid: int) -> list[psutil.Process]:
    """A process and what it has started, as far as they live."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
