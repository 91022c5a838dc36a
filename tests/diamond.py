"""The diamond of `faults/jobs/diamond.py` from outside: its input, its output, its checkpoints.

`assert_consistent` holds completed checkpoints against their own definition: what the queries make of
the source's rows up to the cut, computed here, is what the files of the checkpoint contain.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

import weir
from tests.faults.jobs.diamond import build, left, right
from weir.channel.log import Tail, read_entry, segments, tail_behind
from weir.checkpoint import manifest as mf
from weir.checkpoint.kept_files import KeptFiles, edit_of
from weir.checkpoint.manifest import Manifest
from weir.clock import Clock
from weir.ids import CheckpointId, QueryName, job_name
from weir.restore.intent import intend
from weir.restore.request import RestoreRequest
from weir.sinks.files_ledger import log_of
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store, open_store, paths
from weir.storage import generation as generations
from weir.storage.paths import Live
from weir.testing import committed_rows, write_script
from weir.testing.script import Rows, read_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.driver.notebook import Run

JOB = job_name("diamond")
KEY = "execution.checkpointing"
ROWS = 6
"""Rows to a batch of the source; each of its partitions has some."""

Pairs = Counter[tuple[int, int]]


class Diamond:
    """The diamond in one folder; `weir` below it is the job's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dir = folder / "weir"
        self.script = folder / "in.jsonl"
        self.ids = sum(len(step.rows) for step in read_script(self.script) if isinstance(step, Rows))
        """So many ids are in the script, from 0 on."""
        self._hold = folder / "hold"

    @property
    def store(self) -> Store:
        return open_store(str(self.dir))

    def add(self, batches: int) -> int:
        """Add so many batches to the input; the first id of them."""
        first = self.ids
        for _ in range(batches):
            write_script(self.script, Rows([(id, 10 * id) for id in range(self.ids, self.ids + ROWS)]))
            self.ids += ROWS
        return first

    def hold(self, id: int) -> None:
        """Let the right side wait in front of this id."""
        new = self._hold.with_name("hold.new")
        new.write_text(str(id))
        new.replace(self._hold)

    def release(self) -> None:
        self._hold.unlink()

    def job(self, shape: str = "diamond", *, purge: int = 100, **options: Any) -> weir.Job:
        """The job, for a live session; `options` are settings of checkpoints."""
        settings = {f"{KEY}.dir": str(self.dir), f"{KEY}.interval": "off", "parallelism.default": 2}
        settings |= {"task.cancellation.timeout": "10 s"}
        settings |= {f"{KEY}.{name.replace('_', '-')}": value for name, value in options.items()}
        job = weir.Job(JOB, **settings)

        @job.pipeline
        def pipeline(env: weir.Env) -> None:
            env.spark.conf.set("spark.sql.streaming.minBatchesToRetain", purge)
            build(env, self.folder, shape)

        return job

    # the output

    def counts(self) -> Counter[int]:
        """How often each id was delivered; each time with the values of both sides."""
        rows = committed_rows(str(self.folder / "joined"))
        for row in rows:
            assert row["r"] == right(10 * row["id"]) and row.get("l", left(10 * row["id"])) == left(
                10 * row["id"]
            )
        return Counter(row["id"] for row in rows)

    def complete(self) -> bool:
        """Whether all that is in the script was delivered."""
        with suppress(FileNotFoundError):  # a rollback takes files away
            return self.counts().keys() == set(range(self.ids))
        return False

    def check(self) -> None:
        """Every id was delivered, and once."""
        counts = self.counts()
        wrong = {id: counts[id] for id in range(self.ids) if counts[id] != 1}
        assert not wrong and counts.keys() == set(range(self.ids)), f"ids with their numbers: {wrong}"

    # the checkpoints

    def manifests(self) -> list[Manifest]:
        """The completed checkpoints that are retained, oldest first."""
        found = (mf.read(self.store, JOB, id) for id in mf.completed(self.store, JOB))
        return [one for one in found if one is not None]

    def manifest(self, id: int) -> Manifest:
        found = mf.read(self.store, JOB, CheckpointId(id))
        assert found is not None, f"checkpoint {id} is not there"
        return found

    def pending(self) -> set[CheckpointId]:
        """The checkpoints that are under way right now."""
        begun, ended = mf.ids(self.store, JOB)["begun"], mf.ids(self.store, JOB)
        return begun - ended["chk"] - ended["aborted"]

    def go_back(self, id: int) -> None:
        """What 'weir restore' writes when nobody runs the job."""
        intend(self.store, JOB, RestoreRequest(f"chk-{id}"), clock=Clock(), why="test")

    # the live files

    @property
    def live(self) -> Live:
        return Live(self.store, JOB, generations.live(self.store, JOB))

    def position(self, query: str, channel: str) -> int:
        """So many entries of a channel has a query read, in committed batches."""
        offsets = QueryFiles.of(self.live, QueryName(query)).committed_offsets()
        return max((one["entry"] for one in offsets if one.get("channel") == channel), default=0)

    def entries(self, channel: str, kind: str = "") -> list[int]:
        """The numbers of the entries that are left in a live channel, of one kind or all, in order."""
        log = self.folder_of(f"channels/{channel}/log")
        return [
            int(file.stem)
            for file in sorted(log.glob("[0-9]*.json"))
            if not kind or json.loads(file.read_text())["kind"] == kind
        ]

    def folder_of(self, path: str) -> Path:
        """A folder of the live generation."""
        return self.dir / paths.generation(JOB, self.live.generation) / path


def wait_for(what: str, there: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while True:
        since = time.monotonic()
        if there():
            return
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(max(0.02, 4 * (time.monotonic() - since)))  # looking must not slow down what is looked for


def wait(run: Run, what: str, there: Callable[[], Any]) -> None:
    """Wait until something holds; raise when a query fails before."""

    def look() -> Any:
        run.check()
        return there()

    wait_for(what, look)


@dataclass
class Unpacked:
    """The files of a checkpoint as a restore would bring them back, in a folder of their own."""

    manifest: Manifest
    root: Path

    @classmethod
    def of(cls, store: Store, manifest: Manifest, root: Path) -> Unpacked:
        kept = KeptFiles(store, manifest)
        for file in manifest.files():
            target = root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            kept.bring(file, target, edit_of(manifest, file.path, root))
        return cls(manifest, root)

    def before(self, reader: str, channel: str) -> list[tuple[Any, ...]]:
        """The rows of a channel that a reader has still before it, from the files of the checkpoint."""
        cut = self.manifest.channels[channel]
        start, _ = self.manifest.queries[reader].positions.get(channel, (0, 0))
        folder = open_store(str(self.root / "channels" / channel))
        front = read_entry(folder, start - 1) if start else None
        assert start == 0 or front is not None, f"nothing tells {reader} the state of {channel}"
        entries = [read_entry(folder, number) for number in range(start, cut.behind)]
        assert None not in entries, f"{channel} has a hole for {reader} in {self.manifest.id}"
        tail = tail_behind(front) if start else Tail()
        files = [
            self.root / "channels" / channel / segment.folder / file.name
            for segment in segments(tail, [one for one in entries if one is not None])
            for file in segment.files
        ]
        return [tuple(row.values()) for file in files for row in parquet.ParquetFile(file).read().to_pylist()]

    def state(self, spark: SparkSession, side: str) -> DataFrame:
        """The join's state of one side: checkpoint, side, id, value."""
        from pyspark.sql import functions as F

        cut = self.manifest.queries["joined"]
        frame = spark.read.format("statestore").option("joinSide", side).option("batchId", cut.batch)
        value = f"value.{side[0]}"
        return frame.load(str(self.root / "queries/joined")).select(
            F.lit(self.manifest.id).alias("checkpoint"),
            F.lit(side).alias("side"),
            "value.id",
            F.col(value).alias("v"),
        )


def states(spark: SparkSession, several: Sequence[Unpacked]) -> dict[tuple[int, str], Pairs]:
    """The join's state in each checkpoint, for each side; read in one go."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    there = [one for one in several if one.manifest.queries["joined"].batch >= 0]
    frames = [one.state(session, side) for one in there for side in ("left", "right")]
    found: dict[tuple[int, str], Pairs] = {
        (one.manifest.id, side): Counter() for one in several for side in ("left", "right")
    }
    while len(frames) > 1:  # a balanced union: a deep one takes long to analyse
        pairs = zip(frames[::2], [*frames[1::2], None], strict=False)
        frames = [a.union(b) if b is not None else a for a, b in pairs]
    for row in frames[0].collect() if frames else []:
        found[row.checkpoint, row.side][row.id, row.v] += 1
    return found


def delivered_up_to(folder: Path, batch: int) -> Counter[tuple[int, int, int]]:
    """What a files sink holds of the batches up to this one."""
    rows: Counter[tuple[int, int, int]] = Counter()
    for name, span in log_of(open_store(str(folder))).catch_up().files.items():
        if span.last <= batch:
            table = parquet.ParquetFile(folder / name).read()
            rows.update((row["id"], row["l"], row["r"]) for row in table.to_pylist())
    return rows


def assert_consistent(
    spark: SparkSession, diamond: Diamond, manifests: Sequence[Manifest], scratch: Path
) -> None:
    """Every checkpoint is what the queries make of the source's rows up to its cut."""
    several = [Unpacked.of(diamond.store, one, scratch / str(one.id)) for one in manifests]
    state = states(spark, several)
    script = read_script(diamond.script)
    for one in several:
        manifest = one.manifest
        offsets = manifest.queries["all"].offsets
        steps = json.loads(offsets[0])["step"] if offsets else 0
        source: Pairs = Counter(
            (id, v) for step in script[:steps] if isinstance(step, Rows) for id, v in step.rows
        )
        sides = {}
        for side, made in (("left", left), ("right", right)):
            passed = source - Counter((id, v) for id, v in one.before(side, "all"))
            waiting: Pairs = Counter((id, v) for id, v in one.before("joined", side))
            kept = sides[side] = state[manifest.id, side]
            expected: Pairs = Counter()
            for (id, v), n in passed.items():
                expected[id, made(v)] += n
            about = f"{side} side of checkpoint {manifest.id} ({manifest.alignment.value})"
            assert kept + waiting == expected, f"the {about}: {_difference(kept + waiting, expected)}"
        delivered = delivered_up_to(diamond.folder / "joined", manifest.queries["joined"].batch)
        assert delivered == _join(sides["left"], sides["right"]), f"the output of checkpoint {manifest.id}"


def _join(left: Pairs, right: Pairs) -> Counter[tuple[int, int, int]]:
    by_id: dict[int, list[tuple[int, int]]] = {}
    for (id, r), n in right.items():
        by_id.setdefault(id, []).append((r, n))
    found: Counter[tuple[int, int, int]] = Counter()
    for (id, value), n in left.items():
        for r, m in by_id.get(id, []):
            found[id, value, r] += n * m
    return found


def _difference(found: Pairs, expected: Pairs) -> str:
    more, less = found - expected, expected - found
    return f"{len(more)} too many, {len(less)} missing: {list(more)[:3]}, {list(less)[:3]}"


def overlapping(manifests: Iterable[Manifest]) -> int:
    """How many checkpoints began while an earlier one was under way."""
    times = [tuple(map(datetime.fromisoformat, (one.begun_at, one.completed_at))) for one in manifests]
    return sum(any(a < begun < b for a, b in times) for begun, _ in times)
