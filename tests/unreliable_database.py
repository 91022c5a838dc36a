"""A database that fails by seed: whether a commit happened and whether it answered are drawn apart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from weir.errors import DatabaseError, OutcomeUnknownError
from weir.sinks.postgres.database import Address, Database

if TYPE_CHECKING:
    from weir.sinks.postgres.database import Connection


class UnreliableDatabase(Database):
    """A real one whose answers get lost."""

    def __init__(self, address: Address, seed: int, failing: float = 0.4) -> None:
        super().__init__(address)
        self._random = random.Random(seed)
        self.failing = failing

    def _commit(self, connection: Connection, verb: str) -> None:
        if self._random.random() >= self.failing:
            super()._commit(connection, verb)
            return
        happened, answered = self._random.random() < 0.5, self._random.random() < 0.5
        if happened:
            super()._commit(connection, verb)
            if answered:
                return
        connection.close()
        if answered:
            raise DatabaseError(verb=verb, place=self.address.place, reason="drawn by seed")
        raise OutcomeUnknownError(verb=verb, path=self.address.place, reason="drawn by seed")
