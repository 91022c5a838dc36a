"""One run of one query: the only wrapper round Spark's StreamingQuery.

The path of a batch: planned by Spark (`offsets/<n>`) -> staged here -> recorded -> decided by Spark
(`commits/<n>`) -> committed by the committer. A run is started once and ends once; a restart is a
new run with a higher token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

from py4j.protocol import Py4JError

from weir import faults
from weir.clock import Clock, Deadline
from weir.errors import ExternalError, LostStagingError, SinkMismatchError
from weir.ids import NO_BATCH, BatchId, QueryName, Token
from weir.job.graph import QuerySpec, alone
from weir.protocol.ledger import Ledger, Staged, StartPlan, plan_start
from weir.sinks import CountingSink, NativeSink, StagingSink
from weir.sinks.committer import Committer
from weir.sinks.contract import FittedSink, SkippingSink, until_known
from weir.sinks.fence import Knows, anyone
from weir.sinks.held_commit import HeldCommitter, Together
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.failure import is_late_worker
from weir.spark.file_sink import FileSinkLog, log_of
from weir.storage.attempts import Lease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

_DRAIN = timedelta(minutes=1)
"""How long a query that has failed waits for its sink; what is left then, the next start delivers."""
_AT_ONCE = (Clock().sleep, [0.0] * 7, ())
"""How a step of a start is repeated: without a pause, and only where no answer came."""
_BEGINNINGS = 3
"""So often a query begins again that Spark could not give a Python process to."""
_BEGINS = ("Initializing", "Getting offsets")
"""What Spark says of a query that has not got its first offsets."""
_LOOK = 0.05
_DRAIN_LOOK = timedelta(seconds=0.1)
_IDLE_LOOKS = 3
"""So many looks in a row must find a query idle before it is interrupted."""


class StoppingError(Exception):
    """A batch that began after the job was told to end; it was not run."""


class BatchHost(Protocol):
    """The job around a run, as its batches need it. Called from threads of the run."""

    def hold(self, spec: QuerySpec, batch: BatchId, over: Callable[[], bool]) -> None:
        """Called before a batch; returns when it may begin, at once when `over` says so."""

    def oldest_cut(self, query: QueryName) -> BatchId | None:
        """The oldest batch that a checkpoint may lead back to; None when that is not known."""

    def delivered(self) -> None:
        """The sink of a query has taken a batch; returns at once."""


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
        self.name: QueryName = spec.name
        self.token = token
        self.files = files
        self.batch: BatchId | None = None
        """The batch that is running, or ran last."""
        self._skipped: BatchId | None = None
        """A batch that an earlier run had planned and not committed, and that is not to be delivered."""
        self.error: Exception | None = None
        """What went wrong on the Python side, as it was raised."""
        self.spec = spec
        self.floor = NO_BATCH
        """The oldest batch that the sink can be rewound to; known once it is open."""
        self._together = together
        self._ending = threading.Event()
        self._lease = lease
        self._max_pending = max_pending
        self._gate_closed = threading.Event()
        self._door = threading.Lock()
        self._inside = False
        self._over = threading.Event()
        self._cut_off = threading.Event()
        self._query: StreamingQuery | None = None
        self._committer: Committer | HeldCommitter | None = None
        self._delivered = NO_BATCH
        self._delivering: BatchId | None = None
        """The batch that `recover` is about to deliver."""
        self._recovered = NO_BATCH
        """The last batch that Spark had committed when this start looked: all up to it are delivered."""
        self._rewound = False

    def open(self, owner: str, lineage: str, knows: Knows = anyone) -> BatchId:
        """Fence the sink; the newest batch that it holds, -1 without one. Safe to repeat.

        `knows` says of a fence that is found there whether it is of an attempt of this job's directory.
        """
        sink = self.spec.sink
        if isinstance(sink, StagingSink):
            self._expect()
            self._found(sink.open(owner, lineage, self.token, knows))
            faults.point("start.fenced")
        return self._delivered

    def look(self, owner: str, lineage: str, knows: Knows = anyone) -> BatchId:
        """What `open` would find; raises as it does, and fences nobody."""
        sink = self.spec.sink
        if isinstance(sink, StagingSink):
            self._expect()
            self._found(sink.look(owner, lineage, self.token, knows))
        return self._delivered

    def _expect(self) -> None:
        state = self.spec.user_state
        inner = state.inner if state is not None else self.spec.sink
        if isinstance(inner, FittedSink):
            inner.expect(self.spec.plan.schema)

    def _found(self, ledger: Ledger) -> None:
        self._delivered, self.floor, self._rewound = ledger.last, ledger.floor, ledger.rewound

    def check_rewind(self, to: BatchId, *, new: bool) -> None:
        """Raise `SinkMismatchError` for output of Spark's own that can't be told apart any more.

        `new` where the sink is another than before.
        """
        if (log := self._file_sink_log()) is not None:
            log.check_rewind(to, new=new)

    def check_staged(self, to: BatchId, elsewhere: BatchId = NO_BATCH) -> None:
        """Raise `LostStagingError` when `recover` would, with the sink rewound to a batch. Writes nothing."""
        sink = self.spec.sink
        if not isinstance(sink, StagingSink):
            return
        delivered = elsewhere if self._delivered == NO_BATCH else min(self._delivered, to)
        self._check_lost(plan_start(delivered, to, sink.staged(), {}))

    def rewind(self, to: BatchId, check: Callable[[], None] = lambda: None) -> None:
        """Rewind what the sink holds above a batch. Safe to repeat, and to be killed in.

        `check` is asked right before each step that no fence guards, and raises when another driver may
        have taken over.
        """
        sink = self.spec.sink
        check()
        if (log := self._file_sink_log()) is not None:
            log.rewind(to, check)
        if isinstance(sink, StagingSink):
            until_known(lambda: sink.rewind(to), f"{sink.describe()} gave no answer to a rewind", *_AT_ONCE)
            self._delivered = min(self._delivered, to)
        check()
        self.files.renew_id()  # a function may hand it on to a table that remembers what it has seen

    def repeated(self, to: BatchId, last: BatchId) -> str:
        """What comes twice when a sink that can't be taken back goes on behind a batch, in words."""
        sink = self.spec.user_state.inner if self.spec.user_state is not None else self.spec.sink
        records = sink.records_above(to) if isinstance(sink, CountingSink) else None
        counted = f" with {records} records" if records is not None else ""
        batches = f"batch {last}" if last == to + 1 else f"the batches {to + 1} to {last}"
        return f"query {self.name}: {batches}{counted} will have been delivered twice, as accepted"

    @property
    def holds(self) -> BatchId:
        """The newest batch that the sink holds, as far as that can be told; -1 without one."""
        log = self._file_sink_log()
        return self._delivered if log is None else max(self._delivered, log.newest())

    def describe(self) -> str:
        """Where it writes, for people."""
        sink = self.spec.sink
        log = self._file_sink_log()
        return sink.describe() if sink is not None else str(log.folder) if log is not None else ""

    @property
    def rewindable(self) -> bool:
        """Whether what was delivered can be taken back; of Spark's own sinks that of files can."""
        sink = self.spec.sink
        if isinstance(sink, StagingSink):
            return bool(getattr(sink, "rewindable", True))
        return self._file_sink_log() is not None

    @property
    def is_untouched(self) -> bool:
        """Whether the sink has nothing from this query, delivered or staged."""
        sink = self.spec.sink
        return self._delivered == NO_BATCH and isinstance(sink, StagingSink) and not sink.staged()

    @property
    def only_ledger_is_lost(self) -> bool:
        """Whether the sink, with the job's directory, has lost nothing but the number of its last batch."""
        state = self.spec.user_state
        sink = state.inner if state is not None else self.spec.sink
        return self.is_untouched and not self._rewound and bool(getattr(sink, "ledger_in_job", False))

    def known(self, delivered: BatchId) -> BatchId:
        """The last batch of the sink; `SinkMismatchError` when the live files don't know it."""
        last = self.files.last_committed()
        if isinstance(self.spec.sink, StagingSink) and delivered > last:
            raise SinkMismatchError(
                query=self.name,
                path=self.spec.sink.describe(),
                reason=f"it holds batches up to {delivered}, the live files know only up to {last}",
                todo="bring the job's directory back, or let this query write to another place",
            )
        return delivered

    def recover(self, elsewhere: BatchId = NO_BATCH, note: Callable[[str], None] = lambda _: None) -> int:
        """Deliver what Spark has committed, or hold it for a checkpoint, and discard the rest.

        Up to the batch `elsewhere` it was delivered before, when this sink knows of nothing. Safe to repeat,
        and to be killed in. Returns the number of batches that were delivered.
        """
        sink = self.spec.sink
        if (log := self._file_sink_log()) is not None:
            log.fit(self.files.last_planned(), self.files.last_committed())
        if not isinstance(sink, StagingSink):
            return 0
        self._recovered = last = self.files.last_committed()
        self.known(self._delivered)
        if self.spec.at_most_once and self.files.last_planned() > last:
            self._skipped = self.files.last_planned()
            note(f"query {self.name}: batch {self._skipped} was not committed and is skipped, at most once")
        staged = sink.staged()
        state = {s.batch: self.files.committed_state(s.batch) for s in staged}
        delivered = elsewhere if self._delivered == NO_BATCH else self._delivered
        plan = plan_start(delivered, last, staged, state)
        self._check_lost(plan)
        sink.discard(last, plan.commit)
        if self._together is not None:
            self._committer = HeldCommitter(sink, self.files, plan.commit, last)
            self._together.add(self.name, self._committer)
            return 0
        for one in plan.commit:
            unknown = f"{sink.describe()} gave no answer for batch {one.batch}"
            self._delivering = one.batch
            until_known(partial(sink.commit, one), unknown, *_AT_ONCE)
        self._delivering = None
        faults.point("start.recovered")
        return len(plan.commit)

    def _check_lost(self, plan: StartPlan) -> None:
        if plan.lost:
            raise LostStagingError(batch=plan.lost[0], query=self.name, path=self.describe())

    def start(
        self,
        host: BatchHost,
        began: Callable[[str], None],
        ended: Callable[[QueryRun, Exception | None], None],
    ) -> None:
        """Start the Spark query; `ended` is called once, from a thread, when it is over.

        `began` is told Spark's own id of the run. Spark gives each Python process ten seconds to
        answer; a query that could not begin for that, on a machine that is too busy, begins again.
        """
        sink = self.spec.sink
        if isinstance(sink, StagingSink) and self._committer is None:
            self._committer = Committer(
                sink,
                self.files,
                self._lease,
                self._max_pending,
                self.fail,
                self._recovered,
                partial(host.oldest_cut, self.name),
                host.delivered,
            )
        begin = partial(self._begin, host, began)
        begin()
        faults.point("start.query")
        threading.Thread(
            target=self._watch, args=(begin, ended), name=f"weir-{self.name}", daemon=True
        ).start()

    def ask_to_end(self) -> None:
        """Let the running batch finish and commit, and start no other."""
        self._ending.set()
        if self._query is None:
            return
        try:
            _terminate_after_batch(self._query)
        except Py4JError:  # another Spark has it elsewhere: then the gate in front of each batch must do
            self._gate_closed.set()

    def end(self, deadline: Deadline) -> bool:
        """Wait for the end that was asked for, and for the sink; False when the deadline passed before."""
        if self._query is None:
            return True
        idle = 0
        while not self._over.wait(_LOOK) and not deadline.passed:
            idle = 0 if self._query.status["isTriggerActive"] else idle + 1
            if idle >= _IDLE_LOOKS:
                self._interrupt_if_idle(self._query)
        return self._over.is_set()

    @property
    def undelivered(self) -> int:
        """How many batches Spark has committed and the sink has not."""
        return self._committer.undelivered if isinstance(self._committer, Committer) else 0

    def missing(self, upto: BatchId) -> int:
        """How many of the committed batches up to this one the sink has not; none before the run starts."""
        return self._committer.missing(upto) if self._committer is not None else 0

    @property
    def gave_up(self) -> bool:
        """Whether the sink gets nothing from this run any more."""
        return self._committer is not None and self._committer.closed

    def wait_until_begun(self, seconds: float) -> bool:
        """Wait until Spark has asked the sources of the query once, or it is over; False if it takes longer.

        By then the Python processes of its sources are up.
        """
        deadline = Deadline.after(Clock(), timedelta(seconds=seconds))
        while not deadline.passed:
            query = self._query
            if query is None or self._over.is_set() or not query.isActive:
                return True
            if not str(query.status["message"]).startswith(_BEGINS):
                return True
            self._over.wait(_LOOK)
        return False

    def cut_off(self) -> None:
        """Give up what `end` waited for: the next start runs the batch again, or delivers it."""
        self._cut_off.set()
        if self._query is not None:
            self._query.stop()

    def failed_at(self) -> BatchId:
        """The batch that a failure of this run is of: the one that its sink did not take.

        Else the first that Spark has not committed, planned or not; -1 when the live files can't be read.
        That it is the same one again says that there was no progress.
        """
        refused = self._committer.refused if self._committer is not None else None
        stuck = self._delivering if self._delivering is not None else refused
        if stuck is not None:
            return stuck
        last = self.last_committed()
        return NO_BATCH if last is None else BatchId(last + 1)

    def last_committed(self) -> BatchId | None:
        """The last batch that Spark has committed; None when the live files can't be read."""
        try:
            return self.files.last_committed()
        except ExternalError:
            return None

    def _interrupt_if_idle(self, query: StreamingQuery) -> None:
        """Wake a query that sleeps until its next trigger; a batch that has begun is let through.

        Spark's own word for idle is not enough: no batch may be inside, nor planned and undecided.
        """
        with self._door:
            if self._inside:
                return
            closed = self._gate_closed.is_set()
            self._gate_closed.set()
        undecided = self.files.last_planned() > self.files.last_committed()
        if not undecided and not query.status["isTriggerActive"]:
            query.stop()
        elif not closed:
            self._gate_closed.clear()

    def work_off(self, deadline: Deadline) -> bool:
        """Wait until all that the sources hold now is committed, by Spark and by the sink.

        False when the deadline passed before. Returns at once when the query has ended or failed.
        """
        done = None
        while (query := self._query) is not done and query is not None and not deadline.passed:
            done = query  # another one follows, when this one had to begin again
            # Spark's own call knows no limit, so it waits in a thread that may be left behind.
            waiter = threading.Thread(target=_process_all, args=(query,), daemon=True)
            waiter.start()
            waiter.join(deadline.left())
            while query is self._query and not query.isActive and not deadline.passed:
                if self._over.wait(_LOOK):
                    break
        return not deadline.passed and (self._committer is None or self._committer.drain(deadline))

    def close(self) -> None:
        """After a failure: end the committer, leave everything else to the next run."""
        if self._committer is not None:
            self._committer.close()
        if self._query is not None:
            with suppress(Exception):
                self._query.stop()

    def _file_sink_log(self) -> FileSinkLog | None:
        writer = self.spec.writer
        return log_of(writer, self.name) if writer is not None else None

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
                writer = writer.foreachBatch(partial(self._run_batch, host))
        return writer.queryName(spec.name).option("checkpointLocation", self.files.location)

    def _run_batch(self, host: BatchHost, frame: DataFrame, number: int) -> None:
        try:
            self._stage(host, frame, BatchId(number))
        except Exception as error:
            self.error = self.error or error
            raise
        finally:
            self._inside = False

    def _stage(self, host: BatchHost, frame: DataFrame, batch: BatchId) -> None:
        sink, committer = self.spec.sink, self._committer
        assert isinstance(sink, StagingSink) and committer is not None
        self.batch = batch
        faults.point("batch.planned")
        with self._door:
            if self._gate_closed.is_set():
                raise StoppingError(f"batch {batch} was planned after the end was asked for")
            self._inside = True
        committer.check_next(batch)  # before user state is read, which would be that of an older batch
        committer.wait_for_room()
        host.hold(self.spec, batch, self._ending.is_set)
        self._lease.check()
        before, over = self.files.state_ids(batch), threading.Event()
        faults.watch("batch.state", lambda: self.files.uploading(batch), over)
        try:
            sink.stage(self._wanted_of(frame, batch), batch, self.token)
        finally:
            over.set()
        faults.point("batch.written")
        self._lease.check()
        staged = Staged(batch, self.token, tuple(sorted(self.files.state_ids(batch) - before)))
        sink.record(staged)
        faults.point("batch.staged")
        committer.submit(staged)

    def _wanted_of(self, frame: DataFrame, batch: BatchId) -> DataFrame:
        """What of the batch is to be delivered: all of it, or nothing."""
        if batch != self._skipped:
            return frame
        inner = getattr(self.spec.sink, "inner", self.spec.sink)
        if isinstance(inner, SkippingSink):
            inner.skip(batch)
        return frame.limit(0)

    def fail(self, error: Exception) -> None:
        """Its output can't be delivered: the query may not go on."""
        self.error = self.error or error
        if self._query is not None:
            self._query.stop()

    def _begin(self, host: BatchHost, began: Callable[[str], None]) -> None:
        with alone:
            self.files.clear_beginning()
            self._query = self._writer(host).start()
        if self.error is not None:  # it was failed meanwhile
            self._query.stop()
        if self._ending.is_set():  # it was told to end before it had begun
            self.ask_to_end()
        began(str(self._query.runId))

    def _watch(self, begin: Callable[[], None], ended: Callable[[QueryRun, Exception | None], None]) -> None:
        error = self._wait()
        try:
            for _ in range(_BEGINNINGS):
                if self._ending.is_set() or self.batch is not None or not is_late_worker(error):
                    break
                begin()
                error = self._wait()
            self._deliver_the_rest(failed=self._failure(error) is not None)
        except Exception as broke:  # a storage that does not answer, for one: whoever waits must hear of it
            error = error or broke
            self.close()
        error = self._failure(error)  # the committer may have failed meanwhile
        if isinstance(self._committer, HeldCommitter) and error is not None:
            self._committer.close()
        self._over.set()
        ended(self, error)

    def _failure(self, error: Exception | None) -> Exception | None:
        found = self.error or error
        return None if isinstance(found, StoppingError) else found

    def _deliver_the_rest(self, *, failed: bool) -> None:
        """Wait for the sink, as long as it takes; behind a failure or a cut-off the next start does it."""
        committer = self._committer
        if not isinstance(committer, Committer):
            return
        limit = Deadline.after(Clock(), _DRAIN)
        while not committer.drain(Deadline.after(Clock(), _DRAIN_LOOK)):
            if self._cut_off.is_set() or (failed and limit.passed):
                break
        committer.close(wait=not self._cut_off.is_set())

    def _wait(self) -> Exception | None:
        """Wait until the Spark query is over; what it raised."""
        assert self._query is not None
        try:
            self._query.awaitTermination()
        except Exception as error:
            return error
        return None


def _process_all(query: StreamingQuery) -> None:
    with suppress(Exception):  # a query that fails is told of where it is watched
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
