"""The hands of one attempt's checkpoints: what the shipped reducer asks for, done to a job in memory.

No decision is here. The reducer (`protocol/coordination.py`), the cuts (`checkpoint/trigger.py`), the
records, the manifest and the channels are those that are shipped. Each action stops in front of what
others can see, so that a crash or a zombie comes between any two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Protocol

from tests.protocol.model.checks import check_cut, check_readable, check_retained
from tests.protocol.model.spark import Leased, QueryRun, Steps
from tests.protocol.model.stores import Flaky
from tests.protocol.model.world import JOB, RECORDS, Records, World
from weir.channel import log as channel_log
from weir.channel.position import Mode, Status
from weir.checkpoint import records, retention
from weir.checkpoint.complete import manifest_of
from weir.checkpoint.manifest import ChannelCut, File, Manifest, Provenance, QueryCut
from weir.checkpoint.trigger import Cuts
from weir.checkpoint.vertex import Vertex, reason_of
from weir.clock import ManualClock
from weir.errors import FencedError, OutcomeUnknownError
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, QueryName
from weir.protocol import checkpoint as decide
from weir.protocol import checkpoint_facts as f
from weir.protocol import coordination
from weir.protocol.checkpoint import AbortReason, Alignment
from weir.protocol.checkpoint_facts import Action, Fact
from weir.protocol.checkpoint_state import CheckpointWish, CoordinationState, Flow, Rules, Triggers, Underway
from weir.spark.closure import GoneError
from weir.storage import Store

Outcome = Generator[None, None, Iterable[Fact]]
"""What an action does, step by step; its value are the facts that come of it."""
MAX_CONCURRENT = 2
ALIGNMENTS = {
    Mode.ALIGNED: Alignment.ALIGNED,
    Mode.AT_LEAST_ONCE: Alignment.AT_LEAST_ONCE,
    Mode.UNALIGNED: Alignment.UNALIGNED,
}
NOW, PATIENCE, TIMEOUT = 1e6, 1000.0, 2000.0
"""The time stands still; a checkpoint that is to be late is made older."""
RUNNING = BatchId(1)
"""The batch that a busy root is in, as far as its barrier is concerned."""


class Running(Leased, Protocol):
    """A driver, as its coordinator sees it."""

    leased: bool
    runs: dict[str, QueryRun]


class Files:
    """The logs of a query, as a vertex reads them."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def last_committed(self) -> BatchId:
        return self._world.last(self._name, "commits")

    def newest_committed(self, _known: BatchId) -> BatchId:
        return self.last_committed()

    def last_planned(self) -> BatchId:
        return self._world.last(self._name, "offsets")


class MemoryVertex(Vertex):
    """The real one, whose query's files are in memory."""

    def __init__(self, world: World, run: QueryRun) -> None:
        inputs = [QueryName(one) for one in dict.fromkeys(world.graph.inputs[run.name])]
        files = Files(world, run.name)
        super().__init__(QueryName(run.name), files, world.folder, inputs, run.writer, rewindable=True)  # type: ignore[arg-type]
        self._world = world

    def _offsets(self, batch: BatchId) -> str:
        return "" if batch == NO_BATCH else self._world.plan_of(self.name, batch)


class Kept:
    """What is kept for one checkpoint."""

    def __init__(self) -> None:
        self.queries: dict[QueryName, QueryCut] = {}
        self.channels: dict[QueryName, ChannelCut] = {}
        self.manifest: Manifest | None = None

    @property
    def names(self) -> list[str]:
        return [file.path for cut in (*self.queries.values(), *self.channels.values()) for file in cut.files]


class Hands:
    """One thread of one attempt, that looks after all checkpoints."""

    def __init__(self, world: World, driver: Running) -> None:
        self.world = world
        self.driver = driver
        self.store = Records(Flaky(world.checkpoints, world, RECORDS))
        self.records = records.Records(self.store, JOB, Attempt(driver.attempt), ManualClock())
        order = {QueryName(name): unique(inputs) for name, inputs in world.graph.inputs.items()}
        self.state = CoordinationState(
            Flow(order, frozenset(map(QueryName, world.graph.writers))),
            Rules(
                max_concurrent=MAX_CONCURRENT,
                timeout=TIMEOUT,
                turns_after=PATIENCE,
                alignment=ALIGNMENTS[world.mode],
                retained=world.retained,
            ),
            Triggers(NOW),
        )
        self.cuts = Cuts([], lambda: self.standing)
        self.standing: set[QueryName] = set()
        self.requests: deque[str] = deque()
        self.kept: dict[CheckpointId, Kept] = {}
        self.taken: list[Fact] = []
        """What was kept and is not reported yet."""
        self.slow: list[f.TakeSnapshot | f.KeepChannel] = []
        """What somebody is still about to keep."""
        self.late: list[f.SnapshotTaken] = []
        """Acks of snapshots that were still under way when their checkpoint ended."""
        self.steps = self._work()

    @property
    def busy(self) -> bool:
        """Whether something is left to do."""
        unwritten = self.records._unwritten
        return bool(self.requests or self.state.pending or self.state.wishes or unwritten)

    @property
    def last_id(self) -> CheckpointId:
        return self.records._last

    @property
    def unmarked(self) -> set[CheckpointId]:
        """Ended by an abort that is not durable yet."""
        return set(self.records._unwritten)

    def prepare(self) -> Steps:
        """Before any query runs, and after every channel was fenced: abort what has not ended."""
        self.cuts = Cuts([MemoryVertex(self.world, run) for run in self.driver.runs.values()], self._standing)
        for id in self.records.learn(self.world.restored_from, self.cuts.barriers()):
            yield
            self.records.abort(id, AbortReason.RESTARTED, "")
        yield
        yield from self._feed(f.Learned(self.world.completed()))

    def replace(self, run: QueryRun) -> None:
        """A query runs again, as a new run."""
        self.cuts.replace(MemoryVertex(self.world, run))

    def late_ack(self) -> None:
        """A snapshot that outlived its checkpoint reports."""
        if self.late:
            before = self.state.pending
            for _ in self._feed(self.late.pop()):
                pass
            assert self.state.pending == before, "a late ack changed something"

    def _standing(self) -> set[QueryName]:
        return self.standing

    def _work(self) -> Steps:
        while True:
            asked = bool(self.requests)
            if asked:
                yield from self._guarded(self._do(self.requests[0]))
            yield from self._guarded(self._feed(f.Ticked()))
            if asked:
                self.requests.popleft()
            self.standing = set()
            yield

    def _do(self, request: str) -> Steps:
        if request == "trigger":
            yield from self._feed(f.Asked(CheckpointWish("somebody")))
        elif request == "abort all":
            yield from self._feed(f.QueryDown(QueryName("one")))
        elif request.startswith("stands "):
            self.standing = {QueryName(request.removeprefix("stands "))}
        elif self.state.pending:
            id = (max if request == "expire newest" else min)(self.state.pending)
            self._make_older(self.state.pending[id], TIMEOUT if request.startswith("expire") else PATIENCE)

    def _make_older(self, one: Underway, seconds: float) -> None:
        older = replace(one, state=replace(one.state, begun_at=NOW - seconds))
        self.state = self.state.with_pending(older)

    def _guarded(self, steps: Steps) -> Steps:
        """As the thread does it: whatever goes wrong aborts what is pending."""
        try:
            yield from steps
        except (OutcomeUnknownError, FencedError) as error:
            if isinstance(error, FencedError) and not self.driver.leased:
                raise
            yield from self._feed(f.CoordinationFailed(reason_of(error)))
            if isinstance(error, FencedError):
                raise

    def _feed(self, fact: Fact) -> Steps:
        """As the thread does it: each outcome before the next action."""
        before = self.state
        self.state, actions = coordination.step(self.state, fact, NOW)
        for id in before.pending.keys() - self.state.pending.keys():
            one = before.pending[id]
            self.late += [f.SnapshotTaken(id, name, found) for name, found in one.found.items()]
        for action in actions:
            outcomes = yield from self._carry_out(action)
            for outcome in outcomes:
                yield from self._feed(outcome)

    def _carry_out(self, action: Action) -> Outcome:
        match action:
            case f.WriteBegun():
                return (yield from self._begin(action))
            case f.SkipCommitted():
                self.cuts.skip(action)
            case f.PlanBarrier():
                entered = () if action.query in self.world.busy else [f.SegmentEntered(action.query, RUNNING)]
                return [f.BatchPlanned(action.id, action.query, RUNNING), *entered]
            case f.SendBarrier() | f.CutHere() | f.CutAtBarrierOrHere():
                if isinstance(action, f.CutAtBarrierOrHere):
                    yield  # the query gets to the barrier, and past it, after the look
                found = self._cut(action)
                yield
                return [found]
            case f.Look():
                return (yield from self._look(action))
            case f.TakeSnapshot() | f.KeepChannel():
                self._keep(action)
                yield
            case f.CollectSnapshots():
                slow, self.slow = self.slow, []
                for one in slow:
                    self._keep(one)
                taken, self.taken = self.taken, []
                return taken
            case f.Assemble():
                return [self._assemble(action.one)]
            case f.Export():
                return [f.Exported(action.id)]
            case f.WriteManifest():
                return (yield from self._write_manifest(action.id))
            case f.Subsume():
                return (yield from self._subsume(action))
            case f.Observe():
                running = all(run.alive for run in self.driver.runs.values())
                return [f.Observed(frozenset(self.standing), action.may_begin, running)]
            case _:
                yield from self._do_plainly(action)
        return []

    def _do_plainly(self, action: Action) -> Steps:
        """What has no outcome."""
        match action:
            case f.WriteAborted():
                self.records.abort(action.id, action.reason, action.detail)
                yield
            case f.RetryAborts():
                if self.unmarked:
                    self.records.write_aborts()
                    yield
            case f.Retain():
                self.driver.check()
                assert self.world.status(action.id) is Status.COMPLETED
            case f.Discard():
                self.kept.pop(action.id, None)
            case f.StartSweep():
                self._sweep()

    def _begin(self, action: f.WriteBegun) -> Outcome:
        self.driver.check()
        yield
        highest, barriers = self.world.highest, self.world.barriers()
        begun = self.records.begin({"trigger": action.trigger})
        self.kept[begun.id] = Kept()
        if begun.refused:
            return [f.BegunRefused(action, begun.id, "", begun.refused)]
        assert not self.driver.leased or begun.id > highest, f"{begun.id} begins, and there was {highest}"
        assert not self.driver.leased or begun.id > max(barriers), f"{begun.id} has a barrier already"
        yield
        return [f.BegunWritten(action, begun.id, "")]

    def _cut(self, action: f.SendBarrier | f.CutHere | f.CutAtBarrierOrHere) -> Fact:
        match action:
            case f.SendBarrier():
                return self.cuts.send(action)
            case f.CutHere():
                return self.cuts.here(action)
            case f.CutAtBarrierOrHere():
                return self.cuts.here_or_aligned(action)

    def _look(self, action: f.Look) -> Outcome:
        name = action.query
        facts = list(self.cuts.look(action, [one.id for one in self.state.waiting(name)]))
        if not self.world.graph.inputs[name]:
            return [] if name in self.world.busy else [f.SegmentEntered(name, RUNNING)]
        if facts:
            yield
        return facts

    def _keep(self, action: f.TakeSnapshot | f.KeepChannel) -> None:
        """At once, or later where the storage is slow: a newer checkpoint may complete before."""
        if action.id not in self.state.pending:
            return
        if self.world.slow and action.id == min(self.state.pending):
            self.slow.append(action)
        elif isinstance(action, f.KeepChannel):
            self.taken.append(self._keep_channel(action))
        else:
            self.taken.append(self._take_snapshot(action))

    def _take_snapshot(self, action: f.TakeSnapshot) -> Fact:
        name, found = action.query, action.found
        try:
            if name in self.world.declines:
                self.world.declines.remove(name)
                raise GoneError(f"{name} declines")
            cut = QueryCut(batch=found.batch, unaligned=found.unaligned)
            if found.batch != NO_BATCH:
                names = [f"offsets/{found.batch}", f"commits/{found.batch}"]
                names += [] if name in self.world.channels else [self.world.state_key(name, found.batch)]
                files = self._pin(f"queries/{name}", self.world.queries[name], names)
                positions = self.cuts[name].positions(found.batch)
                places = {one: (place.entry, place.barrier) for one, place in positions.items()}
                cut = cut.model_copy(update={"files": files, "positions": places})
        except GoneError as error:
            return f.KeepFailed(action.id, reason_of(error), name)
        if action.id in self.kept:
            self.kept[action.id].queries[name] = cut
        return f.SnapshotTaken(action.id, name, found)

    def _keep_channel(self, action: f.KeepChannel) -> Fact:
        name, behind = action.channel, action.found.end
        assert behind is not None
        first = channel_log.first_kept(action.readers, behind)
        names = channel_log.cut_files(self.world.channels[name], first, behind)
        try:
            files = self._pin(f"channels/{name}", self.world.channels[name], names)
        except GoneError as error:
            return f.KeepFailed(action.id, reason_of(error))
        if action.id in self.kept:
            cut = ChannelCut(first=first, behind=behind, batch=action.found.batch, files=files)
            self.kept[action.id].channels[name] = cut
        return f.ChannelKept(action.id, name)

    def _pin(self, folder: str, store: Store, names: Iterable[str]) -> tuple[File, ...]:
        files = []
        for name in names:
            data = store.get(name)
            if data is None:
                raise GoneError(f"{folder}/{name}")
            self.world.pins.create(f"{folder}/{name}", data)
            files.append(File(path=f"{folder}/{name}", bytes=len(data), crc=0))
        return tuple(files)

    def _assemble(self, one: Underway) -> Fact:
        self.driver.check()
        kept = self.kept[one.id]
        made_by = Provenance(
            job=JOB,
            generation=1,
            attempt=self.driver.attempt,
            lineage="lineage",
            backend="rocksdb",
            parallelism=1,
            spark="4.3.0",
            weir="1",
        )
        flow = self.state.flow
        kept.manifest = manifest_of(one, flow, kept.queries, kept.channels, made_by, "", "", 0.0)
        wrong = kept.manifest.inconsistencies()
        assert not wrong, f"checkpoint {one.id} is found inconsistent, and was made so: {wrong}"
        return f.Assembled(one.id, 0.0, wrong)

    def _write_manifest(self, id: CheckpointId) -> Outcome:
        self.driver.check()
        yield
        manifest = self.kept[id].manifest
        assert manifest is not None
        if refused := self.records.complete(manifest):
            return [f.ManifestRefused(id, refused)]
        check_cut(self.world, manifest)
        yield
        return [f.ManifestWritten(id)]

    def _subsume(self, action: f.Subsume) -> Outcome:
        completed = self.world.completed()
        manifests = {id: self.world.manifest(id) for id in completed}
        old = decide.subsumed(completed, action.retained)
        for id in old:
            retention.drop(self.store, JOB, [id])
            yield
        needed = [names_of(manifests[id]) for id in completed if id not in old]
        needed += [kept.names for kept in self.kept.values()]
        for name in decide.unreferenced((name for id in old for name in names_of(manifests[id])), needed):
            self.world.pins.delete(name)
        check_retained(self.world)
        for channel, low in action.trim.items():
            channel_log.trim(self.world.channels[channel], low)
            check_readable(self.world, channel)
            yield
        return [f.Subsumed(action, old, 0.0)]

    def _sweep(self) -> None:
        """Delete what no completed or pending checkpoint refers to: it is of one that was aborted."""
        if not self.driver.leased:
            return
        needed = [names_of(self.world.manifest(id)) for id in self.world.completed()]
        needed += [kept.names for kept in self.kept.values()]
        for name in decide.unreferenced(self.world.pins.list(""), needed):
            self.world.pins.delete(name)


def names_of(manifest: Manifest) -> list[str]:
    return [file.path for file in manifest.files()]


def unique(inputs: Iterable[str]) -> list[QueryName]:
    return [QueryName(one) for one in dict.fromkeys(inputs)]
