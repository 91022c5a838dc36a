"""Stores in whose calls something else may happen, and that may fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.protocol.model.world import RECORDS, World
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
    """The store of a channel, or of the checkpoints' records, as its writers see it.

    A `create` may give no answer: it did not happen, or it did.
    """

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
        counted = self._name == RECORDS or key.startswith("log/")
        if counted:
            self._count(self._world.failures, key)
        created = self._store.create(key, data)
        if counted and self._name == RECORDS:
            self._world.recorded(key)
        elif counted and created is Created.NOW:
            self._world.entered(self._name, key, decode(json.loads(data)))
        if counted:
            self._count(self._world.silences, key)
        return created

    def _count(self, left: dict[str, int], key: str) -> None:
        if self._name in left:
            left[self._name] -= 1
            if left[self._name] < 0:
                del left[self._name]
                if self._name == RECORDS and self._world.meanwhile is not None:
                    act, self._world.meanwhile = self._world.meanwhile, None
                    act()
                raise OutcomeUnknownError(verb="create", path=key, reason="no answer", root=self.url)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        self._store.delete(key)
