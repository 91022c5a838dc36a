"""Spark's exceptions are told by the Java classes in their chain of causes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weir.errors import Domain, JvmNotStartedError, LostSegmentError, NoSuchJobError, StorageError
from weir.spark.failure import from_exception, shows_output


class _Java:
    """A Java throwable as py4j shows it: it has every attribute that it is asked for."""

    def __init__(self, name: str, cause: _Java | None = None, message: str = "") -> None:
        self._name = name
        self._cause = cause
        self._message = message

    def getClass(self) -> Any:
        return self

    def getName(self) -> str:
        return self._name

    def getCause(self) -> _Java | None:
        return self._cause

    def getMessage(self) -> str:
        return self._message

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class _Captured(Exception):
    """As PySpark's own exceptions are."""

    def __init__(self, origin: object) -> None:
        super().__init__("[STREAM_FAILED] it ended")
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
    worker = f'Traceback (most recent call last):\n  File "x"\nweir.errors.LostSegmentError: {error}\n'
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
    error = JvmNotStartedError(seen="what it said is above")
    assert "what it said is above" in error.text
    assert shows_output(error)
    assert shows_output(ValueError("of nobody's"))
    assert not shows_output(NoSuchJobError(job="orders", dir="weir-data")), "its own words are enough"
