"""What the PostgreSQL sink gives: rows per second, against one COPY of the same rows by psql.

    copy        exactly-once append under weir, over `psql \\copy` of the same rows      wanted >= 0.3
    delivery    exactly once over at least once, by the same sink                      wanted >= 0.5

All sides are measured in turn in one run, against one server with its default durability; medians.
weir's side is timed from the commit of its first batch to the delivery of its last; psql's from its
start to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from sides.processes import MASTER, end, end_on_sigterm  # noqa: E402
from tests.postgres_server import PostgresServer, binaries  # noqa: E402

JOB = HERE / "jobs" / "to_postgres.py"
RESULT = HERE / "results" / "postgres.json"
DELIVERIES = ("exactly_once", "at_least_once")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=3_000_000)
    arguments.add_argument("--batches", type=int, default=10)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    end_on_sigterm()
    found = binaries()
    if found is None:
        raise SystemExit("bench: there is no PostgreSQL here")
    server = PostgresServer(found, fsync="on", shared_buffers="256MB", max_wal_size="4GB")
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(server, Path(folder), options.rows, options.batches)
            sides: dict[str, list[float]] = {"copy": [], **{delivery: [] for delivery in DELIVERIES}}
            for _ in range(options.rounds):
                sides["copy"].append(bench.copy())
                for delivery in DELIVERIES:
                    sides[delivery].append(bench.weir(delivery))
    finally:
        server.close()
    result = summary(sides) | {"rows": options.rows, "batches": options.batches}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def summary(sides: dict[str, list[float]]) -> dict[str, object]:
    """Rows per second of each side, and the two ratios with those of each round."""
    exactly, at_least = (sides[delivery] for delivery in DELIVERIES)
    rates = {name: round(statistics.median(found)) for name, found in sides.items()}

    def ratio(above: list[float], below: list[float]) -> dict[str, object]:
        rounds = [round(a / b, 3) for a, b in zip(above, below, strict=True)]
        return {"ratio": round(statistics.median(above) / statistics.median(below), 3), "rounds": rounds}

    return {
        "rows_per_second": rates,
        "copy": ratio(exactly, sides["copy"]),
        "delivery": ratio(exactly, at_least),
    }


class Bench:
    """The input as Parquet for Spark and as CSV for psql, and both ways into a table."""

    def __init__(self, server: PostgresServer, folder: Path, rows: int, batches: int) -> None:
        self._server = server
        self._folder = folder
        self._per_batch = rows // batches
        self._batches = batches
        self._serial = 0
        self._input = folder / "in"
        self._csv = folder / "rows.csv"
        self._generate()

    def copy(self) -> float:
        """Rows per second of psql."""
        table = self._table()
        columns = "id bigint, name text, amount double precision, at timestamptz, note text"
        with psycopg.connect(self._server.url()) as connection:
            connection.execute(f"CREATE TABLE {table} ({columns})".encode())
        since = time.perf_counter()
        command = [str(self._server.bin / "psql"), "-q", "-d", self._server.url()]
        command += ["-c", f"\\copy {table} from '{self._csv}' csv"]
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - since
        self._check(table)
        return self._per_batch * self._batches / seconds

    def weir(self, delivery: str) -> float:
        """Rows per second of a job behind its first batch."""
        table = self._table()
        place = self._folder / table
        place.mkdir()
        settings = {"execution.checkpointing.dir": str(place / "store")}
        command = [sys.executable, "-m", "weir", "run", str(JOB), "--master", MASTER]
        command += [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
        command += [str(self._input), table, delivery]
        environ = {**os.environ, "BENCH_DATABASE": self._server.url()}
        with open(place / "log", "wb") as log:
            process = subprocess.Popen(command, env=environ, cwd=place, stdout=log, stderr=log)
            try:
                code = process.wait(1800)
            finally:
                end(process)
        if code != 0:
            raise SystemExit(f"bench: the run under weir failed:\n{(place / 'log').read_text()[-4000:]}")
        self._check(table)
        first = place / "store/to-postgres/generations/0001/queries/rows/commits/0"
        with psycopg.connect(self._server.url()) as connection:
            found = connection.execute("SELECT extract(epoch FROM max(at)) FROM weir.delivered").fetchone()
        assert found is not None
        return self._per_batch * (self._batches - 1) / (float(found[0]) - first.stat().st_mtime)

    def _table(self) -> str:
        self._serial += 1
        return f"rows_{self._serial}"

    def _check(self, table: str) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
            connection.execute("CHECKPOINT")
        if found != (self._per_batch * self._batches,):
            raise SystemExit(f"bench: {found} rows arrived")

    def _generate(self) -> None:
        """Deterministic rows, two files for each batch, in the order of their times."""
        self._input.mkdir()
        half = self._per_batch // 2
        with open(self._csv, "wb") as out:
            for number in range(2 * self._batches):
                ids = range(number * half, (number + 1) * half)
                table = pa.table(
                    {
                        "id": pa.array(ids, pa.int64()),
                        "name": [f"customer {i * 2654435761 % 100_000}" for i in ids],
                        "amount": [i * 0.37 for i in ids],
                        "at": pa.array([1_700_000_000_000_000 + i for i in ids], pa.timestamp("us", "UTC")),
                        "note": [f"order {i}, paid by card, to be sent at once" for i in ids],
                    }
                )
                path = self._input / f"{number:04d}.parquet"
                pq.write_table(table, path)
                os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
                csv.write_csv(table, out, csv.WriteOptions(include_header=False))


if __name__ == "__main__":
    main()
