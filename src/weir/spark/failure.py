"""From an exception of Spark or of Python to a `Failure`: whose fault, and does a retry help.

Decided from types: weir's own errors know their domain, Spark's exceptions by the Java
classes in their chain of causes. Texts are only carried along; but from a Python process of Spark's an
error comes as a text alone: weir's own, and connections that failed (`outage.py`), are recognised by the
name of their class in it.
"""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import traceback
from dataclasses import replace
from typing import Any

from weir import errors
from weir.errors import (
    Domain,
    JobConnectionError,
    JvmDiedError,
    JvmNotStartedError,
    LostRecordsError,
    MachineError,
    SparkSettingError,
    WeirError,
)
from weir.protocol.messages import Failure
from weir.spark import outage, planned_source
from weir.spark.machine import WHERE, Cause, is_late_process, machine_failure
from weir.text import without_secrets

_USER = {
    "org.apache.spark.api.python.PythonException",
    "org.apache.spark.sql.AnalysisException",
    "org.apache.spark.sql.catalyst.ExtendedAnalysisException",
    # A function of the author's in Spark's own foreachBatch. Spark leaves its own wrapper out of the chain
    # of causes; what weir's own function for foreachBatch raises is known on the Python side.
    "org.apache.spark.sql.execution.streaming.sources.ForeachBatchUserFuncException",
    "py4j.Py4JException",
    "org.apache.spark.SparkArithmeticException",
    "org.apache.spark.SparkDateTimeException",
    "org.apache.spark.SparkNumberFormatException",
    "org.apache.spark.SparkArrayIndexOutOfBoundsException",
    "org.apache.spark.SparkRuntimeException",  # raise_error, a value that does not fit, ...
}
_IN_A_SOURCE = ("[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]", "[PYTHON_DATA_SOURCE_ERROR]")
"""Spark's conditions for a data source in Python that raised: the author's if its own line did."""
_FATAL = {"java.lang.OutOfMemoryError", "java.lang.StackOverflowError"}
_GARBLED = {"java.io.OptionalDataException", "java.io.StreamCorruptedException"}
"""An object that the JVM has written can't be read back, however often a query is started again."""
_EXTERNAL = ("java.io.", "java.net.", "java.nio.", "org.apache.hadoop.", "org.apache.kafka.")
_MISSING = {"java.io.FileNotFoundException", "java.nio.file.NoSuchFileException"}
"""A file that is not there does not come back by waiting, as a disk or a server may."""
_NO_SUCH_FILE = "No such file or directory"
_NO_ANSWER = {"OperationalError", "InterfaceError"}
"""What databases' Python clients raise when the server is away (PEP 249)."""
_LOST_RECORDS = {"org.apache.spark.sql.kafka010.KafkaIllegalStateException"}
_ARGUMENT = {"org.apache.spark.SparkIllegalArgumentException"}
_OWN = re.compile(r"^weir\.errors(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)
_NOISE = re.compile(
    r"^(\[STREAM_FAILED\] )?Query (\S+ )?\[id = [^\]]*\] terminated with exception: |( SQLSTATE: \w+)+$"
)
"""What Spark puts round the message of every failed query."""
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
_FOREIGN = re.compile(
    r"/(site-packages|dist-packages|pyspark|py4j)/|/weir/|/lib/python3|<frozen|/python/lib/"
)
_OUT_OF_ORDER = "Offsets committed out of order"
_FULL = "No space left on device"
_FRAMES = 12
"""How many frames of an exception in Java are looked at: each is a call into the JVM."""
_JVM_GRACE = 2.0
"""Seconds in which the process of a JVM whose connections have failed is seen to have ended."""
_SLIPS: tuple[tuple[str, str], ...] = (
    (
        r"output mode: append.*without watermark|not supported without a watermark",
        "give the frame a watermark (frame.withWatermark('time', '10 minutes')), or another output_mode:"
        " 'update' or 'complete'",
    ),
    (r"Invalid streaming output mode", "use output_mode 'append', 'update' or 'complete'"),
    (
        r"Schema must be specified",
        "give the source its schema: spark.readStream.schema('id int, name string').json(path)",
    ),
    (r"should be (a )?Column\b", "pass a column: F.lit('EUR') for a value, F.col('name') for a column"),
    (
        r"Failed to find (the )?data source",
        "add its package: --conf spark.jars.packages=GROUP:ARTIFACT:VERSION",
    ),
)
"""What helps against the commonest slips in a pipeline, by Spark's own words: advice alone."""


def whole_stack(job: str) -> str:
    """Where the full stack of a failure is, under a supervisor."""
    return f"'weir logs {job}' has the full stack"


def from_exception(error: BaseException, job: str, *, planning: bool = False) -> Failure:
    """The failure behind an exception, as the supervisor and the journal take it.

    `planning`: it was raised while a query was planned or started. What Spark refuses then, it refuses at
    every start, so that no retry helps. Without secrets: a stack shows lines of the job's own file.
    """
    failure = _from_exception(error, job, planning)
    what, why, hint, stack = map(without_secrets, (failure.what, failure.why, failure.hint, failure.stack))
    return replace(failure, what=what, why=why, hint=hint, stack=stack)


def _from_exception(error: BaseException, job: str, planning: bool) -> Failure:
    stack = "".join(traceback.format_exception(error))
    if lost := _told(error, _LOST_RECORDS):
        error = LostRecordsError(reason=lost)
    elif refused := _told(error, _ARGUMENT, "[INVALID_CONF_VALUE"):
        error = SparkSettingError(reason=refused.partition(" SQLSTATE")[0])
    elif death := jvm_death(error):
        error = JvmDiedError(how=death, job=job)
    elif lack := _of_the_machine(error):
        error = lack
    elif unreadable := planned_source.unreadable(_causes(error)):
        error = unreadable
    elif failed := _failed_connection(error):
        error = failed
    if isinstance(error, WeirError):
        return Failure(
            error.what,
            error.why,
            error.hint,
            error.domain,
            error.retry,
            type(error).__name__,
            stack,
            error.exit_code,
            error.redeploy,
        )
    if (own := _own_in_worker(error, stack)) is not None:
        return own
    return _of_spark(error, stack, whole_stack(job), planning)


def _of_spark(error: BaseException, stack: str, logs: str, planning: bool) -> Failure:
    classes = _java_classes(error)
    message = _first_line(error)
    if classes & _FATAL:
        name = next(iter(classes & _FATAL)).rsplit(".", 1)[1]
        return Failure(
            f"the JVM ended with {name}",
            message,
            f"give the driver more memory; {logs}",
            error=name,
            stack=stack,
            redeploy=True,
        )
    if any(_OUT_OF_ORDER in one.text for one in _causes(error)):
        return Failure(
            "Spark's socket source can't resume: lines are lost at every restart",
            _innermost(error, ""),
            "read it with weir.sources.socket(host, port), which journals what it receives",
            Domain.USER,
            True,
            "SocketSource",
            stack,
            2,
        )
    if _is_users(error) or (planning and is_authors(error)):
        return _user_code(error, message, stack, logs, retry=not planning or _outage(error))
    if isinstance(error, OSError):
        full = error.errno == errno.ENOSPC
        hint = "make room on the disk" if full else logs
        return Failure(
            f"{type(error).__name__}: {message}",
            "",
            hint,
            Domain.EXTERNAL,
            True,
            type(error).__name__,
            stack,
            3,
        )
    if classes & _GARBLED:
        what = f"Spark failed: {message}"
        name = sorted(classes & _GARBLED)[0]
        return Failure(what, "", logs, error=name, stack=stack, redeploy=True)
    why = _innermost(error, message)
    outside = sorted(c for c in classes if c.startswith(_EXTERNAL))
    if outside and not _missing(error):
        hint = f"make room on the disk; {logs}" if _FULL in f"{why} {message}" else logs
        name, reason = outside[0], why or message
        return Failure(
            f"{name}: {reason}", message if why else "", hint, Domain.EXTERNAL, True, name, stack, 3
        )
    if classes:
        return Failure(f"Spark failed: {message}", why, logs, error=sorted(classes)[0], stack=stack)
    return Failure(
        f"{type(error).__name__} inside weir", message, logs, error=type(error).__name__, stack=stack
    )


def _is_users(error: BaseException) -> bool:
    """Whether Spark says that the author's code raised, or that it refuses that code."""
    named = type(error).__name__ in ("PythonException", "AnalysisException")
    if named or _java_classes(error) & _USER:
        return True
    in_a_source = any(one.text.startswith(_IN_A_SOURCE) for one in _causes(error))
    return in_a_source and bool(_raised_in_python(error)[1])


def _failed_connection(error: BaseException) -> JobConnectionError | None:
    """What the author's code raised, where it is an outage and no fault of that code."""
    if isinstance(error, WeirError) or not _is_users(error):
        return None
    text = str(error)
    if _OWN.search(text):
        return None
    line = outage.failed_connection(text)
    if not line:
        line = next((f"{one.name}: {one.text}" for one in _causes(error) if one.name in outage.JAVA), "")
    if not line:
        return None
    where = _raised_in_python(error)[1]
    message = f"{line.strip()[:500]}{where}"
    return JobConnectionError(error=line.partition(":")[0].rsplit(".", 1)[-1], message=message)


def is_authors(error: BaseException) -> bool:
    """Whether an exception out of the author's code is that code's own fault.

    Not where the JVM has died or is out of memory, or where a disk or a server does not answer.
    """
    if isinstance(error, (WeirError, OSError, MemoryError)) or jvm_death(error) or _outage(error):
        return False
    if _of_the_machine(error) is not None:
        return False
    classes = _java_classes(error)
    if not classes:
        return type(error).__name__ not in _NO_ANSWER
    if classes & (_FATAL | _GARBLED):
        return False
    return bool(classes & _USER) or any(name.endswith("IllegalArgumentException") for name in classes)


def _outage(error: BaseException) -> bool:
    """Whether a disk or a server that does not answer is among the causes."""
    return any(name.startswith(_EXTERNAL) for name in _java_classes(error)) and not _missing(error)


def _missing(error: BaseException) -> bool:
    """Whether a file is not there; Java says the same of one that can't be opened, with the reason."""
    texts = [one.text for one in _causes(error) if one.name in _MISSING]
    reasons = [match[1] for text in texts if (match := re.search(r"\(([^()]+)\)\s*$", text))]
    return bool(texts) and all(reason == _NO_SUCH_FILE for reason in reasons)


def slip_of(error: BaseException) -> tuple[str, str]:
    """What an exception out of a pipeline says, with the author's own line; and what helps, or ""."""
    text = _first_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not _FOREIGN.search(one.filename)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{where}", _advice(str(error))


def jvm_death(error: BaseException) -> str:
    """How the JVM of this process died, if that is what an exception of its connection says; or ""."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # noqa: PLC0415

    lost = isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
    if not lost:
        return ""
    context = sys.modules.get("pyspark.core.context")
    gateway = context.SparkContext._gateway if context is not None else None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return "it does not answer" if isinstance(error, Py4JNetworkError) else ""
    try:
        return exit_words(process.wait(_JVM_GRACE))
    except subprocess.TimeoutExpired:
        return ""


def exit_words(code: int) -> str:
    """How a process ended that is no longer there."""
    if code < 0:
        return f"killed by signal {-code}, {signal.Signals(-code).name}"
    return f"it ended with exit code {code}"


def shows_output(error: BaseException) -> bool:
    """Whether what the process printed says more than the error's own message."""
    return isinstance(error, JvmNotStartedError) or not isinstance(error, WeirError)


def is_late_worker(error: BaseException | None) -> bool:
    """Whether Spark stopped waiting for a Python process that it had started."""
    return error is not None and is_late_process(_causes(error))


def _of_the_machine(error: BaseException) -> MachineError | None:
    """What the machine could not do; not where the author's own code raised it."""
    return None if isinstance(error, WeirError) else machine_failure(error, _causes(error))


def _own_in_worker(error: BaseException, stack: str) -> Failure | None:
    """The failure behind an error of weir's that was raised in a Python process of Spark's."""
    match = _OWN.search(str(error))
    kind = getattr(errors, match[1], None) if match else None
    if match is None or not (isinstance(kind, type) and issubclass(kind, WeirError)):
        return None
    what, _, rest = match[2].strip().partition(", because ")
    why, _, hint = rest.removesuffix(")").partition(" (")
    own = (kind.domain, kind.retry, kind.__name__, stack, kind.exit_code, kind.redeploy)
    return Failure(what, why, hint, *own)


def _user_code(error: BaseException, message: str, stack: str, logs: str, *, retry: bool) -> Failure:
    raised_line, where = _raised_in_python(error)
    name = raised_line.partition(":")[0]
    raised = name.rsplit(".", 1)[-1] if re.fullmatch(r"[\w.]+", name) else type(error).__name__
    why = f"{raised_line or message}{where}"
    advice = _advice(f"{message}\n{raised_line}")
    hint = advice or f"fix it and start again; {logs}"
    return Failure(f"code of the job raised {raised}", why, hint, Domain.USER, retry, raised, stack, 2)


def _advice(text: str) -> str:
    """What helps against a slip that Spark words like this, or ""."""
    return next((helps for pattern, helps in _SLIPS if re.search(pattern, text)), "")


def _told(error: BaseException, kinds: set[str], condition: str = "") -> str:
    """What Java's exception of one of these kinds and of this condition says, or ""."""
    causes = _causes(error)
    texts = (one.text for one in causes if one.name in kinds and one.text.startswith(condition))
    return " ".join(re.sub(r"^\[[A-Z_.]+\]", "", next(texts, "")).split())


def cause_of(error: BaseException) -> str:
    """What an exception says, in one line: that of the innermost cause, where it comes from Java."""
    if isinstance(error, WeirError):
        return error.text
    return _innermost(error, "") or _first_line(error) or type(error).__name__


def _innermost(error: BaseException, message: str) -> str:
    """What the innermost cause says in its first line, or "" where the message has it already."""
    texts = [one.text.strip() for one in _causes(error)]
    lines = [_NOISE.sub("", text.splitlines()[0])[:500] for text in texts if text]
    return lines[-1] if lines and lines[-1] not in message else ""


def _java_classes(error: BaseException) -> set[str]:
    """The Java classes in the chain of causes; empty for an exception of Python's own."""
    return {one.name for one in _causes(error)}


def _causes(error: BaseException) -> list[Cause]:
    """The chain of causes in Java, the outermost first."""
    causes: list[Cause] = []
    # Not getattr on a Java object: it has every attribute that it is asked for.
    origin: Any = getattr(error, "_origin", None)
    wrapped = origin if isinstance(origin, BaseException) else error
    cause: Any = getattr(wrapped, "java_exception", origin)
    while cause is not None and len(causes) < 20:
        try:
            name = str(cause.getClass().getName())
            places = _places(cause) if name in WHERE else ()
            causes.append(Cause(name, str(cause.getMessage() or ""), places))
            cause = cause.getCause()
        except Exception:  # the JVM is gone: what is known must do
            break
    return causes


def _places(cause: Any) -> tuple[str, ...]:
    """The classes of an exception's innermost frames."""
    frames = list(cause.getStackTrace())[:_FRAMES]
    return tuple(str(frame.getClassName()) for frame in frames)


def _first_line(error: BaseException) -> str:
    """The first line of what it says, without what Spark puts round it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return _NOISE.sub("", _NOISE.sub("", lines[0]))[:500] if lines else ""


def _raised_in_python(error: BaseException) -> tuple[str, str]:
    """What a function of the author's raised in Python, and its own line; Spark hides it behind a stack."""
    stack = str(error).rpartition("Traceback (most recent call last):\n")[2]
    lines = [line for line in stack.splitlines() if line.strip() and not line[0].isspace()]
    if not lines or "Traceback" not in str(error):
        return "", ""
    own = [one for one in _FRAME.findall(stack.partition(lines[0])[0]) if not _FOREIGN.search(one[0])]
    where = f" ({own[-1][0]}, line {own[-1][1]})" if own else ""
    return lines[0][:500], where
