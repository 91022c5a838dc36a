"""Spark's exceptions are told by the Java classes in their chain of causes."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from weir.errors import (
    Domain,
    JvmNotStartedError,
    LostSegmentError,
    NoSuchJobError,
    PipelineError,
    StorageError,
)
from weir.ids import BatchId, QueryName, job_name
from weir.job.graph import _call
from weir.monitor.failures import advice
from weir.protocol.decide import FailedAt, Limits, Retry, after_failure
from weir.spark.failure import from_exception, shows_output


class _Java:
    """A Java throwable as py4j shows it: it has every attribute that it is asked for."""

    def __init__(
        self, name: str, cause: _Java | None = None, message: str = "", places: tuple[str, ...] = ()
    ) -> None:
        self._name = name
        self._cause = cause
        self._message = message
        self._places = places

    def getClass(self) -> Any:
        return self

    def getName(self) -> str:
        return self._name

    def getCause(self) -> _Java | None:
        return self._cause

    def getMessage(self) -> str:
        return self._message

    def getStackTrace(self) -> list[Any]:
        return [SimpleNamespace(getClassName=lambda place=place: place) for place in self._places]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class _Captured(Exception):
    """As PySpark's own exceptions are."""

    def __init__(self, origin: object, text: str = "[STREAM_FAILED] it ended") -> None:
        super().__init__(text)
        self._origin = origin


class _Py4J(Exception):
    def __init__(self, java: _Java) -> None:
        super().__init__("An error occurred while calling o42.awaitTermination")
        self.java_exception = java


def _chain(name: str) -> _Java:
    return _Java("org.apache.spark.sql.streaming.StreamingQueryException", _Java(name))


@pytest.mark.parametrize("wrap", [_Captured, _Py4J, lambda java: _Captured(_Py4J(java))])
@pytest.mark.parametrize(
    ("cause", "domain", "redeploy"),
    [
        ("org.apache.spark.api.python.PythonException", Domain.USER, False),
        ("java.io.IOException", Domain.EXTERNAL, False),
        ("java.lang.IllegalStateException", Domain.INTERNAL, False),
        ("java.lang.OutOfMemoryError", Domain.INTERNAL, True),
        ("java.io.OptionalDataException", Domain.INTERNAL, True),
    ],
)
def test_the_cause_inside_a_streaming_exception_decides(
    wrap: Any, cause: str, domain: Domain, redeploy: bool
) -> None:
    failure = from_exception(wrap(_chain(cause)), "job")
    assert (failure.domain, failure.redeploy) == (domain, redeploy)
    assert "inside weir" not in failure.what


def test_the_innermost_cause_says_why_spark_failed() -> None:
    inner = _Java("java.lang.IllegalStateException", message="the query plan\nhas a fault")
    failure = from_exception(_Captured(_Java("java.lang.RuntimeException", inner)), "job")
    assert (failure.what, failure.why) == ("Spark failed: [STREAM_FAILED] it ended", "the query plan")


def test_a_setting_that_spark_does_not_take_is_told_and_not_tried_again() -> None:
    text = "[INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'x' in the config \"k\" is invalid. SQLSTATE: 22022"
    inner = _Java("org.apache.spark.SparkIllegalArgumentException", message=text)
    failure = from_exception(_Captured(_Java("java.lang.IllegalArgumentException", inner)), "job")
    assert failure.why == "The value 'x' in the config \"k\" is invalid."
    assert (failure.error, failure.retry, failure.exit_code) == ("SparkSettingError", False, 2)


def test_an_exception_of_pythons_own_has_no_java_classes() -> None:
    assert from_exception(ValueError("no"), "job").what == "ValueError inside weir"


def test_an_error_of_weirs_own_keeps_what_it_says() -> None:
    error = StorageError(verb="create", path="x", reason="the disk is full", root="/")
    failure = from_exception(error, "job")
    assert (failure.what, failure.why, failure.domain) == (error.what, error.why, Domain.EXTERNAL)


def test_an_error_of_weirs_own_that_comes_from_a_worker_as_a_text_keeps_what_it_says() -> None:
    error = LostSegmentError(file="/data/part-0", wrong="is gone", job="job")
    last = "".join(traceback.format_exception_only(error))  # as a worker's Python prints it
    worker = f'Traceback (most recent call last):\n  File "x"\n{last}'
    raised = _Captured(_chain("org.apache.spark.api.python.PythonException"))
    raised.args = (f"[STREAM_FAILED] it ended\n{worker}\tat org.apache.spark.X",)
    failure = from_exception(raised, "job")
    assert (failure.what, failure.why, failure.hint) == (error.what, error.why, error.hint)
    assert (failure.domain, failure.error, failure.exit_code) == (Domain.INTERNAL, "LostSegmentError", 4)
    assert failure.retry and failure.redeploy, "a new driver looks for damage, and goes back"
    raised.args = ("weir.errors.NoSuchClass: that is no error of weir's",)
    assert from_exception(raised, "job").domain is Domain.USER


def test_no_password_is_in_a_failure_though_a_line_of_the_job_file_has_it(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text('raise ValueError("postgresql://me:s3cret@db:5432/x and password=s3cret user=me")\n')
    with pytest.raises(ValueError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {})
    failure = from_exception(caught.value, "job")
    told = f"{failure.what} {failure.why} {failure.hint} {failure.stack}"
    assert "s3cret" not in told
    assert "postgresql://me:***@db:5432/x and password=*** user=me" in failure.stack


def test_what_a_jvm_printed_is_shown_where_no_log_keeps_it() -> None:
    error = JvmNotStartedError(seen="its output is above")
    assert "its output is above" in error.text
    assert shows_output(error)
    assert shows_output(ValueError("of nobody's"))
    assert not shows_output(NoSuchJobError(job="orders", dir="weir-data")), "its own words are enough"


STREAM_FAILED = "[STREAM_FAILED] Query rows [id = 1-2, runId = 3-4] terminated with exception: "


def test_what_spark_puts_round_every_failure_is_left_out() -> None:
    java = _Java("java.lang.IllegalStateException", message="batch 2 doesn't exist")
    failure = from_exception(_Captured(java, f"{STREAM_FAILED}batch 2 doesn't exist SQLSTATE: XXKST"), "job")
    assert (failure.what, failure.why) == ("Spark failed: batch 2 doesn't exist", "")


def test_what_a_function_in_foreach_batch_raises_is_the_authors_with_its_line() -> None:
    text = (
        f"{STREAM_FAILED}[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python "
        "Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "/x/site-packages/pyspark/sql/utils.py", line 163, in call\n    self.func(frame)\n'
        '  File "/jobs/orders.py", line 24, in write\n    raise KeyError("nope")\n'
        "KeyError: 'nope'\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    )
    failure = from_exception(_Captured(_chain("py4j.Py4JException"), text), "job")
    assert failure.what == "code of the job raised KeyError"
    assert failure.why == "KeyError: 'nope' (/jobs/orders.py, line 24)"
    assert (failure.domain, failure.retry, failure.error) == (Domain.USER, True, "KeyError")


def _in_foreach_batch(raised: str) -> Exception:
    text = (
        f"{STREAM_FAILED}[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python "
        "Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "/jobs/orders.py", line 24, in write\n    send(rows)\n'
        f"{raised}\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    )
    return _Captured(_chain("py4j.Py4JException"), text)


_JAVA_STACK = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling o8.save.\n"
    ": org.postgresql.util.PSQLException: Connection to db:5432 refused.\n\tat org.postgresql.X\n"
    "Caused by: java.net.ConnectException: Connection refused\n\tat java.base/sun.nio.ch.Net"
)
_WRAPPED = (
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='x', port=80)\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "/jobs/orders.py", line 26, in write\n    raise\n'
    "RuntimeError: the service is down"
)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        ("ConnectionRefusedError: [Errno 111] Connection refused", "ConnectionRefusedError"),
        ("TimeoutError: timed out", "TimeoutError"),
        ("TimeoutError", "TimeoutError"),
        ("socket.gaierror: [Errno -2] Name or service not known", "gaierror"),
        ("OSError: [Errno 113] No route to host", "OSError"),
        ("psycopg.OperationalError: connection failed: port 5432 failed", "OperationalError"),
        ("urllib3.exceptions.NewConnectionError: <x>: Failed to establish", "NewConnectionError"),
        (_WRAPPED, "ConnectionError"),
        (_JAVA_STACK, "ConnectException"),
    ],
)
def test_a_connection_that_fails_in_foreach_batch_is_an_outage_and_no_poison_batch(
    raised: str, error: str
) -> None:
    failure = from_exception(_in_foreach_batch(raised), "job")
    assert (failure.domain, failure.retry, failure.exit_code) == (Domain.EXTERNAL, True, 3)
    assert failure.what == f"a connection that code of the job made has failed ({error})"
    assert "/jobs/orders.py, line 2" in failure.why and "starts again by itself" in failure.hint
    again = FailedAt(QueryName("rows"), BatchId(7), failure)
    assert after_failure(again, [again] * 20, Limits(poison_batch=2, crash_loop=10), in_a_row=21) == Retry()
    found = advice({"error": failure.error, "what": failure.what, "why": failure.why})
    assert found is not None and found.kind == "network"


def _in_a_data_source(raised: str, file: str = "/jobs/orders.py") -> Exception:
    """As Spark tells of a streaming reader in Python that raised."""
    text = (
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform "
        "latestOffset: Traceback (most recent call last):\n"
        '  File "/x/site-packages/pyspark/sql/streaming/python_streaming_source_runner.py", line 99, in f\n'
        f'  File "{file}", line 31, in latestOffset\n    raise\n{raised}\n'
    )
    return _Captured(_Java("org.apache.spark.SparkException", message=text), f"{STREAM_FAILED}{text}")


def test_what_a_data_source_of_the_author_raises_is_the_authors() -> None:
    failure = from_exception(_in_a_data_source("ValueError: no such table"), "job")
    assert (failure.domain, failure.error, failure.retry) == (Domain.USER, "ValueError", True)
    assert failure.why == "ValueError: no such table (/jobs/orders.py, line 31)"
    away = from_exception(_in_a_data_source("ConnectionRefusedError: [Errno 111] refused"), "job")
    assert (away.domain, away.error) == (Domain.EXTERNAL, "JobConnectionError")
    elsewhere = _in_a_data_source("KeyError: 'x'", "/x/site-packages/weir/channel/reader.py")
    assert from_exception(elsewhere, "job").domain is Domain.INTERNAL, "no line of the author's is in it"


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError: bad row 'ConnectionError: x'",
        "ValueError: a row of two lines\nConnectionError: is the second of them",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "sqlite3.OperationalError: no such table: orders",
        "psycopg.OperationalError: password authentication failed for user 'x'",
        "urllib.error.HTTPError: HTTP Error 404: Not Found",
    ],
)
def test_a_fault_of_the_code_stays_one_though_a_connection_is_in_its_words(raised: str) -> None:
    assert from_exception(_in_foreach_batch(raised), "job").domain is Domain.USER


def test_a_full_disk_is_named_and_not_the_call_that_hit_it() -> None:
    inner = _Java("java.io.IOException", message="No space left on device")
    error = _Captured(
        _Java("org.apache.spark.SparkException", inner), "An error occurred while calling o8.save."
    )
    failure = from_exception(error, "job")
    assert failure.what == "java.io.IOException: No space left on device"
    assert "make room" in failure.hint and failure.domain is Domain.EXTERNAL


def test_a_file_that_is_not_there_is_no_outage() -> None:
    failure = from_exception(_Captured(_chain("java.io.FileNotFoundException")), "job")
    assert failure.domain is Domain.INTERNAL, "waiting does not bring it back"


@pytest.mark.parametrize("reason", ["No space left on device", "Too many open files", "Stale file handle"])
def test_a_file_that_can_not_be_opened_is_an_outage_though_java_calls_it_not_found(reason: str) -> None:
    inner = _Java("java.io.FileNotFoundException", message=f"/scratch/shuffle_0 ({reason})")
    failure = from_exception(_Captured(_Java("org.apache.spark.SparkException", inner)), "job")
    assert failure.domain is Domain.EXTERNAL and failure.retry
    gone = _Java("java.io.FileNotFoundException", message="/in/1.json (No such file or directory)")
    assert from_exception(_Captured(_Java("x.Y", gone)), "job").domain is Domain.INTERNAL


def test_a_catalog_that_does_not_answer_is_tried_again_though_spark_calls_it_an_analysis_error() -> None:
    inner = _Java("java.net.ConnectException", message="Connection refused")
    error = _Captured(_Java("org.apache.spark.sql.AnalysisException", inner))
    failure = from_exception(error, "job", planning=True)
    assert failure.retry and failure.domain is Domain.EXTERNAL
    slip = _Captured(_Java("org.apache.spark.sql.AnalysisException"))
    assert not from_exception(slip, "job", planning=True).retry


_FACTORY = "org.apache.spark.api.python.PythonWorkerFactory"
_STARTING = ("sun.nio.ch.ServerSocketChannelImpl", _FACTORY, f"{_FACTORY}$$anon$1")
_SPAWNING = ("java.lang.ProcessBuilder", "java.lang.ProcessBuilder", _FACTORY)


@pytest.mark.parametrize(
    ("cause", "text", "places", "error", "says"),
    [
        ("java.net.SocketTimeoutException", "Accept timed out", _STARTING, "LateProcessError", "within 10 s"),
        (
            "java.net.SocketTimeoutException",
            "Timed out while waiting for the Python worker to connect back after 60000 ms",
            _STARTING,
            "LateProcessError",
            "within 60 s",
        ),
        (
            "java.io.IOException",
            'Cannot run program "python3": error=11, Resource temporarily unavailable',
            _SPAWNING,
            "NoProcessError",
            "a process",
        ),
        (
            "java.io.IOException",
            "Cannot run program: Exec failed, error: 12 (Cannot allocate memory)",
            _SPAWNING,
            "NoProcessError",
            "a process",
        ),
        (
            "java.lang.IllegalStateException",
            "Python daemon failed to launch worker with code -12",
            _STARTING,
            "NoProcessError",
            "a process",
        ),
        (
            "java.lang.OutOfMemoryError",
            "unable to create native thread: possibly out of memory or process/resource limits reached",
            (),
            "NoThreadError",
            "a thread",
        ),
        ("org.apache.spark.rpc.RpcTimeoutException", "Futures timed out", (), "LateAnswerError", "in time"),
        (
            "org.apache.spark.api.python.SparkPythonException",
            "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] Socket connection timeout.",
            (),
            "LateProcessError",
            "within 300 s",
        ),
    ],
)
def test_what_the_machine_could_not_do_is_its_failure_and_not_the_jobs(
    cause: str, text: str, places: tuple[str, ...], error: str, says: str
) -> None:
    outer = _Java("org.apache.spark.SparkException", _Java(cause, None, text, places), "it failed")
    failure = from_exception(_Captured(outer), "job")
    assert (failure.domain, failure.retry, failure.exit_code) == (Domain.MACHINE, True, 3)
    assert failure.error == error and says in failure.what and "tries again by itself" in failure.hint
    assert failure.redeploy == (error == "NoThreadError"), "a JVM without threads can't be relied on"


@pytest.mark.parametrize(
    ("cause", "text", "places", "domain"),
    [
        ("java.net.SocketTimeoutException", "Read timed out", ("sun.nio.ch.Net", "com.x.Y"), Domain.EXTERNAL),
        (
            "java.io.IOException",
            'Cannot run program "/no/python": error=2, No such file or directory',
            _SPAWNING,
            Domain.EXTERNAL,
        ),
        ("java.io.IOException", "No space left on device", ("java.io.FileOutputStream",), Domain.EXTERNAL),
        ("java.lang.OutOfMemoryError", "Java heap space", (), Domain.INTERNAL),
        ("java.lang.IllegalStateException", "the plan has a fault", ("com.x.Y",), Domain.INTERNAL),
    ],
)
def test_what_only_looks_like_a_failure_of_the_machine_is_none(
    cause: str, text: str, places: tuple[str, ...], domain: Domain
) -> None:
    outer = _Java("org.apache.spark.SparkException", _Java(cause, None, text, places), "it failed")
    assert from_exception(_Captured(outer), "job").domain is domain


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "NoProcessError"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "NoProcessError"),
        (RuntimeError("can't start new thread"), "NoThreadError"),
    ],
)
def test_a_python_without_processes_or_threads_is_on_a_machine_without_them(
    error: Exception, kind: str
) -> None:
    failure = from_exception(error, "job")
    assert (failure.domain, failure.error) == (Domain.MACHINE, kind)
    full = from_exception(OSError(errno.ENOSPC, "No space left on device"), "job")
    assert full.domain is Domain.EXTERNAL, "a full disk is an outage: it may last for days"


def test_a_failure_of_the_machine_has_its_own_advice() -> None:
    inner = _Java("java.net.SocketTimeoutException", None, "Accept timed out", _STARTING)
    failure = from_exception(_Captured(_Java("org.apache.spark.SparkException", inner)), "job")
    body = {"error": failure.error, "domain": failure.domain.value, "what": failure.what}
    found = advice(body | {"why": failure.why})
    assert found is not None and found.kind == "overload"
    earlier = {"what": "Python worker failed to connect back.", "error": "java.net.SocketTimeoutException"}
    found = advice(earlier)
    assert found is not None and found.kind == "overload", "as an earlier weir has recorded it"


def test_a_socket_of_sparks_own_that_can_not_resume_is_explained() -> None:
    inner = _Java("java.lang.RuntimeException", message="Offsets committed out of order: 1 followed by -1")
    failure = from_exception(_Captured(inner), "job")
    assert "socket" in failure.what and "weir.sources.socket" in failure.hint


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), Py4JNetworkError("x"), Py4JError("x")]
)
def test_a_connection_that_failed_because_the_jvm_died_is_the_death_of_the_jvm(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    context = SimpleNamespace(SparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", context)
    failure = from_exception(error, "job")
    assert failure.what == "the JVM died (killed by signal 9, SIGKILL)"
    assert failure.redeploy and failure.retry and failure.domain is Domain.EXTERNAL


def test_a_connection_that_failed_beside_a_living_jvm_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        context = SimpleNamespace(SparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
        monkeypatch.setitem(sys.modules, "pyspark.core.context", context)
        monkeypatch.setattr("weir.spark.failure._JVM_GRACE", 0.01)
        failure = from_exception(ConnectionRefusedError(111, "Connection refused"), "job")
    assert (failure.domain, failure.redeploy) == (Domain.EXTERNAL, False)


class PySparkTypeError(TypeError):
    """As PySpark's own: of Python's side alone."""


def _illegal(text: str) -> Exception:
    return _Captured(_Java("org.apache.spark.SparkIllegalArgumentException", message=text), text)


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (PySparkTypeError("[NOT_EXPECTED_TYPE] Argument `col` should be Column, got str."), "F.lit"),
        (_illegal("Schema must be specified when creating a streaming source DataFrame."), "schema("),
        (_illegal("[STREAMING_OUTPUT_MODE.INVALID] Invalid streaming output mode: upsert."), "output_mode"),
        (AttributeError("'str' object has no attribute 'describe'"), "fix the function"),
        (Py4JError("OutputMode.Upsert does not exist in the JVM"), "fix the function"),
    ],
)
def test_a_slip_in_a_pipeline_is_the_authors_and_no_retry_helps(error: Exception, helps: str) -> None:
    def pipeline(env: Any) -> None:
        raise error

    with pytest.raises(PipelineError) as caught:
        _call(job_name("orders"), pipeline, None)  # type: ignore[arg-type]
    failure = from_exception(caught.value, "orders")
    assert not failure.retry and failure.domain is Domain.USER
    assert helps in failure.hint and "test_failure.py, line" in failure.why


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        StorageError(verb="read", path="x", reason="no", root="/"),
        _Captured(_chain("java.net.ConnectException")),
        _Captured(_chain("java.lang.OutOfMemoryError")),
        _Captured(_chain("org.postgresql.util.PSQLException")),
        MemoryError(),
        RuntimeError("can't start new thread"),
        sqlite3.OperationalError("database is locked"),
    ],
)
def test_an_outage_inside_a_pipeline_is_not_the_authors(error: Exception) -> None:
    def pipeline(env: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        _call(job_name("orders"), pipeline, None)  # type: ignore[arg-type]


def test_what_spark_refuses_when_a_query_is_started_ends_it_at_once_with_what_to_change() -> None:
    text = "Invalid streaming output mode: append. Not supported for streaming aggregations without watermark"
    error = _Captured(_Java("org.apache.spark.sql.AnalysisException", message=text), text)
    failure = from_exception(error, "job", planning=True)
    assert not failure.retry and "withWatermark" in failure.hint and failure.exit_code == 2
    assert from_exception(error, "job").retry, "in a batch it may be the data"
