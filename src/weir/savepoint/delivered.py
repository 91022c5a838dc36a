"""A savepoint needs nothing but itself: it waits until the sinks have what it counts as committed.

Spark decides first and the sink follows, by up to `sink.max-pending-batches`. What is on that way is
staged in the job's own directory and nowhere else: without it a restore would miss those batches, and a
sink that is swapped at a restore would never get them. Plain checkpoints do not wait: their job continues
in the same directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.checkpoint.manifest import Manifest
from weir.clock import Clock, Deadline
from weir.errors import NoSavepointError
from weir.ids import BatchId, JobName, QueryName
from weir.savepoint.take import HaltedError

if TYPE_CHECKING:  # the supervisor loads this room and no Spark
    from weir.job.query import QueryRun

_LOOK = 0.02


class Delivered:
    """What the sinks of one attempt have. For any thread."""

    def __init__(self, job: JobName, seconds: float, clock: Clock) -> None:
        self._job, self._seconds, self._clock = job, seconds, clock
        self._runs: dict[QueryName, QueryRun] = {}

    def follow(self, run: QueryRun) -> None:
        """A run has recovered its sink: from now on it is the one that delivers."""
        self._runs[run.name] = run

    def wait(self, manifest: Manifest, *, final: bool, halted: Callable[[], bool]) -> None:
        """Return when every sink has all batches up to the cut of its query.

        A run that fails meanwhile is waited for, because the next one delivers; `final` when none will
        follow. Raises `NoSavepointError` when it takes longer than a checkpoint may, and `HaltedError`.
        """
        deadline = Deadline(self._clock, self._clock.monotonic() + self._seconds)
        for name in map(QueryName, manifest.queries):
            upto = BatchId(manifest.queries[name].batch)
            while missing := self._missing(name, upto):
                if halted():
                    raise HaltedError
                run = self._runs.get(name)
                if final and (run is None or run.output.gave_up):
                    raise self._none(name, missing, upto, "and its time to end is over")
                if deadline.passed:
                    raise self._none(name, missing, upto, f"in {self._seconds:g} s")
                threading.Event().wait(_LOOK)

    def _missing(self, name: QueryName, upto: BatchId) -> int:
        """Of a query whose sink was not even opened in this attempt, all batches count as missing."""
        run = self._runs.get(name)
        return run.output.missing(upto) if run is not None else upto + 1

    def _none(self, name: QueryName, missing: int, upto: BatchId, limit: str) -> NoSavepointError:
        run = self._runs.get(name)
        sink = run.spec.sink if run is not None else None
        place = sink.describe() if sink is not None else "its sink"
        batches = f"batch {upto}" if missing == 1 else f"{missing} batches up to {upto}"
        return NoSavepointError(
            job=self._job,
            reason=f"query {name!r} has committed {batches}, and {place} has not taken it {limit}",
            todo="nothing is lost: the job delivers it when the sink answers again; then try again",
        )
