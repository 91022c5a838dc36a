"""Tools to test streaming jobs with faults: what weir's own tests stand on.

A job is run as a real process with faults armed (`run_job`, `JobProcess`) and its result compared
with that of a quiet run (`assert_same_result`); its input is scripted (`ScriptedSource`). What needs
no process to die is written in a little step language that shares one session (`StreamTest`).

Loaded when it is used: the processes in which Spark reads a scripted source need next to nothing of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.storage.unreliable import UnreliableStore
    from weir.testing.compare import assert_same_result, committed_rows, folded
    from weir.testing.process import QUICK, JobProcess, JobRun, armed, fired, run_job
    from weir.testing.script import Crash, EndOfInput, Pause, Rows, ScriptedSource, write_script
    from weir.testing.steps import (
        AddRows,
        CheckRows,
        CheckTable,
        ExpectFailure,
        ProcessAll,
        Start,
        Stop,
        StreamTest,
    )

__all__ = [
    "QUICK",
    "AddRows",
    "CheckRows",
    "CheckTable",
    "Crash",
    "EndOfInput",
    "ExpectFailure",
    "JobProcess",
    "JobRun",
    "Pause",
    "ProcessAll",
    "Rows",
    "ScriptedSource",
    "Start",
    "Stop",
    "StreamTest",
    "UnreliableStore",
    "armed",
    "assert_same_result",
    "committed_rows",
    "fired",
    "folded",
    "run_job",
    "write_script",
]

_HOMES = {
    "weir.storage.unreliable": ("UnreliableStore",),
    "weir.testing.compare": ("assert_same_result", "committed_rows", "folded"),
    "weir.testing.process": ("QUICK", "JobProcess", "JobRun", "armed", "fired", "run_job"),
    "weir.testing.script": ("Crash", "EndOfInput", "Pause", "Rows", "ScriptedSource", "write_script"),
}
"""Whatever is not among these is a step of `weir.testing.steps`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "weir.testing.steps")
    globals()[name] = found = getattr(import_module(home), name)
    return found
