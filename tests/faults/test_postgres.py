"""A job that is not deterministic, into PostgreSQL, under kills of its driver and of the database.

Every row has a uuid, which is another one when its batch runs again: each uuid in the table must be
the one that Spark's state kept.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import Once
from tests.faults.chance import BATCH, SEEDS, STARTS, drawn
from tests.faults.inputs import Feed, own_keys
from tests.faults.processes import wait_until_gone
from tests.faults.test_not_deterministic import live_state
from tests.postgres_server import PASSWORD, PostgresServer
from weir.errors import FencedError
from weir.testing import JobProcess, JobRun, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "jobs" / "uuids_postgres.py"
SINKS = (
    "batch.writing",
    "batch.written",
    "batch.committed",
    "sink.committing",
    "sink.committed",
    "batch.staged",
)
"""What the sink takes part in."""
BATCHES = 16
FEW = 4


def given(once: Once, batches: int) -> Path:
    return once(f"own-keys-{batches}", lambda folder: Feed(folder, own_keys).add(batches))


def environ(database: str) -> dict[str, str]:
    return {"DATABASE_OF_THE_TEST": database}


def delivered(database: str) -> dict[str, tuple[int, str]]:
    with psycopg.connect(database) as connection:
        return {k: (v, id) for k, v, id in connection.execute("SELECT k, v, id FROM newest").fetchall()}


def rows_in(database: str) -> int:
    """How many rows readers see; none before there is a table."""
    with psycopg.connect(database) as connection:
        if connection.execute("SELECT to_regclass('newest')").fetchone() == (None,):
            return 0
        found = connection.execute("SELECT count(*) FROM newest").fetchone()
        return int(found[0]) if found else 0


def check(spark: SparkSession, folder: Path, database: str, batches: int) -> None:
    seen, kept = delivered(database), live_state(spark, folder / "weir")
    assert len(kept) == 6 * batches + 1
    wrong = {key: (seen.get(key), kept[key]) for key in kept if seen.get(key) != kept[key]}
    assert not wrong, f"delivered and kept differ: {wrong}"
    assert seen.keys() == kept.keys()


def run(folder: Path, rows: Path, faults: Sequence[str], quick: Mapping[str, str], database: str) -> JobRun:
    return run_job(
        JOB,
        folder / "weir",
        faults=[f"{fault}:kill" for fault in faults],
        args=(rows,),
        settings=quick,
        environ=environ(database),
        timeout=500,
    )


def no_password(folder: Path) -> None:
    """Nothing that the job has written, its logs and its journal included, has the password."""
    words = (PASSWORD.encode(), PASSWORD.replace("#", "%23").encode())
    told = [
        file
        for file in (folder / "weir").rglob("*")
        if file.is_file() and any(w in file.read_bytes() for w in words)
    ]
    assert not told, f"the password is in {told}"


@pytest.mark.long
def test_every_uuid_in_the_table_is_the_one_that_the_state_kept(
    once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path, database: str
) -> None:
    # Each attempt dies at another point: two before any batch, the others in their second or third.
    faults = [f"{point}#1" for point in STARTS]
    faults += [f"{point}#{3 if point == 'batch.staged' else 2}" for point in SINKS]
    done = run(tmp_path, given(once, BATCHES), faults, quick, database)
    assert done.fired == set(faults), f"not every fault fired:\n{done.stderr}"
    assert done.exit_code == 0, done.stderr
    assert len(done.attempts) == len(faults) + 1
    check(spark, tmp_path, database, BATCHES)
    no_password(tmp_path)


@pytest.mark.long
def test_a_database_that_dies_and_comes_back_loses_and_doubles_nothing(
    once: Once,
    spark: SparkSession,
    quick: Mapping[str, str],
    tmp_path: Path,
    database: str,
    postgres: PostgresServer,
) -> None:
    rows = given(once, BATCHES)
    args, settings = (rows,), {**quick, "restart-strategy.type": "fixed-delay"}
    settings |= {"restart-strategy.fixed-delay.attempts": "100", "restart-strategy.fixed-delay.delay": "1 s"}
    with JobProcess(
        JOB, tmp_path / "weir", args=args, settings=settings, environ=environ(database)
    ) as process:
        for atleast in (7, 19):
            process.wait_for(f"{atleast} rows", lambda atleast=atleast: rows_in(database) >= atleast)  # type: ignore[misc]
            postgres.kill()
            postgres.start()
        done = process.wait(300)
    assert done.exit_code == 0, done.stderr
    check(spark, tmp_path, database, BATCHES)
    no_password(tmp_path)


@pytest.mark.long
def test_a_driver_that_wakes_up_is_refused_by_the_table(
    once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path, database: str
) -> None:
    rows = given(once, FEW)
    settings = {**quick, "heartbeat.interval": "500 ms", "heartbeat.timeout": "6000 ms"}
    options = {"args": (rows, "endless"), "settings": settings, "environ": environ(database)}
    fault = "sink.committing#2"
    with JobProcess(JOB, tmp_path / "weir", faults=[f"{fault}:stop"], **options) as old:  # type: ignore[arg-type]
        old.wait_for("the driver to freeze", (old.marks / fault).exists)
        old.send(signal.SIGSTOP)
        old.signal_driver(signal.SIGSTOP)
        with JobProcess(JOB, tmp_path / "weir", **options) as new:  # type: ignore[arg-type]
            new.wait_for("all rows", lambda: rows_in(database) == 6 * FEW + 1)
            before = delivered(database)
            old.send(signal.SIGCONT)
            old.signal_driver(signal.SIGCONT)
            refused = old.wait(60)
            wait_until_gone(old.members(), 21)
            assert delivered(database) == before
            new.terminate()
            done = new.wait()
    assert refused.exit_code == FencedError.exit_code, refused.stderr
    assert done.exit_code == 0, done.stderr
    check(spark, tmp_path, database, FEW)


@pytest.mark.long
def test_every_uuid_is_the_kept_one_when_a_checkpoint_makes_it_visible(
    once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path, database: str
) -> None:
    faults = [f"{point}#1" for point in ("checkpoint.completed", "checkpoint.completing", *STARTS)]
    faults += [f"{point}#2" for point in BATCH]
    settings = {**quick, "sink.commit": "checkpoint", "execution.checkpointing.interval": "200 ms"}
    done = run(tmp_path, given(once, BATCHES), faults, settings, database)
    assert done.exit_code == 0, done.stderr
    assert len(done.fired) > len(BATCH)
    check(spark, tmp_path, database, BATCHES)


@pytest.mark.long
@pytest.mark.seeds
@pytest.mark.parametrize("seed", SEEDS)
def test_every_uuid_is_the_kept_one_after_kills_by_seed(
    seed: int, once: Once, spark: SparkSession, quick: Mapping[str, str], tmp_path: Path, database: str
) -> None:
    faults = drawn(seed)
    done = run(tmp_path, given(once, FEW), faults, quick, database)
    about = f"seed {seed}: {', '.join(faults)}"
    assert done.exit_code == 0, f"{about}\n{done.stderr}"
    assert done.fired, about
    check(spark, tmp_path, database, FEW)
