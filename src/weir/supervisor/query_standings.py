"""How the queries of a job stand, as its supervisor knows: what the driver reported, and what was decided.

Kept in the journal at every move, so that whoever looks sees it. A new driver begins with all of them as
CREATED, also those that had failed for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from weir.clock import Clock
from weir.protocol.messages import Failure
from weir.protocol.states import QUERY, JobEvent, QueryEvent, QueryState, job_event, move

MACHINE = "machine"
_OVER = (QueryState.FAILED, QueryState.ENDED)


@dataclass(frozen=True)
class QueryStanding:
    """One query."""

    state: QueryState
    since: str
    run: int = 0
    restart_at: str = ""
    """When it starts again, while it is RESTARTING."""
    waits_for: str = ""
    """"machine" while it starts again as soon as the machine can start a process in time."""
    failure: Failure | None = None
    """Why it is RESTARTING or FAILED."""
    reason: str = ""
    """Why it is FAILED, and does not start again."""

    def form(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {
            "state": self.state.value,
            "since": self.since,
            "run": self.run,
            "restart_at": self.restart_at,
            "waits_for": self.waits_for,
            "what": self.failure.what if self.failure is not None else "",
            "reason": self.reason,
        }


class QueryStandings:
    """The queries of a job by name. Called from one thread; calls `changed` after each move."""

    def __init__(self, clock: Clock, changed: Callable[[Mapping[str, Any]], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._found: dict[str, QueryStanding] = {}

    def learn(self, names: Iterable[str]) -> None:
        """The graph is known: a new driver is about to start these."""
        self._found = {name: self._found.get(name) or self._fresh() for name in names}
        self._report()

    def reset(self) -> None:
        """Their driver is gone."""
        self._found = {name: self._fresh() for name in self._found}
        self._report()

    def moved(self, name: str, state: QueryState, run: int) -> None:
        """The driver is about to start a query, or lets it wait for its streams."""
        event = QueryEvent.WAIT if state is QueryState.WAITING else QueryEvent.START
        self.apply(name, event, run=run)

    def started(self, name: str, run: int) -> None:
        """The query of a run has started, whether its STARTING was reported or not."""
        self.apply(name, QueryEvent.START, run=run)
        self.apply(name, QueryEvent.RUN, run=run)

    def apply(
        self, name: str, event: QueryEvent, *, run: int = 0, failure: Failure | None = None, reason: str = ""
    ) -> None:
        """Move a query; an event that its state does not know, such as a late one, changes nothing."""
        before = self._found.setdefault(name, self._fresh())
        if event not in QUERY[before.state]:
            return
        after = move(f"query {name}", QUERY, before.state, event)
        kept = failure or (before.failure if event is QueryEvent.GIVE_UP else None)
        since = self._clock.now().isoformat()
        self._found[name] = QueryStanding(after, since, run or before.run, failure=kept, reason=reason)
        self._report()

    def restarts(self, name: str, seconds: float) -> None:
        """It starts again after this many seconds."""
        at = self._clock.now() + timedelta(seconds=seconds)
        self._keep(name, restart_at=at.isoformat())

    def waits_for_machine(self, name: str) -> None:
        """It starts again when the machine can start a process in time. Safe to repeat."""
        if self._found[name].waits_for != MACHINE:
            self._keep(name, waits_for=MACHINE)

    def event(self) -> JobEvent | None:
        """What follows for the job from all of them."""
        return job_event([one.state for one in self._found.values()])

    def same_cause(self, name: str, failure: Failure) -> bool:
        """Whether another query waits for its restart because of the same cause."""
        return any(
            one.state is QueryState.RESTARTING and one.failure is not None and one.failure.key == failure.key
            for other, one in self._found.items()
            if other != name
        )

    def others_over(self, name: str) -> bool:
        """Whether no other query runs, waits or is to start again."""
        return all(one.state in _OVER for other, one in self._found.items() if other != name)

    def given_up(self) -> Failure | None:
        """Why the first of those failed that have failed for good; None when none has."""
        found = [one.failure for one in self._found.values() if one.state is QueryState.FAILED]
        return found[0] if found else None

    def _keep(self, name: str, *, restart_at: str = "", waits_for: str = "") -> None:
        self._found[name] = replace(self._found[name], restart_at=restart_at, waits_for=waits_for)
        self._report()

    def _fresh(self) -> QueryStanding:
        return QueryStanding(QueryState.CREATED, self._clock.now().isoformat())

    def _report(self) -> None:
        self._changed({name: one.form() for name, one in self._found.items()})
