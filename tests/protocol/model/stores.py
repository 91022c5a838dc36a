"""Stores in whose calls something else may happen, and that may fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.protocol.model.world import World
from weir.channel.log import decode
from weir.errors import OutcomeUnknownError
from weir.storage import Created, Store


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
