"""One run of one query: Spark's thread and weir's committer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from tests.protocol.model.stores import Flaky, Interrupted
from tests.protocol.model.world import Words, World
from weir.channel.facts import Planning
from weir.channel.log import SegmentFile, lost
from weir.channel.position import Bound, Position
from weir.channel.writer import ChannelWriter
from weir.errors import LostStagingError, OutcomeUnknownError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged, plan_start
from weir.sinks.contract import Outcome
from weir.sinks.staging import folder_of
from weir.storage import Created

Steps = Iterator[None]
"""What an actor does; it stops in front of every step that others can see."""
MAX_PENDING = 2
"""So many batches wait for the committer; then the next one waits, and nothing that it needs is purged."""


class ConcurrentError(Exception):
    """Spark's CONCURRENT_STREAM_LOG_UPDATE: another run has written this batch."""


class Leased(Protocol):
    """A driver, as its queries see it."""

    attempt: int

    def check(self) -> None:
        """Raise when the lease is over."""


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


class QueryRun:
    """One start of one query under one token: Spark's thread and the committer."""

    def __init__(self, world: World, driver: Leased, name: str, number: int) -> None:
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
        while len(self.queue) >= MAX_PENDING:
            yield
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
                    raise lost(f"{channel}/{segment.folder}/part-0")
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
            if int(key.rsplit("/", 1)[1].partition("_")[0]) <= batch - self.world.kept:
                self.store.delete(key)
