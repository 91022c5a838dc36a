"""The sink of one run: what it holds, what a start does about it, and what delivers to it then.

The steps of a start, in order: `look`, `open`, in a restore `rewind`, `recover`, and `start`, when the query
runs. What the sink holds is known once it was looked at or opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from weir import faults
from weir.clock import Clock, Deadline
from weir.errors import LostStagingError, SinkMismatchError
from weir.ids import NO_BATCH, BatchId, QueryName, Token
from weir.job.env import QuerySpec
from weir.protocol.ledger import Ledger, StartPlan, plan_start
from weir.sinks import StagingSink
from weir.sinks.committer import Committer
from weir.sinks.contract import capabilities, until_known
from weir.sinks.fence import Knows, anyone
from weir.sinks.held_commit import HeldCommitter, Together
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.file_sink import FileSinkLog, log_of
from weir.storage.attempts import Lease

_DRAIN = timedelta(minutes=1)
"""How long a query that has failed waits for its sink; what is left then, the next start delivers."""
_DRAIN_LOOK = timedelta(seconds=0.1)
_AT_ONCE = (Clock().sleep, [0.0] * 7, ())
"""How a step of a start is repeated: without a pause, and only where no answer came."""


class QueryOutput:
    """The output of one query under one token."""

    def __init__(
        self, spec: QuerySpec, files: QueryFiles, token: Token, together: Together | None = None
    ) -> None:
        """`together` commits what the run stages, with `sink.commit: checkpoint`."""
        self.committer: Committer | HeldCommitter | None = None
        """What delivers; None before the run starts, and of a query whose output Spark writes."""
        self.skipped: BatchId | None = None
        """A batch that an earlier run had planned and not committed, and that is not to be delivered."""
        self._spec = spec
        self._files = files
        self._token = token
        self._together = together
        self._ledger = Ledger()
        self._delivering: BatchId | None = None
        """The batch that `recover` is about to deliver."""
        self._recovered = NO_BATCH
        """The last batch that Spark had committed when this start looked: all up to it are delivered."""

    @property
    def name(self) -> QueryName:
        return self._spec.name

    @property
    def floor(self) -> BatchId:
        """The oldest batch that the sink can be rewound to."""
        return self._ledger.floor

    @property
    def holds(self) -> BatchId:
        """The newest batch that the sink holds, as far as that can be known; -1 without one."""
        log = self._file_sink_log()
        return self._ledger.last if log is None else max(self._ledger.last, log.newest())

    @property
    def rewindable(self) -> bool:
        """Whether what was delivered can be rewound; of Spark's own sinks that of files can."""
        if isinstance(self._spec.sink, StagingSink):
            return capabilities(self._spec.sink).rewindable
        return self._file_sink_log() is not None

    @property
    def is_untouched(self) -> bool:
        """Whether the sink has nothing from this query, delivered or staged."""
        sink = self._spec.sink
        return self._ledger.last == NO_BATCH and isinstance(sink, StagingSink) and not sink.staged()

    @property
    def only_ledger_is_lost(self) -> bool:
        """Whether the sink, with the job's directory, has lost nothing but the number of its last batch."""
        in_job = capabilities(self._spec.sink).ledger_in_job
        return self.is_untouched and not self._ledger.rewound and in_job

    def describe(self) -> str:
        """Where it writes, for people."""
        sink = self._spec.sink
        log = self._file_sink_log()
        return sink.describe() if sink is not None else str(log.folder) if log is not None else ""

    def repeated(self, to: BatchId, last: BatchId) -> str:
        """What is delivered twice when a sink that can't be rewound continues after a batch, as a message."""
        records_above = capabilities(self._spec.sink).records_above
        records = records_above(to) if records_above is not None else None
        counted = f" with {records} records" if records is not None else ""
        batches = f"batch {last}" if last == to + 1 else f"the batches {to + 1} to {last}"
        return f"query {self.name}: {batches}{counted} will have been delivered twice, as accepted"

    def look(self, owner: str, lineage: str, knows: Knows = anyone) -> BatchId:
        """What `open` would find; raises as it does, and fences nobody."""
        return self._ask(lambda sink: sink.look(owner, lineage, self._token, knows))

    def open(self, owner: str, lineage: str, knows: Knows = anyone) -> BatchId:
        """Fence the sink; the newest batch that it holds, -1 without one. Safe to repeat.

        `knows` says of a fence that the sink has whether it is of an attempt of this job's directory.
        """
        last = self._ask(lambda sink: sink.open(owner, lineage, self._token, knows))
        if isinstance(self._spec.sink, StagingSink):
            faults.point("start.fenced")
        return last

    def known(self, delivered: BatchId) -> BatchId:
        """The last batch of the sink; `SinkMismatchError` when the live files don't know it."""
        sink, last = self._spec.sink, self._files.last_committed()
        if isinstance(sink, StagingSink) and delivered > last:
            raise SinkMismatchError(
                query=self.name,
                path=sink.describe(),
                reason=f"it holds batches up to {delivered}, the live files know only up to {last}",
                todo="restore the job's directory, or let this query write to another place",
            )
        return delivered

    def check_rewind(self, to: BatchId, *, new: bool) -> None:
        """Raise `SinkMismatchError` for output of Spark's own that can't be distinguished any more.

        `new` where the sink is another than before.
        """
        if (log := self._file_sink_log()) is not None:
            log.check_rewind(to, new=new)

    def check_staged(self, to: BatchId, elsewhere: BatchId = NO_BATCH) -> None:
        """Raise `LostStagingError` when `recover` would, with the sink rewound to a batch. Writes nothing."""
        sink, last = self._spec.sink, self._ledger.last
        if isinstance(sink, StagingSink):
            delivered = elsewhere if last == NO_BATCH else min(last, to)
            self._check_lost(plan_start(delivered, to, sink.staged(), {}))

    def rewind(self, to: BatchId, check: Callable[[], None] = lambda: None) -> None:
        """Rewind what the sink holds above a batch. Safe to repeat, and to be killed in.

        `check` is called right before each step that no fence guards, and raises when another driver may
        have taken over.
        """
        sink = self._spec.sink
        check()
        if (log := self._file_sink_log()) is not None:
            log.rewind(to, check)
        if isinstance(sink, StagingSink):
            until_known(lambda: sink.rewind(to), f"{sink.describe()} did not confirm a rewind", *_AT_ONCE)
            self._ledger = replace(self._ledger, last=min(self._ledger.last, to))
        check()
        self._files.renew_id()  # a function may pass it to a table that remembers what it has seen

    def recover(self, elsewhere: BatchId = NO_BATCH, note: Callable[[str], None] = lambda _: None) -> int:
        """Deliver what Spark has committed, or hold it for a checkpoint, and discard the rest.

        Up to the batch `elsewhere` it was delivered before, when this sink knows of nothing. Safe to repeat,
        and to be killed in. Returns the number of batches that were delivered.
        """
        sink, files = self._spec.sink, self._files
        if (log := self._file_sink_log()) is not None:
            log.fit(files.last_planned(), files.last_committed())
        if not isinstance(sink, StagingSink):
            return 0
        self._recovered = last = files.last_committed()
        self.known(self._ledger.last)
        if self._spec.at_most_once and files.last_planned() > last:
            self.skipped = files.last_planned()
            note(f"query {self.name}: batch {self.skipped} was not committed and is skipped, at most once")
        staged = sink.staged()
        state = {one.batch: files.committed_state(one.batch) for one in staged}
        delivered = elsewhere if self._ledger.last == NO_BATCH else self._ledger.last
        plan = plan_start(delivered, last, staged, state)
        self._check_lost(plan)
        sink.discard(last, plan.commit)
        if self._together is not None:
            self.committer = HeldCommitter(sink, files, plan.commit, last)
            self._together.add(self.name, self.committer)
            return 0
        for one in plan.commit:
            unknown = f"{sink.describe()} did not confirm batch {one.batch}"
            self._delivering = one.batch
            until_known(partial(sink.commit, one), unknown, *_AT_ONCE)
        self._delivering = None
        faults.point("start.recovered")
        return len(plan.commit)

    def start(
        self,
        lease: Lease,
        max_pending: int,
        fail: Callable[[Exception], None],
        oldest_cut: Callable[[], BatchId | None],
        delivered: Callable[[], None],
    ) -> None:
        """The run starts: what it submits is delivered from now on. The rest as in `Committer`."""
        sink = self._spec.sink
        if isinstance(sink, StagingSink) and self.committer is None:
            self.committer = Committer(
                sink, self._files, lease, max_pending, fail, self._recovered, oldest_cut, delivered
            )

    @property
    def undelivered(self) -> int:
        """How many batches Spark has committed and the sink has not."""
        return self.committer.undelivered if isinstance(self.committer, Committer) else 0

    def missing(self, upto: BatchId) -> int:
        """How many of the committed batches up to this one the sink has not; none before the run starts."""
        return self.committer.missing(upto) if self.committer is not None else 0

    @property
    def gave_up(self) -> bool:
        """Whether the sink gets nothing from this run any more."""
        return self.committer is not None and self.committer.closed

    @property
    def refused(self) -> BatchId | None:
        """The batch that the sink did not take; None when there is none."""
        if self._delivering is not None:
            return self._delivering
        return self.committer.refused if self.committer is not None else None

    def drain(self, deadline: Deadline) -> bool:
        """Wait until the sink has all that Spark has committed; False when the deadline passed before."""
        return self.committer is None or self.committer.drain(deadline)

    def finish(self, *, failed: bool, cut_off: Callable[[], bool]) -> None:
        """The query is over: wait for the sink, as long as it takes.

        After a failure, or when the query is cut off meanwhile, the next start delivers the rest.
        """
        committer = self.committer
        if not isinstance(committer, Committer):
            return
        limit = Deadline.after(Clock(), _DRAIN)
        while not committer.drain(Deadline.after(Clock(), _DRAIN_LOOK)):
            if cut_off() or (failed and limit.passed):
                break
        committer.close(wait=not cut_off())

    def release(self) -> None:
        """The query has failed: what is held for a checkpoint is for the next run."""
        if isinstance(self.committer, HeldCommitter):
            self.committer.close()

    def close(self) -> None:
        """After a failure: end the committer, leave everything else to the next run."""
        if self.committer is not None:
            self.committer.close()

    def _ask(self, step: Callable[[StagingSink], Ledger]) -> BatchId:
        sink = self._spec.sink
        if isinstance(sink, StagingSink):
            if (expect := capabilities(sink).expect) is not None:
                expect(self._spec.plan.schema)
            self._ledger = step(sink)
        return self._ledger.last

    def _check_lost(self, plan: StartPlan) -> None:
        if plan.lost:
            raise LostStagingError(batch=plan.lost[0], query=self.name, path=self.describe())

    def _file_sink_log(self) -> FileSinkLog | None:
        writer = self._spec.writer
        return log_of(writer, self.name) if writer is not None else None
