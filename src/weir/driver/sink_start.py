"""The sinks of a job at a start: looked at, fenced, recovered; one query at a time may fail there alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from weir.driver.context import JobContext
from weir.errors import (
    FencedError,
    SinkTakenError,
)
from weir.ids import NO_BATCH, BatchId, QueryName
from weir.job.query import QueryRun
from weir.restore.go_live import check_ahead, unasked_limit
from weir.restore.point import newest
from weir.restore.query_damage import Damage
from weir.sinks.fence import Knows
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.failure import from_exception
from weir.storage import generation
from weir.storage.attempts import AttemptLock, KnownAttempts
from weir.storage.generation import Origin
from weir.storage.paths import Live

Answer = TypeVar("Answer")


class SinkStart:
    """What a start, or the restart of one query, does with the sinks."""

    def __init__(self, context: JobContext, live: Live, origin: Origin) -> None:
        self._context = context
        self._live = live
        self._origin = origin

    def look(self, run: QueryRun) -> BatchId:
        """The newest batch that the sink of a run holds; raises as `fence` does, and fences nobody."""
        return self._ask(run, run.output.look)

    def fence(self, run: QueryRun) -> BatchId:
        """The same; from now on no earlier writer can write there."""
        return self._ask(run, run.output.open)

    def delivered_elsewhere(self) -> Mapping[QueryName, BatchId]:
        """Up to which batch queries with a new sink were delivered before, elsewhere."""
        context = self._context
        return generation.delivered_elsewhere(context.store, context.name, self._live.generation)

    def recover(self, run: QueryRun, elsewhere: Mapping[QueryName, BatchId]) -> None:
        """Deliver what Spark has committed and the sink has not, and discard the rest."""
        run.output.recover(elsewhere.get(run.name, NO_BATCH), self._context.note)

    def lost(self, delivered: Mapping[QueryName, BatchId]) -> list[Damage]:
        """Batches that a sink holds and the live files know nothing of, where a checkpoint has the query.

        Raises `OutputAheadError` when they are more than a crash explains. What no checkpoint knows of is
        refused when the sink is recovered: to restore one would rewind all that the query has delivered.
        """
        live = self._live
        point = newest(live.store, live.job)
        known = {name: QueryFiles.of(live, name).last_committed() for name in delivered}
        lost = {
            name: last
            for name, last in delivered.items()
            if last > known[name] and point is not None and name in point.queries
        }
        check_ahead(live, lost, known, unasked_limit(self._context.settings))
        generation.note_ahead(live.store, live.job, live.generation, {})
        return [
            Damage(name, f"commits/{last}", "is lost: its output was delivered")
            for name, last in lost.items()
        ]

    def _ask(self, run: QueryRun, step: Callable[[str, str, Knows], BatchId]) -> BatchId:
        context, origin = self._context, self._origin
        began_as = origin.forked_from if run.spec.channel is not None else ""
        try:
            owner = origin.owners.get(run.name, run.name)  # it may have had another name
            knows = KnownAttempts(context.store, context.name)
            return step(f"{began_as or context.name}/{owner}", origin.lineage, knows)
        except FencedError as error:
            opened = AttemptLock(context.store, context.name, context.clock).newest()
            own, taken = context.lease.attempt, error.fields.get("attempt", 0)
            if run.spec.sink is None or (opened and opened.attempt > own) or taken <= own:
                raise
            path = run.spec.sink.describe()
            raise SinkTakenError(query=run.name, path=path, attempt=taken, own=own) from error


class Isolation:
    """Lets a query whose sink is away, or refuses a row, fail alone, so that the others start."""

    def __init__(
        self, context: JobContext, unstarted: dict[QueryName, Exception], *, alone: bool, again: bool
    ) -> None:
        """`alone`: a query may fail alone; `again`: the job has run before, so what fails now has worked."""
        self._context = context
        self._unstarted = unstarted
        self._alone = alone
        self._again = again

    def each(self, runs: Sequence[QueryRun], step: Callable[[QueryRun], Answer]) -> dict[QueryName, Answer]:
        """Take a step with every run that has not failed; what it gave, of those that did not fail now."""
        answers: dict[QueryName, Answer] = {}
        for run in (one for one in runs if one.name not in self._unstarted):
            try:
                answers[run.name] = step(run)
            except Exception as error:
                if not self._alone or self._ends_the_start(run, error):
                    raise
                self._unstarted[run.name] = error
        return answers

    def _ends_the_start(self, run: QueryRun, error: Exception) -> bool:
        """Whether what went wrong with one query ends the start of all of them.

        A channel is in the job's own directory, which all of them need. A sink that another directory's job
        has taken means that all of this job runs elsewhere.
        """
        if isinstance(error, SinkTakenError):
            return True
        failure = from_exception(error, self._context.name, planning=not self._again)
        return run.spec.channel is not None or failure.redeploy or (not failure.retry and not self._again)
