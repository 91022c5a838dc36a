"""The coordinator: one thread of one attempt, with the steps of the real one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from tests.protocol.model.checks import check_cut, check_readable, check_retained
from tests.protocol.model.spark import Leased, QueryRun, Steps
from tests.protocol.model.stores import Flaky
from tests.protocol.model.world import RECORDS, GoneError, Graph, Manifest, World
from weir.channel import log as channel_log
from weir.channel.log import cut_files, first_kept
from weir.channel.position import Mode, Position, Status, joint_barrier, positions_in
from weir.errors import FencedError, OutcomeUnknownError
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, QueryName
from weir.protocol import checkpoints as decide
from weir.protocol.checkpoints import AckOutcome, Alignment, Cut, Pending, Track, TriggerFacts
from weir.storage import Created, Store

MAX_CONCURRENT = 2
ALIGNMENTS = {
    Mode.ALIGNED: Alignment.ALIGNED,
    Mode.AT_LEAST_ONCE: Alignment.AT_LEAST_ONCE,
    Mode.UNALIGNED: Alignment.UNALIGNED,
}


class LostTrackError(Exception):
    """Spark has purged a batch that nobody has looked at: any checkpoint may have its cut there."""


class Running(Leased, Protocol):
    """A driver, as its coordinator sees it."""

    leased: bool
    runs: dict[str, QueryRun]


@dataclass
class Found:
    """Where a query was cut."""

    batch: BatchId
    behind: int | None = None
    unaligned: bool = False


@dataclass
class Flight:
    """A pending checkpoint, with what the coordinator knows of it."""

    state: Pending
    found: dict[str, Found] = field(default_factory=dict)
    behind: set[str] = field(default_factory=set)
    """Roots whose barrier comes behind the batch that they are in."""
    kept: dict[str, list[str]] = field(default_factory=dict)
    """The files that it keeps, by `queries/<name>` and `channels/<name>`."""

    @property
    def id(self) -> CheckpointId:
        return self.state.id


class Coordinator:
    """One thread of one attempt, that looks after all checkpoints."""

    def __init__(self, world: World, driver: Running) -> None:
        self.world = world
        self.records = Flaky(world.checkpoints, world, RECORDS)
        self.driver = driver
        self.flights: dict[CheckpointId, Flight] = {}
        self.ended: set[CheckpointId] = set()
        self.unmarked: set[CheckpointId] = set()
        """Ended by an abort that is not durable yet."""
        self.last_id = CheckpointId(0)
        self.requests: deque[str] = deque()
        self.late: list[tuple[CheckpointId, Cut]] = []
        """Acks of snapshots that were still under way when their checkpoint ended."""
        self.steps = self._work()
        self._tracks: dict[str, Track] = {}

    def prepare(self) -> Steps:
        """Before any query runs, and after every channel was fenced: abort what has not ended."""
        there = {kind: self.world.ids(kind) for kind in ("begun", "chk", "aborted")}
        recorded = (id for ids in there.values() for id in ids)
        self.last_id = decide.last_id(recorded, self.world.restored_from, self._barriers())
        for id in sorted(there["begun"] - there["chk"] - there["aborted"]):
            yield
            yield from self._mark(id)
        yield
        self._sweep()
        for name in self.world.graph.leaves:
            self._tracks[name] = Track(self.world.last(name, "commits"))

    def _barriers(self) -> list[CheckpointId]:
        """Those that the live files know."""
        found = [run.writer.newest_barrier() for run in self.driver.runs.values() if run.writer is not None]
        for name, inputs in self.world.graph.inputs.items():
            ends = self.world.ends(name, self.world.last(name, "commits")) if inputs else []
            found += [end.barrier for end in ends]
        return found

    def _sweep(self) -> None:
        """Delete what no completed checkpoint refers to: it is of one that was aborted."""
        needed = [self.world.manifest(id).files for id in self.world.completed()]
        for name in decide.unreferenced(self.world.pins.list(""), needed):
            self.world.pins.delete(name)

    def _work(self) -> Steps:
        while True:
            if self.requests:
                request = self.requests[0]
                yield from self._do(request)
                self.requests.popleft()
            yield from self._follow_roots()
            for flight in list(self.flights.values()):
                yield from self._guarded(flight, self._advance(flight))
            yield

    def _do(self, request: str) -> Steps:
        if request == "trigger":
            yield from self._begin()
        elif request == "abort all":
            for flight in list(self.flights.values()):
                yield from self._abort(flight)
                yield
        elif request.startswith("stands "):
            for flight in list(self.flights.values()):
                stands = request.removeprefix("stands ")
                yield from self._guarded(flight, self._cut_here(flight, [stands]))
        elif self.flights:
            flight = self.flights[(max if request == "expire newest" else min)(self.flights)]
            if request.startswith("expire"):
                yield from self._abort(flight)
            elif flight.state.alignment is Alignment.ALIGNED:
                yield from self._guarded(flight, self._cut_here(flight))

    def _guarded(self, flight: Flight, steps: Steps) -> Steps:
        try:
            yield from steps
        except (GoneError, OutcomeUnknownError):
            yield from self._abort(flight)
        except (LostTrackError, FencedError) as error:
            for one in list(self.flights.values()):
                yield from self._abort(one)
            if isinstance(error, FencedError):
                raise

    def _begin(self) -> Steps:
        alignment = ALIGNMENTS[self.world.mode]
        alone = any(f.state.alignment is Alignment.UNALIGNED for f in self.flights.values())
        running = all(run.alive for run in self.driver.runs.values())
        facts = TriggerFacts(
            0.0, running, False, len(self.flights), alone, None, alignment, MAX_CONCURRENT, 0.0
        )
        if decide.may_trigger(facts) is not None:
            return
        self.driver.check()
        yield
        highest = self.world.highest
        self.last_id = id = CheckpointId(self.last_id + 1)
        try:
            body = json.dumps({"attempt": self.driver.attempt}).encode()
            while self.records.create(f"begun-{id}.json", body) is not Created.NOW:
                there = json.loads(self.world.checkpoints.get(f"begun-{id}.json") or b"{}")
                if decide.is_abandoned(there.get("attempt"), Attempt(self.driver.attempt)):
                    yield from self._mark(id)
                self.last_id = id = CheckpointId(id + 1)
        except OutcomeUnknownError:  # it may be there: nobody may wait for it, nor take its number
            self.ended.add(id)
            yield from self._mark(id)
            return
        assert not self.driver.leased or id > highest, f"{id} begins, and there was {highest}"
        assert not self.driver.leased or id > max(self.world.barriers()), f"{id} has a barrier already"
        self._skip()
        queries = frozenset(map(QueryName, self.world.graph.order))
        self.flights[id] = flight = Flight(Pending(id, alignment, 0.0, queries))
        yield
        if alignment is Alignment.UNALIGNED:
            yield from self._guarded(flight, self._cut_here(flight))
        else:
            flight.behind.update(self.world.graph.roots)
            yield from self._follow_roots()

    def _follow_roots(self) -> Steps:
        """Append barriers where no batch is waited for; one for all checkpoints that wait for it."""
        for name in self.world.graph.roots:
            waiting = [one for one in self.flights.values() if name in one.behind]
            if not waiting or name in self.world.busy:
                continue
            try:
                found = self._barrier(name, waiting[-1].id)
            except OutcomeUnknownError:
                for flight in list(self.flights.values()):
                    yield from self._abort(flight)
                return
            for flight in waiting:
                self._found(flight, name, found)
            yield

    def _found(self, flight: Flight, name: str, found: Found) -> None:
        flight.found[name] = found
        flight.behind.discard(name)

    def _barrier(self, name: str, id: CheckpointId) -> Found:
        writer = self.driver.runs[name].writer
        if writer is None:
            return Found(self.world.last(name, "commits"))
        cut = writer.append_barrier(id)
        return Found(cut.batch, cut.entry + 1)

    def _cut_here(self, flight: Flight, names: Sequence[str] = ()) -> Steps:
        """Nobody waits: the last committed batch of whoever is missing, downstream first; or of these."""
        for name in downstream_first(self.world.graph):
            if name in flight.found or (names and name not in names):
                continue
            writer = self.driver.runs[name].writer
            if writer is None:
                last = self.world.last(name, "commits")
                unaligned = flight.state.alignment is Alignment.UNALIGNED
                reached = None if unaligned else self._reached(name, flight.id)
                found = Found(last if reached is None else reached, unaligned=reached is None)
            elif flight.state.alignment is Alignment.UNALIGNED:
                cut = writer.here()
                found = Found(cut.batch, cut.entry, unaligned=True)
            else:
                found = replace(self._barrier(name, flight.id), unaligned=True)
            self._found(flight, name, found)
            yield

    def _advance(self, flight: Flight) -> Steps:
        for name in self.world.graph.order:
            if name in flight.behind:
                continue
            if name not in flight.found:
                found = self._aligned(name, flight.id)
                yield
                if found is None:
                    continue
                self._found(flight, name, found)
            if f"queries/{name}" not in flight.kept:
                self._keep_query(flight, name)
                yield
                self._take_ack(flight, name)
        if len(flight.found) < len(self.world.graph.order):
            return
        for name in self.world.graph.writers:
            if f"channels/{name}" not in flight.kept:
                self._keep_channel(flight, name)
                yield
        if flight.state.complete:
            yield from self._complete(flight)

    def _aligned(self, name: str, id: CheckpointId) -> Found | None:
        writer = self.driver.runs[name].writer
        if writer is not None:
            writer.look()
            cut = writer.cut(id)
            return None if cut is None else Found(cut.batch, cut.entry + 1)
        batch = self._reached(name, id)
        return None if batch is None else Found(batch)

    def _reached(self, name: str, id: CheckpointId) -> BatchId | None:
        """The first committed batch that has the barrier on all channels; every batch is looked at."""
        track = self._tracks[name]
        try:
            track = track.follow(self.world.last(name, "commits"), partial(self._barrier_behind, name))
        except GoneError as error:
            raise LostTrackError from error
        self._tracks[name] = track
        return track.cut(id)

    def _barrier_behind(self, name: str, batch: BatchId) -> CheckpointId:
        return joint_barrier(self.world.plan_of(name, batch)) or CheckpointId(0)

    def _skip(self) -> None:
        """Batches that are committed before a checkpoint begins can only be cuts of those before it."""
        found = [{QueryName(name) for name in flight.found} for flight in self.flights.values()]
        for name in self.world.graph.leaves:
            newest = self.world.last(name, "commits")
            self._tracks[name] = self._tracks[name].skip(QueryName(name), newest, found)

    def _keep_query(self, flight: Flight, name: str) -> None:
        if name in self.world.declines:
            self.world.declines.remove(name)
            raise GoneError(f"{name} declines")
        batch = flight.found[name].batch
        names = []
        if batch != NO_BATCH:
            names = [f"offsets/{batch}", f"commits/{batch}"]
            names += [] if name in self.world.channels else [self.world.state_key(name, batch)]
        self._pin(flight, f"queries/{name}", self.world.queries[name], names)

    def _keep_channel(self, flight: Flight, name: str) -> None:
        behind = flight.found[name].behind
        assert behind is not None
        first = first_kept(self._places(flight, name), behind)
        names = cut_files(self.world.channels[name], first, behind)
        self._pin(flight, f"channels/{name}", self.world.channels[name], names)

    def _places(self, flight: Flight, channel: str) -> list[int]:
        """Where the readers of a channel stand in the checkpoint."""
        places = []
        for reader in self.world.graph.readers(channel):
            ends = self._positions(reader, flight.found[reader].batch)
            inputs = self.world.graph.inputs[reader]
            places += [end.entry for end, one in zip(ends, inputs, strict=True) if one == channel]
        return places

    def _positions(self, name: str, batch: BatchId) -> list[Position]:
        """Where a query stood behind a batch, as its kept files say; Spark may have purged its own."""
        text = self.world.pins.get(f"queries/{name}/offsets/{batch}") or b""
        several = {channel: iter(many) for channel, many in positions_in(text.decode()).items()}
        return [next(several[one]) if several else Position() for one in self.world.graph.inputs[name]]

    def _pin(self, flight: Flight, folder: str, store: Store, names: Sequence[str]) -> None:
        for name in names:
            data = store.get(name)
            if data is None:
                raise GoneError(f"{folder}/{name}")
            self.world.pins.create(f"{folder}/{name}", data)
        flight.kept[folder] = [f"{folder}/{name}" for name in names]

    def _take_ack(self, flight: Flight, name: str) -> None:
        found = flight.found[name]
        self._ack(flight.id, Cut(QueryName(name), found.batch, found.unaligned))

    def _ack(self, id: CheckpointId, cut: Cut) -> None:
        pending = {one.id: one.state for one in self.flights.values()}
        after, outcome = decide.take_ack(pending, self.ended, id, cut)
        if id in self.ended:
            assert outcome is AckOutcome.LATE and after == pending, "a late ack changed something"
        elif outcome is AckOutcome.SUCCESS:
            assert cut.query in pending[id].missing
            self.flights[id].state = after[id]
        else:
            assert after == pending

    def late_ack(self) -> None:
        """A snapshot that outlived its checkpoint reports."""
        if self.late:
            self._ack(*self.late.pop())

    def _complete(self, flight: Flight) -> Steps:
        manifest = self._manifest(flight)
        self.driver.check()
        yield
        if decide.inconsistencies(manifest.readings(self.world.graph), manifest.written()):
            yield from self._abort(flight)
            return
        created = yield from self._record(manifest)
        if not created:
            yield from self._abort(flight)
            return
        del self.flights[flight.id]
        self.ended.add(flight.id)
        check_cut(self.world, manifest)
        yield
        self.driver.check()
        assert self.world.status(flight.id) is Status.COMPLETED
        yield from self._subsume()
        yield from self._trim(manifest)

    def _record(self, manifest: Manifest) -> Generator[None, None, bool]:
        """Create `chk-k`. Without an answer it is looked for: if it is there, others may have seen it."""
        key = f"chk-{manifest.id}.json"
        try:
            return self.records.create(key, manifest.dump()) is Created.NOW
        except OutcomeUnknownError:
            yield
            return self.world.checkpoints.exists(key)

    def _manifest(self, flight: Flight) -> Manifest:
        made = Manifest(flight.id, flight.state.alignment)
        for name, found in flight.found.items():
            made.batches[name], made.unaligned[name] = found.batch, found.unaligned
            made.positions[name] = self._positions(name, found.batch)
            if found.behind is not None:
                made.behind[name] = found.behind
                made.first[name] = first_kept(self._places(flight, name), found.behind)
        made.files = [file for files in flight.kept.values() for file in files]
        return made

    def _subsume(self) -> Steps:
        completed = self.world.completed()
        manifests = {id: self.world.manifest(id) for id in completed}
        old = decide.subsumed(completed, self.world.retained)
        for id in old:
            self.world.checkpoints.delete(f"begun-{id}.json")
            self.world.checkpoints.delete(f"chk-{id}.json")
            yield
        needed = [manifests[id].files for id in completed if id not in old]
        needed += [files for flight in self.flights.values() for files in flight.kept.values()]
        for name in decide.unreferenced((file for id in old for file in manifests[id].files), needed):
            self.world.pins.delete(name)
        check_retained(self.world)

    def _trim(self, manifest: Manifest) -> Steps:
        """Delete what every reader has behind it, unless an older checkpoint still needs it."""
        if any(id < manifest.id for id in self.flights):
            return
        for name in self.world.graph.writers:
            places = [manifest.behind[name]]
            for reader in self.world.graph.readers(name):
                inputs = self.world.graph.inputs[reader]
                ends = zip(manifest.positions[reader], inputs, strict=True)
                places += [end.entry for end, one in ends if one == name]
            channel_log.trim(self.world.channels[name], min(places))
            check_readable(self.world, name)
            yield

    def _abort(self, flight: Flight) -> Steps:
        self.flights.pop(flight.id, None)
        self.ended.add(flight.id)
        yield from self._mark(flight.id)
        self.late += [(flight.id, Cut(QueryName(name), found.batch)) for name, found in flight.found.items()]

    def _mark(self, id: CheckpointId) -> Steps:
        """Make an abort durable; it is tried until there is an answer."""
        self.unmarked.add(id)
        while True:
            with suppress(OutcomeUnknownError):
                self.records.create(f"aborted-{id}.json", b"{}")
                break
            yield
        self.unmarked.remove(id)


def downstream_first(graph: Graph) -> list[str]:
    return graph.order[::-1]
