"""The restart strategies: one small class each, Flink's names and meanings.

A strategy is told of each failure with the time at which it happened and answers with the delay
before the next start, or None when it gives up. It keeps only what it needs to answer; time and
chance are passed in.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class RestartStrategy(Protocol):
    """How often and how fast a job may be started again."""

    def delay(self, now: float, chance: float) -> float | None:
        """Seconds to wait after the failure at `now`, or None to give up.

        `chance` is drawn by the caller from [-1, 1].
        """

    def describe(self) -> str:
        """Why it gave up, or what it does, in a few words."""


class NoRestart:
    """Never."""

    def delay(self, now: float, chance: float) -> float | None:
        return None

    def describe(self) -> str:
        return "restart-strategy.type is none"


class FixedDelay:
    """So many times, each after the same delay."""

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
