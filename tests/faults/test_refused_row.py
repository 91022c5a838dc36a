"""A row that PostgreSQL refuses ends its query as FAILED, and the other query delivers on: while the job
runs, and when a new driver finds the row refused at its recovery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.inputs import FILES, Feed
from weir.protocol.states import JobState
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "jobs" / "two_tables.py"
ATTEMPTS = 3
REFUSED = 2
"""The batch that has the row, and the number of batches before it."""


def rows(number: int) -> list[dict[str, Any]]:
    value = 999_999 if number == REFUSED * FILES else number
    return [{"k": f"k{i}", "v": value if i == 0 else number} for i in range(4)]


def ask(database: str, statement: str) -> Any:
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute(statement.encode())
        return found.fetchone() if found.description else None


def counted(database: str, files: int) -> bool:
    return bool(ask(database, "SELECT sum(n) FROM counts") == (4 * files,))


def failed(process: JobProcess, attempt: int) -> list[dict[str, Any]]:
    return [e.body for e in process.events("failure") if e.attempt == attempt and e.query == "rows"]


def test_a_refused_row_ends_its_query_and_the_other_delivers(
    quick: Mapping[str, str], database: str, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "in", rows)
    feed.add(REFUSED)
    settings = {**quick, "restart-strategy.poison-batch.attempts": str(ATTEMPTS)}
    environ = {"DATABASE_OF_THE_TEST": database}

    def started() -> JobProcess:
        return JobProcess(JOB, tmp_path / "weir", args=(feed.folder,), settings=settings, environ=environ)

    with started() as process:
        process.wait_for("the first counts", lambda: process.batches("counts") and counted(database, 4))
        process.wait_for("and rows", lambda: ask(database, "SELECT count(*) FROM rows") == (16,))
        ask(database, "ALTER TABLE rows ADD CONSTRAINT small CHECK (v < 100000)")
        feed.add(1)
        process.wait_for_state(JobState.DEGRADED)
        assert [one["error"] for one in failed(process, 1)] == ["RefusedRowError"] * ATTEMPTS
        assert {one["batch"] for one in failed(process, 1)} == {REFUSED}
        feed.add(2)
        process.wait_for("counts of what came later", lambda: counted(database, 2 * (REFUSED + 3)))
        assert process.events("queries")[-1].body["rows"]["state"] == "FAILED"
        driver = process.kill_driver()
        process.wait_for("another driver", lambda: process.driver not in (0, driver))
        process.wait_for_state(JobState.DEGRADED)
        feed.add(1)
        process.wait_for("counts beside a refused recovery", lambda: counted(database, 2 * (REFUSED + 4)))
        assert len(failed(process, 2)) == 1, "it is the same batch again"
        process.terminate()
        assert process.wait().exit_code == 0
    assert ask(database, "SELECT count(*) FROM rows") == (16,), "nothing of the batch is seen"
    ask(database, "ALTER TABLE rows DROP CONSTRAINT small")
    with started() as process:
        process.wait_for("all rows", lambda: ask(database, "SELECT count(*) FROM rows") == (4 * 12,))
        process.wait_for_state(JobState.RUNNING)
        process.terminate()
        assert process.wait().exit_code == 0
    assert ask(database, "SELECT count(*), max(v) FROM rows") == (48, 999_999), "each row once"
