"""Reading a channel, over Spark's own file source that reads the same Parquet files.

    large    segments of 500,000 rows, one a batch: rows/s, over those of Spark's source   wanted >= 0.95
    small    segments of 1,000 rows, one a batch: seconds a batch, over those of Spark's   wanted <= 1.1

Each side is a streaming query (trigger AvailableNow, `noop` sink) in one session; they take turns, and a
ratio is of the same round, so both see the same noise. The seconds are those of Spark's batches: planning,
reading and logs, without the start of the query. The first batch of a query, which loads classes, is left
out.

    python bench/channel.py [--rounds 5] [--only large] [--quick]
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

from weir.channel.stream import open_stream
from weir.channel.writer import ChannelWriter
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.spark import local_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = Path(__file__).parent / "results" / "channel.json"
COLUMNS = ["id as k", "id * 7 as v", "concat('user-', cast(id % 100000 as string)) as name"]
FILES = 2
"""Of a segment."""


@dataclass(frozen=True)
class Case:
    rows: int
    segments: int


CASES = {"large": Case(500_000, 10), "small": Case(1_000, 60)}


@dataclass
class Side:
    """One way to read the files."""

    name: str
    frame: Callable[[], DataFrame]
    seconds: list[float] = field(default_factory=list)
    """A batch's, of each round."""

    def run(self, checkpoint: str, case: Case) -> None:
        writer = self.frame().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [one for one in query.recentProgress if one.numInputRows]
        assert [one.numInputRows for one in done] == [case.rows] * case.segments, (self.name, done)
        self.seconds.append(statistics.mean(one.durationMs["triggerExecution"] for one in done[1:]) / 1000)


def fill(spark: SparkSession, folder: str, case: Case) -> list[str]:
    """A channel, written as a query would write it; its files."""
    token = Token(Attempt(1), Run(1))
    writer = ChannelWriter("bench", folder, f"{folder}-query")
    writer.open("bench/query", "lineage", token)
    for number in range(case.segments):
        staged = Staged(BatchId(number), token)
        ids = spark.range(number * case.rows, (number + 1) * case.rows, numPartitions=FILES)
        writer.stage(ids.selectExpr(*COLUMNS), staged.batch, token)
        writer.record(staged)
        writer.commit(staged)
    return sorted(map(str, Path(folder, "data").glob("*/part-*.parquet")))


def sides(spark: SparkSession, folder: str, files: list[str]) -> tuple[Side, Side]:
    """The channel, and Spark's source on hard links to its files."""
    schema = spark.range(1).selectExpr(*COLUMNS).schema
    plain = f"{folder}-plain"
    os.makedirs(plain)
    for number, file in enumerate(files):
        os.link(file, f"{plain}/part-{number:05d}.parquet")
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES)
    return (
        Side("channel", lambda: open_stream(spark, schema, folder, f"{folder}-none", "", max_segments=1)),
        Side("spark", lambda: source.parquet(plain)),
    )


def summary(channel: Side, spark: Side, case: Case) -> dict[str, Any]:
    ratios = [own / base for own, base in zip(channel.seconds, spark.seconds, strict=True)]
    return {
        "rows": case.rows,
        "batches": case.segments,
        "batch_ms": {one.name: round(1000 * statistics.median(one.seconds), 1) for one in (channel, spark)},
        "seconds_ratio": round(statistics.median(ratios), 3),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "rows_per_second_ratio": round(1 / statistics.median(ratios), 3),
    }


def build_session(cores: int, directory: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local_files.ensure()
    os.environ.update(local_files.environment())
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", f"{directory}/local")
        .config(map=dict(local_files.settings(f"local[{cores}]")))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", choices=CASES, help="the rest of the result file stays")
    parser.add_argument("--quick", action="store_true", help="few rows, 2 rounds; writes no file")
    args = parser.parse_args()
    cases = {name: CASES[name] for name in ([args.only] if args.only else CASES)}
    if args.quick:
        args.rounds, cases = 2, {"large": Case(50_000, 3), "small": Case(1_000, 5)}
    report = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    directory = tempfile.mkdtemp(prefix="channel-")
    spark = build_session(args.cores, directory)
    try:
        for name, case in cases.items():
            folder, load = f"{directory}/{name}", os.getloadavg()[0]
            channel, plain = both = sides(spark, folder, fill(spark, folder, case))
            for turn in range(args.rounds + 1):
                for side in both if turn % 2 == 0 else reversed(both):
                    side.run(f"{directory}/work/{name}-{turn}-{side.name}", case)
            for side in both:
                del side.seconds[0]  # warming up
            report[name] = {"load_before": round(load, 2), **summary(channel, plain, case)}
            print(name, json.dumps(report[name], indent=1), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if not args.quick:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
