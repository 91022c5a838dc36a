"""Lines from a TCP socket, journaled before Spark sees them, and so replayable.

The path of a line: peer -> receiver (a thread of the driver) -> group -> journal, one fsync a group
-> Spark reads the journal. The receiver knows three limits: a group waits at most `GROUP_SECONDS` or
`GROUP_BYTES`; at most `max_bytes` wait in the journal for Spark, then it stops reading and TCP holds
the peer back; what every reading query has committed is deleted, all but `journal.KEPT` entries.
"""

from __future__ import annotations

import socket as tcp
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from weir.clock import Clock, Deadline, retry
from weir.errors import ExternalError, FencedError
from weir.ids import SourceName, Token
from weir.sources import reader
from weir.sources.contract import Place, ReadingQuery
from weir.sources.journal import Journal
from weir.sources.lines import Lines
from weir.spark.planned_source import serve
from weir.storage.attempts import Lease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP_SECONDS = 0.05
GROUP_BYTES = 1 << 20
MAX_BYTES = 64 << 20
_CHUNK = 1 << 18
_LOOK_SECONDS = 1.0
"""How often the receiver looks how far the queries are, when nothing holds it."""
_NAP = 0.1
_CONNECT_SECONDS = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

Say = Callable[[str], None]


def socket(
    host: str, port: int, *, max_bytes: int = MAX_BYTES, include_timestamp: bool = False
) -> SocketSource:
    """Lines of text from the server at `host` and `port`, as one column `value string`.

    With `include_timestamp` there is a second column, `timestamp timestamp`: when the line came. It is
    journaled with the line, so a batch that runs again reads the same time.

    Every line that was journaled counts once, whatever dies: the journal is forced to the disk
    before Spark sees a line, and is read again by a batch that runs again. **What the peer sent
    before the receiver had journaled it can't be asked for again**: when the driver dies, that is
    what came in the last 50 ms or so, and what was still on its way; lines that are sent while no
    driver is connected are the peer's to keep. TCP tells the peer nothing of this.

    The receiver connects again, for ever, when the peer is not there or goes away; the wait grows
    to 5 s. A last line without its end counts when the peer closed the connection in good order; it
    is dropped when the connection broke or the job ended, because the rest of it can't come any more.
    A line of more than 16 MiB is cut.

    At most `max_bytes` wait for Spark (a group of lines counts at least 4 KiB), then the peer is held
    back; a batch takes no more than that either. The slowest query of the job that reads the source
    is the one that counts, also one that has ended.
    """
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ValueError(f"a port is a number from 1 to 65535, not {port!r}")
    if max_bytes < GROUP_BYTES:
        raise ValueError(f"max_bytes must be {GROUP_BYTES} or more, one group of lines, not {max_bytes!r}")
    return SocketSource(host, port, max_bytes, include_timestamp)


class SocketSource:
    """See `socket`; keeps the contract of `ReceivingSource`."""

    def __init__(self, host: str, port: int, max_bytes: int, include_timestamp: bool = False) -> None:
        self._host, self._port, self._max_bytes = host, port, max_bytes
        self._include_timestamp = include_timestamp

    def load(self, spark: SparkSession, place: Place) -> DataFrame:
        serve(spark, reader.KIND, reader.JournalReader)
        stream = spark.readStream.format(reader.FORMAT)
        return (
            stream.schema(reader.TIMED if self._include_timestamp else reader.SCHEMA)
            .option("location", place.url)
            .option("source", place.source)
            .option("maxBytes", self._max_bytes)
            .load()
        )

    def receiver(
        self, place: Place, token: Token, lease: Lease, readers: Sequence[ReadingQuery]
    ) -> SocketReceiver:
        journal = Journal(place, token, lease)
        return SocketReceiver(self._host, self._port, self._max_bytes, place.source, journal, readers)


class SocketReceiver:
    """One receiver, with one thread and one connection at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        max_bytes: int,
        source: SourceName,
        journal: Journal,
        readers: Sequence[ReadingQuery],
        say: Say | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._host, self._port, self._max_bytes, self._source = host, port, max_bytes, source
        self._journal = journal
        self._readers = readers
        self._say = say or _say
        self._clock = clock or Clock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"weir-source-{source}", daemon=True)
        self._lines = Lines()
        self._position = 0
        self._looked_at = self._clock.monotonic()
        self._outage = False
        self._delay = _FIRST_DELAY

    def check(self) -> None:
        self._journal.check(self._readers)

    def start(self) -> None:
        self._journal.open(self._readers)
        self._position = self._slowest()
        self._thread.start()

    def ask_to_end(self) -> None:
        self._stopping.set()

    def end(self, deadline: Deadline) -> bool:
        if self._thread.ident is not None:
            self._thread.join(deadline.left())
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    self._receive(connection)
                why = "the peer has closed the connection"
            except FencedError as error:
                self._say(f"source {self._source!r} receives nothing more: {error.text}")
                return
            except Exception as error:  # whatever it is, the next connection is the way out of it
                why = str(error) or type(error).__name__
            self._drop_unfinished()
            if not self._stopping.is_set():
                self._tell_outage(f"{why}; it reconnects until lines arrive")
                self._clock.wait(self._stopping, self._delay)
                self._delay = min(2 * self._delay, _LONGEST_DELAY)

    def _connect(self) -> tcp.socket:
        connection = tcp.create_connection((self._host, self._port), timeout=_CONNECT_SECONDS)
        connection.setsockopt(tcp.SOL_SOCKET, tcp.SO_KEEPALIVE, 1)
        return connection

    def _receive(self, connection: tcp.socket) -> None:
        """Until the peer or we end it: read, and journal each group when it is due."""
        try:
            self._read_groups(connection)
        finally:  # also when the connection broke: these lines are whole
            self._write()

    def _read_groups(self, connection: tcp.socket) -> None:
        due_at = 0.0
        while not self._stopping.is_set():
            self._wait_for_room()
            left = due_at - self._clock.monotonic() if self._lines.size else _NAP
            data = _read(connection, max(left, 0.001))
            if data == b"":
                self._lines.end_line()
                return
            if data:
                self._tell_back()
                due_at = due_at if self._lines.size else self._clock.monotonic() + GROUP_SECONDS
                self._lines.add(data)
            if self._lines.size >= GROUP_BYTES or (self._lines.size and self._clock.monotonic() >= due_at):
                self._write()

    def _write(self) -> None:
        """Journal the whole lines; a store that fails is asked again, and nothing is read meanwhile."""
        if not (size := self._lines.size):
            return
        text, at = self._lines.take(), self._clock.now().timestamp()

        def append() -> None:
            try:
                self._journal.append(text, size, at)
            except ExternalError as error:
                self._tell_outage(f"{error.text}; it tries again")
                raise

        rest = partial(self._clock.wait, self._stopping)
        try:
            retry(append, repeat(_NAP), rest, on=ExternalError)
        except ExternalError:  # of the try after it was asked to end
            self._say(f"source {self._source!r}: {size} bytes of lines could not be journaled")

    def _wait_for_room(self) -> None:
        """Look how far the queries are, now and then; while too much waits for them, read nothing."""
        while True:
            full = self._full()
            if full or self._clock.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._look()
                full = self._full()
            if not full or self._clock.wait(self._stopping, _NAP):
                return

    def _full(self) -> bool:
        try:
            return self._journal.pending(self._position) > self._max_bytes
        except ExternalError:
            return True

    def _look(self) -> None:
        self._looked_at = self._clock.monotonic()
        try:
            self._position = max(self._position, self._slowest())
            self._journal.forget(min((one.needed(self._source) for one in self._readers), default=0))
        except ExternalError as error:  # a broken connection would cost lines, and later will do
            self._tell_outage(f"{error.text}; it tries again")

    def _slowest(self) -> int:
        return min((reader.position(self._source) for reader in self._readers), default=0)

    def _drop_unfinished(self) -> None:
        if self._lines.unfinished:
            self._say(
                f"source {self._source!r}: the first {self._lines.unfinished} bytes of a line were "
                "discarded, because the rest of it never arrived"
            )
        self._lines.drop_unfinished()

    def _tell_outage(self, why: str) -> None:
        """Once, until lines come again."""
        if not self._outage:
            self._outage = True
            self._say(f"source {self._source!r} receives nothing from {self._host}:{self._port}: {why}")

    def _tell_back(self) -> None:
        self._delay = _FIRST_DELAY
        if self._outage:
            self._outage = False
            self._say(f"source {self._source!r}: receives lines again from {self._host}:{self._port}")


def _read(connection: tcp.socket, seconds: float) -> bytes | None:
    """What has come, b"" at the end, None when nothing came in time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(_CHUNK)
    except TimeoutError as error:
        if error.errno:  # the peer's machine is gone; our own limit has no number
            raise
        return None


def _say(text: str) -> None:
    print(f"weir: {text}", flush=True)  # on standard output, which 'weir run' shows
