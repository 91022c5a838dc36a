"""weir: Flink-grade fault tolerance for PySpark Structured Streaming."""

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
