"""The steps of a start, each with the time that it took."""

from __future__ import annotations

from collections.abc import Callable

from weir.clock import Clock
from weir.protocol import messages as m


class Timed:
    """Report how long a step took, when it went well."""

    def __init__(self, report: Callable[[m.Message], None], clock: Clock, step: str, query: str) -> None:
        self._report, self._clock, self._step, self._query = report, clock, step, query

    def __enter__(self) -> None:
        self._since = self._clock.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: object, stack: object) -> None:
        if kind is None:
            self._report(m.StepDone(self._step, self._clock.monotonic() - self._since, self._query))
