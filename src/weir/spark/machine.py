"""What of a failure is the machine's: a process that it could not start, an answer that came too late.

Decided from the class of an exception and from where it was raised: a socket that times out while Spark
starts a Python process is the machine's, one that times out in the author's code is not. Texts are read
only where Java has no class for it: for an error number, a missing thread, a condition of Spark's.

Not the machine's: a heap that is too small for the job, a full disk (an outage, that may last for days),
and whatever the author's own code raised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weir.errors import LateAnswerError, LateProcessError, MachineError, NoProcessError, NoThreadError
from weir.protocol.machine import NONE_LEFT

STARTS_PYTHON = "org.apache.spark.api.python.PythonWorkerFactory"
"""Spark's class that starts every Python process: those of a source ten seconds, other workers a minute."""
WHERE = {"java.net.SocketTimeoutException", "java.io.IOException", "java.lang.IllegalStateException"}
"""The classes of which it matters where they were raised."""
SECONDS = 10
"""What Spark gives a Python process that it starts by itself."""
_RPC = "org.apache.spark.rpc.RpcTimeoutException"
_NO_MEMORY = "java.lang.OutOfMemoryError"
_NATIVE_THREAD = "unable to create native thread"
_INITIALIZATION = "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE]"
_NUMBER = re.compile(r"\berror[=:] ?(\d+)")
_MILLISECONDS = re.compile(r"after (\d+) ms")
_NO_THREAD = "can't start new thread"


@dataclass(frozen=True)
class Cause:
    """One exception of Java's, of a chain of causes."""

    name: str
    """Its class."""
    text: str
    places: tuple[str, ...] = ()
    """The classes that it went through first, innermost first; for those of `WHERE`."""


def machine_failure(error: BaseException, causes: Sequence[Cause]) -> MachineError | None:
    """The failure of the machine that an exception with these causes means; None when it is none."""
    if not causes:
        return _of_python(error)
    for cause in causes:
        if (found := _of_java(cause)) is not None:
            return found
    return None


def is_late_process(causes: Sequence[Cause]) -> bool:
    """Whether Spark stopped waiting for a Python process that it had started."""
    return any(isinstance(_of_java(cause), LateProcessError) for cause in causes)


def _of_java(cause: Cause) -> MachineError | None:
    if cause.name == _NO_MEMORY and _NATIVE_THREAD in cause.text:
        return NoThreadError(reason=cause.text)
    if cause.name == _RPC:
        return LateAnswerError(reason=cause.text)
    if cause.text.startswith(_INITIALIZATION):
        return LateProcessError(seconds=300)
    if not any(place.startswith(STARTS_PYTHON) for place in cause.places):
        return None
    if cause.name == "java.net.SocketTimeoutException":
        waited = _MILLISECONDS.search(cause.text)
        return LateProcessError(seconds=int(waited[1]) // 1000 if waited else SECONDS)
    if cause.name == "java.lang.IllegalStateException":  # what Spark raises for a fork that failed
        return NoProcessError(reason=cause.text)
    number = _NUMBER.search(cause.text)
    none_left = cause.name == "java.io.IOException" and number is not None and int(number[1]) in NONE_LEFT
    return NoProcessError(reason=cause.text) if none_left else None


def _of_python(error: BaseException) -> MachineError | None:
    if isinstance(error, OSError) and error.errno in NONE_LEFT:
        return NoProcessError(reason=str(error))
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:  # Python has no class of its own for it
        return NoThreadError(reason=str(error))
    return None
