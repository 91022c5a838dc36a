"""One run of one query: the only wrapper round Spark's StreamingQuery.

The path of a batch: planned by Spark (`offsets/<n>`) -> staged and recorded (`batch.py`) -> decided by
Spark (`commits/<n>`) -> committed by the committer. A run is started once and ends once; a restart is a
new run with a higher token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from weir import faults
from weir.clock import Clock, Deadline
from weir.errors import ExternalError
from weir.ids import NO_BATCH, BatchId, QueryName, Token
from weir.job.batch import BatchGate, BatchHost, BatchPath, StoppingError
from weir.job.env import QuerySpec
from weir.job.graph import alone
from weir.job.output import QueryOutput
from weir.sinks import NativeSink, StagingSink
from weir.sinks.held_commit import Together
from weir.spark import planned_source
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.failure import is_late_worker
from weir.storage.attempts import Lease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

_BEGINS = ("Initializing", "Getting offsets")
"""What Spark says of a query that has not got its first offsets."""
_LOOK = 0.05
_IDLE_LOOKS = 3
"""How many looks in a row must find a query idle before it is interrupted."""


class QueryRun:
    """One start of one query under one token."""

    def __init__(
        self,
        spec: QuerySpec,
        files: QueryFiles,
        token: Token,
        lease: Lease,
        max_pending: int,
        together: Together | None = None,
    ) -> None:
        """`together` commits what this run stages, with `sink.commit: checkpoint`."""
        self.spec = spec
        self.files = files
        self.token = token
        self.output = QueryOutput(spec, files, token, together)
        self.error: Exception | None = None
        """What went wrong on the Python side, as it was raised."""
        self._lease = lease
        self._max_pending = max_pending
        self._sleeps = False
        """Whether it sleeps in its sources, which are all of weir's own."""
        self._gate = BatchGate()
        self._ending = threading.Event()
        self._over = threading.Event()
        self._cut_off = threading.Event()
        self._query: StreamingQuery | None = None
        """Another one when it had to begin again; None before the start."""

    @property
    def name(self) -> QueryName:
        return self.spec.name

    def start(
        self,
        host: BatchHost,
        began: Callable[[str], None],
        ended: Callable[[QueryRun, Exception | None], None],
        beginnings: int = 1,
    ) -> None:
        """Start the Spark query; `ended` is called once, from a thread, when it is over.

        `began` is called with Spark's own id of the run. Spark gives each Python process ten seconds to
        answer; a query that could not begin for that, on a machine that is too busy, begins again at once,
        `beginnings` times in all. Who starts runs again waits for the machine instead, and gives one.
        """
        oldest_cut = partial(host.oldest_cut, self.name)
        self.output.start(self._lease, self._max_pending, self.fail, oldest_cut, host.delivered)
        begin = partial(self._begin, host, began)
        begin()
        faults.point("start.query")
        arguments = (begin, ended, beginnings)
        threading.Thread(target=self._watch, args=arguments, name=f"weir-{self.name}", daemon=True).start()

    def wait_until_begun(self, seconds: float) -> bool:
        """Wait until Spark has asked the sources of the query once, or it is over; False if it takes longer.

        By then the Python processes of its sources are up.
        """
        deadline = Deadline.after(Clock(), timedelta(seconds=seconds))
        while not deadline.passed:
            query = self._query
            if query is None or self._over.is_set() or not query.isActive:
                return True
            message = str(query.status["message"])
            # One that sleeps is nearly always seen to ask, and starts no processes.
            if not message.startswith(_BEGINS[:1] if self._sleeps else _BEGINS):
                return True
            self._over.wait(_LOOK)
        return False

    def work_off(self, deadline: Deadline) -> bool:
        """Wait until all that the sources hold now is committed, by Spark and by the sink.

        False when the deadline passed before. Returns at once when the query has ended or failed.
        """
        done = None
        while (query := self._query) is not done and query is not None and not deadline.passed:
            done = query  # another one follows, when this one had to begin again
            # Spark's own call knows no limit, so it waits in a thread that may be abandoned.
            waiter = threading.Thread(target=_process_all, args=(query,), daemon=True)
            waiter.start()
            waiter.join(deadline.left())
            while query is self._query and not query.isActive and not deadline.passed:
                if self._over.wait(_LOOK):
                    break
        return not deadline.passed and self.output.drain(deadline)

    def ask_to_end(self) -> None:
        """Let the running batch finish and commit, and start no other."""
        self._ending.set()
        if self._query is None:
            return
        try:
            _terminate_after_batch(self._query)
            planned_source.news.ring()
        except Py4JError:  # another Spark has it elsewhere: then the gate in front of each batch must do
            self._gate.close()

    def end(self, deadline: Deadline) -> bool:
        """Wait for the end that was asked for, and for the sink; False when the deadline passed before."""
        if self._query is None:
            return True
        idle = 0
        while not self._over.wait(_LOOK) and not deadline.passed:
            query = self._query
            idle = 0 if query.status["isTriggerActive"] else idle + 1
            # Wake a query that sleeps until its next trigger; a batch that has begun is not disturbed.
            if idle >= _IDLE_LOOKS and self._gate.close_if_empty(partial(self._is_idle, query)):
                query.stop()
        return self._over.is_set()

    def cut_off(self) -> None:
        """Give up what `end` waited for: the next start runs the batch again, or delivers it."""
        self._cut_off.set()
        if self._query is not None:
            self._query.stop()

    def fail(self, error: Exception) -> None:
        """Its output can't be delivered: the query must not continue."""
        self.error = self.error or error
        if self._query is not None:
            self._query.stop()

    def close(self) -> None:
        """After a failure: end the committer, leave everything else to the next run."""
        self.output.close()
        if self._query is not None:
            with suppress(Exception):
                self._query.stop()

    def failed_at(self) -> BatchId:
        """The batch that a failure of this run is of: the one that its sink did not take.

        Else the first that Spark has not committed, planned or not; -1 when the live files can't be read.
        That it is the same one again says that there was no progress.
        """
        if (refused := self.output.refused) is not None:
            return refused
        last = self.last_committed()
        return NO_BATCH if last is None else BatchId(last + 1)

    def last_committed(self) -> BatchId | None:
        """The last batch that Spark has committed; None when the live files can't be read."""
        try:
            return self.files.last_committed()
        except ExternalError:
            return None

    def _begin(self, host: BatchHost, began: Callable[[str], None]) -> None:
        with alone:
            self.files.clear_beginning()
            with planned_source.waking(self.spec.plan, self.files.location) as self._sleeps:
                self._query = self._writer(host).start()
        if self.error is not None:  # it was failed meanwhile
            self._query.stop()
        if self._ending.is_set():  # it was asked to end before it had begun
            self.ask_to_end()
        began(str(self._query.runId))

    def _writer(self, host: BatchHost) -> DataStreamWriter:
        spec = self.spec
        if spec.writer is not None:
            writer = spec.writer
        else:
            assert spec.frame is not None
            writer = spec.frame.writeStream.outputMode(spec.output_mode)
            writer = writer.trigger(**spec.trigger) if spec.trigger else writer
            if isinstance(spec.sink, NativeSink):
                writer = spec.sink.attach(writer)
            else:
                writer = writer.foreachBatch(partial(self._run_batch, self._path(host)))
        return writer.queryName(spec.name).option("checkpointLocation", self.files.location)

    def _path(self, host: BatchHost) -> BatchPath:
        sink, committer = self.spec.sink, self.output.committer
        assert isinstance(sink, StagingSink) and committer is not None
        return BatchPath(
            self.spec,
            sink,
            committer,
            self.files,
            self.token,
            self._lease,
            host,
            self.output.skipped,
            self._ending.is_set,
        )

    def _run_batch(self, path: BatchPath, frame: DataFrame, number: int) -> None:
        try:
            self._gate.enter(BatchId(number))
            path.run(frame, BatchId(number))
        except Exception as error:
            self.error = self.error or error
            raise
        finally:
            self._gate.leave()

    def _watch(
        self,
        begin: Callable[[], None],
        ended: Callable[[QueryRun, Exception | None], None],
        beginnings: int,
    ) -> None:
        error = self._wait()
        try:
            for _ in range(beginnings - 1):
                if self._ending.is_set() or self._gate.newest is not None or not is_late_worker(error):
                    break
                begin()
                error = self._wait()
            self.output.finish(failed=self._failure(error) is not None, cut_off=self._cut_off.is_set)
        except Exception as broke:  # a storage that does not answer, for one: whoever waits must hear of it
            error = error or broke
            self.close()
        error = self._failure(error)  # the committer may have failed meanwhile
        if error is not None:
            self.output.release()
        self._over.set()
        ended(self, error)

    def _wait(self) -> Exception | None:
        """Wait until the Spark query is over; what it raised."""
        assert self._query is not None
        try:
            self._query.awaitTermination()
        except Exception as error:
            return error
        return None

    def _failure(self, error: Exception | None) -> Exception | None:
        cause = self.error or error
        return None if isinstance(cause, StoppingError) else cause

    def _is_idle(self, query: StreamingQuery) -> bool:
        """Spark's own word for idle is not enough: no batch may be planned and undecided."""
        undecided = self.files.last_planned() > self.files.last_committed()
        return not undecided and not query.status["isTriggerActive"]


def _process_all(query: StreamingQuery) -> None:
    with suppress(Exception):  # a query that fails is reported by who watches it
        query.processAllAvailable()


def _terminate_after_batch(query: StreamingQuery) -> None:
    """Set Spark's own state to terminated without an interrupt, as its AvailableNow trigger does.

    Private API of Spark, pinned by `tests/integration/test_graceful_stop.py` per version.
    """
    execution = query._jsq.streamingQuery()
    terminated = (
        execution.getClass()
        .getClassLoader()
        .loadClass("org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
    )
    execution.state().set(terminated.getField("MODULE$").get(None))
