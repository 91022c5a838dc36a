"""Files, PostgreSQL and Kafka in one job, killed at every named point of a start, of a batch and of a sink.

Drivers are dear, so the sinks are killed together where they can be: at a point between two steps of a
batch the first query that comes there waits, so does the second, and the third brings the kill; then all
three have been killed at exactly this point. By themselves, at later occurrences and by chance, the sinks
are killed in the long suite, and what only Kafka's has in `integration/test_kafka_sink.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Once
from tests.faults.inputs import Feed
from tests.faults.test_every_point import BATCHES, MET, assert_each_batch_once
from tests.kafka_server import KafkaServer
from weir.testing import committed_rows, folded, run_job

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.minutes, pytest.mark.timeout(900)]

JOB = Path(__file__).parent / "jobs" / "three_sinks.py"
QUERIES = 3
TOGETHER = ("batch.planned", "batch.written", "batch.staged", "batch.committed")
"""Each query passes these in a thread of its own, and may wait there for the others."""
ALONE = {
    # passed by one query after the other: some are behind it and some are not
    **dict.fromkeys(("start.fenced", "start.recovered", "start.query", "sink.committing"), (2,)),
    "sink.committed": (1, 2, 3),
    "kafka.fenced": (1,),
    "kafka.sent": (3,),  # the first two may come from making good what the life before has left
}
"""Occurrences to be killed at; others at their first."""


def faults() -> list[str]:
    """Every point that such a job meets, each to be killed at in a life of its own."""
    found = []
    for point in [*MET, "kafka.fenced", "kafka.sent"]:
        if point in TOGETHER:
            found += [f"{point}#{number}:hang" for number in range(1, QUERIES)] + [f"{point}#{QUERIES}:kill"]
        else:
            found += [f"{point}#{number}:kill" for number in ALONE.get(point, (1,))]
    return found


def counts(rows: Path) -> dict[str, tuple[int, int]]:
    """For each key the count and the sum, counted here."""
    table: dict[str, tuple[int, int]] = {}
    for file in sorted(rows.glob("*.json")):
        for row in map(json.loads, file.read_text().splitlines()):
            n, total = table.get(row["k"], (0, 0))
            table[row["k"]] = (n + 1, total + row["v"])
    return table


def test_all_sinks_are_killed_together_at_every_point_and_nothing_is_lost_or_doubled(
    once: Once,
    quick: Mapping[str, str],
    tmp_path: Path,
    database: str,
    kafka: KafkaServer,
) -> None:
    rows = once("rows", lambda folder: Feed(folder).add(BATCHES))
    topic = kafka.topic(f"three-sinks-{os.getpid()}", partitions=2)
    armed = faults()
    run = run_job(
        JOB,
        tmp_path / "weir",
        faults=armed,
        args=(rows, tmp_path / "out", kafka.bootstrap, topic),
        settings=quick,
        environ={"DATABASE_OF_THE_TEST": database},
        timeout=840,
    )
    wanted = {fault.partition(":")[0] for fault in armed}
    assert run.fired == wanted, f"{wanted - run.fired} did not fire:\n{run.stderr}"
    assert run.exit_code == 0, run.stderr
    assert len(run.attempts) == 1 + sum(fault.endswith(":kill") for fault in armed)

    expected = counts(rows)
    last = folded(committed_rows(str(tmp_path / "out")), ["k"])
    assert {row["k"]: (row["n"], row["sum"]) for row in last.values()} == expected
    assert_each_batch_once(tmp_path / "out")

    with psycopg.connect(database) as connection:
        table = connection.execute('SELECT k, n, "sum" FROM counts').fetchall()
    assert {k: (n, total) for k, n, total in table} == expected and len(table) == len(expected)

    seen: dict[str, list[tuple[int, int]]] = {}
    for value in map(json.loads, kafka.values(topic)):
        seen.setdefault(value["k"], []).append((value["n"], value["sum"]))
    assert {key: several[-1] for key, several in seen.items()} == expected
    for key, several in seen.items():
        assert [n for n, _ in several] == sorted({n for n, _ in several}), f"{key} came twice: {several}"
