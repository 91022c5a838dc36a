"""What follows each failure of a job and of its queries: another start after a delay, or none.

The restart strategies are one small class each, with Flink's names and meanings. A strategy gets each
failure with the time at which it happened and answers with the delay before the next start, or None when it
gives up. It keeps only what it needs to answer. `CrashLoops` counts how often each failure came back without
progress; failures of the machine are counted apart (`machine.py`). `Restarts` decides with all of them. Time
and chance are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from weir.errors import Domain
from weir.protocol.decide import FailedAt, GiveUp, Limits, after_failure
from weir.protocol.machine import MachineFailures


class RestartStrategy(Protocol):
    """How often and how fast a job may be started again."""

    def delay(self, now: float, chance: float) -> float | None:
        """Seconds to wait after the failure at `now`, or None to give up.

        `chance` is drawn by the caller from [-1, 1].
        """

    def describe(self) -> str:
        """Why it gave up, or what it does, in short."""


class NoRestart:
    """Never."""

    def delay(self, now: float, chance: float) -> float | None:
        return None

    def describe(self) -> str:
        return "restart-strategy.type is none"


class FixedDelay:
    """N times, each after the same delay."""

    def __init__(self, attempts: int, delay: float) -> None:
        self._attempts = attempts
        self._delay = delay
        self._used = 0

    def delay(self, now: float, chance: float) -> float | None:
        self._used += 1
        return self._delay if self._used <= self._attempts else None

    def describe(self) -> str:
        return f"fixed-delay allows {self._attempts} restarts"


class FailureRate:
    """As long as the failures within an interval stay below a number."""

    def __init__(self, max_failures: int, interval: float, delay: float) -> None:
        self._max = max_failures
        self._interval = interval
        self._delay = delay
        self._failures: deque[float] = deque()

    def delay(self, now: float, chance: float) -> float | None:
        self._failures.append(now)
        while self._failures[0] <= now - self._interval:
            self._failures.popleft()
        return self._delay if len(self._failures) <= self._max else None

    def describe(self) -> str:
        return f"failure-rate allows {self._max} failures in {self._interval:g} s"


class ExponentialDelay:
    """With a growing delay, that shrinks back after a long quiet time."""

    def __init__(
        self,
        initial: float,
        maximum: float,
        multiplier: float,
        jitter: float,
        reset_after: float,
        attempts: int | None,
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._multiplier = multiplier
        self._jitter = jitter
        self._reset_after = reset_after
        self._attempts = attempts
        self._backoff = initial
        self._used = 0
        self._last: float | None = None

    def delay(self, now: float, chance: float) -> float | None:
        if self._last is not None and now - self._last >= self._reset_after + self._backoff:
            self._backoff, self._used = self._initial, 0
        elif self._last is not None:
            self._backoff = min(self._backoff * self._multiplier, self._maximum)
        self._last = now
        self._used += 1
        if self._attempts is not None and self._used > self._attempts:
            return None
        return max(0.0, self._backoff * (1 + self._jitter * chance))

    def describe(self) -> str:
        return f"exponential-delay allows {self._attempts} restarts before a quiet time"


Cause = tuple[str, str]
"""The key of a failure: two with one key have the same cause."""


@dataclass
class _Repeated:
    times: int = 0
    idle_since: float | None = None
    """When its query first reported that it waits for input, after the newest of these failures."""


class CrashLoops:
    """The failures since the last progress, by query ("" for the driver itself) and cause.

    A committed batch is progress. So is a quiet time: a query that has waited for input that long without
    failing runs, even if it has committed nothing because there was nothing to read. Time in a batch is
    not quiet: one that fails after two hours, at every try, is a crash loop too.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, Cause], _Repeated] = {}

    def count(self, query: str, cause: Cause) -> int:
        """Count a failure; how often it has come without progress, this one included."""
        repeated = self._found.setdefault((query, cause), _Repeated())
        repeated.times, repeated.idle_since = repeated.times + 1, None
        return repeated.times

    def quiet(self, query: str, cause: Cause, now: float, quiet_time: float) -> bool:
        """Whether such a quiet time lies between the newest of these failures and now."""
        idle_since = self._found.get((query, cause), _Repeated()).idle_since
        return idle_since is not None and now - idle_since >= quiet_time

    def discard(self, query: str, cause: Cause) -> None:
        """The next failure of this cause is the first."""
        self._found.pop((query, cause), None)

    def idle(self, query: str, now: float) -> None:
        """The query runs and has nothing to read."""
        for (name, _), repeated in self._found.items():
            if name in ("", query) and repeated.idle_since is None:
                repeated.idle_since = now

    def committed(self, query: str) -> None:
        """A batch of the query is committed."""
        self._found = {at: one for at, one in self._found.items() if at[0] not in ("", query)}

    def clear(self) -> None:
        self._found.clear()


@dataclass(frozen=True)
class Restart:
    """Start again, after that many seconds."""

    delay: float
    when_able: bool = False
    """And not before the machine can start a process in time: `machine.gate`."""


_MORE_MACHINE = (
    "give the machine more cores or memory, or the job fewer queries, then start the job again: "
    "nothing that was committed is lost"
)
_REMEMBERED = 100
"""How many failures are remembered, to find a poison batch."""


class Restarts:
    """What follows each failure of one job: each query has a strategy of its own, and so has the driver.

    So the outage of one delays no other. A query is known by its name, the driver itself by "".
    """

    def __init__(self, strategy: Callable[[], RestartStrategy]) -> None:
        """`strategy` makes a fresh one, for a query that fails for the first time."""
        self._strategy = strategy
        self._strategies: dict[str, RestartStrategy] = {}
        self._failures: list[FailedAt] = []
        self._crash_loops = CrashLoops()
        self._of_the_machine = MachineFailures()

    def after(
        self,
        where: FailedAt,
        name: str,
        limits: Limits,
        *,
        quiet_time: float,
        first: bool,
        now: float,
        chance: float,
    ) -> Restart | GiveUp:
        """What follows a failure, of the query `name` or of all (""); it is remembered.

        `first` as for `after_failure`. Failures that a quiet time separates do not count together.
        """
        if where.failure.domain == Domain.MACHINE:
            return self._after_machine(name, limits, now, chance)
        cause = where.failure.key
        if self._crash_loops.quiet(name, cause, now, quiet_time):
            self._crash_loops.discard(name, cause)
            if name:  # its batch number does not show that it ran well: there was nothing to commit
                self._failures = [f for f in self._failures if (f.query, f.failure.key) != (name, cause)]
        in_a_row = self._crash_loops.count(name, cause)
        decision = after_failure(where, self._failures, limits, in_a_row=in_a_row, first=first)
        self._failures = [*self._failures[1 - _REMEMBERED :], where]
        if isinstance(decision, GiveUp):
            return decision
        strategy = self._strategy_of(name)
        delay = strategy.delay(now, chance)
        if delay is not None:
            return Restart(delay)
        # Who wants no restart at all wants to hear of the failure: then the job ends.
        return GiveUp(strategy.describe(), repeated=True, whole=isinstance(strategy, NoRestart))

    def _after_machine(self, name: str, limits: Limits, now: float, chance: float) -> Restart | GiveUp:
        """Whatever the strategy allows, except that one which allows no restart allows none here."""
        strategy = self._strategy_of(name)
        if isinstance(strategy, NoRestart):
            return GiveUp(strategy.describe(), _MORE_MACHINE, repeated=True, whole=True)
        delay = self._of_the_machine.delay(name, now, chance, limits.machine)
        if delay is not None:
            return Restart(delay, when_able=True)
        times, hours = self._of_the_machine.times(name), (limits.machine or 0) / 3600
        return GiveUp(
            f"the machine could not run it for {hours:g} h: {times} failures, and no batch was committed in "
            "between (restart-strategy.machine-failures.timeout)",
            _MORE_MACHINE,
            repeated=True,
        )

    def _strategy_of(self, name: str) -> RestartStrategy:
        if name not in self._strategies:
            self._strategies[name] = self._strategy()
        return self._strategies[name]

    def committed(self, query: str) -> None:
        """A batch of the query is committed."""
        self._crash_loops.committed(query)
        self._of_the_machine.progressed(query)

    def idle(self, query: str, now: float) -> None:
        """The query runs and has nothing to read."""
        self._crash_loops.idle(query, now)
        self._of_the_machine.progressed(query)

    def clear(self) -> None:
        """The job resumes from elsewhere: what failed before says nothing of that. Back-offs stay."""
        self._failures = []
        self._crash_loops.clear()
        self._of_the_machine.clear()
