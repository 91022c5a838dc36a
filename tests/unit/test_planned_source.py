"""Streams that Spark reads as Python plans them: answers, errors, and who is woken when."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from unittest.mock import Mock

import pytest

from weir.errors import LostSegmentError, WeirError
from weir.spark import planned_source
from weir.spark.frame_plan import FrameStream
from weir.spark.machine import Cause
from weir.spark.planned_source import Bell, PlannedBatch, PlannedFile, _Planner, _Sleeper, unreadable

SPARK = "org.apache.spark.SparkException"


class Reader:
    """A stream of numbers, up to `end`."""

    root = "/jobs/a/channels/all"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.end = 0

    def latest(self, start: str | None, everything: bool) -> str | None:
        if self.end < 0:
            raise LostSegmentError(file="x", wrong="is gone", job="job")
        return None if start == str(self.end) else str(self.end)

    def batch(self, start: str | None, end: str) -> PlannedBatch:
        return PlannedBatch([PlannedFile("/a"), PlannedFile("/b", 7)], 9, 5)

    def end_here(self) -> None: ...

    def unreadable(self, file: str, wrong: str) -> WeirError:
        return LostSegmentError(file=file, wrong=wrong, job="job")


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> _Planner:
    made = _Planner()
    made.kinds["numbers"] = Reader
    monkeypatch.setattr(planned_source, "_planner", made)
    return made


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> Bell:
    made = Bell()
    monkeypatch.setattr(planned_source, "news", made)
    return made


def reader_of(planner: _Planner, name: str) -> Reader:
    found = planner._opened[name].reader
    assert isinstance(found, Reader)
    return found


def test_java_gets_answers_and_options_in_lower_case(planner: _Planner) -> None:
    answer = planner.open("numbers", json.dumps({"maxBytes": "1"}), "file:/jobs/a/queries/q")
    assert answer.startswith("=")
    name = answer[1:]
    assert reader_of(planner, name).options == {"maxbytes": "1"}
    assert planner.latest(name, None, False) == "=0"
    assert planner.latest(name, "0", False) == "=", "nothing new"
    files = [{"path": "/a", "size": None}, {"path": "/b", "size": 7}]
    assert json.loads(planner.batch(name, None, "0")[1:]) == {"files": files, "bytes": 9, "watermark": 5}
    assert planner.endHere(name) == "="
    assert planner.close(name) == planner.close(name) == "="
    assert planner.latest(name, None, False).startswith("!weir could not plan a batch: KeyError: ")


def test_an_error_comes_with_its_type_at_the_beginning_of_a_line(planner: _Planner) -> None:
    name = planner.open("numbers", "{}", "/q")[1:]
    reader_of(planner, name).end = -1
    lines = planner.latest(name, None, False).splitlines()
    assert lines[-1].startswith("weir.errors.delivery.LostSegmentError: the channel file x is gone")


@pytest.mark.parametrize(
    ("causes", "wrong"),
    [
        ([Cause("java.io.FileNotFoundException", "no such file")], "is gone"),
        (
            [Cause("java.lang.RuntimeException", "not a Parquet file (x)")],
            "can't be read: not a Parquet file [x]",
        ),
        ([Cause("java.net.SocketTimeoutException", "Read timed out")], None),
        ([Cause("java.io.IOException", "Input/output error")], None),
        ([Cause("java.lang.OutOfMemoryError", "Java heap space")], None),
    ],
)
@pytest.mark.parametrize(
    "first",
    [
        Cause(SPARK, "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {}.  SQLSTATE: KD001"),
        Cause("weir.UnreadableFileException", "a file can't be read: {}"),
    ],
)
def test_a_file_that_spark_could_not_read_is_the_readers(
    planner: _Planner, first: Cause, causes: list[Cause], wrong: str | None
) -> None:
    planner.open("numbers", "{}", "/q")
    file = f"{Reader.root}/data/0-1-1-x/part-0.parquet"
    url = f"file://{file}" if first.name == SPARK else file
    found = unreadable([Cause(SPARK, "Job aborted"), Cause(first.name, first.text.format(url)), *causes])
    assert (found.what if found else None) == (f"the channel file {file} {wrong}" if wrong else None)


def test_a_file_of_the_users_own_is_not(planner: _Planner) -> None:
    planner.open("numbers", "{}", "/q")
    text = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///data/part-0.parquet.  SQL"
    assert unreadable([Cause(SPARK, text), Cause("java.io.FileNotFoundException", "gone")]) is None


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_an_idle_query_sleeps_until_it_is_time_to_look_again(bell: Bell) -> None:
    query = _Sleeper()
    assert seconds(lambda: query.found_nothing("1", bell.rings)) < 0.1, "the first time it looks again"
    assert seconds(lambda: query.found_nothing("1", bell.rings)) > 0.2


def test_news_wake_it_and_what_came_while_it_looked_lets_it_not_sleep(bell: Bell) -> None:
    query = _Sleeper()
    query.found_nothing("1", bell.rings)
    rings = bell.rings
    bell.ring()
    assert seconds(lambda: query.found_nothing("1", rings)) < 0.1
    query.found_nothing("1", bell.rings)
    threading.Timer(0.05, bell.ring).start()
    assert seconds(lambda: query.found_nothing("1", bell.rings)) < 0.2


def test_a_query_of_two_streams_looks_at_both_before_it_sleeps(bell: Bell) -> None:
    query = _Sleeper()
    for _ in range(2):
        query.found_nothing("1", bell.rings)
        query.found_nothing("2", bell.rings)
    bell.ring()  # news of 1, while 1 slept
    assert seconds(lambda: query.found_nothing("2", bell.rings)) < 0.1
    query.found()
    assert seconds(lambda: query.found_nothing("1", bell.rings)) < 0.1


@pytest.mark.parametrize(
    ("tables", "polling", "sleeps"),
    [
        (["weir.Channels", "weir.Journals"], "50ms", True),
        (["weir.Channels"], "10ms", True),
        (["weir.Channels"], "500ms", False),
        (["weir.Channels", "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable"], "50ms", False),
        ([], "50ms", False),
    ],
)
def test_a_query_sleeps_that_reads_streams_alone_unless_somebody_chose_how_often_to_poll(
    planner: _Planner, monkeypatch: pytest.MonkeyPatch, tables: list[str], polling: str, sleeps: bool
) -> None:
    conf = {planned_source.POLLING: polling}
    frame = Mock()
    frame.sparkSession.conf.get, frame.sparkSession.conf.set = conf.__getitem__, conf.__setitem__
    monkeypatch.setattr(planned_source, "streams", lambda _: [FrameStream(table, "") for table in tables])
    with planned_source.waking(frame, "file:/q/") as given:
        assert given is sleeps
        assert conf == {planned_source.POLLING: "1ms" if sleeps else polling}
        assert ("/q" in planner.sleepers) is sleeps
    assert conf == {planned_source.POLLING: polling}
