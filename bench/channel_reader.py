"""Measure a channel's reader against Spark's own Parquet file source, over the same files.

Every arm is a streaming query (trigger AvailableNow, one batch, `noop` sink) that reads all rows of
one channel; the arms take turns, and a ratio is Spark's seconds over the arm's in the same round, so
both sides see the same noise. The seconds are those of the batch, as Spark reports them: planning,
reading and logs, without the start of the query.

    python bench/channel_reader.py [--rows 5000000] [--segments 10] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.channel import reader
from weir.channel.log import Tail, read_entry, segments
from weir.channel.stream import open_stream
from weir.channel.writer import ChannelWriter
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = Path(__file__).parent / "results" / "channel_reader.json"
CASES = {
    "two longs": ["id as k", "id * 7 as v"],
    "two longs and a string": [
        "id as k",
        "id * 7 as v",
        "concat('user-', cast(id % 100000 as string)) as name",
    ],
}


@dataclass
class Arm:
    """One way to read the files."""

    name: str
    frame: Callable[[], DataFrame]
    seconds: list[float] = field(default_factory=list)

    def run(self, checkpoint: str, rows: int) -> None:
        query = (
            self.frame()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        done = [one for one in query.recentProgress if one.numInputRows]
        assert sum(one.numInputRows for one in done) == rows, (self.name, done)
        self.seconds.append(sum(one.durationMs["triggerExecution"] for one in done) / 1000)


def fill(spark: SparkSession, folder: str, columns: list[str], rows: int, count: int) -> None:
    """A channel of `count` segments, written as a query would write it."""
    token, each = Token(Attempt(1), Run(1)), rows // count
    writer = ChannelWriter("bench", folder, f"{folder}-query")
    writer.open("bench/query", "lineage", token)
    for number in range(count):
        staged = Staged(BatchId(number), token)
        frame = spark.range(number * each, (number + 1) * each, numPartitions=2).selectExpr(*columns)
        writer.stage(frame, staged.batch, token)
        writer.record(staged)
        writer.commit(staged)


def arms(spark: SparkSession, folder: str, work: str, columns: list[str]) -> list[Arm]:
    from weir.storage import open_store

    schema = spark.range(1).selectExpr(*columns).schema
    store, number, entries = open_store(folder), 0, []
    while (entry := read_entry(store, number)) is not None:
        entries.append(entry)
        number += 1
    files = [f"{folder}/{s.folder}/{f.name}" for s in segments(Tail(), entries) for f in s.files]

    def own(batch_rows: int, tasks: int) -> Callable[[], DataFrame]:
        def make() -> DataFrame:
            reader.BATCH_ROWS = batch_rows
            return open_stream(spark, schema, folder, f"{work}/none", "", max_segments=0, tasks=tasks)

        return make

    plain = f"{work}/plain"
    os.makedirs(plain)
    for number, file in enumerate(files):
        os.link(file, f"{plain}/part-{number}.parquet")
    cores = spark.sparkContext.defaultParallelism
    return [
        Arm("spark", lambda: spark.readStream.schema(schema).parquet(plain)),
        *(Arm(f"channel, {n:,} rows a batch", own(n, cores)) for n in (4096, 16384, 65536, 262144)),
        *(Arm(f"channel, {n} tasks", own(reader.BATCH_ROWS, n)) for n in (1, 2 * cores, 10 * cores)),
    ]


def summary(found: list[Arm], rows: int) -> list[dict[str, Any]]:
    lines = []
    for arm in found:
        ratios = [base / own for base, own in zip(found[0].seconds, arm.seconds, strict=True)]
        lines.append(
            {
                "name": arm.name,
                "rows_per_second": round(rows * len(arm.seconds) / sum(arm.seconds)),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_low": round(min(ratios), 2),
                "ratio_high": round(max(ratios), 2),
                "seconds": [round(value, 3) for value in arm.seconds],
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
        .config("spark.local.dir", f"{directory}/local")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--segments", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="500,000 rows, 2 rounds; writes no file")
    args = parser.parse_args()
    if args.quick:
        args.rows, args.rounds = 500_000, 2
    report: dict[str, Any] = {name: getattr(args, name) for name in ("rows", "segments", "rounds", "cores")}
    directory = tempfile.mkdtemp(prefix="channel-reader-")
    spark = build_session(args.cores, directory)
    try:
        for number, (case, columns) in enumerate(CASES.items()):
            folder, work = f"{directory}/{number}/channel", f"{directory}/{number}/work"
            fill(spark, folder, columns, args.rows, args.segments)
            found = arms(spark, folder, work, columns)
            for turn in range(args.rounds + 1):
                for arm in found if turn % 2 == 0 else reversed(found):
                    arm.run(f"{work}/{turn}-{arm.name}", args.rows)
            for arm in found:
                del arm.seconds[0]  # warming up
            report[case] = summary(found, args.rows)
            print(f"\n{case:42} {'rows/s':>12} {'ratio':>6}   range")
            for line in report[case]:
                print(
                    f"{line['name']:42} {line['rows_per_second']:>12,} {line['ratio']:>6.2f}"
                    f"   {line['ratio_low']:.2f} to {line['ratio_high']:.2f}"
                )
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if not args.quick:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
