"""The receivers of a job: one for each source that must be listened to, however many queries read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.clock import Clock, Deadline
from weir.ids import QueryName, Run, Token
from weir.job import graph
from weir.job.live import Live
from weir.job.sources import ReadingQuery, Receiver
from weir.lease import Lease


class Receivers:
    """Started before any query runs; what they have received is in the journal, for the next start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all: list[Receiver] = []

    def check(self, learnt: graph.Graph, live: Live, lease: Lease) -> None:
        """Raise what `start` would raise, for every source, and write nothing."""
        for receiver in _receivers(learnt, live, lease):
            receiver.check()

    def start(
        self,
        learnt: graph.Graph,
        live: Live,
        lease: Lease,
        retained: Callable[[QueryName], list[str] | None],
    ) -> None:
        """Listen; `retained` gives the offsets of a query in every retained checkpoint."""
        for receiver in _receivers(learnt, live, lease, retained):
            receiver.start()
            self._all.append(receiver)

    def ask_to_end(self) -> None:
        for receiver in self._all:
            receiver.ask_to_end()

    def end(self, deadline: Deadline) -> None:
        for receiver in self._all:
            receiver.end(deadline)

    def end_within(self, seconds: float) -> None:
        self.end(Deadline(self._clock, self._clock.monotonic() + seconds))


def _receivers(
    learnt: graph.Graph,
    live: Live,
    lease: Lease,
    retained: Callable[[QueryName], list[str] | None] = lambda _query: None,
) -> Iterator[Receiver]:
    """Those of all sources, not started."""
    token = Token(lease.attempt, Run(1), lease.session)
    for one in learnt.receiving:
        readers = [ReadingQuery(name, live.files(name), retained) for name in one.readers]
        yield one.source.receiver(live.place(one.name), token, lease, readers)
