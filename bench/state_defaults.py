"""Measure weir's state defaults against Spark's own, side by side in one JVM.

The ladder starts at Spark's defaults with the same provider and adds weir's settings one at a
time; its last step is what weir ships. Every step is a query of its own (a count and a sum for
each of --keys keys, update mode) that waits at a gate inside foreachBatch. In each round every
query is let through once, alone, and timed from the gate to the gate: one whole batch with its
planning, logs and state commit. A round is short, so both sides of a ratio see the same noise.

    python bench/state_defaults.py [--backend rocksdb] [--keys 1000000] [--rounds 4] [--quick] [--refused]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.spark.session import Backend, state_defaults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = Path(__file__).parent / "results" / "state_defaults.json"
ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = f"{ROCKSDB}.changelogCheckpointing.enabled"
# What was refused although some of it is faster, each on top of weir's defaults: see the explanation page.
REFUSED = {
    "rows not counted": {f"{ROCKSDB}.trackTotalNumberOfRows": "false"},
    "64 MB a store": {f"{ROCKSDB}.boundedMemoryUsage": "false", f"{ROCKSDB}.blockCacheSizeMB": "64"},
    "no compression": {f"{ROCKSDB}.compression": "none"},
    "no .crc (unsafe)": {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"},
    "FileSystem API (unsafe)": {
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
        ".checkpointing.FileSystemBasedCheckpointFileManager"
    },
}


@dataclass
class Arm:
    """One query under one set of settings, let through its gate batch by batch."""

    name: str
    settings: dict[str, str]
    seconds: list[float] = field(default_factory=list)
    ending: bool = False

    def start(self, spark: SparkSession, keys: int, rows: int, checkpoint: str) -> None:
        """Start the query; load every key with the first batch, then warm up."""
        session = spark.newSession()
        for key, value in self.settings.items():
            session.conf.set(key, value)
        # A changelog store keeps everything in memory up to its first snapshot, after ten versions:
        # small batches lead there, so that the keys lie in files when the clock starts.
        small = 9 if self.settings.get(CHANGELOG) == "true" else 1
        self._gate, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._query = (
            keyed_sums(session, keys, rows, small)
            .writeStream.outputMode("update")
            .foreachBatch(self._at_gate)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        self._await_arrival()
        for _ in range(1 + small + 1):
            self.step()

    def step(self) -> float:
        """Let one batch through and return its seconds, up to the next arrival at the gate."""
        begun = time.perf_counter()
        self._gate.release()
        self._await_arrival()
        return time.perf_counter() - begun

    def stop(self) -> None:
        """End the query: its waiting batch fails on purpose."""
        self.ending = True
        self._gate.release()
        while self._query.isActive:
            time.sleep(0.05)

    def _at_gate(self, batch: DataFrame, _batch_id: int) -> None:
        self._arrived.release()
        self._gate.acquire()
        if self.ending:
            raise InterruptedError("the measurement is over")
        batch.write.format("noop").mode("overwrite").save()

    def _await_arrival(self) -> None:
        while not self._arrived.acquire(timeout=1):
            if not self._query.isActive:
                raise RuntimeError(f"{self.name} failed: {self._query.exception()}")


def keyed_sums(session: SparkSession, keys: int, rows: int, small: int) -> DataFrame:
    """A count and a sum per key: batch 0 holds every key, `small` batches a 50th, the rest `rows` rows."""
    per_row = keys // rows
    key = (
        f"case when value < {rows} then sequence(value * {per_row}, value * {per_row} + {per_row - 1})"
        f" else array(pmod(xxhash64(value), {keys})) end"
    )
    return (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .load()
        .where(f"value < {rows} or value >= {rows * (1 + small)} or value % 50 = 0")
        .selectExpr(f"explode({key}) as key", "value")
        .groupBy("key")
        .agg({"*": "count", "value": "sum"})
    )


def ladder(backend: Backend, cores: int) -> list[Arm]:
    """Spark's defaults, then weir's settings one after the other; the last arm is weir."""
    wanted = state_defaults(backend, cores=cores)
    settings = {PROVIDER: wanted.pop(PROVIDER)}
    arms = [Arm("spark", dict(settings))]
    for key, value in wanted.items():
        settings[key] = value
        arms.append(Arm(f"+ {key.removeprefix('spark.sql.').split('stateStore.')[-1]}", dict(settings)))
    arms[-1].name += "  = weir"
    return arms


def measure(spark: SparkSession, arms: list[Arm], keys: int, rows: int, rounds: int, directory: str) -> None:
    """Fill in each arm's seconds: `rounds` rounds, in turns forth and back."""
    for number, arm in enumerate(arms):
        arm.start(spark, keys, rows, f"{directory}/{number}")
    for turn in range(rounds):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            arm.seconds.append(arm.step())
    for arm in arms:
        arm.stop()


def summary(arms: list[Arm], rows: int) -> list[dict[str, Any]]:
    """Per arm: records a second, and how many times the first arm's, as median and range over the rounds."""
    lines = []
    for arm in arms:
        ratios = [base / own for base, own in zip(arms[0].seconds, arm.seconds, strict=True)]
        lines.append(
            {
                "name": arm.name,
                "records_per_second": round(rows * len(arm.seconds) / sum(arm.seconds)),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_low": round(min(ratios), 2),
                "ratio_high": round(max(ratios), 2),
                "seconds": [round(value, 3) for value in arm.seconds],
                "settings": arm.settings,
            }
        )
    return lines


def build_session(cores: int, directory: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.local.dir", f"{directory}/local")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", choices=["rocksdb", "hashmap"], help="only this one")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000, help="rows per batch; divides --keys")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="100,000 keys, 20,000 rows, 3 rounds; writes no file"
    )
    parser.add_argument("--refused", action="store_true", help="weir against what it refused; writes no file")
    args = parser.parse_args()
    if args.quick:
        args.keys, args.rows, args.rounds = 100_000, 20_000, 3
    if args.keys % args.rows:
        parser.error("--rows must divide --keys")

    report: dict[str, Any] = {name: getattr(args, name) for name in ("keys", "rows", "rounds", "cores")}
    backends: list[Backend] = [args.backend] if args.backend else ["rocksdb", "hashmap"]
    directory = tempfile.mkdtemp(prefix="state-defaults-")
    spark = build_session(args.cores, directory)
    try:
        for backend in backends:
            arms = ladder(backend, args.cores)
            if args.refused:
                extra = {k: v for k, v in REFUSED.items() if backend == "rocksdb" or "(unsafe)" in k}
                arms = [arms[-1], *(Arm(name, arms[-1].settings | more) for name, more in extra.items())]
            measure(spark, arms, args.keys, args.rows, args.rounds, f"{directory}/{backend}")
            report[backend] = summary(arms, args.rows)
            print(f"\n{backend:42} {'records/s':>10} {'ratio':>6}   range")
            for line in report[backend]:
                print(
                    f"{line['name']:42} {line['records_per_second']:>10,} {line['ratio']:>6.2f}"
                    f"   {line['ratio_low']:.2f} to {line['ratio_high']:.2f}"
                )
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if not (args.quick or args.refused or args.backend):
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
