"""The queries of one attempt: how each stands, and its newest run. For any thread; nothing here waits.

A bounded query behind streams begins when they have ended: it would end at once with what is there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from weir.ids import QueryName
from weir.job.query import QueryRun
from weir.protocol.states import QUERY, QueryEvent, QueryState, move

_AT_REST = (QueryState.CREATED, QueryState.ENDED)


class Queries:
    """In the order of the graph."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[QueryName, QueryState] = {}
        self._runs: dict[QueryName, QueryRun] = {}
        self._inputs: Mapping[QueryName, Sequence[QueryName]] = {}
        self._waiting: dict[QueryName, QueryRun] = {}
        self._behind_streams: frozenset[QueryName] = frozenset()

    def begin(
        self, runs: Sequence[QueryRun], inputs: Mapping[QueryName, Sequence[QueryName]]
    ) -> list[QueryRun]:
        """Take them all, none started yet; those that begin at once. `inputs` are the streams of each."""
        with self._lock:
            self._inputs = inputs
            self._states = {run.name: QueryState.CREATED for run in runs}
            self._waiting = {run.name: run for run in runs if run.spec.bounded and inputs[run.name]}
            self._behind_streams = frozenset(self._waiting)
            return [run for run in runs if run.name not in self._waiting]

    def starts(self, run: QueryRun) -> bool:
        """Whether the run may start; then it counts as running."""
        with self._lock:
            if self._states[run.name] is QueryState.ENDED:
                return False
            self._move(run.name, QueryEvent.START)
            self._runs[run.name] = run
            return True

    def ended(self, name: QueryName, *, failed: bool) -> QueryState:
        """Its run is over; how the query stands now."""
        with self._lock:
            return self._move(name, QueryEvent.FAIL if failed else QueryEvent.END)

    def ready(self) -> list[QueryRun]:
        """The bounded queries whose streams have ended meanwhile; each is given out once."""
        with self._lock:
            ready = [run for name, run in self._waiting.items() if self._complete(name)]
            for run in ready:
                del self._waiting[run.name]
            return ready

    def run(self, name: QueryName) -> QueryRun:
        return self._runs[name]

    def runs(self) -> list[QueryRun]:
        """The newest run of each query that has begun."""
        with self._lock:
            return list(self._runs.values())

    def to_fail(self) -> list[QueryRun]:
        """What can still fail; whatever waits begins no more."""
        with self._lock:
            self._waiting.clear()
            return [run for name, run in self._runs.items() if QueryEvent.FAIL in QUERY[self._states[name]]]

    def to_end(self) -> list[QueryRun]:
        """What is to be ended; whatever waits begins no more."""
        with self._lock:
            self._waiting.clear()
            for name, state in self._states.items():
                if QueryEvent.STOP in QUERY[state]:
                    self._move(name, QueryEvent.STOP)
            return list(self._runs.values())

    @property
    def all_ended(self) -> bool:
        with self._lock:
            return all(state is QueryState.ENDED for state in self._states.values())

    @property
    def any_failed(self) -> bool:
        with self._lock:
            return QueryState.FAILED in self._states.values()

    def is_running(self, name: QueryName) -> bool:
        with self._lock:
            return self._states.get(name) is QueryState.RUNNING

    def none_down(self) -> bool:
        """Whether each runs, has ended or waits, and some run."""
        with self._lock:
            states = set(self._states.values())
        return QueryState.RUNNING in states and states <= {*_AT_REST, QueryState.RUNNING}

    def standing(self) -> set[QueryName]:
        """Those that will reach no barrier: they have ended or wait, or their batches are fixed."""
        with self._lock:
            at_rest = {name for name, state in self._states.items() if state in _AT_REST}
        return at_rest | self._behind_streams

    def follow(self, stream: QueryName) -> list[QueryName]:
        """The readers that go along with a stream, and do not wait for its end."""
        return [
            name for name, read in self._inputs.items() if stream in read and name not in self._behind_streams
        ]

    def _complete(self, name: QueryName) -> bool:
        return all(self._states[one] is QueryState.ENDED for one in self._inputs[name])

    def _move(self, name: QueryName, event: QueryEvent) -> QueryState:
        self._states[name] = after = move(f"query {name}", QUERY, self._states[name], event)
        return after
