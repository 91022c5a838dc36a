"""Sinks: where the output of a query goes. One system per file, one contract for all."""

from weir.job.sinks.contract import NativeSink, Outcome, StagingSink
from weir.job.sinks.files import committed_files, files
from weir.job.sinks.function import Function, function
from weir.job.sinks.looking import console, memory
from weir.job.sinks.postgres import postgres

__all__ = [
    "Function",
    "NativeSink",
    "Outcome",
    "StagingSink",
    "committed_files",
    "console",
    "files",
    "function",
    "memory",
    "postgres",
]
