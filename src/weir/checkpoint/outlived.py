"""Checkpoints that expired while snapshots were under way: those ack as well, too late."""

from __future__ import annotations

from collections.abc import Iterator

from weir.checkpoint.flight import Flight
from weir.ids import CheckpointId, QueryName


class Outlived:
    """The expired checkpoints that somebody still takes a snapshot for."""

    def __init__(self) -> None:
        self._flights: list[Flight] = []

    @property
    def ids(self) -> list[CheckpointId]:
        return [one.id for one in self._flights]

    def add(self, flight: Flight) -> None:
        """It has expired; what is done of it is of no interest any more."""
        flight.queries = {name: one for name, one in flight.queries.items() if not one.done()}
        self._flights += [flight] if flight.queries else []

    def done(self) -> Iterator[tuple[Flight, QueryName]]:
        """The snapshots that were taken since the last call; those that failed are passed over."""
        for flight in list(self._flights):
            for name, future in list(flight.queries.items()):
                if future.done():
                    if future.exception() is None:
                        yield flight, name
                    del flight.queries[name]
            if not flight.queries:
                self._flights.remove(flight)
