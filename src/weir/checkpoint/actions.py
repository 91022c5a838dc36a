"""What the reducer asks for, carried out: records, barriers, snapshots, answers, and whom it reports to.

An action has its outcome as facts. `Actions` has no lock: the coordinator calls it with its own. Snapshots
are taken, and files deleted, by the threads of `Workers`; what they do for one checkpoint is its `Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from weir import faults
from weir.checkpoint.complete import completed, manifest_of
from weir.checkpoint.manifest import ChannelCut, Manifest, Provenance, QueryCut
from weir.checkpoint.records import Records
from weir.checkpoint.retention import Retained
from weir.checkpoint.snapshots import Snapshots
from weir.checkpoint.trigger import Cuts
from weir.checkpoint.vertex import reason_of
from weir.clock import Clock
from weir.errors import WeirError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol import messages as m
from weir.protocol.checkpoint import Found
from weir.protocol.checkpoint_facts import Action, Fact
from weir.protocol.checkpoint_state import CoordinationState
from weir.storage.attempts import Lease

NOT_DELETED = "files of old checkpoints could not be deleted"
T = TypeVar("T")
Held = Callable[[Manifest | None, str], None]
"""Called once, and must return at once: with the checkpoint, or with None and why there is none."""


@dataclass(frozen=True)
class Outside:
    """Whom the coordinator asks, and to whom it reports."""

    report: Callable[[m.Message], None]
    running: Callable[[], bool]
    """Whether no query is down, and some run."""
    standing: Callable[[], Collection[QueryName]]
    """The queries that will reach no barrier: they have ended or wait for their streams to end, or their
    batches were fixed when they started (bounded ones)."""
    completed: Callable[[CheckpointId], None]
    aborted: Callable[[CheckpointId, str], None]
    give_up: Callable[[WeirError], None]
    """Too many checkpoints failed: the job must be started again."""
    down: Callable[[], str] = lambda: ""
    """Which query is down, for people; "" when that is not known."""


@dataclass
class Work:
    """What is being kept, and was kept, for one checkpoint."""

    queries: dict[QueryName, Future[QueryCut]] = field(default_factory=dict)
    pinned: set[QueryName] = field(default_factory=set)
    """Queries whose files are safe from Spark, though they may still be copied."""
    channels: dict[QueryName, Future[ChannelCut]] = field(default_factory=dict)
    exported: Future[None] | None = None
    """The manifest is being written next to the copies, if there are any."""
    manifest: Manifest | None = None
    """Assembled when everything is kept."""
    uncollected: list[tuple[Future[Any], Callable[[], Fact], QueryName | None, str]] = field(
        default_factory=list
    )
    """What was not reported yet: the fact when it is done, and whose and what it is when it fails."""

    def await_query(self, id: CheckpointId, name: QueryName, future: Future[QueryCut]) -> None:
        self.queries[name] = future

        def taken() -> Fact:
            cut = future.result()
            return f.SnapshotTaken(id, name, Found(BatchId(cut.batch), cut.unaligned))

        self.uncollected.append((future, taken, name, f"query {name}: "))

    def await_channel(self, id: CheckpointId, name: QueryName, future: Future[ChannelCut]) -> None:
        self.channels[name] = future
        kept = f.ChannelKept(id, name)
        self.uncollected.append((future, lambda: kept, None, f"channel {name}: "))

    def await_export(self, id: CheckpointId, future: Future[None]) -> None:
        self.exported = future
        self.uncollected.append((future, lambda: f.Exported(id), None, ""))

    def collect(self, id: CheckpointId) -> Iterator[Fact]:
        """What was done since the last call."""
        for item in list(self.uncollected):
            future, fact, query, what = item
            if future.done():
                self.uncollected.remove(item)
                error = future.exception()
                yield fact() if error is None else f.KeepFailed(id, f"{what}{reason_of(error)}", query)


class Workers:
    """A small pool; `wake` is called whenever something that was submitted is done."""

    def __init__(self, queries: int, wake: Callable[[], None]) -> None:
        # No query's snapshot waits until the files of another are copied to a place that is slow.
        self._pool = ThreadPoolExecutor(max(4, 2 * queries), thread_name_prefix="weir-snapshot")
        self._wake = wake

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Begin something whose end is waited for."""
        future = self._pool.submit(work, *args)
        future.add_done_callback(lambda _: self._wake())
        return future

    def aside(self, work: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Begin something that nobody waits for."""

        def done(future: Future[None]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                failed(error)

        self._pool.submit(work).add_done_callback(done)

    def end(self, *, wait: bool) -> None:
        """Take nothing more; what is under way is waited for only if asked."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


class Actions:
    """Carries out the actions of one attempt's checkpoints."""

    def __init__(
        self,
        cuts: Cuts,
        records: Records,
        snapshots: Snapshots,
        retained: Retained,
        workers: Workers,
        lease: Lease,
        outside: Outside,
        provenance: Provenance,
        clock: Clock,
    ) -> None:
        self.cuts = cuts
        self.records = records
        self.snapshots = snapshots
        self.retained = retained
        self.workers = workers
        self.lease = lease
        self.outside = outside
        self.work: dict[CheckpointId, Work] = {}
        """What is being kept, for each pending checkpoint and those that it has outlived."""
        self.holders: dict[int, Held] = {}
        """Who holds a checkpoint that is wished for, by number."""
        self._provenance = provenance
        self._clock = clock

    def carry_out(self, action: Action, state: CoordinationState) -> Iterable[Fact]:
        """Do one thing; its outcome, if it has one. `state` is what is known before it."""
        match action:
            case f.WriteBegun():
                return self._begin(action)
            case f.SkipCommitted():
                self.cuts.skip(action)
            case f.PlanBarrier():
                return self.cuts.plan(action)
            case f.SendBarrier():
                return [self.cuts.send(action)]
            case f.CutHere():
                return [self.cuts.here(action)]
            case f.CutAtBarrierOrHere():
                return [self.cuts.here_or_aligned(action)]
            case f.Look():
                return self.cuts.look(action, [pending.id for pending in state.waiting(action.query)])
            case f.TakeSnapshot():
                self._take_snapshot(action)
            case f.KeepChannel():
                self._keep_channel(action)
            case f.CollectSnapshots():
                return (fact for id, work in list(self.work.items()) for fact in work.collect(id))
            case f.Assemble():
                return self._assemble(action, state)
            case f.Export():
                return self._export(action)
            case f.WriteManifest():
                self.lease.check()
                refused = self.records.complete(self._manifest(action.id))
                return [f.ManifestRefused(action.id, refused) if refused else f.ManifestWritten(action.id)]
            case f.Retain():
                self.lease.check()  # who slept here must not delete what its successor may go back to
                self.retained.add(self._manifest(action.id), held=action.held)
            case f.Release():
                self.snapshots.release(action.id)
            case f.Subsume():
                return self._subsume(action)
            case f.ReportCompleted():
                manifest = self._manifest(action.one.id)
                self.outside.report(completed(action.one, manifest, action.subsumed))
            case f.AnswerWish():
                self._answer(action)
            case f.IssuePermit():
                self.outside.completed(action.id)
            case f.Discard():
                self.work.pop(action.id, None)
            case f.WriteAborted():
                self.records.abort(action.id, action.reason, action.detail)
            case f.RetryAborts():
                self.records.write_aborts()
            case f.NotifyAborted():
                self.outside.aborted(action.id, action.why)
            case f.Observe():
                return [self._observe(action)]
            case f.Report():
                self.outside.report(action.message)
            case f.Fail():
                self.outside.give_up(action.error)
            case f.PassPoint():
                faults.point(action.point)
            case f.StartSweep():
                self.aside(partial(self.snapshots.sweep, self.retained.all()))
            case _:
                raise AssertionError(f"nothing carries out {action}")
        return ()

    def aside(self, work: Callable[[], None]) -> None:
        """Delete files next to everything else; what fails is left to the next sweep."""
        self.workers.aside(
            work, lambda error: self.outside.report(m.Noted(f"{NOT_DELETED}: {reason_of(error)}"))
        )

    def needs(self, state: CoordinationState, name: QueryName, batch: BatchId) -> bool:
        """Whether a pending checkpoint still needs what Spark would purge after this batch of a query."""
        for id, pending in state.pending.items():
            if name not in pending.found:
                if not self.cuts[name].caught_up(batch):
                    return True
            elif name not in self.work[id].pinned and not self.work[id].queries[name].done():
                return True
        return False

    # 1 trigger

    def _begin(self, action: f.WriteBegun) -> Iterable[Fact]:
        self.lease.check()
        at = self._clock.now().isoformat()
        about = {"alignment": action.alignment.value, "trigger": action.trigger, "begun_at": at}
        begun = self.records.begin(about)
        self.work[begun.id] = Work()
        if begun.refused:
            return [f.BegunRefused(action, begun.id, at, begun.refused)]
        return [f.BegunWritten(action, begun.id, at)]

    def _observe(self, action: f.Observe) -> f.Observed:
        standing = frozenset(self.outside.standing())
        if not action.may_begin:
            return f.Observed(standing)
        running = self.outside.running()
        down = "" if running else self.outside.down()
        return f.Observed(standing, True, running, self.cuts.without_position(standing), down)

    # 4 snapshot

    def _take_snapshot(self, action: f.TakeSnapshot) -> None:
        work, name = self.work.get(action.id), action.query
        if work is None:
            return  # it was aborted meanwhile
        keep = partial(self.snapshots.of_query, full=action.full, pinned=partial(work.pinned.add, name))
        future = self.workers.submit(keep, action.id, self.cuts[name], action.found)
        work.await_query(action.id, name, future)

    def _keep_channel(self, action: f.KeepChannel) -> None:
        work = self.work.get(action.id)
        if work is None:
            return
        keep = partial(self.snapshots.of_channel, full=action.full)
        future = self.workers.submit(keep, action.id, action.channel, action.found, action.readers)
        work.await_channel(action.id, action.channel, future)

    # 6 complete

    def _assemble(self, action: f.Assemble, state: CoordinationState) -> Iterable[Fact]:
        self.lease.check()
        faults.point("checkpoint.completing")
        one, work = action.one, self.work[action.one.id]
        queries = {name: future.result() for name, future in work.queries.items()}
        channels = {name: future.result() for name, future in work.channels.items()}
        seconds = one.since(self._clock.monotonic())
        at = self._clock.now().isoformat()
        copied_to = self.snapshots.pins.copied_to
        work.manifest = manifest_of(
            one, state.flow, queries, channels, self._provenance, copied_to, at, seconds
        )
        return [f.Assembled(one.id, seconds, work.manifest.inconsistencies())]

    def _export(self, action: f.Export) -> Iterable[Fact]:
        pins = self.snapshots.pins
        if not pins.copied_to:
            return [f.Exported(action.id)]
        work = self.work[action.id]
        work.await_export(action.id, self.workers.submit(pins.export_manifest, self._manifest(action.id)))
        return []

    def _manifest(self, id: CheckpointId) -> Manifest:
        manifest = self.work[id].manifest
        assert manifest is not None
        return manifest

    # 7 notify

    def _subsume(self, action: f.Subsume) -> Iterable[Fact]:
        """What fails is tried again after the next one; who waits for this one is answered in any case."""
        since, ids = self._clock.monotonic(), []
        try:
            self.lease.check()
            dropped = self.retained.subsume(action.retained)
            ids = list(dropped.ids)
            if dropped.left is not None:
                self.aside(dropped.left)
            self.snapshots.trim(action.trim)
        except Exception as error:
            self.outside.report(m.Noted(f"checkpoint {action.one.id} is complete, but {reason_of(error)}"))
        return [f.Subsumed(action, ids, self._clock.monotonic() - since)]

    def _answer(self, action: f.AnswerWish) -> None:
        manifest = None if action.reason else self._manifest(action.id or CheckpointId(0))
        if action.wish.holder is not None:
            self.holders.pop(action.wish.holder)(manifest, action.reason)
            return
        body: dict[str, Any] = {"reason": action.reason} if action.reason else {}
        if action.id is not None:
            body = {"id": action.id, **body}
        if manifest is not None:
            body |= {"seconds": manifest.seconds}
            body |= {"new_bytes": manifest.new_bytes, "full_bytes": manifest.full_bytes}
        self.outside.report(m.Answered(action.wish.request, manifest is not None, body))
