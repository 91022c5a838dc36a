"""Every kind of state in every form that Spark keeps it: saved while it runs, and gone on elsewhere.

All kinds are queries of one job, so that a run costs seconds and not minutes. The original directory is
deleted, sinks hold more than the savepoint, and the job goes on in another directory, with the same
shape, another parallelism, or another backend. What is delivered is what a quiet run delivers.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import weir
from tests.stateful import KINDS, write_input
from weir.testing import committed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]
# in short: `test_savepoints.py`, `test_rewrite.py` and `test_surgery.py` show the parts

_SCHEMA = "k string, v long, ts timestamp, id long"
_FIXED = ("join 3", "join 4", "limit", "transformWithState")
"""What can't be rescaled, or needs settings of its own."""
ROCKSDB = tuple(name for name in KINDS if name not in _FIXED)
HASHMAP = tuple(name for name in ROCKSDB if KINDS[name].hashmap)


@dataclass(frozen=True)
class Case:
    """Which kinds, kept how, and what changes when they go on."""

    kinds: tuple[str, ...]
    kept: dict[str, Any]
    then: dict[str, Any]


CASES = {
    "rocksdb, rescaled": Case(ROCKSDB, {"parallelism.default": 2}, {"parallelism.default": 5}),
    "variables, rescaled": Case(
        ("transformWithState",), {"parallelism.default": 2}, {"parallelism.default": 3}
    ),
    "rocksdb without changelog": Case(
        (*ROCKSDB, "limit", "join 3"), {"parallelism.default": 2, "state.changelog.enabled": False}, {}
    ),
    "rocksdb to hashmap": Case(HASHMAP, {"parallelism.default": 2}, {"state.backend.type": "hashmap"}),
    "hashmap": Case((*HASHMAP, "limit"), {"parallelism.default": 3, "state.backend.type": "hashmap"}, {}),
    "hashmap to rocksdb, rescaled": Case(
        HASHMAP,
        {"parallelism.default": 5, "state.backend.type": "hashmap"},
        {"parallelism.default": 3, "state.backend.type": "rocksdb"},
    ),
}


class Kinds:
    """A job with a query of each kind, over files that come one by one."""

    def __init__(self, spark: SparkSession, folder: Path, case: Case) -> None:
        self._spark, self._folder, self._case = spark, folder, case
        folder.mkdir()
        write_input(folder / "all")
        (folder / "in").mkdir()

    def add(self, *numbers: int) -> None:
        for number in numbers:
            shutil.copy2(self._folder / "all" / f"{number}.json", self._folder / "in" / f".{number}")
            (self._folder / "in" / f".{number}").rename(self._folder / "in" / f"{number}.json")

    def start(self, dir: str, settings: dict[str, Any], point: str | None = None) -> Any:
        home = {"execution.checkpointing.dir": str(self._folder / dir)}
        job = weir.Job("kinds", **{"execution.checkpointing.interval": "off", **home, **settings})
        job.pipeline(self._pipeline)
        return job.start(self._spark, point)

    def _pipeline(self, env: weir.Env) -> None:
        def lines() -> Any:
            reader = env.spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
            return reader.json(str(self._folder / "in"))

        env.spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in self._case.kinds:
            kind = KINDS[name]
            for key, value in kind.settings:
                env.spark.conf.set(key, value)
            sink = weir.sinks.files(str(self._folder / "out" / name))
            env.sink(name.replace(" ", "-"), kind.frame(lines(), lines()), sink, output_mode=kind.mode)

    def delivered(self) -> dict[str, list[str]]:
        def rows(name: str) -> list[str]:
            return sorted(map(str, committed_rows(str(self._folder / "out" / name))))

        return {name: rows(name) for name in self._case.kinds}


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_goes_on_elsewhere_as_if_nothing_had_happened(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    case = CASES[name]
    quiet = Kinds(spark, tmp_path / "quiet", case)
    quiet.add(0, 1, 2)
    with quiet.start("weir", case.kept) as run:
        run.process_all(180)
        quiet.add(3)
        run.process_all(180)
        quiet.add(4, 5)
        run.process_all(180)

    moved = Kinds(spark, tmp_path / "moved", case)
    moved.add(0, 1, 2)
    with moved.start("weir", case.kept) as run:
        run.process_all(180)
        place = Path(run.savepoint(str(tmp_path / "saved")))
        moved.add(3)
        run.process_all(180)
    shutil.rmtree(tmp_path / "moved" / "weir")
    place = place.rename(tmp_path / "a savepoint")
    with moved.start("elsewhere", case.kept | case.then, str(place)) as run:
        run.process_all(180)
        moved.add(4, 5)
        run.process_all(180)
    assert moved.delivered() == quiet.delivered()
    assert all(moved.delivered().values()), "every kind delivers something"
