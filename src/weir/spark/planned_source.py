"""Streams that Spark reads by itself, batch by batch as Python in the driver plans them.

Spark's own interface for such a source is Java (`jvm/PlannedSource.java`). It asks here, through py4j as
foreachBatch does, how far a batch goes and which files are in it; then Spark reads these files as it reads
any. So a batch needs no process of Python's, neither to plan it nor to read it, and executors need no weir.

A reader is called by the one thread of Spark's that runs its query. Where all streams of a query are planned
here, a question without news is answered late: the query sleeps until somebody appends to a stream (`news`),
or until it is time to look again. What others have appended, and checkpoints that end, are found so.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from weir.errors import WeirError
from weir.spark import local_files
from weir.spark.frame_plan import OWN, streams
from weir.spark.machine import Cause
from weir.storage.open import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROVIDER = "weir.PlannedProvider"
_UNREADABLE = "weir.UnreadableFileException"
_FAILED_READ = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+)\. ")
"""Spark's words for a file that a task could not read; the path is that of a URL."""
_GONE = {"java.io.FileNotFoundException", "java.nio.file.NoSuchFileException"}
_NOT_THE_FILE = (
    *("java.net.", "java.nio.channels.", "org.apache.hadoop.net.", "org.apache.spark."),
    *("java.lang.Interrupted", "java.lang.OutOfMemory", "java.lang.StackOverflow"),
)
_SYSTEM = ("Input/output error", "Permission denied", "Too many open files", "Stale file handle")
"""What the system says of a disk that can't be read now, in the words of Java's IOException."""


@dataclass(frozen=True)
class PlannedFile:
    """One file of a batch, by its path or URL as Hadoop takes it."""

    path: str
    size: int | None = None
    """In bytes; without it Spark looks it up. For a format that does not need to know it may be a guess."""


@dataclass(frozen=True)
class PlannedBatch:
    """What Spark reads in one batch."""

    files: Sequence[PlannedFile]
    bytes: int = 0
    """About how many: what Spark decides by, whether the other side of a join is small."""
    watermark_ms: int | None = None
    """What one row more brings in the last column, for a schema with a column for it."""


class PlannedReader(Protocol):
    """One stream as one query reads it, for one start of the query. Offsets are Spark's texts of them."""

    def latest(self, start: str | None, everything: bool) -> str | None:
        """The end of the batch that begins at `start`, without one at the beginning; None when it is `start`.

        `everything`: the query ends after this batch, and no bound counts.
        """

    def batch(self, start: str | None, end: str) -> PlannedBatch:
        """What is in the batch between two offsets, the same whenever it is asked."""

    def end_here(self) -> None:
        """From now on `latest` does not pass what is the end of the stream now."""

    @property
    def root(self) -> str:
        """What the paths of all its files begin with."""

    def unreadable(self, file: str, wrong: str) -> WeirError:
        """The error for one of its files that is gone or damaged."""


class Bell:
    """Rung by whoever appends to a stream in this process; from any thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rings = 0

    @property
    def rings(self) -> int:
        """How often it was rung; read before one looks, so that nothing that comes meanwhile is missed."""
        return self._rings

    def ring(self) -> None:
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    def wait(self, rings: int, seconds: float) -> None:
        """Until it has been rung more often than that, at most so long."""
        with self._condition:
            self._condition.wait_for(lambda: self._rings != rings, seconds)


news = Bell()
"""One for all streams of the process: who is woken for nothing has only looked once more."""
LOOK_SECONDS = 0.25
"""How long an idle query sleeps at most, and a stop waits for it."""


Opens = Callable[[Mapping[str, str]], PlannedReader]
"""Makes a reader of the options of a stream; their names are in lower case."""


class _Sleeper:
    """A query all of whose streams are planned here, for one start of it."""

    def __init__(self) -> None:
        self._looked: dict[str, int] = {}
        """How often the bell had been rung when each of its readers found nothing."""

    def found(self) -> None:
        """Something new: the query runs a batch, and looks at all of its streams again."""
        self._looked.clear()

    def found_nothing(self, reader: str, rings: int) -> None:
        """Sleep, if it is not the first time, and no stream of the query has news that it did not look at."""
        again = reader in self._looked
        self._looked[reader] = rings
        if again and set(self._looked.values()) == {rings}:
            news.wait(rings, LOOK_SECONDS)  # Spark asks again at once: a wait is no part of any batch


@dataclass
class _Opened:
    """A reader, and its query if that may sleep."""

    name: str
    reader: PlannedReader
    query: _Sleeper | None

    def latest(self, start: str | None, everything: bool) -> str | None:
        rings = news.rings
        end = self.reader.latest(start, everything)
        if self.query is not None and end is not None:
            self.query.found()
        elif self.query is not None:
            self.query.found_nothing(self.name, rings)
        return end


class _Planner:
    """What Java calls; see `Planner.java`. One for this process, whichever JVM it has."""

    def __init__(self) -> None:
        self.kinds: dict[str, Opens] = {}
        self.roots: dict[str, PlannedReader] = {}
        """Of each root the newest reader, also of a query that has ended: who fails is asked afterwards."""
        self.sleepers: dict[str, _Sleeper] = {}
        """The queries that may sleep, by their checkpointLocations."""
        self._opened: dict[str, _Opened] = {}
        self._numbers = itertools.count(1)

    def open(self, kind: str, options: str, query: str) -> str:
        def opened() -> str:
            given = {name.lower(): value for name, value in json.loads(options).items()}
            number = str(next(self._numbers))
            reader = self.kinds[kind](given)
            self.roots[reader.root] = reader
            self._opened[number] = _Opened(number, reader, self.sleepers.get(_plain(query)))
            return number

        return _answer(opened)

    def latest(self, reader: str, start: str | None, everything: bool) -> str:
        return _answer(lambda: self._opened[reader].latest(start, everything) or "")

    def batch(self, reader: str, start: str | None, end: str) -> str:
        def planned() -> str:
            found = self._opened[reader].reader.batch(start, end)
            files = [{"path": file.path, "size": file.size} for file in found.files]
            return json.dumps({"files": files, "bytes": found.bytes, "watermark": found.watermark_ms})

        return _answer(planned)

    def endHere(self, reader: str) -> str:
        def ended() -> str:
            self._opened[reader].reader.end_here()
            self._opened[reader].query = None
            return ""

        return _answer(ended)

    def close(self, reader: str) -> str:
        self._opened.pop(reader, None)
        return "="

    class Java:
        implements = ["weir.Planner"]


def _plain(location: str) -> str:
    return (local_path(location) if is_local(location) else location).rstrip("/")


_planner = _Planner()
_lock = threading.Lock()
_served: Any = None
"""The gateway of the JVM that knows the planner."""


def serve(spark: SparkSession, kind: str, opens: Opens) -> None:
    """Let the session's JVM open streams of this kind. Safe to repeat, from any thread."""
    global _served
    from pyspark import java_gateway  # noqa: PLC0415  only with a JVM

    _planner.kinds[kind] = opens
    gateway: Any = spark.sparkContext._gateway
    with _lock:
        if _served is gateway:
            return
        start: Any = java_gateway.ensure_callback_server_started
        start(gateway)
        local_files.load(gateway.jvm, _PROVIDER).serve(_planner)
        local_files.share(spark)
        _served = gateway


POLLING = "spark.sql.streaming.pollingDelay"
"""How long Spark waits after a question without news, before it asks the sources of a query again."""
_DEFAULTS = {"50ms", "10ms"}
"""weir's own (`session.py`) and Spark's: any other delay was chosen by somebody, and is kept."""


@contextmanager
def waking(frame: DataFrame, location: str) -> Iterator[bool]:
    """Inside, start the query of a frame at this checkpointLocation: if it may sleep, so that news wake it.

    Gives whether it may: not where a stream of another kind has to be polled as Spark does, and not where
    somebody has chosen how often to poll. One start at a time: Spark knows one delay for all queries that
    start in a session.
    """
    read = streams(frame)
    own = bool(read) and all(stream.table.startswith(OWN) for stream in read)
    settings = frame.sparkSession.conf if own else None
    before = str(settings.get(POLLING)) if settings is not None else ""
    if settings is None or before not in _DEFAULTS:
        _planner.sleepers.pop(_plain(location), None)
        yield False
        return
    _planner.sleepers[_plain(location)] = _Sleeper()
    settings.set(POLLING, "1ms")
    try:
        yield True
    finally:
        settings.set(POLLING, before)


def unreadable(causes: Sequence[Cause]) -> WeirError | None:
    """The error for a file of a planned stream that Spark could not read; None for any other failure.

    A disk or a server that does not answer now says nothing of the file.
    """
    for number, cause in enumerate(causes):
        found = _FAILED_READ.search(cause.text)
        path = (
            unquote(found[1]) if found else cause.text.partition(": ")[2] if cause.name == _UNREADABLE else ""
        )
        path = local_path(path) if is_local(path) else path
        for root, reader in _planner.roots.items():
            if path.startswith(f"{root}/"):
                wrong = _wrong(causes[number:])
                return reader.unreadable(path, wrong) if wrong else None
    return None


def _wrong(causes: Sequence[Cause]) -> str:
    """What is wrong with a file, as its error says it; "" where that is not known."""
    if any(cause.name in _GONE for cause in causes):
        return "is gone"
    innermost = causes[-1]
    if innermost.name.startswith(_NOT_THE_FILE) or any(text in innermost.text for text in _SYSTEM):
        return ""
    said = " ".join(innermost.text.split()).replace("(", "[").replace(")", "]")  # the hint is in ( )
    return f"can't be read: {said[:200]}"


def _answer(call: Callable[[], str]) -> str:
    """What a call gives, as Java takes it; also what it raises, in the form that `failure.py` reads."""
    try:
        return f"={call()}"
    except Exception as error:
        said = str(error).partition("\n")[0]
        return f"!weir could not plan a batch: {type(error).__name__}: {said}\n{traceback.format_exc()}"
