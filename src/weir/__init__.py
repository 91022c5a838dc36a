"""weir: Flink-grade fault tolerance for PySpark Structured Streaming."""

from weir.job import sinks
from weir.job.env import Env, Source
from weir.job.job import Job
from weir.job.sinks import committed_files

__all__ = [
    "Env",
    "Job",
    "Source",
    "committed_files",
    "sinks",
]
__version__ = "0.1.0"
