"""Time is always passed in.

`Clock` gives monotonic seconds for decisions and wall time for showing; the two are never mixed,
and wall clocks are never compared between processes. `Deadline` is one time budget that is handed
down through all steps of a piece of work. `retry` repeats a step that may fail for a moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeVar

T = TypeVar("T")

_COUNTING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux stops its monotonic clock in suspend: a process that slept would think that its lease is fresh."""


class Clock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds that only grow, also while the machine is suspended; meaningful within one process."""
        return time.clock_gettime(_COUNTING)

    def cpu(self) -> float:
        """Seconds of a core that this thread has used."""
        return time.thread_time()

    def now(self) -> datetime:
        """Wall time in UTC, for people to read."""
        return datetime.now(timezone.utc)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, at most this long; True when it was set."""
        return event.wait(max(0.0, seconds))

    def sleep(self, seconds: float) -> None:
        """Wait this long, whatever happens."""
        self.wait(threading.Event(), seconds)


class ManualClock(Clock):
    """A clock that moves only by `advance`; for tests of decisions about time."""

    def __init__(self, start: float = 1000.0) -> None:
        self._seconds = start
        self._origin = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def monotonic(self) -> float:
        return self._seconds

    def cpu(self) -> float:
        return self._seconds

    def now(self) -> datetime:
        return self._origin + timedelta(seconds=self._seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


@dataclass(frozen=True)
class Deadline:
    """A moment on one clock by which a piece of work must be done."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, budget: timedelta) -> Deadline:
        return cls(clock, clock.monotonic() + budget.total_seconds())

    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def passed(self) -> bool:
        return self.left() == 0.0


def doubling(first: float, tries: int) -> list[float]:
    """The pauses between this number of tries, each twice as long as the one before."""
    return [first * 2**number for number in range(tries - 1)]


def retry(
    step: Callable[[], T],
    pauses: Iterable[float],
    wait: Callable[[float], object],
    *,
    on: type[Exception] | tuple[type[Exception], ...] = (),
    until: Callable[[T], bool] = lambda _: True,
) -> T:
    """Try a step once, and once more after each pause, until it answers; the last try answers or raises.

    A try that raises one of `on`, or has a result for which `until` is false, is repeated. Every other
    error is raised at once. `wait` waits for a pause to end, as `Clock.sleep` does; when it returns
    something true, the next try is the last one.
    """
    for pause in pauses:
        try:
            result = step()
        except on:
            pass
        else:
            if until(result):
                return result
        if wait(pause):
            break
    return step()
