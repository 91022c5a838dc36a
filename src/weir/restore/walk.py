"""The walk of a restore: one start's way from what is asked for to live files, straight down.

`Restoring.open` and `Restoring.go_live` are the walk; every step of it is a module of this room, of the
same name. Who needs no more than its first steps calls those, and the next start of the job continues:

    weir restore, REST, weir repair     request, point, intent         `intend`, of a job that runs or not
    weir plan                           request, point, plan           `preview`
    weir savepoint convert              request, point, plan, convert  `preview`, into a new savepoint
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from weir import faults
from weir.channel.position import Mode
from weir.clock import Clock
from weir.config import Config
from weir.errors import FencedError
from weir.ids import BatchId, Generation, QueryName
from weir.job.query import QueryRun
from weir.protocol import messages as m
from weir.protocol import restore_plan
from weir.restore import damage, go_live, intent, repair
from weir.restore import plan as replan
from weir.restore.fetch import Opened, fetch, lay_out
from weir.restore.plan import Replan
from weir.restore.point import Point, describe, intended, resolve
from weir.restore.query_damage import Damage
from weir.restore.request import LATEST, RestoreRequest
from weir.savepoint.about import source_of
from weir.spark import session
from weir.storage import Store, files, paths
from weir.storage import generation as generations
from weir.storage.attempts import Lease
from weir.storage.open import local_path
from weir.storage.paths import Live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.env import QuerySpec
    from weir.job.job import Job
    from weir.storage.generation import Origin


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
        self._saved_to = config.settings.execution_checkpointing_savepoint_dir or ""

    def open(self, request: RestoreRequest | None) -> Opened:
        """The generation that this start works on, its files in place; not live yet when it is a restore.

        1 request: what this start was asked for, with the shape of state that its settings ask for
        2 point: what that names, every file of it intact
        3 plan: what becomes of everything that the point has; where it does not fit, nothing was written
        4 intent: written down; whoever is killed from here on, the next start continues
        5 damage: without a request, and without an intent of an earlier start, are the live files intact?
        6 repair: they are not: the newest intact checkpoint is intended in their place
        7 fetch: the files of the point, into the generation that is to be
        8 convert: the files of each query that changes
        Then the start makes its queries, and `go_live` follows: 9 check, 10 rewind, 11 live.
        """
        store, job = self._store, self._job.name
        made = None
        if request is not None:
            backend = self._config.settings.state_backend_type.value
            request = request.shaped(session.asked_parallelism(self._config), backend)  # 1
            point = self._resolve(request)  # 2
            number = intent.next_generation(store, job, point.manifest.generation)
            made = self._plan(point, request, Live(store, job, number), True)  # 3
            why = f"started from {point.name}"
            intent.intend(store, job, request, clock=self._clock, why=why, point=point)  # 4
        generation = generations.opening(store, job)
        if generation is None:
            live = Live(store, job, generations.live(store, job))
            found = damage.look(store, job, live.generation)  # 5
            if not found:
                return Opened(live)
            generation = self.repair(found)  # 6
        faults.point("restore.intended")
        self._check(generation)
        with intent.kept_or_dropped(store, job, generation, self._note):
            made = made or self._planned_as_intended(generation)  # 3, where it was intended before
        generation, again = lay_out(store, job, generation, made.layout, self._clock)
        if again:
            self._note("the files of the restore were laid out for another plan: they are made again")
        with intent.kept_or_dropped(store, job, generation, self._note):
            return self._fetch_and_convert(Live(store, job, generation), made)  # 7 and 8

    @contextmanager
    def underway(self, opened: Opened) -> Iterator[None]:
        """Until the generation is live: see `intent.kept_or_dropped`."""
        if opened.origin is None:
            yield
            return
        with intent.kept_or_dropped(self._store, self._job.name, opened.live.generation, self._note):
            yield

    def check_fork(self, origin: Origin, specs: Iterable[QuerySpec]) -> None:
        """Refuse a fork that would deliver where the original does, as far as that is known here."""
        go_live.check_fork(self._store, origin, specs)

    def check_sinks(
        self, opened: Opened, runs: Sequence[QueryRun], delivered: Mapping[QueryName, BatchId]
    ) -> bool:
        """Step 9, before the first sink is fenced: see `go_live.check_sinks`."""
        return go_live.check_sinks(opened, runs, delivered, go_live.unasked_limit(self._config.settings))

    def go_live(
        self, opened: Opened, runs: Sequence[QueryRun], delivered: Mapping[QueryName, BatchId]
    ) -> None:
        """Steps 9 to 11, when every sink is fenced.

        9 check: can every sink be rewound? Asked again, because more may have been delivered until the fence
        10 rewind: every sink, to the batch of the point
        11 live: from now on the job works on this generation
        """
        limit = go_live.unasked_limit(self._config.settings)
        go_live.go_live(opened, runs, delivered, limit, self._check, self._report, self._clock)

    def repair(self, found: list[Damage]) -> Generation:
        """Write down that the job resumes from its newest intact checkpoint; the generation to be."""
        return repair.to_newest(self._store, self._job.name, found, self._clock, self._note)

    # the steps

    def _resolve(self, request: RestoreRequest) -> Point:
        def passed_over(name: str, wrong: str) -> None:
            self._note(f"{name} can't be used ({wrong}): trying the newest of the others")

        point = resolve(
            self._store, self._job.name, request.point, passed_over, request.forked_from, self._saved_to
        )
        if request.point == LATEST:
            self._note(f"the latest point is {point.name}, completed at {point.manifest.completed_at}")
        return describe(self._store, point)

    def _planned_as_intended(self, generation: Generation) -> Replan:
        """The plan for a restore that was written down before; its files were verified then."""
        store, job = self._store, self._job.name
        origin = generations.read_origin(store, job, generation)
        assert origin is not None, "an opening generation has its origin"
        request = RestoreRequest.of(origin)
        point = intended(store, job, origin)
        # Another restore may have begun, or become live, between the check of the intention and now.
        intent.check(store, job, request, point)
        return self._plan(point, request, Live(store, job, generation), False)

    def _plan(self, point: Point, request: RestoreRequest, live: Live, asked: bool) -> Replan:
        """The plan for resuming from a point in a generation that is to be; raises where it does not fit.

        A restore that this very start was not `asked` for, of the very same job file, is never refused:
        what a query reads may have moved, and Spark itself has the last word.
        """
        session.set_state(self._spark, self._config, request.parallelism or point.manifest.parallelism)
        made = replan.make(self._job, self._spark, live, point, request, self._mode)
        if not made.changes_nothing:
            if not asked and made.is_plain(source_of(self._job), request):
                return replace(made, as_it_is=True)
            self._report(m.RestorePlanned(restore_plan.text(made.plan), made.plan.model_dump(mode="json")))
        made.check(self._job.name)
        return made

    def _fetch_and_convert(self, live: Live, made: Replan) -> Opened:
        origin = generations.read_origin(live.store, live.job, live.generation)
        manifest = fetch(
            live.store,
            live.job,
            live.generation,
            made.target(files.folder_of(live.store) / paths.generation(live.job, live.generation)),
            lambda: self._carry_out(made, live),
            lambda: self._check(live.generation),
        )
        faults.point("restore.copied")
        return Opened(live, manifest, made, origin)

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
