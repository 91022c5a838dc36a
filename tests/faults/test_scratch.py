"""What Spark writes that need not survive: in one place for each driver, and gone with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.inputs import Feed
from tests.line_server import until
from weir.testing import JobProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults]

JOB = Path(__file__).parent / "jobs" / "counts.py"


def test_each_driver_leaves_nothing_however_it_ends(quick: Mapping[str, str], tmp_path: Path) -> None:
    feed, temporary = Feed(tmp_path / "in"), tmp_path / "tmp"
    temporary.mkdir()
    feed.add(2)
    root = temporary / f"weir-{os.getuid()}"

    def names() -> set[str]:
        return {entry.name for entry in root.iterdir()} if root.exists() else set()

    args, environ = (feed.folder, tmp_path / "out", "endless"), {"TMPDIR": str(temporary)}
    with JobProcess(JOB, tmp_path / "weir", args=args, settings=quick, environ=environ) as process:
        process.wait_for_batch("counts", 0)
        assert [entry.name for entry in temporary.iterdir()] == [root.name], "all of it is in one place"
        (first,) = names()
        written = [path.name for path in (root / first).rglob("*")]
        assert any(name.startswith("blockmgr-") for name in written), "Spark's local directories"
        assert any("StateStoreId" in name for name in written), "RocksDB's working copies"
        process.kill_driver()
        process.wait_for("another driver, and nothing of the first", lambda: len(names() - {first}) == 1)
        process.wait_for("nothing of the first", lambda: first not in names())
        feed.add(1)
        process.wait_for_batch("counts", 2)
        (second,) = names()
        process.kill_supervisor()
        until(lambda: not process.members(), "the end of its driver", 60)
        assert names() == {second}, "nobody was there to delete it"
    with JobProcess(JOB, tmp_path / "weir", args=args, settings=quick, environ=environ) as process:
        feed.add(1)
        process.wait_for_batch("counts", 3)
        process.wait_for("nothing of the second", lambda: second not in names())
        process.terminate()
        process.wait()
    assert names() == set()
