"""A job on a Spark standalone cluster: an executor, a worker and the driver are killed in mid-batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.faults.inputs import Feed
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1800)]

JOB = Path(__file__).parent / "jobs" / "streamed.py"


def test_whatever_dies_in_a_cluster_every_row_counts_once(quick: Mapping[str, str], tmp_path: Path) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.add(2)
    with Cluster(tmp_path / "cluster") as cluster:
        settings = {**quick, **cluster.settings, "execution.checkpointing.interval": "2 s"}
        with JobProcess(JOB, tmp_path / "weir", args=(feed.folder, out), settings=settings) as process:

            def deliver() -> None:
                process.wait_for("delivery of all rows", lambda: feed.delivered(out), seconds=400)

            deliver()
            executor = cluster.wait_for_executors(2)[0]
            feed.add(2)
            os.kill(executor, signal.SIGKILL)
            deliver()
            feed.add(2)
            cluster.kill_worker()
            deliver()
            cluster.wait_for_executors(1)
            feed.add(2)
            process.kill_driver()
            deliver()
            process.terminate()
            run = process.wait()
    assert run.exit_code == 0, run.stderr
    assert len(run.attempts) >= 2
    feed.check(out)
