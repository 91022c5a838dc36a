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
from weir.driver import replan
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
        """Take the sinks back to the point; then, and not before, its generation is live."""
        manifest, made, origin = opened.manifest, opened.replan, opened.origin
        assert manifest is not None and made is not None and origin is not None
        job, generation = self._job.name, opened.live.generation
        since = self._clock.monotonic()
        before = Live(self._store, job, generations.live(self._store, job))
        cuts = {run.name: made.cut(run.name) for run in runs}
        committed = {
            run.name: max(before.files(name).last_committed() for name in (run.name, made.was(run.name)))
            for run in runs
        }
        beyond = {run.name: max(committed[run.name], delivered[run.name]) > cuts[run.name] for run in runs}
        for run in runs:
            possible = run.rewindable and run.floor <= cuts[run.name]
            if beyond[run.name] and not possible and not origin.accept_duplicates:
                raise NotRewindableError(job=job, query=run.name, point=made.point.name)
            run.check_rewind(cuts[run.name], new=made.has_new_sink(run.name))
        self._check(generation)
        if any(beyond.values()):
            generations.begin_rewind(self._store, job, generation)
        for run in runs:
            if delivered[run.name] > cuts[run.name] and not run.rewindable:
                self._note(run.repeated(cuts[run.name], delivered[run.name]))
            self._check(generation)
            run.rewind(cuts[run.name])
        faults.point("restore.rewound")
        elsewhere = {
            run.name: cuts[run.name]
            for run in runs
            if cuts[run.name] != NO_BATCH
            and (run.only_ledger_is_lost or (made.has_new_sink(run.name) and run.is_untouched))
        }
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

        A driver that was frozen in a restore would take live files for what a killed try had left.
        """
        self._lease.check()
        if generations.is_live(self._store, self._job.name, generation):
            raise FencedError(who=f"attempt {self._lease.attempt}", by="the attempt that ended this restore")

    def _note(self, text: str) -> None:
        self._report(m.Noted(text))
