"""The receivers of a job: one for each source that must be listened to, however many queries read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.clock import Clock, Deadline
from weir.ids import QueryName, Run, Token
from weir.job.graph import Graph
from weir.sources import ReadingQuery, Receiver
from weir.sources.contract import Place
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.attempts import Lease
from weir.storage.paths import Live

Retained = Callable[[QueryName], "list[str] | None"]
"""The offsets of a query in every retained checkpoint; None: all that its sources hold is needed."""


def all_needed(_query: QueryName) -> list[str] | None:
    """As long as nobody knows the retained checkpoints."""
    return None


class Receivers:
    """Started before any query runs; what they have received is in the journal, for the next start.

    Until `trim_by` gives what the retained checkpoints need, nothing of the journal is deleted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all: list[Receiver] = []
        self._retained: Retained = all_needed

    def check(self, graph: Graph, live: Live, lease: Lease) -> None:
        """Raise what `start` would raise, for every source, and write nothing."""
        for receiver in _receivers(graph, live, lease):
            receiver.check()

    def start(self, graph: Graph, live: Live, lease: Lease) -> None:
        """Listen."""
        for receiver in _receivers(graph, live, lease, self._needed):
            receiver.start()
            self._all.append(receiver)

    def trim_by(self, retained: Retained) -> None:
        """The checkpoints are known: what none of them needs may be deleted."""
        self._retained = retained

    def ask_to_end(self) -> None:
        for receiver in self._all:
            receiver.ask_to_end()

    def end(self, deadline: Deadline) -> None:
        for receiver in self._all:
            receiver.end(deadline)

    def end_within(self, seconds: float) -> None:
        self.end(Deadline(self._clock, self._clock.monotonic() + seconds))

    def _needed(self, query: QueryName) -> list[str] | None:
        return self._retained(query)  # looked up at each call: `trim_by` may come later


def _receivers(
    graph: Graph,
    live: Live,
    lease: Lease,
    retained: Retained = all_needed,
) -> Iterator[Receiver]:
    """Those of all sources, not started."""
    token = Token(lease.attempt, Run(1), lease.session)
    for source in graph.receiving:
        readers = [ReadingQuery(name, QueryFiles.of(live, name), retained) for name in source.readers]
        yield source.source.receiver(Place.of(live, source.name), token, lease, readers)
