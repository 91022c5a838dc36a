"""The queries of one attempt: how each stands, and its newest run. For any thread; nothing here waits.

A bounded query that reads streams begins when they have ended: before that it would end at once with what
is there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from weir.errors import WeirError
from weir.ids import QueryName
from weir.job.query import QueryRun
from weir.protocol.states import QUERY, QueryEvent, QueryState, move

_AT_REST = (QueryState.WAITING, QueryState.ENDED)
_OVER = (QueryState.ENDED, QueryState.FAILED)
_DOWN = (QueryState.FAILED, QueryState.RESTARTING, QueryState.STARTING)


class Queries:
    """In the order of the graph."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[QueryName, QueryState] = {}
        self._runs: dict[QueryName, QueryRun] = {}
        self._inputs: Mapping[QueryName, Sequence[QueryName]] = {}
        self._waiting: dict[QueryName, QueryRun] = {}
        self._after_streams: frozenset[QueryName] = frozenset()
        self._reasons: dict[QueryName, str] = {}

    def begin(
        self, runs: Sequence[QueryRun], inputs: Mapping[QueryName, Sequence[QueryName]]
    ) -> list[QueryRun]:
        """Take them all, none started yet; those that begin at once. `inputs` are the streams of each."""
        with self._lock:
            self._inputs = inputs
            self._states = {run.name: QueryState.CREATED for run in runs}
            self._waiting = {run.name: run for run in runs if run.spec.bounded and inputs[run.name]}
            self._after_streams = frozenset(self._waiting)
            for name in self._waiting:
                self._move(name, QueryEvent.WAIT)
            return [run for run in runs if run.name not in self._waiting]

    def starts(self, name: QueryName) -> bool:
        """Whether a query may start; then it is STARTING."""
        with self._lock:
            if QueryEvent.START not in QUERY[self._states[name]]:
                return False
            self._move(name, QueryEvent.START)
            return True

    def take(self, run: QueryRun) -> bool:
        """Take the run of a query that starts; False when the query was asked to end meanwhile."""
        with self._lock:
            if self._states[run.name] is QueryState.STARTING:
                self._runs[run.name] = run
                return True
            self._move(run.name, QueryEvent.END)
            return False

    def running(self, run: QueryRun) -> None:
        """The Spark query of a run has started; it may have ended by now."""
        with self._lock:
            if self._runs[run.name] is run and self._states[run.name] is QueryState.STARTING:
                self._move(run.name, QueryEvent.RUN)

    def not_started(self, run: QueryRun) -> QueryState:
        """A run failed before its Spark query was there; how the query stands now."""
        with self._lock:
            self._waiting.pop(run.name, None)
            self._runs[run.name] = run
            return self._move(run.name, QueryEvent.FAIL)

    def ended(self, name: QueryName, *, failed: bool) -> QueryState:
        """Its run is over; how the query stands now."""
        with self._lock:
            return self._move(name, QueryEvent.FAIL if failed else QueryEvent.END)

    def give_up(self, name: QueryName, reason: str) -> bool:
        """A failed query is not started again; False when it does not wait for that."""
        with self._lock:
            if QueryEvent.GIVE_UP not in QUERY[self._states[name]]:
                return False
            self._reasons[name] = reason
            self._move(name, QueryEvent.GIVE_UP)
            return True

    def ready(self) -> list[QueryRun]:
        """The bounded queries whose streams have ended meanwhile; each is given out once."""
        with self._lock:
            ready = [
                run
                for name, run in self._waiting.items()
                if all(self._states[stream] is QueryState.ENDED for stream in self._inputs[name])
            ]
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

    def fail(self, error: WeirError) -> None:
        """Fail every query: each fails with this error, and its running batch is discarded.

        Returns at once, from any thread. Safe to repeat.
        """
        for run in self.to_fail():
            threading.Thread(target=run.fail, args=(error,), name="weir-fail", daemon=True).start()

    def to_end(self) -> list[QueryRun]:
        """What is to be ended; whatever waits begins no more."""
        with self._lock:
            self._waiting.clear()
            for name, state in self._states.items():
                if QueryEvent.STOP in QUERY[state]:
                    self._move(name, QueryEvent.STOP)
            return list(self._runs.values())

    @property
    def all_over(self) -> bool:
        """Whether each has ended or failed for good, or waits for a stream that will never end."""
        with self._lock:
            return all(state in _OVER or self._is_lost(name) for name, state in self._states.items())

    @property
    def any_restarts(self) -> bool:
        """Whether a query that has failed is to start again."""
        with self._lock:
            return not {QueryState.RESTARTING, QueryState.STARTING}.isdisjoint(self._states.values())

    def state(self, name: QueryName) -> QueryState | None:
        with self._lock:
            return self._states.get(name)

    def none_down(self) -> bool:
        """Whether each runs, has ended or waits, and some run."""
        with self._lock:
            states = set(self._states.values())
        return QueryState.RUNNING in states and states <= {*_AT_REST, QueryState.RUNNING}

    def down(self) -> str:
        """Which query is down, and what becomes of it; "" when none is. One that failed for good first."""
        with self._lock:
            down = {name: state for name, state in self._states.items() if state in _DOWN}
            reasons = dict(self._reasons)
        if not down:
            return ""
        name = min(down, key=lambda query: _DOWN.index(down[query]))
        if name in reasons:
            return f"query {name} has FAILED ({reasons[name]}): fix that, then start the job again"
        return f"query {name} is down and starts again; 'weir status' shows when"

    def failed(self) -> list[QueryName]:
        """Those that have failed for good."""
        with self._lock:
            return [name for name, state in self._states.items() if state is QueryState.FAILED]

    def standing(self) -> set[QueryName]:
        """Those that will reach no barrier: they have ended or wait, or their batches are fixed."""
        with self._lock:
            at_rest = {name for name, state in self._states.items() if state in _AT_REST}
        return at_rest | self._after_streams

    def follow(self, stream: QueryName) -> list[QueryName]:
        """The readers that go along with a stream, and do not wait for its end."""
        return [
            name for name, read in self._inputs.items() if stream in read and name not in self._after_streams
        ]

    def _is_lost(self, name: QueryName) -> bool:
        """Whether a query waits for the end of a stream that has failed for good, or is lost itself."""
        if self._states[name] is not QueryState.WAITING:
            return False
        inputs = self._inputs[name]
        return any(self._states[stream] is QueryState.FAILED or self._is_lost(stream) for stream in inputs)

    def _move(self, name: QueryName, event: QueryEvent) -> QueryState:
        self._states[name] = after = move(f"query {name}", QUERY, self._states[name], event)
        return after
