"""From an exception of Spark or of Python to a `Failure`: whose fault, and does a retry help.

Decided from types: weir's own errors know their domain, Spark's exceptions are told by the Java
classes in their chain of causes. Texts are only carried along; but from a Python process of Spark's an
error comes as a text alone, and weir's own are told by their class's name in it.
"""

from __future__ import annotations

import errno
import re
import traceback
from dataclasses import replace
from typing import Any

from weir import errors
from weir.errors import Domain, JvmNotStartedError, LostRecordsError, SparkSettingError, WeirError
from weir.protocol.messages import Failure
from weir.words import without_secrets

_USER = {
    "org.apache.spark.api.python.PythonException",
    "org.apache.spark.sql.AnalysisException",
    "org.apache.spark.SparkArithmeticException",
    "org.apache.spark.SparkDateTimeException",
    "org.apache.spark.SparkNumberFormatException",
    "org.apache.spark.SparkArrayIndexOutOfBoundsException",
    "org.apache.spark.SparkRuntimeException",  # raise_error, a value that does not fit, ...
}
_FATAL = {"java.lang.OutOfMemoryError", "java.lang.StackOverflowError"}
_GARBLED = {"java.io.OptionalDataException", "java.io.StreamCorruptedException"}
"""An object that the JVM has written can't be read back, however often a query is started again."""
_EXTERNAL = ("java.io.", "java.net.", "java.nio.", "org.apache.hadoop.", "org.apache.kafka.")
_LOST_RECORDS = {"org.apache.spark.sql.kafka010.KafkaIllegalStateException"}
_ARGUMENT = {"org.apache.spark.SparkIllegalArgumentException"}
_OWN = re.compile(r"^weir\.errors\.(\w+): (.+)$", re.MULTILINE)


def from_exception(error: BaseException, job: str) -> Failure:
    """The failure behind an exception, as the supervisor and the journal take it.

    Without secrets: a stack shows lines of the job's own file.
    """
    made = _from_exception(error, job)
    what, why, hint, stack = map(without_secrets, (made.what, made.why, made.hint, made.stack))
    return replace(made, what=what, why=why, hint=hint, stack=stack)


def _from_exception(error: BaseException, job: str) -> Failure:
    stack = "".join(traceback.format_exception(error))
    if lost := _told(error, _LOST_RECORDS):
        error = LostRecordsError(reason=lost)
    elif refused := _told(error, _ARGUMENT, "[INVALID_CONF_VALUE"):
        error = SparkSettingError(reason=refused.partition(" SQLSTATE")[0])
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
    classes = _java_classes(error)
    logs = f"'weir logs {job}' has the whole stack"
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
    if classes & _USER or type(error).__name__ in ("PythonException", "AnalysisException"):
        return _user_code(error, _raised_in_worker(error) or message, stack, logs)
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
    outside = sorted(c for c in classes if c.startswith(_EXTERNAL))
    if outside:
        return Failure(f"{outside[0]}: {message}", "", logs, Domain.EXTERNAL, True, outside[0], stack, 3)
    if classes:
        why = _innermost(error, message)
        return Failure(f"Spark failed: {message}", why, logs, error=sorted(classes)[0], stack=stack)
    return Failure(
        f"{type(error).__name__} inside weir", message, logs, error=type(error).__name__, stack=stack
    )


def shows_output(error: BaseException) -> bool:
    """Whether what the process printed tells more than the error's own words."""
    return isinstance(error, JvmNotStartedError) or not isinstance(error, WeirError)


def is_late_worker(error: BaseException | None) -> bool:
    """Whether Spark gave up waiting for a Python process that it had started."""
    if error is None or "java.net.SocketTimeoutException" not in _java_classes(error):
        return False
    return "failed to connect back" in str(error)


def _own_in_worker(error: BaseException, stack: str) -> Failure | None:
    """The failure behind an error of weir's that was raised in a Python process of Spark's."""
    found = _OWN.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, WeirError)):
        return None
    what, _, rest = found[2].strip().partition(", because ")
    why, _, hint = rest.removesuffix(")").partition(" (")
    own = (kind.domain, kind.retry, kind.__name__, stack, kind.exit_code, kind.redeploy)
    return Failure(what, why, hint, *own)


def _user_code(error: BaseException, message: str, stack: str, logs: str) -> Failure:
    return Failure(
        f"code of the job raised {type(error).__name__}",
        message,
        f"mend it and start again; {logs}",
        Domain.USER,
        True,
        type(error).__name__,
        stack,
        2,
    )


def _told(error: BaseException, kinds: set[str], condition: str = "") -> str:
    """What Java's exception of one of these kinds and of this condition says, or ""."""
    said = (text for name, text in _causes(error) if name in kinds and text.startswith(condition))
    return " ".join(re.sub(r"^\[[A-Z_.]+\]", "", next(said, "")).split())


def _innermost(error: BaseException, message: str) -> str:
    """What the innermost cause says in its first line, or "" where the message has it already."""
    told = [text.strip().splitlines()[0][:500] for _, text in _causes(error) if text.strip()]
    return told[-1] if told and told[-1] not in message else ""


def _java_classes(error: BaseException) -> set[str]:
    """The Java classes in the chain of causes; empty for an exception of Python's own."""
    return {name for name, _ in _causes(error)}


def _causes(error: BaseException) -> list[tuple[str, str]]:
    """The chain of causes in Java, the outermost first: each one's class and message."""
    found: list[tuple[str, str]] = []
    # Not getattr on a Java object: it has every attribute that it is asked for.
    origin: Any = getattr(error, "_origin", None)
    wrapped = origin if isinstance(origin, BaseException) else error
    cause: Any = getattr(wrapped, "java_exception", origin)
    while cause is not None and len(found) < 20:
        try:
            found.append((str(cause.getClass().getName()), str(cause.getMessage() or "")))
            cause = cause.getCause()
        except Exception:  # the JVM is gone: what is known must do
            break
    return found


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else ""


def _raised_in_worker(error: BaseException) -> str:
    """What a function of the author's raised in a Python worker, or ""; Spark hides it behind a stack."""
    stack = str(error).rpartition("Traceback (most recent call last):\n")[2]
    lines = [line for line in stack.splitlines() if line.strip() and not line[0].isspace()]
    return lines[0][:500] if lines and "Traceback" in str(error) else ""
