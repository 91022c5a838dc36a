"""What is served: a storage with its jobs, the clock, and what was asked for; and by which versions."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

from weir.clock import Clock
from weir.errors import NotASavepointError
from weir.monitor.job import JobView, jobs, look
from weir.monitor.report import settings_of
from weir.monitor.savepoints import known
from weir.savepoint.catalogue import CatalogueEntry
from weir.web.operations import Operations

SAVEPOINT_DIR = "execution.checkpointing.savepoint-dir"


@dataclass(frozen=True)
class Site:
    """One storage. `job` is the one whose supervisor serves it; "" when nobody's does."""

    dir: str
    clock: Clock
    job: str = ""
    operations: Operations = field(default_factory=lambda: Operations(Clock()))

    def jobs(self) -> list[JobView]:
        return jobs(self.dir, self.clock)

    def look(self, job: str) -> JobView:
        """How a job stands; raises `NoSuchJobError`."""
        return look(self.dir, job, self.clock)

    def savepoints(self, job: str) -> list[CatalogueEntry]:
        """The savepoints of a job that can be found, oldest first."""
        self.look(job)
        return known(self.dir, job, self.savepoint_dir(job))

    def savepoint_dir(self, job: str) -> str | None:
        """Where the job's settings put its savepoints, as of its last start; None without such a place."""
        place = settings_of(self.dir, job).get(SAVEPOINT_DIR, {}).get("value", "unset")
        return None if place == "unset" else str(place)

    def savepoint(self, job: str, path: str) -> CatalogueEntry:
        """One of them by its place; what is not in the catalogue of the job is not touched."""
        for entry in self.savepoints(job):
            if entry.place == path:
                return entry
        raise NotASavepointError(place=path, reason=f"it is not among the savepoints of job {job!r}")


@cache
def versions() -> dict[str, str]:
    """Those of weir, Spark and Python as they are installed here; "unknown" where one is not.

    Nothing is imported or started to know it.
    """
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        spark = "unknown"
    return {"weir": sys.modules["weir"].__version__, "spark": spark, "python": platform.python_version()}
