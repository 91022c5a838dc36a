"""A job of several queries without Spark and without threads, for `test_checkpoint_machine.py`.

Modelled are Spark (offset and commit logs, planned batches that run again with their old ends,
batches without data, readers polled one after the other, purging), the drivers with their leases, and
the coordinator with its seven steps. Real are the channels (log, writer, trimming, the files of a cut),
what a reader learns from files and where it goes, and every decision about checkpoints. Each actor is
a generator that stops in front of every step that others can see: a crash, a zombie and any order of
steps are ordinary inputs.

Rows are numbered words. They go through real segments into the states of the last queries, so that
what was lost or doubled is seen in the end.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from weir.channel import log as channel_log
from weir.channel.facts import Planning
from weir.channel.log import (
    Entry,
    Segment,
    SegmentFile,
    Tail,
    apply,
    counts,
    cut_files,
    decode,
    entry_key,
    first_kept,
    need_entry,
    segments,
)
from weir.channel.position import Bound, Mode, Position, Status, joint_barrier, positions_in, set_back
from weir.channel.writer import ChannelWriter
from weir.errors import FencedError, LostSegmentError, LostStagingError, OutcomeUnknownError
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, QueryName, Run, Token
from weir.job.sinks.contract import Outcome
from weir.job.sinks.staging import folder_of
from weir.protocol import checkpoints as decide
from weir.protocol.checkpoints import AckOutcome, Alignment, Cut, Pending, TriggerFacts
from weir.protocol.ledger import Staged, plan_start
from weir.storage import Created, Store
from weir.storage.objects import ObjectStore

Steps = Iterator[None]
Words = list[str]

BATCHES_KEPT = 3
"""Spark purges its logs behind so many batches."""
MAX_CONCURRENT = 2
IMAGES = 3
ALIGNMENTS = {
    Mode.ALIGNED: Alignment.ALIGNED,
    Mode.AT_LEAST_ONCE: Alignment.AT_LEAST_ONCE,
    Mode.UNALIGNED: Alignment.UNALIGNED,
}


class LeaseOverError(Exception):
    """A driver that was replaced looks at its lease."""


class ConcurrentError(Exception):
    """Spark's CONCURRENT_STREAM_LOG_UPDATE: another run has written this batch."""


class GoneError(Exception):
    """Spark has purged what a cut needs."""


class LostTrackError(Exception):
    """Spark has purged a batch that nobody has looked at: any checkpoint may have its cut there."""


class Interrupted:
    """A store in whose reads something else may happen."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self.url = store.url

    def get(self, key: str) -> bytes | None:
        self._world.tick()
        return self._store.get(key)

    def exists(self, key: str) -> bool:
        self._world.tick()
        return self._store.exists(key)

    def list(self, prefix: str) -> Iterator[str]:
        self._world.tick()
        return self._store.list(prefix)

    def create(self, key: str, data: bytes) -> Created:
        raise AssertionError("readers write nothing")

    def put(self, key: str, data: bytes) -> None:
        raise AssertionError("readers write nothing")

    def delete(self, key: str) -> None:
        raise AssertionError("readers write nothing")


class Flaky(Interrupted):
    """A channel's store as its writers see it: a `create` may fail without an answer."""

    def __init__(self, store: Store, world: World, name: str) -> None:
        super().__init__(store, world)
        self._name = name

    def get(self, key: str) -> bytes | None:
        return self._store.get(key)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def list(self, prefix: str) -> Iterator[str]:
        return self._store.list(prefix)

    def create(self, key: str, data: bytes) -> Created:
        left = self._world.failures.get(self._name)
        if left is not None and key.startswith("log/"):
            self._world.failures[self._name] = left - 1
            if left == 0:
                del self._world.failures[self._name]
                raise OutcomeUnknownError(verb="create", path=key, reason="no answer", root=self.url)
        created = self._store.create(key, data)
        if created is Created.NOW and key.startswith("log/"):
            self._world.entered(self._name, key, decode(json.loads(data)))
        return created

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        self._store.delete(key)


class Writer(ChannelWriter):
    """The real writer, with one small file for each batch, written without Spark."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name, "memory://", "memory://", Flaky(world.channels[name], world, name))
        self._query = world.queries[name]

    def write(self, words: Words, staged: Staged) -> None:
        key = f"{folder_of(staged.batch, staged.token)}/part-0"
        self._store.put(key, json.dumps(words).encode())

    def _written(self, staged: Staged) -> list[SegmentFile]:
        return [SegmentFile("part-0", 1, 1)]


@dataclass(frozen=True)
class Graph:
    """For each query the queries whose channels it reads; a stream comes before its readers."""

    inputs: Mapping[str, Sequence[str]]

    @property
    def order(self) -> list[str]:
        return list(self.inputs)

    @property
    def roots(self) -> list[str]:
        return [name for name, inputs in self.inputs.items() if not inputs]

    @property
    def writers(self) -> list[str]:
        return [name for name in self.inputs if self.readers(name)]

    @property
    def leaves(self) -> list[str]:
        return [name for name in self.inputs if not self.readers(name)]

    @property
    def joins(self) -> bool:
        """Some query has two inputs; without one, at-least-once is exact."""
        return any(len(inputs) > 1 for inputs in self.inputs.values())

    def readers(self, channel: str) -> list[str]:
        return [name for name, inputs in self.inputs.items() if channel in inputs]

    def emitted(self, name: str, rows: Mapping[str, int]) -> Counter[str]:
        """What a query makes of so many rows of each root, once everything has come through."""
        if not self.inputs[name]:
            return Counter(f"{name}{number}" for number in range(rows[name]))
        every: Counter[str] = Counter()
        for number, channel in enumerate(self.inputs[name]):
            every.update(f"{number}.{word}" for word in self.emitted(channel, rows).elements())
        return every


class World:
    """What is stored, and what no process can forget."""

    def __init__(self, graph: Graph, mode: Mode, retained: int) -> None:
        self.graph = graph
        self.mode = mode
        self.retained = retained
        self.queries: dict[str, Store] = {name: ObjectStore("memory://") for name in graph.order}
        self.channels: dict[str, Store] = {name: ObjectStore("memory://") for name in graph.writers}
        self.checkpoints: Store = ObjectStore("memory://")
        self.pins: Store = ObjectStore("memory://")
        self.rows = dict.fromkeys(graph.roots, 0)
        self.attempts = 0
        self.failures: dict[str, int] = {}
        """For each channel: how many more entries can be created before one fails."""
        self.interrupt: Callable[[], None] | None = None
        self.countdown = 0
        self.images: list[Image] = []
        """Checkpoints in which somebody did not stand at the barrier, as they could be restored."""
        self.history: dict[str, list[Entry]] = {name: [] for name in graph.writers}
        """Every entry that a channel ever had, from where it began here."""
        self.tails = dict.fromkeys(graph.writers, Tail())
        self.begins = dict.fromkeys(graph.writers, 0)

    def tick(self) -> None:
        """Somebody reads; what was to come between two reads comes now."""
        if self.interrupt is not None:
            self.countdown -= 1
            if self.countdown <= 0:
                act, self.interrupt = self.interrupt, None
                act()

    # Spark's logs

    def last(self, name: str, log: str) -> BatchId:
        numbers = (int(key.rsplit("/", 1)[1]) for key in self.queries[name].list(log))
        return BatchId(max(numbers, default=NO_BATCH))

    def plan_of(self, name: str, batch: BatchId) -> str:
        data = self.queries[name].get(f"offsets/{batch}")
        if data is None:
            raise GoneError(f"{name}/offsets/{batch}")
        return data.decode()

    def ends(self, name: str, batch: BatchId) -> list[Position]:
        """The end positions of a batch, in the order of the query's inputs."""
        if batch == NO_BATCH:
            return [Position() for _ in self.graph.inputs[name]]
        found = {
            channel: iter(several) for channel, several in positions_in(self.plan_of(name, batch)).items()
        }
        return [next(found[channel]) for channel in self.graph.inputs[name]]

    def state_key(self, name: str, batch: BatchId) -> str:
        data = self.queries[name].get(f"commits/{batch}")
        if data is None:
            raise GoneError(f"{name}/commits/{batch}")
        return str(json.loads(data.decode().split("\n")[1])["state"])

    def state(self, name: str) -> Words:
        """What the last committed batch of a query left."""
        batch = self.last(name, "commits")
        data = self.queries[name].get(self.state_key(name, batch)) if batch >= 0 else b"[]"
        words: Words = json.loads(data or b"[]")
        return words

    # what is durable of checkpoints

    def status(self, id: CheckpointId) -> Status:
        ends = {Status.ABORTED: "aborted", Status.COMPLETED: "chk", Status.PENDING: "begun"}
        there = (status for status, kind in ends.items() if self.checkpoints.exists(f"{kind}-{id}.json"))
        return next(there, Status.UNKNOWN)

    def ids(self, kind: str) -> set[CheckpointId]:
        names = (key.removesuffix(".json").partition("-") for key in self.checkpoints.list(""))
        return {CheckpointId(int(number)) for found, _, number in names if found == kind}

    def completed(self) -> list[CheckpointId]:
        return sorted(self.ids("chk") - self.ids("aborted"))

    def manifest(self, id: CheckpointId) -> Manifest:
        data = self.checkpoints.get(f"chk-{id}.json")
        assert data is not None
        return Manifest.parse(data)

    def entered(self, name: str, key: str, entry: Entry) -> None:
        """Keep the history of a channel; what no living writer may enter is an error."""
        known, tail = self.history[name], self.tails[name]
        if key != entry_key(self.begins[name] + len(known)):
            return  # of a sleeper, where the head was: no reader comes there
        known.append(entry)
        if not counts(tail, entry):
            assert entry.token < tail.fence, f"{name}: {entry} is there twice"
        elif isinstance(entry, Segment):
            assert entry.batch == tail.last + 1, f"{name}: {entry} behind {tail}"
        self.tails[name] = apply(tail, entry)

    def entries(self, name: str, behind: int) -> list[Entry]:
        """The history of a channel in front of an entry."""
        return self.history[name][: behind - self.begins[name]]


@dataclass(frozen=True)
class Image:
    """A generation that was restored from a checkpoint and has not started yet."""

    world: World
    alignment: Alignment


@dataclass
class Manifest:
    """A checkpoint as it is stored."""

    id: CheckpointId
    alignment: Alignment
    batches: dict[str, BatchId] = field(default_factory=dict)
    unaligned: dict[str, bool] = field(default_factory=dict)
    positions: dict[str, list[Position]] = field(default_factory=dict)
    behind: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def dump(self) -> bytes:
        positions = {name: [(p.entry, p.barrier) for p in many] for name, many in self.positions.items()}
        return json.dumps({**vars(self), "positions": positions}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        made = cls(**json.loads(data))
        made.alignment = Alignment(made.alignment)
        stored: dict[str, list[tuple[int, CheckpointId]]] = made.positions  # type: ignore[assignment]
        made.positions = {name: [Position(*one) for one in many] for name, many in stored.items()}
        return made


class QueryRun:
    """One start of one query under one token: Spark's thread and the committer."""

    def __init__(self, world: World, driver: Driver, name: str, number: int) -> None:
        self.world = world
        self.driver = driver
        self.name = name
        self.token = Token(Attempt(driver.attempt), Run(number))
        self.store = world.queries[name]
        self.writer = Writer(world, name) if name in world.channels else None
        self.queue: deque[Staged] = deque()
        self.alive = False
        self.idle = False
        self.no_data = False
        """Spark wants a batch for its watermark alone."""
        self.spark: Steps = iter(())
        self.committer: Steps = iter(())
        self._planning = [
            Planning(
                Interrupted(world.channels[channel], world),
                Interrupted(self.store, world),
                Interrupted(world.checkpoints, world),
                world.mode,
            )
            for channel in world.graph.inputs[name]
        ]

    def recover(self) -> Steps:
        """As a start does it: fence, then deliver what Spark has committed and discard the rest."""
        if self.writer is None:
            return
        while True:
            with suppress(OutcomeUnknownError):
                ledger = self.writer.open(f"job/{self.name}", "lineage", self.token)
                break
            yield
        yield
        last = self.world.last(self.name, "commits")
        plan = plan_start(ledger.last, last, self.writer.staged(), {})
        if plan.lost:
            raise LostStagingError(batch=plan.lost[0], query=self.name, path=self.name)
        self.writer.discard(last, plan.commit)
        for staged in plan.commit:
            yield
            while self.writer.commit(staged) is Outcome.UNKNOWN:
                yield

    def start(self) -> None:
        self.alive = True
        self.spark, self.committer = self._spark(), self._commit()

    def _spark(self) -> Steps:
        planned, batch = self.world.last(self.name, "offsets"), self.world.last(self.name, "commits")
        start = self._ends(batch)
        while True:
            self.idle = False
            if planned > batch:
                ends = self._ends(planned)
            else:
                ends = yield from self._poll(start)
                self.idle = ends == start and not self.no_data
                if self.idle:
                    yield
                    continue
                self.no_data = False
                planned = BatchId(batch + 1)
                yield
                self._create(f"offsets/{planned}", ["{}", *map(self._line, self._inputs(), ends)])
            yield
            yield from self._run(planned, start, ends)
            batch, start = planned, ends

    def _poll(self, start: list[Position]) -> Generator[None, None, list[Position]]:
        """Ask the sources one after the other; the ends are the generator's value."""
        ends = []
        if self.name in self.world.rows:
            taken = min(start[0].entry + 2, self.world.rows[self.name])
            return [Position(max(taken, start[0].entry))]
        for planning, position in zip(self._planning, start, strict=True):
            yield
            ends.append(planning.next(position, Bound(segments=3)))
        return ends

    def _run(self, batch: BatchId, start: list[Position], ends: list[Position]) -> Steps:
        words = self._read(start, ends)
        staged = Staged(batch, self.token)
        self.driver.check()
        if self.writer is not None:
            self.writer.write(words, staged)
            yield
            self.driver.check()
            self.writer.record(staged)
            self.queue.append(staged)
            yield
        state = f"state/{batch}_{self.token}"
        if self.writer is None:
            before = self._state(BatchId(batch - 1))
            self.store.put(state, json.dumps(before + words).encode())
            yield
        self._create(f"commits/{batch}", [json.dumps({"state": state})])
        self._purge(batch)

    def _commit(self) -> Steps:
        assert self.writer is not None or not self.queue
        while True:
            while not self.queue or not self.store.exists(f"commits/{self.queue[0].batch}"):
                yield
            self.driver.check()
            yield
            assert self.writer is not None
            if self.writer.commit(self.queue[0]) is not Outcome.UNKNOWN:
                self.queue.popleft()

    def _inputs(self) -> Sequence[str]:
        return self.world.graph.inputs[self.name] or [""]

    def _line(self, channel: str, end: Position) -> str:
        return json.dumps(end.offset(channel) if channel else {"rows": end.entry})

    def _ends(self, batch: BatchId) -> list[Position]:
        if self.name not in self.world.rows:
            if batch == NO_BATCH:
                return [planning.start() for planning in self._planning]
            return self.world.ends(self.name, batch)
        lines = self.world.plan_of(self.name, batch).split("\n") if batch >= 0 else ["", "", '{"rows": 0}']
        return [Position(json.loads(lines[2])["rows"])]

    def _read(self, start: list[Position], ends: list[Position]) -> Words:
        if self.name in self.world.rows:
            return [f"{self.name}{number}" for number in range(start[0].entry, ends[0].entry)]
        words = []
        for number, channel in enumerate(self.world.graph.inputs[self.name]):
            for segment in self._planning[number].segments(start[number].entry, ends[number].entry):
                data = self.world.channels[channel].get(f"{segment.folder}/part-0")
                if data is None:
                    raise LostSegmentError(file=f"{channel}/{segment.folder}/part-0")
                words += [f"{number}.{word}" for word in json.loads(data)]
        return words

    def _state(self, batch: BatchId) -> Words:
        data = self.store.get(self.world.state_key(self.name, batch)) if batch >= 0 else b"[]"
        assert data is not None
        words: Words = json.loads(data)
        return words

    def _create(self, key: str, lines: list[str]) -> None:
        if self.store.create(key, "\n".join(["v1", *lines]).encode()) is not Created.NOW:
            raise ConcurrentError(f"{self.name}/{key}")

    def _purge(self, batch: BatchId) -> None:
        for key in list(self.store.list("")):
            if int(key.rsplit("/", 1)[1].partition("_")[0]) <= batch - BATCHES_KEPT:
                self.store.delete(key)


class Driver:
    """One attempt: the runs of its queries and its coordinator, under one lease."""

    def __init__(self, world: World) -> None:
        world.attempts += 1
        self.world = world
        self.attempt = world.attempts
        self.leased = True
        self.running = False
        """Everything was started."""
        self.runs: dict[str, QueryRun] = {}
        self.coordinator = Coordinator(world, self)
        self._starting = self._start()

    def check(self) -> None:
        if not self.leased:
            raise LeaseOverError

    def _start(self) -> Steps:
        for name in self.world.graph.order:
            self.runs[name] = QueryRun(self.world, self, name, 1)
            yield from self.runs[name].recover()
        yield from self.coordinator.prepare()
        for run in self.runs.values():
            run.start()
            yield
        self.running = True

    def go_on(self, steps: int) -> None:
        """Go on with the start; stop when everything was started."""
        for _ in range(steps):
            if not self.running:
                self.step("start")

    def step(self, actor: str, name: str = "") -> None:
        """One step of the start, of a query's Spark or committer, or of the coordinator."""
        if not self.running:
            self._take(self._starting, None)
        elif actor == "coordinator":
            self._take(self.coordinator.steps, None)
        elif self.runs[name].alive:
            run = self.runs[name]
            self._take(run.spark if actor == "spark" else run.committer, run)

    def _take(self, steps: Steps, run: QueryRun | None) -> None:
        try:
            next(steps, None)
        except (LeaseOverError, LostSegmentError, LostStagingError):
            if self.leased:  # only a zombie misses what others have used up
                raise
            self._die(run)
        except (ConcurrentError, FencedError):
            if self.leased and run is None:
                raise
            self._die(run)  # a zombie got in between: the query must start again

    def _die(self, run: QueryRun | None) -> None:
        if run is not None:
            run.alive = False
        else:
            self.coordinator.steps = iter(())
            self._starting = iter(())

    def whole_batch(self, name: str) -> None:
        """Spark plans and commits a batch, and the committer works off what it has."""
        for _ in range(9):
            self.step("spark", name)
            if not self.running or self.runs[name].idle:
                break
        for _ in range(4):
            if self.running and self.runs[name].queue:
                self.step("committer", name)

    def ask(self, request: str) -> None:
        """Ask the coordinator for something; more than two at a time are too many."""
        if len(self.coordinator.requests) < 2:
            self.coordinator.requests.append(request)

    def coordinate(self, steps: int) -> None:
        for _ in range(steps):
            self.step("coordinator")
            if not (self.coordinator.flights or self.coordinator.requests):
                break

    def restart(self, name: str) -> None:
        """One query failed, and starts again alone as a new run; what was pending is aborted."""
        run = self.runs[name]
        run.alive = False
        self.coordinator.requests.append("abort all")
        for _ in range(500):
            if not self.coordinator.requests:
                break
            self.step("coordinator")
        else:
            raise StuckError("the coordinator is dead")
        self.runs[name] = QueryRun(self.world, self, name, run.token.run + 1)
        for _ in self.runs[name].recover():
            pass
        self.runs[name].start()


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
    kept: dict[str, list[str]] = field(default_factory=dict)
    """The files that it keeps, by `queries/<name>` and `channels/<name>`."""

    @property
    def id(self) -> CheckpointId:
        return self.state.id


class Coordinator:
    """One thread of one attempt, that looks after all checkpoints."""

    def __init__(self, world: World, driver: Driver) -> None:
        self.world = world
        self.driver = driver
        self.flights: dict[CheckpointId, Flight] = {}
        self.ended: set[CheckpointId] = set()
        self.last_id = CheckpointId(0)
        self.requests: deque[str] = deque()
        self.late: list[tuple[CheckpointId, Cut]] = []
        """Acks of snapshots that were still under way when their checkpoint ended."""
        self.steps = self._work()
        self._examined: dict[str, BatchId] = {}
        self._joint: dict[str, dict[BatchId, CheckpointId]] = {}

    def prepare(self) -> Steps:
        """Before any query runs, and after every channel was fenced: abort what has not ended."""
        there = {kind: self.world.ids(kind) for kind in ("begun", "chk", "aborted")}
        self.last_id = max((id for ids in there.values() for id in ids), default=CheckpointId(0))
        for id in sorted(there["begun"] - there["chk"] - there["aborted"]):
            yield
            self.world.checkpoints.create(f"aborted-{id}.json", b"{}")
        yield
        self._sweep()
        for name in self.world.graph.leaves:
            self._examined[name], self._joint[name] = self.world.last(name, "commits"), {}

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
            for flight in list(self.flights.values()):
                yield from self._guarded(flight, self._advance(flight))
            yield

    def _do(self, request: str) -> Steps:
        if request == "trigger":
            yield from self._begin()
        elif request == "abort all":
            for flight in list(self.flights.values()):
                self._abort(flight)
                yield
        elif self.flights:
            flight = self.flights[min(self.flights)]
            if request == "expire":
                self._abort(flight)
            elif flight.state.alignment is Alignment.ALIGNED:
                yield from self._guarded(flight, self._cut_here(flight))

    def _guarded(self, flight: Flight, steps: Steps) -> Steps:
        try:
            yield from steps
        except (GoneError, OutcomeUnknownError):
            self._abort(flight)
        except (LostTrackError, FencedError) as error:
            for one in list(self.flights.values()):
                self._abort(one)
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
        id = CheckpointId(self.last_id + 1)
        while self.world.checkpoints.create(f"begun-{id}.json", b"{}") is not Created.NOW:
            id = CheckpointId(id + 1)
        self.last_id = id
        self._skip()
        queries = frozenset(map(QueryName, self.world.graph.order))
        self.flights[id] = flight = Flight(Pending(id, alignment, 0.0, queries))
        yield
        if alignment is Alignment.UNALIGNED:
            yield from self._guarded(flight, self._cut_here(flight))
        else:
            yield from self._guarded(flight, self._send_barriers(flight))

    def _send_barriers(self, flight: Flight) -> Steps:
        for name in self.world.graph.roots:
            flight.found[name] = self._barrier(name, flight.id)
            yield

    def _barrier(self, name: str, id: CheckpointId) -> Found:
        writer = self.driver.runs[name].writer
        if writer is None:
            return Found(self.world.last(name, "commits"))
        cut = writer.append_barrier(id)
        return Found(cut.batch, cut.entry + 1)

    def _cut_here(self, flight: Flight) -> Steps:
        """Nobody waits: the last committed batch of whoever is missing, downstream first."""
        for name in downstream_first(self.world.graph):
            if name in flight.found:
                continue
            writer = self.driver.runs[name].writer
            if writer is None:
                last = self.world.last(name, "commits")
                aligned = flight.state.alignment is Alignment.ALIGNED
                reached = self._reached(name, flight.id) if aligned else None
                found = Found(last if reached is None else reached, unaligned=reached is None)
            elif flight.state.alignment is Alignment.UNALIGNED:
                cut = writer.here()
                found = Found(cut.batch, cut.entry, unaligned=True)
            else:
                found = replace(self._barrier(name, flight.id), unaligned=True)
            flight.found[name] = found
            yield

    def _advance(self, flight: Flight) -> Steps:
        for name in self.world.graph.order:
            if name not in flight.found:
                found = self._aligned(name, flight.id)
                yield
                if found is None:
                    continue
                flight.found[name] = found
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
            cut = writer.cut(id)
            return None if cut is None else Found(cut.batch, cut.entry + 1)
        batch = self._reached(name, id)
        return None if batch is None else Found(batch)

    def _reached(self, name: str, id: CheckpointId) -> BatchId | None:
        """The first committed batch that has the barrier on all channels; every batch is looked at."""
        joint = self._joint[name]
        for number in range(self._examined[name] + 1, self.world.last(name, "commits") + 1):
            batch = BatchId(number)
            try:
                joint[batch] = joint_barrier(self.world.plan_of(name, batch)) or CheckpointId(0)
            except GoneError as error:
                raise LostTrackError from error
            self._examined[name] = batch
        return decide.aligned_cut(joint, id)

    def _skip(self) -> None:
        """Batches that are committed before a checkpoint begins can only be cuts of those before it."""
        for name in self.world.graph.leaves:
            if all(name in flight.found for flight in self.flights.values()):
                self._examined[name] = self.world.last(name, "commits")

    def _keep_query(self, flight: Flight, name: str) -> None:
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
            ends = self.world.ends(reader, flight.found[reader].batch)
            inputs = self.world.graph.inputs[reader]
            places += [end.entry for end, one in zip(ends, inputs, strict=True) if one == channel]
        return places

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
        if self.world.checkpoints.create(f"chk-{flight.id}.json", manifest.dump()) is not Created.NOW:
            self._abort(flight)
            return
        del self.flights[flight.id]
        self.ended.add(flight.id)
        self._check(manifest)
        yield
        self.driver.check()
        assert self.world.status(flight.id) is Status.COMPLETED
        yield from self._subsume()
        yield from self._trim(manifest)

    def _manifest(self, flight: Flight) -> Manifest:
        made = Manifest(flight.id, flight.state.alignment)
        for name, found in flight.found.items():
            made.batches[name], made.unaligned[name] = found.batch, found.unaligned
            text = self.world.pins.get(f"queries/{name}/offsets/{found.batch}") or b""
            several = {c: iter(many) for c, many in positions_in(text.decode()).items()}
            inputs = self.world.graph.inputs[name]
            made.positions[name] = [next(several[one]) if several else Position() for one in inputs]
            if found.behind is not None:
                made.behind[name] = found.behind
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
        self.check_retained()

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
            self.check_readable(name)
            yield

    def _abort(self, flight: Flight) -> None:
        self.flights.pop(flight.id, None)
        self.ended.add(flight.id)
        self.world.checkpoints.create(f"aborted-{flight.id}.json", b"{}")
        self.late += [(flight.id, Cut(QueryName(name), found.batch)) for name, found in flight.found.items()]

    # what must hold

    def _check(self, manifest: Manifest) -> None:
        """A completed checkpoint is a consistent cut."""
        if self.world.status(manifest.id) is not Status.COMPLETED:
            return  # a zombie wrote it
        for name, behind in manifest.behind.items():
            written = [one.batch for one in segments(Tail(), self.world.entries(name, behind))]
            last = written[-1] if written else NO_BATCH
            if self.world.begins[name] == 0:
                assert last == manifest.batches[name], f"{name} ends with {last} in {manifest}"
        plain = True
        for reader, inputs in self.world.graph.inputs.items():
            doubles = manifest.alignment is Alignment.AT_LEAST_ONCE and len(inputs) > 1
            for channel, position in zip(inputs, manifest.positions[reader], strict=True):
                behind = manifest.behind[channel]
                told = f"{reader} is at {position} of {channel} in {manifest}"
                waited = not manifest.unaligned[reader] and not manifest.unaligned[channel]
                assert doubles or position.entry <= behind, told
                if waited:
                    assert position.entry >= behind and position.barrier >= manifest.id, told
                plain = plain and position.entry == behind
        if not plain and len(self.world.images) < IMAGES:
            self.world.images.append(Image(restored(self.world, manifest.id), manifest.alignment))

    def check_retained(self) -> None:
        """Everything that a retained checkpoint refers to is there."""
        for id in self.world.completed():
            for name in self.world.manifest(id).files:
                assert self.world.pins.exists(name), f"checkpoint {id} refers to {name}, which is deleted"

    def check_readable(self, channel: str) -> None:
        """What any reader of the channel still needs is there."""
        store = self.world.channels[channel]
        for reader in self.world.graph.readers(channel):
            inputs = self.world.graph.inputs[reader]
            ends = self.world.ends(reader, self.world.last(reader, "commits"))
            for end in [end for end, one in zip(ends, inputs, strict=True) if one == channel]:
                first = max(0, end.entry - 1)
                if first >= self.world.begins[channel] + len(self.world.history[channel]):
                    continue
                assert store.exists(entry_key(first)), f"{reader} has lost entry {first} of {channel}"
                tail = Tail()
                for number, entry in enumerate(self.world.history[channel], self.world.begins[channel]):
                    needed = isinstance(entry, Segment) and counts(tail, entry) and number >= end.entry
                    tail = apply(tail, entry)
                    if needed and isinstance(entry, Segment):
                        assert store.exists(f"{entry.folder}/part-0"), (
                            f"{reader} has lost {entry} of {channel}"
                        )


def downstream_first(graph: Graph) -> list[str]:
    return graph.order[::-1]


def restored(world: World, id: CheckpointId) -> World:
    """A new generation at the cut of a checkpoint, made of what is kept for it."""
    manifest = world.manifest(id)
    made = World(world.graph, world.mode, world.retained)
    for path in manifest.files:
        kind, name, key = path.split("/", 2)
        data = world.pins.get(path)
        assert data is not None, f"checkpoint {id} refers to {path}, which is deleted"
        if key.startswith("offsets/") and manifest.alignment is Alignment.AT_LEAST_ONCE:
            back = {one: Position(entry, id) for one, entry in manifest.behind.items()}
            data = set_back(data.decode(), back).encode()
        (made.queries if kind == "queries" else made.channels)[name].create(key, data)
    for old in world.ids("begun") | world.ids("chk") | world.ids("aborted"):
        made.checkpoints.create(f"aborted-{old}.json", b"{}")  # ids go on; its pins are another's
    made.rows, made.attempts = dict(world.rows), world.attempts
    for name, store in made.channels.items():
        made.begins[name] = channel_log.first_number(store)
        assert channel_log.end_number(store) == manifest.behind[name]
        for number in range(made.begins[name], manifest.behind[name]):
            entry = need_entry(store, number)
            made.history[name].append(entry)
            made.tails[name] = apply(made.tails[name], entry)
    return made


class StuckError(AssertionError):
    """The job does not get on although nothing disturbs it."""


def quiet(world: World, driver: Driver | None = None) -> Driver:
    """Let the job run undisturbed until nothing is left to do, and take one more checkpoint."""
    world.failures.clear()
    world.interrupt = None
    driver = driver or Driver(world)
    driver.go_on(1000)
    if not driver.running:
        raise StuckError("it does not start")
    settle(world, driver)
    driver.coordinator.requests.append("trigger")
    settle(world, driver)
    newest = driver.coordinator.last_id
    if world.status(newest) is not Status.COMPLETED:
        raise StuckError(f"checkpoint {newest} is {world.status(newest)}")
    return driver


def settle(world: World, driver: Driver) -> None:
    """Everybody works in turn until everything is read and no checkpoint is pending."""
    coordinator = driver.coordinator
    for _ in range(200):
        before = _durable(world)
        for name in world.graph.order:
            if not driver.runs[name].alive:
                driver.restart(name)
            driver.whole_batch(name)
        driver.coordinate(30)
        if before == _durable(world) and not coordinator.requests and not coordinator.flights:
            break
    else:
        raise StuckError(f"pending: {coordinator.flights}")
    for name, inputs in world.graph.inputs.items():
        ends = world.ends(name, world.last(name, "commits")) if inputs else []
        for channel, end in zip(inputs, ends, strict=True):
            rest = world.history[channel][end.entry - world.begins[channel] :]
            left = [
                one for one in rest if isinstance(one, Segment) and one.token == world.tails[channel].fence
            ]
            if left:
                raise StuckError(f"{name} never reads {left} of {channel}")


def _durable(world: World) -> object:
    heads = {name: (world.last(name, "offsets"), world.last(name, "commits")) for name in world.graph.order}
    return heads, {name: len(many) for name, many in world.history.items()}, world.ids("chk")


def check_rows(world: World, doubled: bool) -> None:
    """Every row has come through once, or (where doubling is allowed) at least once."""
    for name in world.graph.leaves:
        wanted, got = world.graph.emitted(name, world.rows), Counter(world.state(name))
        assert not wanted - got, f"{name} lost {wanted - got}"
        assert doubled or not got - wanted, f"{name} doubled {got - wanted}"
