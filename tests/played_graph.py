"""A job of three queries whose batches are played by the test, under a coordinator stepped by hand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import CONF, write
from weir.channel.position import Position
from weir.channel.writer import ChannelWriter
from weir.checkpoint import manifest as mf
from weir.checkpoint.actions import Outside
from weir.checkpoint.coordinator import Coordinator
from weir.checkpoint.copies import Copies
from weir.checkpoint.vertex import Vertex
from weir.clock import ManualClock
from weir.config import Settings
from weir.errors import OutcomeUnknownError, WeirError
from weir.ids import Attempt, BatchId, CheckpointId, Generation, QueryName, Run, Token, job_name
from weir.protocol import messages as m
from weir.protocol.ledger import Staged
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Created
from weir.storage.attempts import Lease
from weir.storage.generation import FIRST, open_origin
from weir.storage.local import LocalStore
from weir.storage.paths import Live

JOB = job_name("job")
TOKEN = Token(Attempt(1), Run(1))
KEY = "execution.checkpointing"


class Disk(LocalStore):
    """A store that does what a test wants when a key is created."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.on_create: Callable[[str], None] = lambda key: None
        self.silent: set[str] = set()
        """The names of keys that are created the next time, and nobody is told."""

    def create(self, key: str, data: bytes) -> Created:
        self.on_create(key)
        created = super().create(key, data)
        name = key.rsplit("/", 1)[1]
        if name in self.silent:
            self.silent.remove(name)
            raise OutcomeUnknownError(verb="create", path=key, reason="no answer", root=self.url)
        return created


class Query:
    """One query as its files show it."""

    def __init__(self, live: Live, name: str, inputs: tuple[str, ...], writes: bool) -> None:
        self.root = Path(live.query(QueryName(name)).removeprefix("file://"))
        self.inputs = inputs
        self.writer = None
        self.batch = -1
        write(self.root / "metadata", "{}")
        if writes:
            self.writer = ChannelWriter(name, live.channel(QueryName(name)), live.query(QueryName(name)))
            self.writer.open(f"{JOB}/{name}", "lineage", TOKEN)
        self.vertex = Vertex(
            QueryName(name),
            QueryFiles.of(live, QueryName(name)),
            self.root,
            [QueryName(one) for one in inputs],
            self.writer,
            rewindable=True,
        )

    def plan(self, **ends: tuple[int, int]) -> None:
        """The next batch is planned, and ends at these positions of its channels."""
        at = [Position(entry, CheckpointId(k)).offset(name) for name, (entry, k) in ends.items()]
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": CONF}), *map(json.dumps, at)]
        write(self.root / f"offsets/{self.batch + 1}", "\n".join(lines if at else [*lines, "-"]))

    def run(self, **ends: tuple[int, int]) -> None:
        """A batch that ends at these positions of its channels is planned, committed and entered."""
        self.plan(**ends)
        self.batch += 1
        write(self.root / f"commits/{self.batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        if self.writer is not None:
            staged = Staged(BatchId(self.batch), TOKEN)
            self.writer.record(staged)
            self.writer.commit(staged)

    def purge(self, batch: int) -> None:
        for log in ("offsets", "commits"):
            (self.root / log / str(batch)).unlink()


class Graph:
    """A job whose queries are played by the test: all -> fast, slow."""

    def __init__(
        self, folder: Path, purge: int = 100, attempt: int = 1, generation: int = FIRST, **settings: Any
    ) -> None:
        self.disk = Disk(folder)
        self.clock = ManualClock()
        number = Generation(generation)
        self.live = Live(self.disk, JOB, number)
        self.lease = Lease(Attempt(attempt), 1e9, self.clock)
        origin = open_origin(
            self.disk, JOB, number, backend="rocksdb", parallelism=1, spark="4.3.0", clock=self.clock
        )
        self.all = Query(self.live, "all", (), True)
        self.fast = Query(self.live, "fast", ("all",), False)
        self.slow = Query(self.live, "slow", ("all",), False)
        self.said: list[m.Message] = []
        self.failures: list[WeirError] = []
        self.completed: list[CheckpointId] = []
        """What listeners and sinks were told."""
        given = {f"{KEY}.interval": "off"} | {f"{KEY}.{k.replace('_', '-')}": v for k, v in settings.items()}
        self.running = True
        self.standing: set[str] = set()
        self.coordinator = Coordinator(
            self.live,
            [self.all.vertex, self.fast.vertex, self.slow.vertex],
            origin,
            "4.3.0",
            Settings.model_validate(given),
            purge,
            self.lease,
            Outside(
                self.said.append,
                lambda: self.running,
                lambda: {QueryName(one) for one in self.standing},
                self.completed.append,
                lambda id, reason: None,
                self.failures.append,
            ),
            self.clock,
        )
        self.coordinator.prepare()

    def step(self, seconds: float = 0.0) -> None:
        """One look of the coordinator; snapshots that it has asked for are taken before the next one."""
        self.clock.advance(seconds)
        self.coordinator._step()
        until = time.monotonic() + 30
        while not all(future.done() for future in self.snapshots()):
            assert time.monotonic() < until
            time.sleep(0.001)

    def snapshots(self) -> Iterator[Future[Any]]:
        for id in self.coordinator._state.pending:
            work = self.coordinator._actions.work[id]
            yield from work.queries.values()
            yield from work.channels.values()
            yield from [work.exported] if work.exported is not None else []

    def ask(self, request: str = "one", full: bool = False) -> None:
        self.coordinator.wish(request, full)
        self.step()

    def all_read(self, id: int) -> None:
        """Both readers come to the barrier."""
        for query in (self.fast, self.slow):
            query.run(all=(self.entry(), id))

    def take(self, id: int, full: bool = False) -> None:
        """One whole checkpoint."""
        self.all.run()
        self.ask(str(id), full)
        self.all_read(id)
        finish(self)

    def entry(self) -> int:
        """The number behind the last entry of the channel."""
        assert self.all.writer is not None
        return self.all.writer.here().entry

    def answers(self) -> dict[str, m.Answered]:
        return {one.request: one for one in self.said if isinstance(one, m.Answered)}

    def begun(self) -> list[m.CheckpointBegun]:
        return [one for one in self.said if isinstance(one, m.CheckpointBegun)]

    def aborted(self) -> list[tuple[int, str]]:
        return [(one.id, one.reason) for one in self.said if isinstance(one, m.CheckpointAborted)]

    def cut(self, id: int) -> Mapping[str, int]:
        """The batch of each query in a completed checkpoint."""
        manifest = mf.read(self.disk, JOB, CheckpointId(id))
        assert manifest is not None, f"checkpoint {id} is not completed: {self.said}"
        return {name: cut.batch for name, cut in manifest.queries.items()}


def finish(graph: Graph) -> None:
    for _ in range(4):
        graph.step()


class Far:
    """A copy-dir that gives no answer until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *verbs: str) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []
        for verb in verbs:
            true = getattr(Copies, verb)
            monkeypatch.setattr(Copies, verb, self._late(verb, true))

    def _late(self, verb: str, true: Callable[..., Any]) -> Callable[..., Any]:
        def late(*args: Any, **options: Any) -> Any:
            self.asked.append(verb)
            assert self.answers.wait(30)
            return true(*args, **options)

        return late


def waited_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until
        time.sleep(0.001)
