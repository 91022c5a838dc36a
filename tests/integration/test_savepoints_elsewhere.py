"""Savepoints of a job on this machine, in HDFS and in S3: taken by a driver, and restored from there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.test_savepoints import add, job_in
from weir.clock import Clock
from weir.errors import BadValueError
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import copy, verify
from weir.testing import committed_rows, folded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


def check_counts(folder: Path) -> None:
    table = folded(committed_rows(str(folder / "counts")), ["k"])
    assert {k: row["sum"] for (k,), row in table.items()} == {"a": 11, "b": 2, "c": 3, "d": 4}
    raw = sorted((row["k"], row["v"]) for row in committed_rows(str(folder / "raw")))
    assert raw == [("a", 1), ("a", 10), ("b", 2), ("c", 3), ("d", 4)]


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_job_is_restored_from_a_savepoint_on_another_storage(
    kind: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = f"{request.getfixturevalue(f'{kind}_place')}/savepoints"
    add(tmp_path, ("a", 1), ("b", 2), ("c", 3))
    with job_in(tmp_path, **{"execution.checkpointing.savepoint-dir": target}).start(spark) as run:
        run.process_all()
        place = run.savepoint()
        add(tmp_path, ("a", 10), ("d", 4))
        run.process_all()
    assert place.startswith(target) and verify(SavepointPlace(place), Clock()).whole
    shutil.rmtree(tmp_path / "weir")
    for _ in range(2):
        with job_in(tmp_path).start(spark, place) as run:
            run.process_all()
        check_counts(tmp_path)


def test_a_savepoint_goes_from_hdfs_to_s3_and_is_restored_from_a_local_copy(
    spark: SparkSession, tmp_path: Path, hdfs_place: str, s3_place: str
) -> None:
    add(tmp_path, ("a", 1), ("b", 2), ("c", 3))
    with job_in(tmp_path).start(spark) as run:
        run.process_all()
        place = run.savepoint(hdfs_place)
        add(tmp_path, ("a", 10), ("d", 4))
        run.process_all()
    shutil.rmtree(tmp_path / "weir")
    place = copy(SavepointPlace(place), s3_place).place
    place = copy(SavepointPlace(place), str(tmp_path / "saved")).place
    with job_in(tmp_path, **{"parallelism.default": 3}).start(spark, place) as run:
        run.process_all()
    check_counts(tmp_path)


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_job_is_restored_from_copies_of_its_checkpoints_on_another_storage(
    kind: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    copies = f"{request.getfixturevalue(f'{kind}_place')}/copies"
    add(tmp_path, ("a", 1), ("b", 2), ("c", 3))
    with job_in(tmp_path, **{"execution.checkpointing.copy-dir": copies}).start(spark) as run:
        run.process_all()
        point = f"{copies}/saved/checkpoints/chk-{run.checkpoint()}.json"
        add(tmp_path, ("a", 10), ("d", 4))
        run.process_all()
    shutil.rmtree(tmp_path / "weir")
    with job_in(tmp_path).start(spark, point) as run:
        run.process_all()
    check_counts(tmp_path)


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_job_directory_there_is_refused_in_words(
    kind: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dir = f"{request.getfixturevalue(f'{kind}_place')}/weir"
    add(tmp_path, ("a", 1))
    with pytest.raises(BadValueError, match="they need a directory of a file system"):
        job_in(tmp_path, **{"execution.checkpointing.dir": dir}).start(spark)
