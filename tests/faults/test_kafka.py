"""Kafka -> stateful query -> Kafka, killed where the sink can be; the result is an independent count.

A run is killed several times in a row: each armed fault fires once over all attempts.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.chance import BATCH, SEEDS, STARTS, drawn
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from weir.testing import JobProcess, JobRun, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "kafka_counts.py"
RECORDS = 200
POINTS = [*(f"{point}#1" for point in (*STARTS, *BATCH, "kafka.fenced")), "kafka.sent#3"]
"""Where the sink takes part; occurrences are counted anew in each attempt; a start sends twice at most."""
OWN = ["kafka.fenced#1", "sink.committing#1", "kafka.sent#3", "sink.committed#1", "batch.committed#1"]
"""Where it does other things than any sink; `test_every_point.py` has the rest."""


@pytest.fixture
def settings(quick: Mapping[str, str], kafka_jars: list[str]) -> Mapping[str, str]:
    """Settings of a driver that knows Kafka."""
    return {**quick, "spark.jars": ",".join(kafka_jars)}


class Feed:
    """The topic that a job reads, and what `jobs/kafka_counts.py` makes of it."""

    def __init__(self, server: KafkaServer, name: str) -> None:
        self.server = server
        self.read = server.topic(f"{name}-in", partitions=2)
        self.written = server.topic(f"{name}-out", partitions=2)
        self.rows: list[dict[str, Any]] = []

    @property
    def args(self) -> tuple[str, str, str]:
        return self.server.bootstrap, self.read, self.written

    def add(self, records: int) -> None:
        first = len(self.rows)
        rows = [{"k": f"k{n % 7}", "v": n} for n in range(first, first + records)]
        self.rows += rows
        self.server.write(self.read, [json.dumps(row).encode() for row in rows], key=lambda value: value[-4:])

    def expected(self) -> dict[str, tuple[int, int]]:
        """For each key the count and the sum, counted here."""
        table: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            n, total = table.get(row["k"], (0, 0))
            table[row["k"]] = (n + 1, total + row["v"])
        return table

    def delivered(self) -> dict[str, list[tuple[int, int]]]:
        """For each key what a reader of committed records sees, in order."""
        table: dict[str, list[tuple[int, int]]] = {}
        for value in self.server.values(self.written):
            row = json.loads(value)
            table.setdefault(row["k"], []).append((row["n"], row["sum"]))
        return table

    def done(self) -> bool:
        return {key: rows[-1] for key, rows in self.delivered().items()} == self.expected()

    def check(self) -> None:
        """The last record of each key is its true count, and no record came twice: counts only grow."""
        delivered = self.delivered()
        assert {key: rows[-1] for key, rows in delivered.items()} == self.expected()
        for key, rows in delivered.items():
            assert [n for n, _ in rows] == sorted({n for n, _ in rows}), f"{key}: {rows}"


def run_killed(feed: Feed, folder: Path, settings: Mapping[str, str], faults: Sequence[str]) -> JobRun:
    armed = [f"{fault}:kill" for fault in faults]
    run = run_job(JOB, folder / "weir", faults=armed, args=feed.args, settings=settings, timeout=840)
    assert run.exit_code == 0, run.stderr
    feed.check()
    return run


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("points", [OWN, POINTS], ids=["own", "every"])
def test_kills_at_the_points_of_the_sink_change_nothing(
    points: Sequence[str], kafka: KafkaServer, settings: Mapping[str, str], tmp_path: Path
) -> None:
    """In one run; kills of the sink alone are in `integration/`."""
    feed = Feed(kafka, f"every-{len(points)}-{os.getpid()}")
    feed.add(RECORDS * 2)
    run = run_killed(feed, tmp_path, settings, points)
    assert run.fired == set(points), f"not all fired:\n{run.stderr}"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.seeds
@pytest.mark.parametrize("seed", SEEDS)
def test_kills_by_seed_change_nothing(
    seed: int, kafka: KafkaServer, settings: Mapping[str, str], tmp_path: Path
) -> None:
    feed = Feed(kafka, f"seed-{seed}-{os.getpid()}")
    feed.add(RECORDS)
    faults = drawn(seed, (*BATCH, "kafka.fenced", "kafka.sent"))
    run = run_killed(feed, tmp_path, settings, faults)
    assert run.fired, f"seed {seed}: {', '.join(faults)}"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_broker_that_is_killed_and_started_again_during_the_run_changes_nothing(
    kafka: KafkaServer, settings: Mapping[str, str], tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    pauses = random.Random(seed)
    feed = Feed(kafka, f"down-{os.getpid()}")
    feed.add(RECORDS)
    with JobProcess(JOB, tmp_path / "weir", args=[*feed.args, "endless"], settings=settings) as process:
        for batch in range(3):
            process.wait_for_batch("counts", batch, 180)
            feed.add(RECORDS)
            process.wait_for("a moment", _after(pauses.uniform(0.0, 3.0)), 10)
            kafka.kill()
            kafka.start()
            feed.add(RECORDS)
        process.wait_for("all of it", feed.done, 300)
        process.terminate()
        run = process.wait(120)
    assert run.exit_code == 0, run.stderr
    feed.check()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_broker_and_database_killed_and_started_again_in_turn_change_nothing(
    kafka: KafkaServer,
    postgres: PostgresServer,
    database: str,
    settings: Mapping[str, str],
    tmp_path: Path,
) -> None:
    feed = Feed(kafka, f"both-{os.getpid()}")
    feed.add(RECORDS)

    def stored() -> dict[str, tuple[int, int]]:
        with psycopg.connect(database) as connection:
            found = connection.execute("SELECT k, n, sum FROM counts").fetchall()
        return {k: (n, total) for k, n, total in found}

    environ = {"DATABASE_OF_THE_TEST": database}
    given = {"args": [*feed.args, "endless"], "settings": settings, "environ": environ}
    with JobProcess(JOB, tmp_path / "weir", **given) as process:  # type: ignore[arg-type]
        servers: list[KafkaServer | PostgresServer] = [kafka, postgres, kafka, postgres]
        for batch, server in enumerate(servers):
            for query in ("counts", "rows"):
                process.wait_for_batch(query, batch, 240)
            feed.add(RECORDS)
            server.kill()
            server.start()
        process.wait_for("all of it", lambda: feed.done() and stored() == feed.expected(), 400)
        process.terminate()
        run = process.wait(120)
    assert run.exit_code == 0, run.stderr
    feed.check()


def _after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until
