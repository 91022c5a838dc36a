"""The coordinator: one thread that observes facts, hands them to the reducer and carries out its actions.

What is decided on the path of a checkpoint (docs/design.md, section 5) is in `protocol/coordination.py`.
Snapshots are taken in a small pool; nothing here is on the path of a record, and no query waits for it,
except one whose next batch could make Spark purge what a cut still needs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence

from weir.checkpoint.actions import NOT_DELETED, Actions, Held, Outside, Workers
from weir.checkpoint.manifest import Manifest, Provenance
from weir.checkpoint.records import Records
from weir.checkpoint.retention import Retained
from weir.checkpoint.snapshots import Snapshots
from weir.checkpoint.trigger import Cuts, rules_of
from weir.checkpoint.vertex import Vertex, reason_of
from weir.clock import Clock
from weir.config import Settings, changed
from weir.errors import ExternalError, FencedError, LostSegmentError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason
from weir.protocol.checkpoint_state import CheckpointWish, CoordinationState, Triggers
from weir.protocol.coordination import pause, step
from weir.storage.attempts import Lease
from weir.storage.generation import Origin
from weir.storage.paths import Live

_HOLD = 0.02
"""How often a batch that waits for a snapshot looks."""
_SMALL_PURGE = 10
"""With fewer batches than this kept by Spark, a query's next batch waits for its snapshot."""


class Coordinator:
    """The checkpoints of one attempt. Its public methods may be called from any thread."""

    def __init__(
        self,
        live: Live,
        vertices: Sequence[Vertex],
        origin: Origin,
        spark: str,
        settings: Settings,
        purge: int,
        lease: Lease,
        outside: Outside,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._purge = purge
        self._outside = outside
        self._clock = clock
        self._changed = threading.Condition()
        """Held by whoever feeds a fact or looks at the state."""
        self._nudged = False
        self._numbers = itertools.count()
        self._restored = origin.checkpoint
        cuts = Cuts(vertices, outside.standing)
        snapshots = Snapshots(live, settings, clock, lease)
        self._actions = Actions(
            cuts,
            Records(live.store, live.job, lease.attempt, clock),
            snapshots,
            Retained(live, snapshots),
            Workers(len(vertices), self._wake),
            lease,
            outside,
            Provenance.of(live.job, live.generation, lease.attempt, origin, spark),
            clock,
        )
        self._state = CoordinationState(cuts.flow, rules_of(settings), Triggers(clock.monotonic()))
        self._thread = threading.Thread(target=self._work, name="weir-coordinator", daemon=True)

    # what others call

    def prepare(self) -> None:
        """Before any query runs: abort what was begun and not finished, learn the last id.

        The channels are open by then: a number that one of their barriers has is never given out again.
        """
        records = self._actions.records
        for id in records.learn(self._restored, self._actions.cuts.barriers()):
            records.abort(id, AbortReason.RESTARTED, "")
            self._outside.report(m.CheckpointAborted(id, "", "", 0.0, AbortReason.RESTARTED.value))
        self._actions.retained.learn()
        self._feed(f.Learned(self._actions.retained.ids))

    def start(self) -> None:
        self._thread.start()

    def wish(self, request: str, full: bool) -> None:
        """Take a checkpoint as soon as one may begin; the answer goes to the request."""
        self._feed(f.Asked(CheckpointWish(request, full)))

    def hold(self, held: Held, trigger: str = "savepoint") -> None:
        """Take a checkpoint as soon as one may begin, and keep it until it is released."""
        self._feed(f.Asked(CheckpointWish(trigger=trigger, holder=self._holder(held))))

    def release(self, id: CheckpointId) -> None:
        """A held checkpoint is needed no more; it is deleted like any other. Safe to repeat."""
        with self._changed:
            self._actions.retained.release(id)

    def rest(self) -> None:
        """From now on nothing is triggered; what is pending is aborted. Only `final_cut` follows."""
        self._feed(f.Rested())

    def final_cut(self, held: Held) -> None:
        """After `rest`, when every query has ended: a checkpoint of exactly what is committed, held."""
        self._feed(f.Asked(CheckpointWish(trigger="stop", holder=self._holder(held), final=True)))

    def configure(self, values: Mapping[str, str]) -> Settings:
        """Change settings of the running job; raises for those that can't be changed so."""
        with self._changed:
            self._settings = changed(self._settings, values)
            self._feed(f.SettingsChanged(rules_of(self._settings)))
            return self._settings

    def nudge(self) -> None:
        """Something was committed: look now, or once more after the look under way. Returns at once."""
        self._nudged = True
        if self._changed.acquire(blocking=False):
            try:
                self._changed.notify_all()
            finally:
                self._changed.release()

    def batch(self, committed: m.BatchCommitted) -> None:
        """A batch was committed; records that came from outside are counted."""
        vertex = self._actions.cuts.get(QueryName(committed.query))
        if vertex is not None and not vertex.inputs:
            self._feed(f.RowsCommitted(committed.rows))
        self.nudge()  # sinks without a committer say nothing themselves

    def offsets(self, name: QueryName) -> list[str] | None:
        """The offsets of a query in every retained checkpoint; None: all that its sources hold is needed.

        So it is while one is pending that has no retained one before it, and while one is retained in
        which the query had committed nothing.
        """
        with self._changed:
            ids = self._actions.retained.ids
            if any(not ids or id < ids[0] for id in self._state.pending):
                return None
            return self._actions.retained.offsets(name)

    def oldest_cut(self, name: QueryName) -> BatchId | None:
        """The oldest batch that a checkpoint may rewind the query to, now or later; None while not known."""
        with self._changed:
            vertex = self._actions.cuts.get(name)
            if vertex is None or self._state.waiting(name):
                return None
            pending = [underway.found[name].batch for underway in self._state.pending.values()]
            batches = self._actions.retained.cuts(name) + pending
            return min(batches) if batches else vertex.files.last_committed()

    def newest(self) -> Manifest | None:
        """The newest completed checkpoint of these live files."""
        with self._changed:
            return self._actions.retained.newest()

    def query_failed(self, name: QueryName) -> None:
        """A query is down: nothing that is pending can complete."""
        self._feed(f.QueryDown(name))

    def replace(self, vertex: Vertex) -> None:
        """A query runs again, as a new run."""
        with self._changed:
            self._actions.cuts.replace(vertex)

    def before_batch(self, name: QueryName, batch: BatchId, over: Callable[[], bool]) -> None:
        """Hold a batch as long as Spark's purge after it could reach what a cut still needs."""
        if self._purge >= _SMALL_PURGE:
            return
        with self._changed:
            while not over() and self._actions.needs(self._state, name, batch):
                self._changed.wait(_HOLD)

    def stop(self, *, wait: bool = True) -> None:
        """End the thread; what is pending is aborted. Safe to repeat.

        Files that are being copied are waited for only if asked: they are of no use any more.
        """
        self._feed(f.Stopped())
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._actions.workers.end(wait=wait)

    def delete_all(self) -> None:
        """The job was cancelled and keeps no checkpoints; the last id is remembered by its abort."""
        self._actions.lease.check()
        retained = self._actions.retained
        ids = retained.ids
        if ids and not self._actions.records.abort(ids[-1], AbortReason.DELETED, ""):
            self._outside.report(m.Noted("the checkpoints are kept: their deletion could not be recorded"))
            return
        self._actions.lease.check()  # who slept here must not delete what its successor shares
        try:
            retained.delete_all()
        except ExternalError as error:
            self._outside.report(m.Noted(f"{NOT_DELETED}: {error.text}"))

    def _holder(self, held: Held) -> int:
        number = next(self._numbers)
        self._actions.holders[number] = held
        return number

    # the loop

    def _feed(self, fact: f.Fact) -> None:
        """Take a fact in, and carry out what follows from it, each outcome before the next action."""
        with self._changed:
            self._changed.notify_all()
            self._state, actions = step(self._state, fact, self._clock.monotonic())
            for action in actions:
                for outcome in self._actions.carry_out(action, self._state):
                    self._feed(outcome)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._state.stopping:
                    return
                self._nudged = False
                try:
                    self._step()
                except Exception as error:
                    if isinstance(error, FencedError) and self._actions.lease.left <= 0:
                        return  # the driver is about to end itself
                    self._feed(f.CoordinationFailed(reason_of(error)))
                    if isinstance(error, LostSegmentError):  # nothing completes now: the next driver rewinds
                        self._outside.give_up(error)
                if not self._nudged or not self._state.pending:
                    self._changed.wait(self._pause())

    def _step(self) -> None:
        self._feed(f.Ticked())

    def _pause(self) -> float:
        return pause(self._state, self._clock.monotonic())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
