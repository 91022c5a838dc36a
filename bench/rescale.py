"""Measure state written anew with another parallelism against Spark's own `repartition` call.

Both take the state of a count by key from 4 partitions to 8, from the same files, in turns; a ratio is
weir's seconds over Spark's in the same round. weir's include all it does besides: the other files of
the query, reading the new state back, comparing it, forcing it to the disk. The same is measured for
hashmap files, which Spark's call does not take, and from one backend to the other.

    python bench/rescale.py [--keys 1000000] [--rounds 5] [--cores 2] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.ids import BatchId
from weir.spark.session import Backend, state_defaults
from weir.spark.state_schema import operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT = Path(__file__).parent / "results" / "rescale.json"
BEFORE, AFTER = 4, 8
BATCH = BatchId(0)


def fill(spark: SparkSession, folder: Path, keys: int, backend: Backend) -> Path:
    """The checkpointLocation of a query that has counted each key once."""
    rows = folder / "rows"
    if not rows.exists():
        spark.range(keys).selectExpr("concat('key-', id) as k", "id as v").write.parquet(str(rows))
    session = _session(spark, backend)
    counts = session.readStream.schema("k string, v long").parquet(str(rows)).groupBy("k")
    writer = counts.agg({"v": "sum", "*": "count"}).writeStream.outputMode("update").format("noop")
    location = folder / backend
    writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start().awaitTermination()
    return location


def _session(spark: SparkSession, backend: Backend) -> SparkSession:
    session = spark.newSession()
    settings = state_defaults(backend, cores=1) | {"spark.sql.shuffle.partitions": str(BEFORE)}
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def arms(spark: SparkSession, folder: Path, keys: int) -> dict[str, Callable[[Path], None]]:
    from weir.spark.rewrite import rewrite

    there: dict[Backend, Path] = {
        "rocksdb": fill(spark, folder, keys, "rocksdb"),
        "hashmap": fill(spark, folder, keys, "hashmap"),
    }

    def weir(was: Backend, will_be: Backend) -> Callable[[Path], None]:
        def run(target: Path) -> None:
            known = operators(there[was], BATCH)
            made = rewrite(spark, there[was], target, BATCH, known, partitions=AFTER, backend=will_be)
            assert made.rows == keys

        return run

    def sparks_own(target: Path) -> None:
        manager: Any = _session(spark, "rocksdb")._streamingCheckpointManager
        manager.repartition(str(target), AFTER)

    return {
        "spark": sparks_own,
        "weir": weir("rocksdb", "rocksdb"),
        "weir, hashmap files": weir("hashmap", "hashmap"),
        "weir, hashmap to rocksdb": weir("hashmap", "rocksdb"),
        "weir, rocksdb to hashmap": weir("rocksdb", "hashmap"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="100,000 keys, 1 round; writes no file")
    args = parser.parse_args()
    if args.quick:
        args.keys, args.rounds = 100_000, 1
    folder = Path(tempfile.mkdtemp(prefix="rescale-"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{args.cores}]").config("spark.driver.memory", "3g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", f"{folder}/local")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    seconds: dict[str, list[float]] = {}
    try:
        found = arms(spark, folder, args.keys)
        for turn in range(args.rounds + 1):  # the first one is to warm up
            for name in list(found) if turn % 2 else list(reversed(found)):
                target = folder / f"{turn}-{name}"
                if name == "spark":  # it works in place
                    shutil.copytree(folder / "rocksdb", target)
                begun = time.monotonic()
                found[name](target)
                if turn:
                    seconds.setdefault(name, []).append(time.monotonic() - begun)
                shutil.rmtree(target)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    report: dict[str, Any] = {name: getattr(args, name) for name in ("keys", "rounds", "cores")}
    for name in found:
        ratios = [own / base for own, base in zip(seconds[name], seconds["spark"], strict=True)]
        line = {
            "seconds": [round(one, 2) for one in seconds[name]],
            "ratio": round(statistics.median(ratios), 2),
            "ratio_low": round(min(ratios), 2),
            "ratio_high": round(max(ratios), 2),
        }
        report[name] = line
        print(f"{name:28} {statistics.median(seconds[name]):6.1f} s   {line['ratio']:.2f} of Spark's")
    if not args.quick:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
