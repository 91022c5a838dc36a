"""A Spark standalone cluster on loopback: a master and workers, from the installed PySpark.

Executors run in processes of their own; they, the driver and the tests share the machine's disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark

from tests.loopback import free_port, listens, wait_for

_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """One master, and workers with one core each. Leaving the `with` block ends all of it."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder, self._port = folder, free_port()
        folder.mkdir()
        self._master = self._spawn("master", _MASTER, "--port", str(self._port), "--webui-port", "0")
        wait_for("the master", lambda: listens(self._port))
        self.workers = [self._worker(number) for number in range(workers)]

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def settings(self) -> dict[str, str]:
        """What a job needs to run here."""
        return {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
            "spark.task.maxFailures": "4",
        }

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_error: object) -> None:
        tops = [self._master, *self.workers]
        below = [child for top in tops if top.poll() is None for child in _children(top.pid)]
        for process in [*(psutil.Process(top.pid) for top in tops if top.poll() is None), *below]:
            _kill(process)
        for top in tops:
            top.wait(30)

    def executors(self) -> list[int]:
        """The processes of the executors that live now."""
        found = [child for worker in self.workers if worker.poll() is None for child in _children(worker.pid)]
        return [child.pid for child in found if any(_EXECUTOR in word for word in _command(child))]

    def wait_for_executors(self, count: int) -> list[int]:
        wait_for(f"{count} executors", lambda: len(self.executors()) >= count)
        return self.executors()

    def executor_of(self, task: int) -> int:
        """The executor whose task runs in this process of Python's; 0 when it is gone."""
        return next((pid for pid in self.executors() if _is_below(task, pid)), 0)

    def kill_worker_of(self, task: int) -> None:
        """Kill the worker of a task and, as the loss of its machine would, its executors; another comes."""
        worker = next(worker for worker in self.workers if _is_below(task, worker.pid))
        self.workers.remove(worker)
        for process in [*_children(worker.pid), psutil.Process(worker.pid)]:
            _kill(process)
        worker.wait(30)
        self.workers.append(self._worker(len(list(self._folder.glob("worker-*.log")))))

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        work = self._folder / f"work-{number}"
        options = ("--cores", "1", "--memory", "512m", "--webui-port", "0", "--work-dir", str(work))
        return self._spawn(f"worker-{number}", _WORKER, *options, self.url)

    def _spawn(self, name: str, kind: str, *options: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with open(self._folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )


class Gate:
    """A folder by which a test lets the tasks of `faults/jobs/streamed.py` stand still in mid-batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def close(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()
        (self.folder / "closed").touch()

    def open(self) -> None:
        (self.folder / "closed").unlink(missing_ok=True)

    def tasks(self) -> list[int]:
        """The processes that have come to the gate since it was closed."""
        return [int(file.name.partition("-")[2]) for file in self.folder.glob("task-*")]


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_below(pid: int, top: int) -> bool:
    return any(child.pid == pid for child in _children(top))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
