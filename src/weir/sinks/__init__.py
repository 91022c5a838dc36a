"""Sinks: where the output of a query goes. One system per file, one contract for all."""

from weir.sinks.console import console, memory
from weir.sinks.contract import CheckedSink, CountingSink, NativeSink, Outcome, PlacedSink, StagingSink
from weir.sinks.files import committed_files, files
from weir.sinks.files_reader import CommittedFiles, read_files
from weir.sinks.function import BatchLedger, Function, function
from weir.sinks.kafka import kafka
from weir.sinks.postgres import postgres

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
