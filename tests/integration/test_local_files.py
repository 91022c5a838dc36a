"""weir's classes for local files: as Hadoop's own, without processes and with a sure rename."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from py4j.protocol import Py4JJavaError

from weir.spark import local_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OTHER = {
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
}
"""Hadoop's own."""


EARLY = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1").getOrCreate().stop()

from weir.config import resolve
from weir.spark import session
spark = session.build(resolve(file=None, overrides={"spark.master": "local[1]"}), "early")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
writer = rows.writeStream.format("noop").option("checkpointLocation", sys.argv[1] + "/live")
query = writer.start()
while query.lastProgress is None and query.isActive:
    query.awaitTermination(1)
query.stop()
spark.stop()
"""
"""A process whose JVM runs before weir's session is built."""


class Files:
    """Spark's way to write its logs and its state, over one of the two implementations."""

    def __init__(self, spark: SparkSession, folder: Path, settings: dict[str, str]) -> None:
        assert spark._jvm is not None
        self._jvm: Any = spark._jvm
        self.configuration = self._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
        for key, value in settings.items():
            self.configuration.set(key, value)
        # Hadoop keeps a file system for each user and scheme
        self.configuration.setBoolean("fs.file.impl.disable.cache", True)
        manager = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._manager = manager.FileContextBasedCheckpointFileManager(self.path(folder), self.configuration)
        self.context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self.path(folder).toUri(), self.configuration
        )

    @property
    def pid(self) -> int:
        """The process of the JVM."""
        return int(self._jvm.java.lang.ProcessHandle.current().pid())

    def path(self, path: Path) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path.as_uri())

    def open(self, path: Path) -> Any:
        return self._manager.createAtomic(self.path(path), False)

    def write(self, path: Path, text: str, replace: bool = False) -> None:
        stream = self._manager.createAtomic(self.path(path), replace)
        stream.writeBytes(text)
        stream.close()


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path, {})


@pytest.fixture
def hadoops(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path, OTHER)


def test_the_session_has_them(files: Files, hadoops: Files) -> None:
    assert "weir.LocalFiles$Context" in files.context.getDefaultFileSystem().getClass().getName()
    assert "LocalFs" in hadoops.context.getDefaultFileSystem().getClass().getName()


def test_of_two_writers_of_one_log_entry_one_is_refused_and_the_file_is_the_others(
    files: Files, tmp_path: Path
) -> None:
    for trial in range(50):
        target = tmp_path / str(trial)
        streams = [files.open(target) for _ in range(2)]
        for number, stream in enumerate(streams):
            stream.writeBytes(f"writer {number}")
        outcomes = together([stream.close for stream in streams])
        winners = [number for number, error in enumerate(outcomes) if error is None]
        assert len(winners) == 1, outcomes
        assert target.read_text() == f"writer {winners[0]}"
        assert "already exists" in str(outcomes[1 - winners[0]])


def test_a_link_that_was_made_without_an_answer_is_taken_for_what_it_is(files: Files, tmp_path: Path) -> None:
    stream = files.open(tmp_path / "3")
    stream.writeBytes("ours")
    (temporary,) = tmp_path.glob(".3.*.tmp")
    (tmp_path / "3").hardlink_to(temporary)
    stream.close()
    assert (tmp_path / "3").read_text() == "ours"
    assert not temporary.exists()


def test_a_file_that_is_there_is_refused_and_replaced_when_asked(files: Files, tmp_path: Path) -> None:
    target = tmp_path / "3"
    files.write(target, "first")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        files.write(target, "second")
    assert target.read_text() == "first"
    files.write(target, "third", replace=True)
    assert target.read_text() == "third"


def test_permissions_are_what_hadoop_would_have_given(files: Files, hadoops: Files, tmp_path: Path) -> None:
    modes = []
    for name, one in (("ours", files), ("hadoops", hadoops)):
        one.configuration.set("fs.permissions.umask-mode", "027")
        one.context.setUMask(one._jvm.org.apache.hadoop.fs.permission.FsPermission("027"))
        folder = tmp_path / name
        permission = one._jvm.org.apache.hadoop.fs.permission.FsPermission
        one.context.mkdir(one.path(folder), permission("775"), False)
        sticky = tmp_path / f"{name}-sticky"
        one.context.mkdir(one.path(sticky), permission("755"), False)
        one.context.setPermission(one.path(sticky), permission("1755"))
        odd = folder / "odd"
        one.write(odd, "x")
        one.context.setPermission(one.path(odd), permission("604"))
        one.write(folder / "plain", "x")
        modes.append([stat.S_IMODE(path.stat().st_mode) for path in (folder, sticky, odd, folder / "plain")])
    assert modes[0] == modes[1]
    assert modes[0][:3] == [0o750, 0o1755, 0o604]


def test_what_is_said_of_files_folders_and_links_is_what_hadoop_says(
    files: Files, hadoops: Files, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    def said(one: Files, name: str) -> str:
        return str(one.context.getFileLinkStatus(one.path(tmp_path / name)).toString())

    for name in ("file", "folder", "link"):
        assert said(files, name) == said(hadoops, name)
    for one in (files, hadoops):
        for name in ("dangling", "nowhere"):
            with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
                said(one, name)


def test_no_process_is_started_where_hadoop_starts_some(files: Files, hadoops: Files, tmp_path: Path) -> None:
    def started(one: Files, name: str) -> float:
        before = children(java)
        for number in range(20):
            one.write(tmp_path / f"{name}-{number}", "x")
        return children(java) - before

    java = psutil.Process(files.pid)
    assert started(files, "ours") == 0
    assert started(hadoops, "hadoops") > 0, "Hadoop no longer needs our help"


def test_the_same_source_makes_the_same_jar_and_it_is_the_one_in_use(tmp_path: Path) -> None:
    # Elsewhere: to the JVMs' archive of classes a jar that is written again is another one.
    made = local_files.build(tmp_path / "made.jar")
    assert made.read_bytes() == local_files.packaged().read_bytes(), "scripts/setup has not built it"


@pytest.mark.long
def test_a_job_file_that_has_started_a_jvm_of_its_own_goes_on_with_hadoops(tmp_path: Path) -> None:
    """Its JVM was started without the jar: a session that named the classes could write nothing."""
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    environ = {key: value for key, value in os.environ.items() if key != local_files.CLASS_PATH}
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "live" / "commits" / "0").exists()


def children(process: psutil.Process) -> float:
    """The time that the ended children of a process have used."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def together(actions: list[Callable[[], Any]]) -> list[BaseException | None]:
    """Run these at the same moment; what became of each."""
    outcomes: list[BaseException | None] = [None] * len(actions)
    gate = threading.Barrier(len(actions))

    def act(number: int, action: Callable[[], Any]) -> None:
        gate.wait()
        try:
            action()
        except Py4JJavaError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=act, args=one) for one in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes
