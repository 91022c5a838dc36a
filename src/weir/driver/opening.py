"""Which generation a start goes on with: the live one, one that was asked for, or a repaired one.

A restore that was asked for, and was killed on its way, is taken up again; one that the job as it is
now can't go on from is dropped. Live files that are lost or torn are left as they are, and the job
goes on from the newest checkpoint that is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir import faults
from weir.checkpoint import damage, restore
from weir.checkpoint.restore import LATEST, Changes, Found, From
from weir.clock import Clock
from weir.errors import (
    DamagedCheckpointError,
    DamagedError,
    DamagedSavepointError,
    FencedError,
    LostInputError,
    LostStagingError,
    NotASavepointError,
    OutputAheadError,
    PinnedStateError,
    StateDiffersError,
    StateRewriteError,
    SurgeryError,
    UserError,
)
from weir.ids import Generation, JobName
from weir.job.live import Live
from weir.savepoint import points
from weir.savepoint.points import Point
from weir.storage import Store, files, generations, paths

if TYPE_CHECKING:
    from weir.checkpoint.manifest import Manifest
    from weir.driver.replan import Replan
    from weir.storage.generations import Origin


@dataclass(frozen=True)
class Opened:
    """The generation that this start works on; with what it must be rewound to, if anything."""

    live: Live
    manifest: Manifest | None = None
    replan: Replan | None = None
    origin: Origin | None = None


_OUT_OF_REACH = (NotASavepointError, DamagedSavepointError, DamagedCheckpointError)
"""The point may be brought back."""
_FAILED = (
    UserError,
    StateRewriteError,
    StateDiffersError,
    SurgeryError,
    LostInputError,
    LostStagingError,
    OutputAheadError,
)
"""With these the job can't resume from the point at the next start either."""

Replanning = Callable[[Point, Changes, Live, bool], "Replan"]
"""Makes the plan for going on from a point in a generation that is to be; raises where it does not fit.

The last argument says whether this very start was asked for it.
"""
CarryOut = Callable[["Replan", Live], None]
"""Makes the files of a changed job, in the generation that is to be."""
Check = Callable[[Generation], None]
"""Raises `FencedError` when the generation that is to be may no longer be written to."""


class Opening:
    """One start's way to its live files."""

    def __init__(
        self,
        store: Store,
        job: JobName,
        clock: Clock,
        note: Callable[[str], None],
        replanning: Replanning,
        carry_out: CarryOut,
        savepoint_dir: str = "",
        check: Check = lambda _generation: None,
    ) -> None:
        self._store, self._job, self._clock, self._note = store, job, clock, note
        self._replanning, self._carry_out = replanning, carry_out
        self._savepoint_dir, self._check = savepoint_dir, check

    def open(self, wanted: From | None) -> Opened:
        """Decide and make the files of the generation; nothing is live yet when a manifest is returned.

        What is wanted is planned first: when it does not fit, nothing was written.
        """
        replan = None
        if wanted is not None:
            replan = self._plan_wanted(wanted)
            found = Found(replan.point.name, replan.point.manifest)
            self._intend(wanted, f"started from {found.point}", found)
        opening = generations.opening(self._store, self._job)
        if opening is None:
            live = Live(self._store, self._job, generations.live(self._store, self._job))
            torn = damage.look(self._store, self._job, live.generation)
            if not torn:
                return Opened(live)
            opening = self.repair(torn)
        faults.point("restore.intended")
        return self._bring(opening, replan)

    def repair(self, torn: list[damage.Damage]) -> Generation:
        """Write down that the job goes on from its newest checkpoint that is whole; the generation to be."""
        words = "; ".join(one.text for one in torn)
        why = f"live files are damaged: {words}"
        for id in restore.candidates(self._store, self._job):
            problems = restore.verify_id(self._store, self._job, id)
            if problems:
                self._note(f"checkpoint {id} is damaged ({problems[0]}): the one before it is tried")
                continue
            self._note(f"live files are damaged ({words}): the job goes on from checkpoint {id}")
            return self._intend(From(f"chk-{id}"), why, unasked=True)
        raise DamagedError(job=self._job, damage=words)

    def _plan_wanted(self, wanted: From) -> Replan:
        changes = wanted.changes
        point = points.find(
            self._store, self._job, wanted.point, changes.forked_from, self._savepoint_dir, self._passed_over
        )
        if wanted.point == LATEST:
            self._note(f"the latest point is {point.name}, completed at {point.manifest.completed_at}")
        number = max([0, *generations.numbers(self._store, self._job)]) + 1
        return self._replanning(point, changes, Live(self._store, self._job, Generation(number)), True)

    def _passed_over(self, point: str, damage: str) -> None:
        self._note(f"{point} can't be used ({damage}): the newest of the others is tried")

    def _intend(
        self, wanted: From, why: str, found: Found | None = None, *, unasked: bool = False
    ) -> Generation:
        return restore.intend(
            self._store,
            self._job,
            wanted.point,
            accept_duplicates=wanted.accept_duplicates,
            clock=self._clock,
            why=why,
            changes=wanted.changes,
            found=found,
            unasked=unasked,
        )

    @contextmanager
    def underway(self, generation: Generation, origin: Origin) -> Iterator[None]:
        """One that can't be done, now or later, is dropped: the next start goes on with what is live."""
        source, withdraw = f"the restore from {origin.restored_from}", f"weir restore {self._job} --withdraw"
        later = f"{source} is taken up again at the next start; to give it up: {withdraw}"
        try:
            yield
        except FencedError:
            raise
        except PinnedStateError:  # the same start with other settings may do it
            self._note(later)
            raise
        except _OUT_OF_REACH:
            self._note(
                f"{source} waits for it, and the files from before are as they were: bring it back, go on"
                f" from another point: weir restore {self._job} latest, or give it up: {withdraw}"
            )
            raise
        except _FAILED as error:
            if not generations.drop(self._store, self._job, generation, error.text):
                self._note(
                    f"{source} has begun to rewind sinks, so it is not dropped: the next start resumes it"
                )
            elif begun := generations.awaited(self._store, self._job):
                self._note(f"{source} is dropped: the next start resumes that from {begun}, which is begun")
            else:
                self._note(f"{source} is dropped: the job stays where it was")
            raise
        except Exception:
            self._note(later)
            raise

    def _bring(self, opening: Generation, replan: Replan | None) -> Opened:
        origin = generations.read_origin(self._store, self._job, opening)
        assert origin is not None, "an opening generation has its origin"
        self._check(opening)
        if replan is None:
            with self.underway(opening, origin):
                replan = self._plan_intended(origin, Live(self._store, self._job, opening))
        opening, anew = restore.lay_out(self._store, self._job, opening, replan.layout, self._clock)
        if anew:
            self._note("the files of the restore were laid out for another plan: they are made anew")
        with self.underway(opening, origin):
            return self._brought(Live(self._store, self._job, opening), origin, replan)

    def _brought(self, live: Live, origin: Origin, replan: Replan) -> Opened:
        root = files.folder_of(self._store) / paths.generation(self._job, live.generation)
        manifest = restore.open_generation(
            self._store,
            self._job,
            live.generation,
            replan.target(root),
            lambda: self._carry_out(replan, live),
            lambda: self._check(live.generation),
        )
        faults.point("restore.copied")
        return Opened(live, manifest, replan, origin)

    def _plan_intended(self, origin: Origin, live: Live) -> Replan:
        """The plan for a restore that was written down before this start."""
        changes = Changes(
            maps=origin.maps,
            allow_dropped=origin.allow_dropped,
            parallelism=origin.parallelism,
            backend=origin.backend,
            offsets=origin.offsets,
            claim=origin.claim,
            forked_from=origin.forked_from,
        )
        point = points.intended(self._store, self._job, origin)
        # Another restore may have begun, or become live, between the check of the intention and now.
        restore.check_timeline(self._store, self._job, origin.restored_from, point.manifest)
        restore.check_depth(self._store, self._job, origin.restored_from, point.manifest)
        restore.check_input(self._store, self._job, origin.restored_from, point.manifest, changes)
        return self._replanning(point, changes, live, False)
