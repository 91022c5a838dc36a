"""weir: Flink-grade fault tolerance for PySpark Structured Streaming.

What a job file uses is loaded when it is used: Spark starts many short processes that import a module
below this one, to plan and read channels and sources, and none of them needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir import sinks, sources
    from weir.job.env import Env
    from weir.job.job import Job
    from weir.sinks import committed_files, read_files
    from weir.sinks.user_state import State
    from weir.sources import Source

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
    "Source": "weir.sources",
    "State": "weir.sinks.user_state",
    "committed_files": "weir.sinks",
    "read_files": "weir.sinks",
}


def __getattr__(name: str) -> Any:
    if name in ("sinks", "sources"):
        found: Any = import_module(f"weir.{name}")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
