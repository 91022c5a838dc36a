"""The schedule of savepoints: when the next one is due, and which older ones make room for it.

Only what the schedule took itself counts and is deleted; what somebody asked for is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from weir.clock import Clock
from weir.config import Settings
from weir.errors import ExternalError, WeirError
from weir.ids import JobName
from weir.protocol import messages as m
from weir.savepoint.catalogue import CatalogueEntry, entries, scheduled, superfluous, taken_at
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import dispose
from weir.storage import Store, generation

_AGAIN = 60.0
"""Seconds until a failed savepoint of the schedule is tried again; a shorter schedule comes first."""


class SavepointSchedule:
    """Of one attempt of a job. Called from one thread."""

    def __init__(
        self,
        store: Store,
        job: JobName,
        lineage: str,
        settings: Settings,
        report: Callable[[m.Message], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._job = job
        self._lineage = lineage
        self._dir = settings.execution_checkpointing_savepoint_dir or ""
        self._every = settings.savepoint_schedule
        self._keep = settings.savepoint_retain
        self._report = report
        self._clock = clock
        self._began_at, self._began = clock.now(), clock.monotonic()

    def next_due(self, *, failed: bool) -> float | None:
        """When the next one is due, on the monotonic clock, after one that was tried just now."""
        if self._every is None:
            return None
        every = self._every.total_seconds()
        return self._clock.monotonic() + (min(every, _AGAIN) if failed else every)

    def first_due(self) -> float | None:
        """The schedule continues from the last one that it took."""
        if self._every is None:
            return None
        passed = 0.0
        if newest := self._scheduled()[:1]:
            passed = (self._clock.now() - taken_at(newest[0])).total_seconds()
        return self._clock.monotonic() + self._every.total_seconds() - max(0.0, passed)

    def _scheduled(self) -> list[CatalogueEntry]:
        try:
            return scheduled(entries([self._dir]), self._job, self._lineage)
        except ExternalError:
            return []

    def make_room(self) -> None:
        """Delete those that newer ones have replaced, and report it."""
        deleted = []
        for entry in superfluous(self._scheduled(), self._keep, self._steady_now()):
            try:
                place = SavepointPlace(entry.place)
                if place.url == generation.awaited(self._store, self._job):
                    continue  # a restore that was asked for resumes from it
                dispose(place)
            except WeirError as error:
                self._report(m.Noted(f"an old savepoint stays: {error.text}"))
            else:
                deleted.append(entry.place)
        if deleted:
            self._report(m.SavepointsDeleted(deleted))

    def _steady_now(self) -> datetime:
        """The time of day, or less if the clock was set forward since the start.

        What seems old only because of that would be deleted, and can't be made again.
        """
        passed = timedelta(seconds=self._clock.monotonic() - self._began)
        return min(self._clock.now(), self._began_at + passed)
