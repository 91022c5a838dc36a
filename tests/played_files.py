"""A files sink without Spark, on a store that can be watched, and processes that die or sleep in mid-step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weir.clock import Clock
from weir.ids import BatchId
from weir.protocol.ledger import Staged
from weir.sinks.compaction import Upkeep
from weir.sinks.files import FilesSink
from weir.storage import Created, Store
from weir.storage.object_store import ObjectStore

TARGET = 120
"""Files of about so many bytes are wanted."""


class KilledError(BaseException):
    """The run is over, in the middle of something; nobody catches it."""


class WholeStore:
    """The shared store; it remembers every entry that the ledger ever had."""

    def __init__(self, log: str = "_weir/log") -> None:
        self._log = log
        self._inner = ObjectStore("memory://")
        self.history: list[dict[str, Any]] = []
        self.url = self._inner.url
        self.put, self.get, self.exists = self._inner.put, self._inner.get, self._inner.exists
        self.list, self.delete = self._inner.list, self._inner.delete

    def create(self, key: str, data: bytes) -> Created:
        outcome = self._inner.create(key, data)
        if outcome is Created.NOW and key == f"{self._log}/{len(self.history):09d}.json":
            self.history.append(json.loads(data))
        return outcome


class SeenStore:
    """The store as one process sees it: at one of its operations it dies, or sleeps."""

    def __init__(self, whole: WholeStore) -> None:
        self._whole = whole
        self.url = whole.url
        self._left: int | None = None
        self._happens: Callable[[], None] = lambda: None

    def at(self, operation: int | None, happens: Callable[[], None]) -> None:
        self._left, self._happens = operation, happens

    def create(self, key: str, data: bytes) -> Created:
        self._step()
        return self._whole.create(key, data)

    def put(self, key: str, data: bytes) -> None:
        self._step()
        self._whole.put(key, data)

    def get(self, key: str) -> bytes | None:
        self._step()
        return self._whole.get(key)

    def exists(self, key: str) -> bool:
        self._step()
        return self._whole.exists(key)

    def list(self, prefix: str) -> Iterator[str]:
        self._step()
        return self._whole.list(prefix)

    def delete(self, key: str) -> None:
        self._step()
        self._whole.delete(key)

    def _step(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left = None
            self._happens()


class PlayedMerger:
    """Merges files of JSON."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        return {name: len(self._store.get(name) or b"") for name in names}

    def merge(self, names: Sequence[str], folder: str) -> None:
        rows = [row for name in names for row in json.loads(self._store.get(name) or b"")]
        self._store.put(f"{folder}/part-0", json.dumps(rows).encode())


class PlayedUpkeep(Upkeep):
    def _ask(self) -> None:
        """Nothing happens by itself."""


class PlayedFiles(FilesSink):
    """The files sink, with batches that nobody needs Spark for; its upkeep runs when it is told to."""

    def __init__(self, store: Store, clock: Clock | None = None, target: int | None = TARGET) -> None:
        super().__init__("out", "parquet", {}, store)
        self._upkeep = PlayedUpkeep(self._ledger, store, PlayedMerger(store), target, clock)

    def write(self, staged: Staged, parts: int) -> None:
        for part in range(parts):
            folder = f"_data/{staged.batch:09d}-{staged.token.attempt}-{staged.token.run}/p={part % 2}"
            row = f"{staged.batch} of {staged.token}, part {part}"
            self._store.put(f"{folder}/part-{part}", json.dumps([row]).encode())

    def work(self, upto: BatchId) -> None:
        self._upkeep.forget(upto)
        self._upkeep.work()
