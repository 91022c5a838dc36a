"""weir: Flink-grade fault tolerance for PySpark Structured Streaming.

What a job file uses is loaded when it is used: Spark starts many short processes that import a module
below this one, to plan and read channels and sources, and none of them needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.job import sinks, sources
    from weir.job.env import Env
    from weir.job.job import Job
    from weir.job.sinks import committed_files, read_files
    from weir.job.sources import Source
    from weir.job.state import State

__all__ = [
    "Env",
    "Job",
    "Source",
    "State",
    "committed_files",
    "read_files",
    "sinks",
    "sources",
]
__version__ = "0.1.0"

_HOMES = {
    "Env": "weir.job.env",
    "Job": "weir.job.job",
    "Source": "weir.job.sources",
    "State": "weir.job.state",
    "committed_files": "weir.job.sinks",
    "read_files": "weir.job.sinks",
}


def __getattr__(name: str) -> Any:
    if name in ("sinks", "sources"):
        found: Any = import_module(f"weir.job.{name}")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
