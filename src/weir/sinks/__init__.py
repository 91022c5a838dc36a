"""Sinks: where the output of a query goes. One system per file, one contract for all."""

from weir.job.sinks.contract import CheckedSink, CountingSink, NativeSink, Outcome, PlacedSink, StagingSink
from weir.job.sinks.files import committed_files, files
from weir.job.sinks.function import Function, function
from weir.job.sinks.function_ledger import BatchLedger
from weir.job.sinks.kafka import kafka
from weir.job.sinks.looking import console, memory
from weir.job.sinks.postgres import postgres
from weir.job.sinks.reading import CommittedFiles, read_files

__all__ = [
    "BatchLedger",
    "CheckedSink",
    "CommittedFiles",
    "CountingSink",
    "Function",
    "NativeSink",
    "Outcome",
    "PlacedSink",
    "StagingSink",
    "committed_files",
    "console",
    "files",
    "function",
    "kafka",
    "memory",
    "postgres",
    "read_files",
]
