"""Make an exhibit with the weir of today: `python -m tests.compat.make 2-graph` in the repository's root.

Runs the job through the life that its recipe describes, packs the folder into `exhibits/` with what the
commands know of it, and refuses a name that is there: an exhibit is never made twice. The number is that of a
series; take the next one when a format has changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

import weir
from tests.compat import museum, rows
from tests.line_server import LineServer
from tests.postgres_server import PostgresServer, binaries
from weir.testing import QUICK, JobProcess

NO_RESTART = {**QUICK, "restart-strategy.type": "none"}


@dataclass
class Life:
    """One job in its folder, from its first start to the state in which it is packed."""

    name: str
    folder: Path
    inputs: int = 0
    """How many files (or lines) of input there are."""
    points: dict[str, Any] = field(default_factory=dict)
    """Where a test may go back to, and how much of the input is needed for it."""

    @property
    def job(self) -> str:
        return museum.job_of(self.name)

    @contextmanager
    def run(
        self,
        *args: str,
        faults: Sequence[str] = (),
        options: Sequence[str | Path] = (),
        settings: Mapping[str, str] = QUICK,
    ) -> Iterator[JobProcess]:
        """The job runs meanwhile; cancelled afterwards, where it has not ended."""
        with JobProcess(
            self.folder / "job.py",
            self.folder / "weir",
            args=args,
            faults=faults,
            options=options,
            settings=settings,
        ) as process:
            yield process
            if process.alive:
                process.terminate()
                process.wait(120)

    def feed(self, files: int) -> None:
        """Add files to the input."""
        rows.feed(self.folder / "in", self.inputs, self.inputs + files)
        self.inputs += files

    def delivered(self, process: JobProcess, files: int = 0) -> None:
        """Wait until all output for what is there is there; and first feed some, one after the other."""
        for _ in range(files):
            self.feed(1)
            self.delivered(process)
        process.wait_for(
            f"the output of {self.inputs}", lambda: rows.complete(self.job, self.folder, self.inputs), 240
        )

    def ask(self, *words: str) -> dict[str, Any]:
        """A command about the job that must succeed."""
        whole = [sys.executable, "-m", "weir", *words, "--dir", str(self.folder / "weir"), "--json"]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=240, cwd=self.folder)
        assert done.returncode == 0, done.stderr + done.stdout
        answer: dict[str, Any] = json.loads(done.stdout)
        print(f"{' '.join(words)}: {answer}", flush=True)
        return answer

    def checkpoint(self, *options: str) -> int:
        return int(self.ask("checkpoint", self.job, *options)["id"])

    def savepoint(self) -> None:
        """Take a savepoint, and keep where it is."""
        taken = self.ask("savepoint", self.job)
        self.keep("savepoint", taken["id"], taken["path"])

    def keep(self, name: str, id: int, point: str | None = None) -> None:
        """Keep a checkpoint as a point under a name, or the place where it can be restored from."""
        self.points[name] = {"point": point or f"chk-{id}", "checkpoint": id, "inputs": self.inputs}

    def killed(self, fault: str, files: int) -> None:
        """Run with new input until the driver is killed at a point; the job is FAILED for that."""
        with self.run(faults=[fault], settings=NO_RESTART) as process:
            self.feed(files)
            run = process.wait(240)
            assert run.states[-1] == "FAILED" and run.fired, (run.states, run.stderr)


def graph(life: Life) -> None:
    """Killed between Spark's decision and the delivery; the channel has lost its head."""
    with life.run(faults=["batch.staged#7:kill"]) as process:
        life.delivered(process, 3)
        life.checkpoint()
        life.delivered(process, 1)
        life.checkpoint("--full")
        life.delivered(process, 2)  # killed and started again on the way
        life.checkpoint()
        life.delivered(process, 1)
        life.savepoint()
        life.delivered(process, 1)
        life.keep("older", life.checkpoint())
        life.delivered(process, 2)
        life.keep("newest", life.checkpoint())
        life.delivered(process, 1)
    life.killed("batch.committed#3:kill", files=2)


def rocksdb(life: Life) -> None:
    """Changelogs and RocksDB's own snapshots; event time through a channel."""
    with life.run() as process:
        life.delivered(process, 4)
        life.checkpoint()
        life.delivered(process, 3)
        life.savepoint()
        life.delivered(process, 3)
        life.keep("older", life.checkpoint())
        life.delivered(process, 3)
        time.sleep(3)  # for the maintenance of RocksDB
        life.keep("newest", life.checkpoint())
        life.delivered(process, 1)
    life.killed("batch.written#2:kill", files=2)


def socket(life: Life) -> None:
    """Killed when lines were journaled and a batch of them was planned."""
    with LineServer(seconds=120) as server:

        def send(lines: int) -> None:
            sent = [rows.line_of(number) for number in range(life.inputs, life.inputs + lines)]
            server.send("".join(f"{line}\n" for line in sent).encode())
            life.inputs += lines

        def delivered(process: JobProcess) -> None:
            send(10)
            life.delivered(process)

        with life.run(str(server.port)) as process:
            for _ in range(3):
                delivered(process)
            life.checkpoint()
            delivered(process)
            life.savepoint()
            life.keep("older", life.checkpoint())
            delivered(process)
            life.keep("newest", life.checkpoint())
            delivered(process)
        server.hang_up()
        faults = ["batch.planned#1:hang", "batch.planned#2:hang"]
        with life.run(str(server.port), faults=faults, settings=NO_RESTART) as process:
            send(10)
            last, log = rows.line_of(life.inputs - 1), life.folder / "weir/socket/sources/lines/log"
            process.wait_for(
                "the journal", lambda: any(last in file.read_text() for file in log.glob("*.json"))
            )
            process.wait_for("planned batches", lambda: len(list(process.marks.glob("batch.planned*"))) == 2)
            process.kill_driver()
            assert process.wait(120).states[-1] == "FAILED"


def unaligned(life: Life) -> None:
    """Checkpoints with rows of the channel; restored once from a copy, with another restore intended."""
    with life.run() as process:
        life.delivered(process, 2)
    with life.run("slow") as process:
        life.feed(4)
        process.wait_for_batch("rows", 5)
        first = life.checkpoint()
        life.keep("intended", first)
        life.feed(1)
        process.wait_for_batch("rows", 6)
        life.checkpoint()
    copy = life.folder / "copies" / "unaligned" / "checkpoints" / f"chk-{first}.json"
    assert copy.exists()
    with life.run(options=["-s", copy]) as process:
        life.delivered(process)
        newest = life.checkpoint()
    life.keep("newest", newest)
    life.keep("copy", newest, str(copy.with_name(f"chk-{newest}.json")))
    life.ask("restore", "unaligned", f"chk-{first}")
    life.points["intended"]["point"] = None  # it is written down already


def files(life: Life) -> None:
    """More than two hundred batches, with checkpoints in between, so that small files are merged."""
    with life.run() as process:
        for _ in range(12):
            life.feed(18)
            life.delivered(process)
            life.checkpoint()
        life.keep("older", life.checkpoint())
        life.delivered(process, 2)
        life.keep("newest", life.checkpoint())
        process.wait_for("merged files", lambda: list((life.folder / "out" / "_merged").glob("*/*/part-*")))
    life.killed("batch.committed#1:kill", files=2)


def postgres(life: Life) -> None:
    """Two tables and the ledger in a database, which is packed as the statements that make it again."""
    found = binaries()
    assert found is not None, "no PostgreSQL here"
    server = PostgresServer(found)
    try:
        os.environ["DATABASE_OF_THE_TEST"] = server.url()
        with life.run() as process:
            life.delivered(process, 2)
            life.checkpoint()
            life.savepoint()
            life.delivered(process, 2)
            life.keep("older", life.checkpoint())
            life.delivered(process, 2)
            life.keep("newest", life.checkpoint())
        life.killed("batch.committed#2:kill", files=2)
        dump = [str(server.bin / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", server.url()]
        text = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
        statements = [line for line in text.splitlines() if not line.startswith(("\\", "--"))]
        (life.folder / "database.sql").write_text("\n".join(statements))
    finally:
        server.close()


RECIPES: dict[str, Callable[[Life], None]] = {
    "graph": graph,
    "rocksdb": rocksdb,
    "socket": socket,
    "unaligned": unaligned,
    "files": files,
    "postgres": postgres,
}


def make(name: str) -> None:
    """Make one exhibit, and write down what is known of it."""
    known = museum.EXHIBITS / f"{name}.json"
    assert not known.exists(), f"{name} was made: an exhibit is never made again"
    with museum.place(name) as folder:
        life = Life(name, folder)
        RECIPES[life.job](life)
        for link in folder.rglob("weir-data"):
            raise AssertionError(f"{link} should not be there")
        packed = museum.pack(name, folder)
    with museum.unpacked(name) as folder:
        about = {
            "weir": weir.__version__,
            "spark": pyspark.__version__,
            "inputs": life.inputs,
            "points": life.points,
            "facts": museum.facts(name, folder),
        }
    museum.write(name, about)
    print(f"{name}: {packed.stat().st_size} bytes")


if __name__ == "__main__":
    for one in sys.argv[1:]:
        make(one)
