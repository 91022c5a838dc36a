"""One job in two directories, both under a supervisor and both at the same sinks: one of them continues.

Rows are appended, each with a number of its own, so that a lost one and one that came twice both show.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pytest

from tests.faults.inputs import Feed
from tests.kafka_server import KafkaServer
from weir.testing import JobProcess, committed_rows

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "jobs" / "appended.py"
NAME = "appended"
QUERIES = ("files", "table", "topic")

# What the refused one reports: its sinks have another writer, or more than its live files know. A copy of a
# running job may lack the newest commits: then it looks damaged, and the topic can't be rewound for it.
REFUSED = (
    *("was taken by", "are ahead of its live files", "the live files know only up to"),
    "query 'topic' has delivered more since",
)

Seen = Callable[[], dict[str, list[int]]]


def all_rows(rows: Path) -> list[int]:
    return sorted(
        json.loads(line)["v"] for file in rows.glob("*.json") for line in file.read_text().splitlines()
    )


def in_files(out: Path) -> list[int]:
    return sorted(row["v"] for row in committed_rows(str(out)))


def in_table(database: str) -> list[int]:
    with psycopg.connect(database) as connection:
        return sorted(v for (v,) in connection.execute("SELECT v FROM rows").fetchall())


def in_topic(kafka: KafkaServer, topic: str) -> list[int]:
    return sorted(json.loads(value)["v"] for value in kafka.values(topic))


def first_to_end(one: JobProcess, other: JobProcess, seconds: float = 240.0) -> tuple[JobProcess, JobProcess]:
    """The run that ended, and the one that continues."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for ended, going in ((one, other), (other, one)):
            if not ended.alive:
                return ended, going
        time.sleep(0.2)
    raise TimeoutError(f"neither ended in {seconds:g} s:\n{one.stderr}\n--\n{other.stderr}")


def assert_one_continues(one: JobProcess, other: JobProcess, feed: Feed, seen: Seen) -> None:
    """One is refused in words; the other delivers all that comes, each row once."""
    refused, going = first_to_end(one, other)
    run = refused.wait(10)
    assert run.exit_code != 0
    assert any(words in run.stderr for words in REFUSED) and "Traceback" not in run.stderr, run.stderr
    feed.add(2)
    expected = all_rows(feed.folder)
    going.wait_for(
        "all rows in all sinks", lambda: all(set(v) >= set(expected) for v in seen().values()), 240
    )
    found = seen()
    assert found == dict.fromkeys(found, expected), "a row was lost or came twice"
    going.terminate()
    assert going.wait(120).exit_code == 0


def test_of_two_restores_of_one_savepoint_in_two_directories_one_is_refused(
    quick: Mapping[str, str], tmp_path: Path, database: str, kafka: KafkaServer
) -> None:
    feed = Feed(tmp_path / "rows")
    feed.add(2)
    topic = kafka.topic(f"two-directories-{os.getpid()}", partitions=2)
    settings = {**quick, "execution.checkpointing.savepoint-dir": str(tmp_path / "saved")}
    environ = {"DATABASE_OF_THE_TEST": database}
    args = (feed.folder, tmp_path / "out", kafka.bootstrap, topic)

    def run(dir: str, *options: str) -> JobProcess:
        return JobProcess(JOB, tmp_path / dir, args=args, settings=settings, environ=environ, options=options)

    def seen() -> dict[str, list[int]]:
        return {
            "files": in_files(tmp_path / "out"),
            "table": in_table(database),
            "topic": in_topic(kafka, topic),
        }

    with run("first") as before:
        for query in QUERIES:
            before.wait_for_batch(query, 1)
        stop = [sys.executable, "-m", "weir", "stop", NAME, "--dir", str(tmp_path / "first"), "--json"]
        stopped = subprocess.run(stop, capture_output=True, text=True, timeout=240)
        assert stopped.returncode == 0, stopped.stderr
        place = json.loads(stopped.stdout)["path"]
        before.wait(60)
    feed.add(2)
    with run("first", "-s", place) as one, run("second", "-s", place) as other:
        assert_one_continues(one, other, feed, seen)


@pytest.mark.parametrize("delivered_since", (False, True), ids=("equal", "behind"))
def test_of_a_running_job_and_a_copy_of_its_directory_one_is_refused(
    quick: Mapping[str, str], tmp_path: Path, database: str, kafka: KafkaServer, delivered_since: bool
) -> None:
    feed = Feed(tmp_path / "rows")
    feed.add(3)
    topic = kafka.topic(f"copied-directory-{os.getpid()}-{delivered_since}", partitions=2)
    environ = {"DATABASE_OF_THE_TEST": database}
    args = (feed.folder, tmp_path / "out", kafka.bootstrap, topic)

    def run(dir: str) -> JobProcess:
        return JobProcess(JOB, tmp_path / dir, args=args, settings=quick, environ=environ)

    def seen() -> dict[str, list[int]]:
        return {
            "files": in_files(tmp_path / "out"),
            "table": in_table(database),
            "topic": in_topic(kafka, topic),
        }

    with run("first") as one:
        for query in QUERIES:
            one.wait_for_batch(query, 1)
        # The job runs on while it is copied: cp misses files that come and go, and says so by its exit code.
        subprocess.run(["cp", "-r", tmp_path / "first", tmp_path / "copy"], check=False, capture_output=True)
        if delivered_since:
            feed.add(12)
            expected = all_rows(feed.folder)
            one.wait_for("all rows delivered", lambda: all(v == expected for v in seen().values()), 240)
        with run("copy") as other:
            assert_one_continues(one, other, feed, seen)
