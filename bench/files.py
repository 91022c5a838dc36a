"""What the files sink gives: rows per second, against Spark's own Parquet sink for the same rows.

    files       weir.sinks.files under weir, over Spark's own sink in plain PySpark      wanted >= 0.9

Both sides are measured in turn in one run, now the one first and now the other, with the same Spark
settings; medians. A side is timed from the commit of its first batch to when readers can see the rows
of its last: under weir that is the entry in the ledger, in plain Spark the commit. What readers see is
counted behind each run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import weir
from sides.processes import MASTER, PARTITIONS, end, end_on_sigterm, plain_environment
from weir.config import resolve
from weir.spark import session

HERE = Path(__file__).parent
JOB = HERE / "jobs" / "to_files.py"
RESULT = HERE / "results" / "files.json"
_FIRST = 1_700_000_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=6_000_000)
    arguments.add_argument("--batches", type=int, default=20)
    arguments.add_argument("--rounds", type=int, default=4)
    options = arguments.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.rows, options.batches)
        pairs = [bench.round(weir_first=number % 2 == 0) for number in range(options.rounds)]
    by_weir, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    result = {
        "rows": options.rows,
        "batches": options.batches,
        "rows_per_second": {"weir": round(by_weir), "spark": round(plain)},
        "ratio": round(by_weir / plain, 3),
        "rounds": [round(w / p, 3) for w, p in pairs],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


class Bench:
    """The input, and the two ways to write it."""

    def __init__(self, folder: Path, rows: int, batches: int) -> None:
        self._folder = folder
        self._per_batch = rows // batches
        self._batches = batches
        self._serial = 0
        self._input = folder / "in"
        generate(self._input, self._per_batch // 2, 2 * batches)

    def round(self, *, weir_first: bool) -> tuple[float, float]:
        """Rows per second of both sides."""
        if weir_first:
            by_weir = self.weir()
            return by_weir, self.plain()
        plain = self.plain()
        return self.weir(), plain

    def weir(self) -> float:
        place = self._place()
        settings = {
            "execution.checkpointing.dir": str(place / "store"),
            "parallelism.default": str(PARTITIONS),
        }
        command = [sys.executable, "-m", "weir", "run", str(JOB), "--master", MASTER]
        command += [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
        run([*command, str(self._input), str(place / "out")], os.environ, place)
        seen = weir.committed_files(str(place / "out"))
        ledger = max((place / "out/_weir/log").iterdir())
        commits = place / "store/to-files/generations/0001/queries/rows/commits"
        return self._rate(commits, seen, ledger.stat().st_mtime)

    def plain(self) -> float:
        place = self._place()
        config = resolve(file=None, overrides={"spark.master": MASTER})
        spark = session.builder_settings(config) | session.state_settings(config, PARTITIONS)
        command = [sys.executable, str(JOB), str(self._input), str(place / "out"), str(place / "checkpoint")]
        run(command, plain_environment(spark), place)
        commits = place / "checkpoint/commits"
        seen = [str(path) for path in (place / "out").glob("*.parquet")]
        return self._rate(commits, seen, (commits / str(self._batches - 1)).stat().st_mtime)

    def _place(self) -> Path:
        self._serial += 1
        place = self._folder / str(self._serial)
        place.mkdir()
        return place

    def _rate(self, commits: Path, seen: Sequence[str], until: float) -> float:
        """Rows per second behind the first batch, once it is clear that all of them are there."""
        rows = sum(pq.read_metadata(file).num_rows for file in seen)
        if rows != self._per_batch * self._batches or not (commits / str(self._batches - 1)).exists():
            raise SystemExit(f"bench: {rows} rows arrived")
        for file in seen:
            Path(file).unlink()  # the disk is not to fill up
        return self._per_batch * (self._batches - 1) / (until - (commits / "0").stat().st_mtime)


def run(command: Sequence[str], environ: Mapping[str, str], place: Path) -> None:
    """Run one side to its end."""
    with open(place / "said", "wb") as said:
        process = subprocess.Popen(command, env=environ, cwd=place, stdout=said, stderr=said)
        try:
            code = process.wait(1800)
        finally:
            end(process)
    if code != 0:
        raise SystemExit(f"bench: {command} failed:\n{(place / 'said').read_text()[-4000:]}")


def generate(folder: Path, each: int, files: int) -> None:
    """Deterministic rows, two files for each batch, in the order of their times."""
    folder.mkdir()
    for number in range(files):
        ids = range(number * each, (number + 1) * each)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "name": [f"customer {i * 2654435761 % 100_000}" for i in ids],
                "amount": [i * 0.37 for i in ids],
                "at": pa.array([_FIRST * 1_000_000 + i for i in ids], pa.timestamp("us", "UTC")),
                "note": [f"order {i}, paid by card, to be sent at once" for i in ids],
            }
        )
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (_FIRST + number, _FIRST + number))


if __name__ == "__main__":
    main()
