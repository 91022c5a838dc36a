"""The job: a name, a pipeline function, and the author's options."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.errors import JobFileError
from weir.ids import job_name
from weir.job.graph import Pipeline
from weir.job.listeners import OnAborted, OnComplete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.driver.notebook import Run

defined: list[Job] = []
"""Every job that this process has made; the driver looks here after it ran a job file."""

loading_in_driver = False
"""Set while a driver runs a job file."""


class JobChosen(BaseException):
    """Raised by `job.run()` in a driver: this job is to be run; the rest of the file is not."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.name)
        self.job = job


class Job:
    """A named graph of queries, run and recovered together.

    Options are settings by their keys (`Job("x", **{"heartbeat.timeout": "30 s"})`, or with
    underscores, `heartbeat_timeout="30 s"`); `weir config` lists them.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name = job_name(name)
        self.options = options
        self._pipeline: Pipeline | None = None
        self.complete_listeners: list[OnComplete] = []
        self.aborted_listeners: list[OnAborted] = []
        defined.append(self)

    def pipeline(self, function: Pipeline) -> Pipeline:
        """Decorator: this function builds the graph. It only builds frames; it may run often."""
        self._pipeline = function
        return function

    def on_checkpoint_complete(self, function: OnComplete) -> OnComplete:
        """Decorator: called with the id of each completed checkpoint, in the driver.

        Listeners are called in a thread of their own, one after the other, in the order of the
        checkpoints. They hold up neither the checkpoints nor the queries. One that raises is reported
        and stops nothing. A listener hears of a checkpoint at most once: when the driver dies in
        between, nobody is called.
        """
        self.complete_listeners.append(function)
        return function

    def on_checkpoint_aborted(self, function: OnAborted) -> OnAborted:
        """Decorator: called with the id of each aborted checkpoint and the reason, as text.

        Otherwise as `on_checkpoint_complete`.
        """
        self.aborted_listeners.append(function)
        return function

    @property
    def function(self) -> Pipeline:
        """The pipeline function; raises when the author has not given one."""
        if self._pipeline is None:
            raise JobFileError(
                file=_main_file() or f"job {self.name!r}",
                reason=f"job {self.name!r} has no pipeline",
                todo="decorate a function with @job.pipeline",
            )
        return self._pipeline

    def run(self) -> None:
        """Run the job under a supervisor, as `weir run <this file>` does.

        Does not return: this process becomes the supervisor. In the driver, which runs the same
        file, it marks the job as the one to run.
        """
        if loading_in_driver:
            raise JobChosen(self)
        file = _main_file()
        if file is None:
            raise JobFileError(
                file="this session",
                reason="job.run() needs a file that a driver can run again",
                todo="in a notebook use: with job.start(spark) as run: ...",
            )
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            raise JobFileError(
                file=file,
                reason="spark-submit has started a JVM for it, which weir could neither stop nor restart",
                todo=f"weir run {file} --master MASTER --conf KEY=VALUE, with the options of spark-submit",
            )
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "weir", "run", file, "--", *sys.argv[1:]])

    def start(
        self,
        spark: SparkSession,
        point: str | None = None,
        *,
        accept_duplicates: bool = False,
        allow_dropped: bool = False,
        maps: Sequence[str] = (),
        set_offsets: Mapping[str, str] | None = None,
    ) -> Run:
        """Run the job in a session of its own beside this one, without a supervisor.

        For notebooks and tests: `with job.start(spark) as run: ...`. It takes an attempt like any
        driver; nothing restarts it. `point` is a savepoint's directory, "chk-41" or "latest": the job
        resumes from there, and not from its live files. The job may have changed since; the rest is
        what `weir run -s` has options for.
        """
        # The only way up from this room, for the author's sake; at module level it would load all of Spark.
        from weir.driver.notebook import start  # noqa: PLC0415
        from weir.restore.request import RestoreRequest  # noqa: PLC0415

        if not point:
            return start(self, spark)
        offsets = dict(set_offsets or {})
        request = RestoreRequest(point, accept_duplicates, tuple(maps), allow_dropped, offsets=offsets)
        return start(self, spark, request)


def _main_file() -> str | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(file).resolve()) if file else None
