"""A job on a Spark standalone cluster: an executor, a worker and the driver are killed in mid-batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster import Cluster, Gate
from tests.faults.inputs import Feed
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1800)]

JOB = Path(__file__).parent / "jobs" / "streamed.py"


def test_whatever_dies_in_a_cluster_every_row_counts_once(quick: Mapping[str, str], tmp_path: Path) -> None:
    feed, out, gate = Feed(tmp_path / "in"), tmp_path / "out", Gate(tmp_path / "gate")
    feed.add(2)
    args = (feed.folder, out, gate.folder)
    with Cluster(tmp_path / "cluster") as cluster:
        settings = {**quick, **cluster.settings, "execution.checkpointing.interval": "2 s"}
        with JobProcess(JOB, tmp_path / "weir", args=args, settings=settings) as process:

            def in_mid_batch() -> int:
                """A process of Python's that runs a task now, and will not end it before the gate is open."""
                gate.close()
                feed.add(2)
                process.wait_for("a task", lambda: any(map(cluster.executor_of, gate.tasks())), 400)
                return next(task for task in gate.tasks() if cluster.executor_of(task))

            def deliver() -> None:
                gate.open()
                process.wait_for("delivery of all rows", lambda: feed.delivered(out), seconds=400)

            deliver()
            cluster.wait_for_executors(2)
            os.kill(cluster.executor_of(in_mid_batch()), signal.SIGKILL)
            deliver()
            cluster.kill_worker_of(in_mid_batch())
            deliver()
            cluster.wait_for_executors(2)
            in_mid_batch()
            process.kill_driver()
            deliver()
            process.terminate()
            run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert len(run.attempts) == 2, "the loss of an executor is Spark's to repair"
    feed.check(out)
