"""A store that fails by seed: whether a write happened and whether it answered are drawn separately.

For tests, weir's own and its users': `weir.testing.UnreliableStore`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from weir.errors import OutcomeUnknownError, StorageError
from weir.storage.store import Created, Store

Result = TypeVar("Result")


class UnreliableStore:
    """Passes every call on to another store, or fails to, or fails after it did."""

    def __init__(self, inner: Store, seed: int, failing: float = 0.3, failing_reads: float = 0.0) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self.failing = failing
        """The share of writes that go wrong."""
        self.failing_reads = failing_reads
        """The share of reads that are refused."""

    @property
    def url(self) -> str:
        return self._inner.url

    def create(self, key: str, data: bytes) -> Created:
        return self._maybe("create", key, lambda: self._inner.create(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._maybe("write", key, lambda: self._inner.put(key, data))

    def get(self, key: str) -> bytes | None:
        return self._read("read", key, lambda: self._inner.get(key))

    def exists(self, key: str) -> bool:
        return self._read("look for", key, lambda: self._inner.exists(key))

    def list(self, prefix: str) -> Iterator[str]:
        return self._read("list", prefix, lambda: self._inner.list(prefix))

    def delete(self, key: str) -> None:
        self._maybe("delete", key, lambda: self._inner.delete(key))

    def _read(self, verb: str, key: str, act: Callable[[], Result]) -> Result:
        if self.failing_reads and self._random.random() < self.failing_reads:
            raise StorageError(verb=verb, path=key, reason="drawn by seed", root=self.url)
        return act()

    def _maybe(self, verb: str, key: str, act: Callable[[], Result]) -> Result:
        if self._random.random() >= self.failing:
            return act()
        happened, answered = self._random.random() < 0.5, self._random.random() < 0.5
        if happened:
            result = act()
            if answered:
                return result
        kind = StorageError if answered else OutcomeUnknownError
        raise kind(verb=verb, path=key, reason="drawn by seed", root=self.url)
