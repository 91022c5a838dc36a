"""A job that is told to end at any moment finishes its batch and starts no other: none runs twice.

Counted by a sink that notes every call. Most ends happen in one live session, which takes the same
path as SIGTERM from the driver's engine on; some go through a real `weir run`.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.faults.jobs import counted
from weir import Job
from weir.protocol.states import JobState
from weir.testing import JobProcess, committed_rows, folded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]

FILE = Path(counted.__file__)


@dataclass
class Counted:
    """The job in one folder, and what its sink has noted."""

    folder: Path
    dice: random.Random

    @property
    def args(self) -> tuple[str, str]:
        return str(self.folder / "out"), str(self.folder / "calls")

    def in_session(self, spark: SparkSession, longest: float) -> None:
        """Start it beside the live session, and stop it at a random moment."""
        home = {"execution.checkpointing.dir": str(self.folder / "weir"), "parallelism.default": 2}
        job = Job("counted", **home)
        job.pipeline(lambda env: counted.build(env, *self.args))
        with job.start(spark) as run:
            time.sleep(self.dice.uniform(0, longest))
        assert not run.failures, run.failures

    def as_process(self, settings: Mapping[str, str], longest: float) -> None:
        """Run it with `weir run`, and send SIGTERM at a random moment, once its driver is started."""
        with JobProcess(FILE, self.folder / "weir", args=self.args, settings=settings) as process:
            if self.dice.random() < 0.75:
                process.wait_for_state(JobState.RUNNING)
            else:
                process.wait_for("a driver", psutil.Process(process.pid).children)
            time.sleep(self.dice.uniform(0, longest))
            process.send(self.dice.choice([signal.SIGTERM, signal.SIGINT]))
            run = process.wait()
        assert run.exit_code == 0, run.stderr
        assert not run.of("cut off", "failure")

    def check(self) -> None:
        calls = [int(line.split()[0]) for line in (self.folder / "calls").read_text().splitlines()]
        assert calls == list(range(len(calls))), "a batch ran twice, or out of order"
        table = folded(committed_rows(self.args[0]), ["k"])
        each = len(calls) * counted.ROWS // counted.KEYS
        assert {k: row["count"] for (k,), row in table.items()} == dict.fromkeys(range(counted.KEYS), each)


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Counted]:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    yield Counted(tmp_path, random.Random(seed))


@pytest.mark.long
def test_no_batch_runs_twice(job: Counted, spark: SparkSession, quick: Mapping[str, str]) -> None:
    for _ in range(5):
        job.in_session(spark, longest=2)
    job.as_process(quick, longest=3)
    job.check()


@pytest.mark.long
def test_no_batch_runs_twice_in_fifty_ends(
    job: Counted, spark: SparkSession, quick: Mapping[str, str]
) -> None:
    for number in range(50):
        if number % 5:
            job.in_session(spark, longest=3)
        else:
            job.as_process(quick, longest=5)
    job.check()
