"""What earlier versions left on disk is read, continued and restored by this one; see README.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.compat import museum, rows
from tests.line_server import LineServer
from weir.testing import JobProcess

MORE = 2
"""How many files or lines of input a job gets after it was unpacked."""


@pytest.mark.parametrize("name", museum.names())
@pytest.mark.timeout(600)  # another worker may have the exhibit
def test_every_command_tells_of_an_exhibit_what_it_told_when_that_was_made(name: str) -> None:
    known = museum.expected(name)["facts"]
    with museum.unpacked(name) as folder:
        facts = museum.facts(name, folder)
    assert facts.keys() == known.keys()
    for about, found in facts.items():
        assert found == known[about], f"{name}: {about}"


def cases(*wanted: tuple[str, str]) -> pytest.MarkDecorator:
    """Exhibits, each with the point at which it is continued; those after the first three only at length."""
    return pytest.mark.parametrize(
        ("name", "point"),
        [
            pytest.param(*case, marks=() if number < 3 else pytest.mark.long, id=" ".join(case))
            for number, case in enumerate(wanted)
        ],
    )


@cases(
    # the quick ones: two restarts where the job was, a restore of a savepoint in a new directory
    ("1-graph", "live"),
    ("1-rocksdb", "live"),
    ("1-graph", "savepoint"),
    ("1-graph", "newest"),
    ("1-graph", "older"),
    ("1-rocksdb", "newest"),
    ("1-rocksdb", "older"),
    ("1-rocksdb", "savepoint"),
    ("1-socket", "live"),
    ("1-socket", "newest"),
    ("1-socket", "older"),
    ("1-socket", "savepoint"),
    ("1-unaligned", "intended"),
    ("1-unaligned", "withdrawn"),
    ("1-unaligned", "newest"),
    ("1-unaligned", "copy"),
    ("1-files", "live"),
    ("1-files", "older"),
)
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_an_exhibit_continues_with_exactly_the_right_output(
    name: str, point: str, quick: Mapping[str, str]
) -> None:
    with museum.unpacked(name) as here:
        continues(name, point, here, quick)


@pytest.mark.parametrize("point", ["live", "newest", "older", "savepoint"])
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_exhibit_in_postgresql_continues_with_exactly_the_right_output(
    point: str, quick: Mapping[str, str], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_OF_THE_TEST", database)
    with museum.unpacked("1-postgres") as here:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute((here / "database.sql").read_bytes())
        continues("1-postgres", point, here, quick)


def continues(name: str, which: str, here: Path, quick: Mapping[str, str]) -> None:
    """Run the job of an exhibit with more input, from where it was or from a point; compare all output."""
    known, job = museum.expected(name), museum.job_of(name)
    point = known["points"].get(which, {}).get("point")
    elsewhere = which in ("savepoint", "copy")
    dir = here / ("elsewhere" if elsewhere else "weir")
    if elsewhere:
        shutil.rmtree(here / "weir")
    options = ["-s", point, "--accept-duplicates"] if point else []
    if which == "withdrawn":
        code, answer = museum.command(here, "restore", job, "--withdraw", "--dir", str(dir))
        assert code == 0, answer
    if elsewhere:  # the job has ended for good where it was
        options += ["--take-over", str(known["facts"]["list"][0]["attempt"])]
    settings = {**quick, "execution.checkpointing.interval": "1 s"}
    with ExitStack() as opened:
        give, args = inputs(opened, job, here)
        first, there = known["inputs"], known["inputs"] + MORE
        if job == "socket" and elsewhere:  # what it received later is lost with the directory, and sent again
            first = known["points"][which]["inputs"]
        with JobProcess(here / "job.py", dir, args=args, options=options, settings=settings) as process:
            give(first, there)
            process.wait_for("all output", lambda: rows.complete(job, here, there), 240)
            attempt = max(event.attempt for event in process.events("attempt"))
            process.wait_for(
                "a checkpoint",
                lambda: any(one.attempt == attempt for one in process.events("checkpoint completed")),
            )
            process.terminate()
            run = process.wait()
    assert run.exit_code == 0, run.stderr
    rows.check(job, here, there)
    restored = [event.body["checkpoint"] for event in run.of("restored") if event.attempt == attempt]
    assert restored == ([known["points"][which]["checkpoint"]] if which in known["points"] else [])
    code, verified = museum.command(here, "verify", job, "--dir", str(dir))
    assert code == 0, verified


def inputs(opened: ExitStack, job: str, here: Path) -> tuple[Callable[[int, int], None], list[str]]:
    """What gives a running job its input from one number to another; and the job's arguments."""
    if job != "socket":
        return partial(rows.feed, here / "in"), []
    server = opened.enter_context(LineServer(seconds=120))

    def send(first: int, behind: int) -> None:
        lines = (rows.line_of(number) for number in range(first, behind))
        server.send("".join(f"{line}\n" for line in lines).encode())

    return send, [str(server.port)]
