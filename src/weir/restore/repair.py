"""Live files that are lost or damaged: what a job can resume from, and at which cost.

A start repairs by itself: `to_newest`, the newest intact checkpoint. For a job that does not run a person
decides (`weir repair`). 1 look: what is damaged -> 2 plan: the newest intact point, and what runs again from
there -> 3 carry out: write down that the next start resumes from it (`intent.py`). Of three kinds of points
the first counts that is there and intact:

    the live files    at the last batch of every query whose files are intact; kept as one more checkpoint
    a checkpoint      newest first
    a savepoint       newest first

Live files are none for a job with streams between its queries: a reader may have read what its writer
would write again. The damaged files stay as they are: the next start makes a new generation. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest, Provenance, QueryCut
from weir.checkpoint.pins import Pins
from weir.clock import Clock
from weir.errors import DamagedError, DamagedSavepointError, ExternalError, NotASavepointError
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Generation, JobName, QueryName
from weir.protocol.checkpoint import Alignment, last_id
from weir.restore import damage
from weir.restore.intent import intend
from weir.restore.point import newest_intact, resolve
from weir.restore.query_damage import Damage, FileContents, last_intact, newest
from weir.restore.request import RestoreRequest
from weir.sinks.user_state import Values
from weir.spark.closure import GoneError, closure
from weir.spark.cut import offsets_of
from weir.storage import Created, Store, files, open_store, paths
from weir.storage import generation as generations
from weir.storage.generation import known_origin
from weir.storage.log import numbers

TRIGGER = "repair"


@dataclass(frozen=True)
class QueryReplay:
    """What becomes of one query."""

    query: str
    back_to: BatchId
    """It resumes after this batch."""
    newest: BatchId
    """The newest batch that it is known to have committed."""
    offsets: tuple[str, ...]
    """Where its sources resume, as Spark wrote it."""
    rewindable: bool = True
    """Whether its sink can rewind what was delivered."""

    @property
    def text(self) -> str:
        again = self.newest - self.back_to
        what = "nothing runs again"
        then = "is rewound" if self.rewindable else "can't be rewound: it is delivered again"
        if again == 1:
            what = f"batch {self.newest} runs again, and what it delivered {then}"
        elif again > 1:
            what = f"batches {self.back_to + 1} to {self.newest} run again, and what they delivered {then}"
        where = (
            "starts from the beginning" if self.back_to == NO_BATCH else f"resumes after batch {self.back_to}"
        )
        return f"query {self.query} {where}: {what}"


@dataclass(frozen=True)
class Repair:
    """What a job can resume from, in spite of damage."""

    damage: tuple[Damage, ...]
    point: str
    """What the job resumes from: "chk-41", the place of a savepoint, or "" for its own live files."""
    replays: tuple[QueryReplay, ...]
    passed_over: tuple[str, ...] = ()
    """Newer points that are damaged too, and how."""
    live: Mapping[str, BatchId] = field(default_factory=dict)
    """Of the live files: the last intact batch of each query."""

    @property
    def source(self) -> str:
        if not self.point:
            return "its live files, up to the last intact batches"
        if self.point.startswith("chk-"):
            return f"checkpoint {self.point.removeprefix('chk-')}"
        return f"the savepoint {self.point}"


def to_newest(
    store: Store, job: JobName, damaged: Sequence[Damage], clock: Clock, note: Callable[[str], None]
) -> Generation:
    """Write down, unasked, that the job resumes from its newest intact checkpoint; the generation to be.

    Raises `DamagedError` without one.
    """
    wrong = "; ".join(one.text for one in damaged)

    def passed_over(name: str, wrong: str) -> None:
        note(f"{name} is damaged ({wrong}): trying the one before it")

    point = newest_intact(store, job, passed_over)
    if point is None:
        raise DamagedError(job=job, damage=wrong)
    note(f"live files are damaged ({wrong}): the job resumes from checkpoint {point.manifest.id}")
    why = f"live files are damaged: {wrong}"
    return intend(store, job, RestoreRequest(point.name), clock=clock, why=why, point=point, unasked=True)


def plan(store: Store, job: JobName, savepoints: Sequence[str] = ()) -> Repair | None:
    """What to resume from, so that least is lost; None when the live files are intact. Nothing is written.

    `savepoints` are the places of those that are known, newest first. Raises `DamagedError` when no
    point is intact, and `LostLedgerError` for damage beside the generations, which no point has.
    """
    live = _Live(store, job)
    damaged = (*damage.look(store, job, live.generation, thorough=True), *live.lost())
    if not damaged:
        damage.check_beside(store, job, live.generation)
        return None
    passed_over: list[str] = []
    found = newest_intact(store, job, lambda name, wrong: passed_over.append(f"{name} is damaged: {wrong}"))
    checkpoint = found.manifest if found is not None else None
    intact = live.last_intact()
    if intact is not None and (checkpoint is None or _reaches(intact, checkpoint)):
        own = (
            QueryReplay(name, batch, batch, live.offsets(name, batch), live.rewindable(name))
            for name, batch in intact.items()
        )
        return Repair(damaged, "", _newest(own, live.known), tuple(passed_over), intact)
    if checkpoint is not None:
        replays = _newest(_replays(checkpoint), live.known)
        return Repair(damaged, f"chk-{checkpoint.id}", replays, tuple(passed_over))
    for place in savepoints:
        try:
            manifest = resolve(store, job, place).manifest
        except (NotASavepointError, DamagedSavepointError, ExternalError) as error:
            passed_over.append(error.what)
            continue
        return Repair(damaged, place, _newest(_replays(manifest), live.known), tuple(passed_over))
    raise DamagedError(job=job, damage="; ".join(one.text for one in damaged))


def carry_out(
    store: Store,
    job: JobName,
    repair: Repair,
    *,
    accept_duplicates: bool,
    clock: Clock,
    still: Callable[[], None],
) -> Generation:
    """Write down that the next start resumes as planned; the generation that it will make.

    Raises `NotRewindableError` where that would deliver twice what can't be rewound. `still` is called
    before each thing that is written down, and raises when the plan is not of the job as it is any more.
    """
    point = repair.point or f"chk-{_Live(store, job).keep(repair.live, clock, still)}"
    wrong = "; ".join(one.text for one in repair.damage)
    why = f"live files are damaged: {wrong}"
    request = RestoreRequest(point, accept_duplicates)
    return intend(store, job, request, clock=clock, why=why, still=still)


class _Live:
    """The live files of a job that does not run."""

    def __init__(self, store: Store, job: JobName) -> None:
        self._store, self._job = store, job
        self.generation = generations.live(store, job)
        self._root = files.folder_of(store) / paths.generation(job, self.generation)
        self.newest = damage.expected(store, job, self.generation)
        """The newest batch of each query that is known to be committed, whether it is intact or not."""
        folder = self._root / "queries"
        for name in [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []:
            there = newest(folder / name / "commits")
            self.newest[name] = max(self.newest.get(name, NO_BATCH), there)

        self._delivered = generations.ahead(store, job, self.generation)
        """What a start has found in sinks that are ahead of these files."""

    @property
    def known(self) -> dict[str, BatchId]:
        """The newest batch of each query that is known to be committed, by these files or by its sink."""
        names = self.newest.keys() | self._delivered.keys()
        return {
            n: max(self.newest.get(n, NO_BATCH), self._delivered.get(QueryName(n), NO_BATCH)) for n in names
        }

    def lost(self) -> list[Damage]:
        """The batches that sinks hold and that these files know nothing of."""
        return [
            Damage(name, f"commits/{last}", f"is lost: its sink holds batches up to {last}")
            for name, last in self._delivered.items()
            if last > self.newest.get(name, NO_BATCH)
        ]

    def last_intact(self) -> dict[str, BatchId] | None:
        """The last intact batch of every query; None when one has none, or when channels connect them."""
        origin = known_origin(self._store, self._job, self.generation)
        if origin is None or any("/log/" in name for name in files.below(self._root / "channels")):
            return None
        found, contents = {}, FileContents.known(self._store, self._job, self.generation)
        for name, committed in self.newest.items():
            batch = last_intact(self._root / "queries" / name, committed, contents)
            if batch is None:
                return None
            # A journal of weir's own keeps little of what was committed.
            receives = batch == NO_BATCH or any('"source"' in line for line in self.offsets(name, batch))
            if batch < committed and receives:
                return None
            found[name] = batch
        return found

    def offsets(self, name: str, batch: BatchId) -> tuple[str, ...]:
        """Where the sources of a query stood after a batch."""
        return () if batch == NO_BATCH else offsets_of(self._root / "queries" / name, batch).lines

    def rewindable(self, name: str) -> bool:
        return _rewindable(name, list(_retained(self._store, self._job)))

    def keep(self, intact: Mapping[str, BatchId], clock: Clock, still: Callable[[], None]) -> CheckpointId:
        """Keep these batches as one more checkpoint; its id."""
        origin = known_origin(self._store, self._job, self.generation)
        assert origin is not None, "live files with intact batches have an origin"
        begun_at = clock.now().isoformat()
        still()
        id = self._begin()
        retained = list(_retained(self._store, self._job))
        pins = Pins(self._store, self._job, self.generation, clock=clock)
        pins.seed(retained)
        attempt = Attempt(max(numbers(self._store, paths.attempts(self._job)), default=0))
        made = Provenance.of(self._job, self.generation, attempt, origin, origin.spark)
        manifest = Manifest(
            **made.common,
            id=id,
            alignment=Alignment.ALIGNED,
            trigger=TRIGGER,
            begun_at=begun_at,
            completed_at=clock.now().isoformat(),
            seconds=0.0,
            queries={name: self._cut(name, batch, id, pins, retained) for name, batch in intact.items()},
        )
        still()
        self._store.create(paths.completed(self._job, id), mf.encode(manifest))
        return id

    def _begin(self) -> CheckpointId:
        there = mf.ids(self._store, self._job).values()
        origin = known_origin(self._store, self._job, self.generation)
        restored = origin.checkpoint if origin is not None else None
        id = CheckpointId(last_id((one for ids in there for one in ids), restored, ()) + 1)
        while self._store.create(paths.begun(self._job, id), b"{}") is not Created.NOW:
            id = CheckpointId(id + 1)
        return id

    def _cut(
        self, name: str, batch: BatchId, id: CheckpointId, pins: Pins, retained: Sequence[Manifest]
    ) -> QueryCut:
        cut = QueryCut(batch=batch, rewindable=_rewindable(name, retained))
        if batch == NO_BATCH:
            return cut
        try:
            needed = closure(self._root / "queries" / name, batch).files
            names = [f"queries/{name}/{file}" for file in needed]
            names += Values(open_store(str(self._root)), QueryName(name)).files_with_staged(batch)
            kept = pins.keep("", names, checkpoint=id)
        except GoneError as error:
            raise DamagedError(job=self._job, damage=f"{error} of query {name} is gone") from error
        return cut.model_copy(
            update={
                "offsets": self.offsets(name, batch),
                "watermark_ms": offsets_of(self._root / "queries" / name, batch).watermark_ms,
                "files": kept.files,
                "new_bytes": kept.new_bytes,
            }
        )


def _retained(store: Store, job: JobName) -> Iterator[Manifest]:
    """The checkpoints whose manifest can be read, oldest first."""
    for id in mf.completed(store, job):
        with suppress(ValueError):
            if (found := mf.read(store, job, id)) is not None:
                yield found


def _rewindable(name: str, retained: Sequence[Manifest]) -> bool:
    """Whether the sink of a query can be rewound; where no checkpoint says it, the start asks it itself."""
    known = [one.queries[name].rewindable for one in retained if name in one.queries]
    return known[-1] if known else True


def _reaches(intact: Mapping[str, BatchId], checkpoint: Manifest) -> bool:
    return all(intact.get(name, NO_BATCH) >= cut.batch for name, cut in checkpoint.queries.items())


def _replays(manifest: Manifest) -> Iterator[QueryReplay]:
    for name, cut in manifest.queries.items():
        yield QueryReplay(name, BatchId(cut.batch), BatchId(cut.batch), cut.offsets, cut.rewindable)


def _newest(replays: Iterable[QueryReplay], newest: Mapping[str, BatchId]) -> tuple[QueryReplay, ...]:
    """With what the queries have committed since; by name."""
    found = (replace(one, newest=max(one.newest, newest.get(one.query, NO_BATCH))) for one in replays)
    return tuple(sorted(found, key=lambda one: one.query))
