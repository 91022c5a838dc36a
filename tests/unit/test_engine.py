"""The engine with played parts: what a stop does with the checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from weir.checkpoint.coordinator import Coordinator
from weir.clock import ManualClock
from weir.config import resolve
from weir.driver.engine import Engine
from weir.ids import Attempt
from weir.lease import Lease
from weir.storage import open_store

RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


class Checkpoints:
    """A coordinator that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop(self, *, wait: bool = True) -> None:
        self.told.append("stop")

    def delete_all(self) -> None:
        self.told.append("delete all")


@pytest.mark.parametrize(
    ("retention", "cancelled", "deleted"),
    [
        ("delete_on_cancellation", True, True),
        ("delete_on_cancellation", False, False),
        ("retain_on_cancellation", True, False),
        ("retain_on_cancellation", False, False),
    ],
)
def test_a_cancel_deletes_the_checkpoints_if_the_settings_say_so(
    tmp_path: Path, retention: str, cancelled: bool, deleted: bool
) -> None:
    clock = ManualClock()
    config = resolve(file=None, job_options={RETENTION: retention}, environ={})
    spark: Any = SimpleNamespace()
    lease = Lease(Attempt(1), 1e9, clock)
    job = weir.Job("clicks")
    job.pipeline(lambda env: None)
    engine = Engine(job, spark, config, open_store(str(tmp_path)), lease, lambda _: None, clock)
    checkpoints = Checkpoints()
    engine._coordinator = cast(Coordinator, checkpoints)
    engine.stop(0, cancelled=cancelled)
    assert ("delete all" in checkpoints.told) == deleted
    if deleted:
        assert checkpoints.told[-2:] == ["stop", "delete all"], "nothing is pending any more"
    assert engine.over.is_set()
