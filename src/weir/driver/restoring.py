"""Going on from a point: planned, its files made, the sinks taken back, and then live.

Opening the generation is in `opening.py`, the plan in `replan.py`; here they meet the session, the
settings and the sinks of a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from weir import faults
from weir.channel.position import Mode
from weir.checkpoint.damage import Damage
from weir.checkpoint.restore import Changes, From
from weir.clock import Clock
from weir.config import Config
from weir.driver import ahead, replan
from weir.driver.about import delivers, saved_sink, source_of
from weir.driver.opening import Opened, Opening
from weir.driver.replan import Replan
from weir.errors import FencedError, NotRewindableError, SinkMismatchError
from weir.ids import NO_BATCH, BatchId, Generation, QueryName, job_name
from weir.job.live import Live
from weir.job.query import QueryRun
from weir.lease import Lease
from weir.protocol import messages as m
from weir.savepoint import plan_text, shapes
from weir.savepoint.points import Point
from weir.spark import session
from weir.storage import Store, generations
from weir.storage.open import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.graph import QuerySpec
    from weir.job.job import Job
    from weir.storage.generations import Origin


class Restoring:
    """One start's way to its live files, and, where they are new, to being live."""

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        config: Config,
        store: Store,
        mode: Mode,
        lease: Lease,
        report: Callable[[m.Message], None],
        clock: Clock,
    ) -> None:
        self._job, self._spark, self._config, self._store = job, spark, config, store
        self._mode, self._lease, self._report, self._clock = mode, lease, report, clock
        saved_to = config.settings.execution_checkpointing_savepoint_dir or ""
        self._opening = Opening(
            store, job.name, clock, self._note, self._plan, self._carry_out, saved_to, self._check
        )

    def open(self, wanted: From | None) -> Opened:
        """See `Opening.open`; parallelism and backend are those that the settings ask for."""
        if wanted is not None:
            changes = replace(
                wanted.changes,
                parallelism=session.asked_parallelism(self._config),
                backend=self._config.settings.state_backend_type.value,
            )
            wanted = replace(wanted, changes=changes)
        return self._opening.open(wanted)

    def repair(self, torn: list[Damage]) -> None:
        """Write down that the job goes on from its newest checkpoint that is whole."""
        self._opening.repair(torn)

    @contextmanager
    def underway(self, opened: Opened) -> Iterator[None]:
        """Until the generation is live: see `Opening.underway`."""
        if opened.origin is None:
            yield
            return
        with self._opening.underway(opened.live.generation, opened.origin):
            yield

    def check_fork(self, origin: Origin, specs: Iterable[QuerySpec]) -> None:
        """Refuse a fork that would deliver where the original does, as far as that is known here."""
        if not origin.forked_from:
            return
        other = job_name(origin.forked_from)
        _, known = shapes.last(self._store, other, generations.live(self._store, other))
        taken = {shape.sink for shape in known.values()}
        for spec in specs:
            sink = saved_sink(spec).description
            if delivers(spec) and sink in taken:
                reason = f"this job is a fork of {other!r}, and a fork must not write where the original does"
                todo = "give it another place in the job file"
                raise SinkMismatchError(query=spec.name, path=sink, reason=reason, todo=todo)

    def go_live(
        self, opened: Opened, runs: Sequence[QueryRun], delivered: Mapping[QueryName, BatchId]
    ) -> None:
        """Rewind the sinks to the point; then, and not before, its generation is live.

        All that can refuse the restore for good is asked first, of every query: then nothing was rewound.
        """
        manifest, made, origin = opened.manifest, opened.replan, opened.origin
        assert manifest is not None and made is not None and origin is not None
        job, generation = self._job.name, opened.live.generation
        since = self._clock.monotonic()
        cuts = {run.name: made.cut(run.name) for run in runs}
        elsewhere = {
            run.name: cuts[run.name]
            for run in runs
            if cuts[run.name] != NO_BATCH
            and (run.only_ledger_is_lost or (made.has_new_sink(run.name) and run.is_untouched))
        }
        begun = self._check_sinks(opened, runs, delivered, cuts, elsewhere)
        self._check(generation)
        if begun:
            as_in_point = {made.was(name): cut for name, cut in cuts.items()}
            generations.begin_rewind(self._store, job, generation, as_in_point)
        for run in runs:
            if delivered[run.name] > cuts[run.name] and not run.rewindable:
                self._note(run.repeated(cuts[run.name], delivered[run.name]))
            run.rewind(cuts[run.name], lambda: self._check(generation))
        faults.point("restore.rewound")
        new = {name: batch for name, batch in elsewhere.items() if made.has_new_sink(name)}
        for name, batch in new.items() if not origin.saved else ():
            self._note(
                f"query {name}: its new sink gets what comes behind batch {batch}. A checkpoint, unlike a"
                " savepoint, does not wait for sinks: what the old one had not taken by then, no sink gets"
            )
        self._check(generation)
        generations.note_elsewhere(self._store, job, generation, elsewhere)
        generations.mark_live(self._store, job, generation)
        faults.point("restore.live")
        self._report(m.Restored(manifest.id, generation, origin.why, self._clock.monotonic() - since))

    def _check_sinks(
        self,
        opened: Opened,
        runs: Sequence[QueryRun],
        delivered: Mapping[QueryName, BatchId],
        cuts: Mapping[QueryName, BatchId],
        elsewhere: Mapping[QueryName, BatchId],
    ) -> bool:
        """Raise when a sink can't be rewound to the point, or must not be; whether any is beyond it."""
        manifest, made, origin = opened.manifest, opened.replan, opened.origin
        assert manifest is not None and made is not None and origin is not None
        job = self._job.name
        before = Live(self._store, job, generations.live(self._store, job))
        known = {
            run.name: max(before.files(name).last_committed() for name in (run.name, made.was(run.name)))
            for run in runs
        }
        if origin.unasked:
            in_point = {name: max(known[name], cuts[name]) for name in cuts}
            ahead.check(before, delivered, in_point, ahead.limit(self._config.settings))
        any_beyond = False
        for run in runs:
            name, to = run.name, cuts[run.name]
            if made.was(name) not in manifest.queries and run.rewindable and run.holds > NO_BATCH:
                raise _unknown(run, made.point.name, job)
            beyond = max(known[name], delivered[name]) > to
            possible = run.rewindable and run.floor <= to
            if beyond and not possible and not origin.accept_duplicates:
                raise NotRewindableError(job=job, query=name, point=made.point.name)
            run.check_rewind(to, new=made.has_new_sink(name))
            run.check_staged(to, elsewhere.get(name, NO_BATCH))
            any_beyond = any_beyond or beyond
        return any_beyond

    def _plan(self, point: Point, changes: Changes, live: Live, asked: bool) -> Replan:
        """The plan for going on from a point; raises where it does not fit.

        A restore that nobody asked for with this start, of the very same job file, is never refused:
        what a query reads may have moved, and Spark itself has the last word.
        """
        session.set_state(self._spark, self._config, changes.parallelism or point.manifest.parallelism)
        made = replan.make(self._job, self._spark, live, point, changes, self._mode)
        if not made.changes_nothing:
            if not asked and made.is_plain(source_of(self._job), changes):
                return replace(made, as_it_is=True)
            self._report(m.Planned(plan_text.text(made.plan), made.plan.model_dump(mode="json")))
        made.check(self._job.name)
        return made

    def _carry_out(self, made: Replan, live: Live) -> None:
        made.carry_out(self._spark, Path(local_path(live.root)), lambda: self._check(live.generation))

    def _check(self, generation: Generation) -> None:
        """Raise `FencedError` when another attempt has taken over, or has brought the generation live.

        Also when this attempt is not above that of the point, whose files would fence it. A driver that was
        frozen in a restore would take live files for what a killed try had left.
        """
        self._lease.check()
        own = self._lease.attempt
        if generations.is_live(self._store, self._job.name, generation):
            raise FencedError(who=f"attempt {own}", by="the attempt that ended this restore")
        origin = generations.read_origin(self._store, self._job.name, generation)
        if origin is not None and origin.attempt >= own:
            # It was asked for after this attempt was opened; the next one is opened above the point's.
            raise FencedError(who=f"attempt {own}", by=f"attempt {origin.attempt}, which took the point,")

    def _note(self, text: str) -> None:
        self._report(m.Noted(text))


def _unknown(run: QueryRun, point: str, job: str) -> SinkMismatchError:
    """Nobody has asked for all that a query has ever delivered to be rewound."""
    return SinkMismatchError(
        query=run.name,
        path=run.describe(),
        reason=f"it holds batches up to {run.holds}, and {point} knows nothing of this query: all of them"
        " would be rewound, and its sources may no longer have what they were made of",
        todo=f"restore a point that has the query ('weir checkpoints {job}' lists them), give it another"
        " place for its output, or take it out of the job",
    )
