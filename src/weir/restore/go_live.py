"""The last steps of a restore: check every sink, rewind them, and then the generation is live.

All that can refuse the restore for good is asked of every sink before the first one is rewound. After that
a savepoint that was claimed is deleted, when checkpoints make up for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from weir import faults
from weir.clock import Clock
from weir.errors import (
    NotASavepointError,
    NotRewindableError,
    OutputAheadError,
    SinkMismatchError,
    WeirError,
)
from weir.ids import NO_BATCH, BatchId, Generation, JobName, QueryName, job_name
from weir.job.query import QueryRun
from weir.protocol import messages as m
from weir.restore.fetch import Opened
from weir.restore.plan import Replan
from weir.savepoint import about
from weir.savepoint.about import delivers, saved_sink
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import dispose
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store
from weir.storage import generation as generations
from weir.storage.generation import Origin
from weir.storage.paths import Live

if TYPE_CHECKING:
    from weir.config import Settings
    from weir.job.env import QuerySpec

_SPARE = 8
"""Batches beyond those that may wait for a sink: entries of the commit log that a power loss takes."""

Delivered = Mapping[QueryName, BatchId]


def check_fork(store: Store, origin: Origin, specs: Iterable[QuerySpec]) -> None:
    """Refuse a fork that would deliver where the original does, as far as that is known here."""
    if not origin.forked_from:
        return
    other = job_name(origin.forked_from)
    _, known = about.last(store, other, generations.live(store, other))
    taken = {shape.sink for shape in known.values()}
    for spec in specs:
        sink = saved_sink(spec).description
        if delivers(spec) and sink in taken:
            reason = f"this job is a fork of {other!r}, and a fork must not write where the original does"
            todo = "give it another place in the job file"
            raise SinkMismatchError(query=spec.name, path=sink, reason=reason, todo=todo)


def check_sinks(opened: Opened, runs: Sequence[QueryRun], delivered: Delivered, limit: int) -> bool:
    """Raise when a sink can't be rewound to the point, or must not be; whether any is ahead of it.

    `limit` is how far a restore that nobody asked for may rewind (`unasked_limit`).
    """
    manifest, made, origin = opened.manifest, opened.replan, opened.origin
    assert manifest is not None and made is not None and origin is not None
    store, job = opened.live.store, opened.live.job
    cuts, elsewhere = _cuts(made, runs)
    before = Live(store, job, generations.live(store, job))
    known = {
        run.name: max(QueryFiles.of(before, name).last_committed() for name in (run.name, made.was(run.name)))
        for run in runs
    }
    # Spark's own file sink has no ledger: what it holds is in its log alone.
    held = {run.name: max(delivered[run.name], run.output.holds) for run in runs}
    if origin.unasked:
        in_point = {name: max(known[name], cuts[name]) for name in cuts}
        check_ahead(before, held, in_point, limit)
    any_beyond = False
    for run in runs:
        name, to, output = run.name, cuts[run.name], run.output
        if made.was(name) not in manifest.queries and output.rewindable and output.holds > NO_BATCH:
            raise _unknown(run, made.point.name, job)
        beyond = max(known[name], held[name]) > to
        possible = output.rewindable and output.floor <= to
        if beyond and not possible and not origin.options.accept_duplicates:
            raise NotRewindableError(job=job, query=name, point=made.point.name)
        output.check_rewind(to, new=made.has_new_sink(name))
        output.check_staged(to, elsewhere.get(name, NO_BATCH))
        any_beyond = any_beyond or beyond
    return any_beyond


def go_live(
    opened: Opened,
    runs: Sequence[QueryRun],
    delivered: Delivered,
    limit: int,
    check: Callable[[Generation], None],
    report: Callable[[m.Message], None],
    clock: Clock,
) -> None:
    """Rewind the sinks, which are fenced, to the point; then, and not before, its generation is live.

    What they hold is checked again: more may have been delivered until the fence. `check` is called before
    each thing that is written, and raises when the generation is another's by now.
    """
    manifest, made, origin = opened.manifest, opened.replan, opened.origin
    assert manifest is not None and made is not None and origin is not None
    store, job, generation = opened.live.store, opened.live.job, opened.live.generation
    since = clock.monotonic()
    cuts, elsewhere = _cuts(made, runs)
    begun = check_sinks(opened, runs, delivered, limit)
    check(generation)
    if begun:
        as_in_point = {made.was(name): cut for name, cut in cuts.items()}
        generations.begin_rewind(store, job, generation, as_in_point)
    for run in runs:
        to, output = cuts[run.name], run.output
        if delivered[run.name] > to and not output.rewindable:
            report(m.Noted(output.repeated(to, delivered[run.name])))
        output.rewind(to, lambda: check(generation))
    faults.point("restore.rewound")
    new = {name: batch for name, batch in elsewhere.items() if made.has_new_sink(name)}
    for name, batch in new.items() if not origin.saved else ():
        report(m.Noted(_beginning_of_new_sink(name, batch)))
    check(generation)
    generations.note_elsewhere(store, job, generation, elsewhere)
    generations.mark_live(store, job, generation)
    faults.point("restore.live")
    report(m.Restored(manifest.id, generation, origin.why, clock.monotonic() - since))


def _cuts(
    made: Replan, runs: Iterable[QueryRun]
) -> tuple[dict[QueryName, BatchId], dict[QueryName, BatchId]]:
    """The batch that each query is rewound to; and up to which one it was delivered elsewhere."""
    cuts = {run.name: made.cut(run.name) for run in runs}
    elsewhere = {
        run.name: cuts[run.name]
        for run in runs
        if cuts[run.name] != NO_BATCH
        and (run.output.only_ledger_is_lost or (made.has_new_sink(run.name) and run.output.is_untouched))
    }
    return cuts, elsewhere


def _beginning_of_new_sink(query: QueryName, batch: BatchId) -> str:
    return (
        f"query {query}: its new sink gets the batches after {batch}. A checkpoint, unlike a "
        "savepoint, does not wait for sinks: what the old sink had not received by then is "
        "delivered to none"
    )


def _unknown(run: QueryRun, point: str, job: JobName) -> SinkMismatchError:
    """Nobody has asked for all that a query has ever delivered to be rewound."""
    return SinkMismatchError(
        query=run.name,
        path=run.output.describe(),
        reason=f"it holds batches up to {run.output.holds}, and {point} does not have this query: all of"
        " them would be rewound, and its sources may no longer have the input for them",
        todo=f"restore a point that has the query ('weir checkpoints {job}' lists them), give it another"
        " place for its output, or take it out of the job",
    )


def unasked_limit(settings: Settings) -> int:
    """How many batches of a query may be rewound, unasked, that nothing but its sink knows of.

    A batch is delivered after Spark has committed it, so a sink is never ahead of live files that nobody has
    touched. A power loss may take the newest entries of Spark's logs, which Spark does not force to the disk.
    More than that means that these live files are an older copy, or that a part of them is gone: to rewind
    the sinks that far would delete output that nothing may bring back.
    """
    return settings.sink_max_pending_batches + _SPARE


def check_ahead(live: Live, delivered: Delivered, known: Delivered, limit: int) -> None:
    """Raise `OutputAheadError` when a sink is ahead by more than the limit.

    `known` are the batches that the live files or a checkpoint have. What the sinks hold is recorded beside
    the live files, for `weir repair`, which can't ask them.
    """
    beyond = {name: last for name, last in delivered.items() if last > known[name]}
    if all(last - known[name] <= limit for name, last in beyond.items()):
        return
    generations.note_ahead(live.store, live.job, live.generation, beyond)
    damage = "; ".join(
        f"query {name} has delivered batches up to {last}, and the live files know those up to {known[name]}"
        for name, last in beyond.items()
    )
    raise OutputAheadError(job=live.job, damage=damage, limit=limit)


class Claim:
    """A savepoint that a restore has claimed: deleted, beside everything else, when checkpoints are enough.

    As many as are retained: the savepoint stands for the oldest of them. Counted from zero at each start. One
    that a restore waits for stays: `awaited` says what that resumes from.
    """

    def __init__(
        self,
        origin: Origin,
        enough: int,
        awaited: Callable[[], str],
        report: Callable[[m.Message], None],
    ) -> None:
        self._place = origin.restored_from if origin.options.claim and origin.saved else ""
        self._left = enough
        self._awaited = awaited
        self._report = report

    def completed(self, _id: int) -> None:
        """One more checkpoint is complete."""
        self._left -= 1
        if self._place and self._left == 0:
            threading.Thread(target=self._delete, name="weir-claim", daemon=True).start()

    def _delete(self) -> None:
        try:
            if self._awaited() == self._place:
                return
            dispose(SavepointPlace(self._place))
        except NotASavepointError:
            return  # an earlier start has deleted it
        except WeirError as error:
            self._report(m.Noted(f"the claimed savepoint could not be deleted: {error.text}"))
        else:
            self._report(m.SavepointsDeleted([self._place]))
