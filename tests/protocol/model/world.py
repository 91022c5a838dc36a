"""What is stored of a job, and what no process can forget."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.channel.log import (
    NO_CHECKPOINT,
    Entry,
    Segment,
    Tail,
    apply,
    counts,
    end_number,
    entry_key,
    first_number,
    need_entry,
)
from weir.channel.position import Mode, Position, Status, positions_in
from weir.checkpoint import manifest as mf
from weir.checkpoint.kept_files import edit_of
from weir.checkpoint.manifest import Manifest
from weir.ids import NO_BATCH, BatchId, CheckpointId, job_name
from weir.protocol.checkpoint import Alignment
from weir.spark.closure import GoneError
from weir.storage import Created, Store, paths
from weir.storage.object_store import ObjectStore

Words = list[str]
RECORDS = "records"
"""The name of the checkpoints' folder, among those of channels."""
JOB = job_name("job")


class Records:
    """The folder of the checkpoints, as the store of the job that it is in."""

    def __init__(self, folder: Store) -> None:
        self._folder = folder
        self._above = f"{paths.checkpoints(JOB)}/"
        self.url = folder.url

    def get(self, key: str) -> bytes | None:
        return self._folder.get(self._within(key))

    def exists(self, key: str) -> bool:
        return self._folder.exists(self._within(key))

    def list(self, prefix: str) -> Iterator[str]:
        there = f"{prefix}/" == self._above
        return (f"{self._above}{key}" for key in (self._folder.list("") if there else ()))

    def create(self, key: str, data: bytes) -> Created:
        return self._folder.create(self._within(key), data)

    def put(self, key: str, data: bytes) -> None:
        self._folder.put(self._within(key), data)

    def delete(self, key: str) -> None:
        self._folder.delete(self._within(key))

    def _within(self, key: str) -> str:
        return key.removeprefix(self._above)


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

    def __init__(self, graph: Graph, mode: Mode, retained: int = 2, kept: int = 6) -> None:
        self.graph = graph
        self.mode = mode
        self.retained = retained
        self.kept = kept
        """Spark purges its logs behind so many batches."""
        self.queries: dict[str, Store] = {name: ObjectStore("memory://") for name in graph.order}
        self.channels: dict[str, Store] = {name: ObjectStore("memory://") for name in graph.writers}
        self.checkpoints: Store = ObjectStore("memory://")
        self.records = Records(self.checkpoints)
        self.pins: Store = ObjectStore("memory://")
        self.rows = dict.fromkeys(graph.roots, 0)
        self.attempts = 0
        self.failures: dict[str, int] = {}
        """For each channel, and the records: how many more can be created before one can't."""
        self.silences: dict[str, int] = {}
        """The same, before one is created and nobody is told."""
        self.restored_from: CheckpointId | None = None
        self.doubled = False
        """Rows may come twice: a reader was set back."""
        self.highest = CheckpointId(0)
        """The highest checkpoint that there ever was a record of."""
        self.declines: set[str] = set()
        """Queries that can't take their next cut."""
        self.busy: set[str] = set()
        """Roots that are in a batch, behind which their barriers come."""
        self.slow = False
        """What is kept for the oldest pending checkpoint takes until this is over."""
        self.interrupt: Callable[[], None] | None = None
        self.countdown = 0
        self.meanwhile: Callable[[], None] | None = None
        """What happens while somebody waits for the answer about a record, which does not come."""
        self.folder = Path("/nowhere")
        self.images: list[World] = []
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
        return mf.ids(self.records, JOB)[kind]

    def completed(self) -> list[CheckpointId]:
        return mf.completed(self.records, JOB)

    def manifest(self, id: CheckpointId) -> Manifest:
        data = self.checkpoints.get(f"chk-{id}.json")
        assert data is not None
        return mf.decode(data)

    def cut_ends(self, manifest: Manifest, name: str) -> list[Position]:
        """Where a query stood in its channels, in the order of its inputs, as its kept files say."""
        text = self.pins.get(f"queries/{name}/offsets/{manifest.queries[name].batch}") or b""
        several = {channel: iter(many) for channel, many in positions_in(text.decode()).items()}
        return [next(several[one]) if several else Position() for one in self.graph.inputs[name]]

    def recorded(self, key: str) -> None:
        """Keep the highest id, which the records themselves forget when they are deleted."""
        id = CheckpointId(int(key.removesuffix(".json").rpartition("-")[2]))
        self.highest = max(self.highest, id)

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

    def barriers(self) -> list[CheckpointId]:
        """The highest barrier of each channel, and none."""
        return [NO_CHECKPOINT, *(tail.barrier for tail in self.tails.values())]

    def copy(self) -> World:
        """The same, as a copy of its directory is; nobody works on it yet."""
        made = World(self.graph, self.mode, self.retained, self.kept)
        for stores, others in ((self.queries, made.queries), (self.channels, made.channels)):
            for name, store in stores.items():
                _fill(others[name], store)
        _fill(made.checkpoints, self.checkpoints)
        _fill(made.pins, self.pins)
        made.rows, made.attempts = dict(self.rows), self.attempts
        made.restored_from, made.highest, made.doubled = self.restored_from, self.highest, self.doubled
        made.history = {name: list(entries) for name, entries in self.history.items()}
        made.tails, made.begins = dict(self.tails), dict(self.begins)
        return made

    def entries(self, name: str, behind: int) -> list[Entry]:
        """The history of a channel in front of an entry."""
        return self.history[name][: behind - self.begins[name]]


def _fill(store: Store, source: Store) -> None:
    for key in list(source.list("")):
        data = source.get(key)
        assert data is not None
        store.put(key, data)


def restored(world: World, id: CheckpointId, elsewhere: bool = False) -> World:
    """A new generation at the cut of a checkpoint, made of what is kept for it.

    In the same directory the numbers of all checkpoints are known. Elsewhere, as from a savepoint, only its
    own is.
    """
    manifest = world.manifest(id)
    made = World(world.graph, world.mode, world.retained, world.kept)
    for path in (file.path for file in manifest.files()):
        kind, name, key = path.split("/", 2)
        data = world.pins.get(path)
        assert data is not None, f"checkpoint {id} refers to {path}, which is deleted"
        edit = edit_of(manifest, path, world.folder)
        if edit is not None:
            data = edit(data)
        (made.queries if kind == "queries" else made.channels)[name].create(key, data)
    if not elsewhere:
        for old in world.ids("begun") | world.ids("chk") | world.ids("aborted"):
            made.checkpoints.create(f"aborted-{old}.json", b"{}")  # ids go on; its pins are another's
    made.rows, made.attempts, made.restored_from = dict(world.rows), world.attempts, id
    made.highest = id if elsewhere else world.highest
    made.doubled = world.doubled or (manifest.alignment is Alignment.AT_LEAST_ONCE and world.graph.joins)
    for name, store in made.channels.items():
        made.begins[name] = first_number(store)
        assert end_number(store) == manifest.channels[name].behind
        for number in range(made.begins[name], manifest.channels[name].behind):
            entry = need_entry(store, number)
            made.history[name].append(entry)
            made.tails[name] = apply(made.tails[name], entry)
    return made
