"""Failures of the machine: how often they are tried again, and when the machine can start a process again.

They are counted apart: they use up no restart of the job's own strategy. A restart after one waits first, as
after every failure, and then until a process that was started to see has come up in time (`gate`). Pure: who
starts such processes is `supervisor/machine.py`.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum, auto

NONE_LEFT = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENFILE})
"""What the operating system says when it has no process, no memory or no file handle left."""
SPARKS_LIMIT = 10.0
"""Seconds that Spark gives the Python process of a source to connect. It can't be changed."""
IN_TIME = SPARKS_LIMIT / 2
"""A process that was started to see must come up within this: beside a query that starts it takes longer."""
FRESH = 15.0
"""For how many seconds a process that came up in time says that the next one will."""
_SPARING = 2.0
"""How many times as long as a process took, the machine is left alone before the next is started."""
_PAUSE = 5.0
"""The least of that, in seconds."""
_FIRST, _GROWTH, _MOST, _JITTER = 5.0, 2.0, 60.0, 0.2
_TRIES = 10
"""A job is not given up before this many failures of the machine, however long they took."""


@dataclass
class _Failing:
    since: float
    times: int = 0


class MachineFailures:
    """Those since the last progress, by query ("" for the driver itself)."""

    def __init__(self) -> None:
        self._found: dict[str, _Failing] = {}

    def delay(self, query: str, now: float, chance: float, timeout: float | None) -> float | None:
        """Count a failure; the seconds before the machine is looked at, or None to give up.

        It is given up when `timeout` seconds have passed since the first one without progress, and no
        sooner than after ten tries. `chance` is drawn by the caller from [-1, 1].
        """
        failing = self._found.setdefault(query, _Failing(now))
        failing.times += 1
        if timeout is not None and now - failing.since >= timeout and failing.times > _TRIES:
            return None
        backoff = min(_FIRST * _GROWTH ** min(failing.times - 1, 10), _MOST)
        return backoff * (1 + _JITTER * chance)

    def times(self, query: str) -> int:
        """How often it has failed without progress."""
        return self._found[query].times if query in self._found else 0

    def progressed(self, query: str) -> None:
        """A batch of the query is committed, or it waits for input: it runs, and so does the driver."""
        for name in ("", query):
            self._found.pop(name, None)

    def clear(self) -> None:
        self._found.clear()


@dataclass(frozen=True)
class Probe:
    """A process that was started to see how long that takes, and has ended."""

    seconds: float
    ended_at: float
    came_up: bool = True
    """False: it could not be started, or did not come up within `SPARKS_LIMIT` and was ended."""

    @property
    def in_time(self) -> bool:
        return self.came_up and self.seconds <= IN_TIME


class Gate(Enum):
    """Whether what waits for the machine may start."""

    OPEN = auto()
    """Start it."""
    FORCED = auto()
    """Start it, though the machine has not become able: it has waited for as long as it may."""
    PROBE = auto()
    """Start a process to see how long that takes."""
    SHUT = auto()
    """Wait, and start nothing."""


def gate(waited: float, newest: Probe | None, *, probing: bool, now: float, longest: float) -> Gate:
    """What may be started now, when something has `waited` that many seconds for the machine.

    `newest` is the last process that was started to see, `probing` whether there is one under way. There is
    one at a time, and after a slow one the machine is left alone for twice as long as that took.
    """
    fresh = newest is not None and now - newest.ended_at <= FRESH
    if newest is not None and newest.in_time and fresh:
        return Gate.OPEN
    if waited >= longest:
        return Gate.FORCED
    if probing:
        return Gate.SHUT
    if newest is None or newest.in_time:  # nothing is known, or what was known is old
        return Gate.PROBE
    rested = now - newest.ended_at >= max(_PAUSE, _SPARING * newest.seconds)
    return Gate.PROBE if rested else Gate.SHUT


@dataclass(frozen=True)
class QueryTurn:
    """A query that starts again now."""

    query: str
    waited: float
    """Seconds that it waited past the time at which it was due."""


@dataclass(frozen=True)
class _Due:
    at: float
    when_able: bool


class Turns:
    """Which of the queries that are to start again does so now: one at a time, the one due first.

    Starting a query is work for the machine, whatever its failure was: after a failure of all of them they
    come back one after the other. One whose start is not heard of for `PATIENCE` seconds holds up no other.
    """

    PATIENCE = 60.0

    def __init__(self) -> None:
        self._due: dict[str, _Due] = {}
        self._starting: dict[str, float] = {}

    def add(self, query: str, at: float, *, when_able: bool = False) -> None:
        """A failed query is to start again then; `when_able`: and not before the machine is able to."""
        self._due[query] = _Due(at, when_able)
        self._starting.pop(query, None)

    def over(self, query: str) -> None:
        """It has started, or will not: the next one may."""
        self._starting.pop(query, None)

    def clear(self) -> None:
        """No query starts again by itself any more."""
        self._due.clear()
        self._starting.clear()

    def waiting(self, now: float) -> dict[str, float]:
        """The queries that are due and need an able machine, with the seconds that each has waited."""
        return {query: now - due.at for query, due in self._due.items() if due.when_able and now >= due.at}

    def take(self, now: float, *, able: bool) -> QueryTurn | None:
        """The query that starts now; it is given out once. None: none is due, or another one starts."""
        if any(now - since < self.PATIENCE for since in self._starting.values()):
            return None
        ready = [query for query, due in self._due.items() if now >= due.at and (able or not due.when_able)]
        if not ready:
            return None
        query = min(ready, key=lambda one: self._due[one].at)
        waited = now - self._due.pop(query).at
        self._starting[query] = now
        return QueryTurn(query, waited)
