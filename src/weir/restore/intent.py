"""Write down what is to be restored: whoever is killed then, the next start of the job resumes from there.

`intend` refuses first, and writes then. What can be refused without the job's code is refused here: a point
of another timeline, one that is newer than what sinks are being rewound to, one whose sources can't continue
where it ends, and output that can't be rewound. The plan of the start refuses the rest (`plan.py`), and asks
`check` again: another restore may have begun, or become live, between the intention and the start.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.checkpoint.records import check_timeline
from weir.clock import Clock
from weir.errors import (
    DamagedCheckpointError,
    DamagedSavepointError,
    FencedError,
    InputFilesGoneError,
    InputGoneError,
    LostInputError,
    LostStagingError,
    NoSuchCheckpointError,
    NotASavepointError,
    NotRewindableError,
    OtherInputError,
    OutputAheadError,
    PinnedStateError,
    RewindBegunError,
    StateDiffersError,
    StateRewriteError,
    SurgeryError,
    UserError,
    WeirError,
)
from weir.ids import BatchId, CheckpointId, Generation, JobName, QueryName
from weir.protocol.maps import renames
from weir.restore.point import Point, named, resolve
from weir.restore.request import RestoreRequest, in_copy_dir, is_place
from weir.savepoint.manifest import SavedFile, facts
from weir.savepoint.place import SavepointPlace
from weir.sources import journal
from weir.spark.checkpoint_files import QueryFiles
from weir.spark.cut import read_since
from weir.storage import Created, Store, files, paths
from weir.storage import generation as generations
from weir.storage.generation import Origin, RestoreOptions, create_origin, known_origin, read_origin
from weir.storage.members import JOURNALS

_OUT_OF_REACH = (NotASavepointError, DamagedSavepointError, DamagedCheckpointError)
"""The point may be brought back."""
_SOURCE_LOG = re.compile(r"(?P<log>queries/[^/]+/sources/\d+)/(?P<entry>\d+)(?:\.compact)?", re.ASCII)
"""An entry in the log of a file source."""
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


def _held() -> None:
    """Whoever holds the job need not look whether somebody else does."""


def intend(
    store: Store,
    job: JobName,
    request: RestoreRequest,
    *,
    clock: Clock,
    why: str,
    point: Point | None = None,
    savepoint_dir: str = "",
    still: Callable[[], None] = _held,
    unasked: bool = False,
) -> Generation:
    """Record, durably, that the next start resumes from a point; the generation it will be.

    The point is resolved and verified first, unless `point` was a moment ago. `still` may raise, for a job
    that somebody has started meanwhile: it is called before anything is written, and right before and after
    the intention itself, which is then dropped. To ask again for what is intended already changes nothing.
    One of a copy-dir is entered among the job's own checkpoints. `unasked` where no person has decided.
    """
    point = point or resolve(
        store, job, request.point, forked_from=request.forked_from, savepoint_dir=savepoint_dir
    )
    still()
    if not request.accept_duplicates and (stuck := ahead(store, job, point.manifest)):
        raise NotRewindableError(job=job, query=stuck[0], point=point.known_as)
    if not (point.place or in_copy_dir(point.name)):
        named(store, job, point.known_as)  # to verify takes its time; it may be deleted by now
    check(store, job, request, point)
    if in_copy_dir(point.name):
        _enter(store, job, point.manifest)
    origin = Origin(
        lineage=point.manifest.lineage,
        backend=request.backend or point.manifest.backend,
        parallelism=request.parallelism or point.manifest.parallelism,
        spark=point.manifest.spark,
        created_at=clock.now().isoformat(),
        restored_from=point.known_as,
        saved=point.manifest.id if point.place else 0,
        parent=point.manifest.generation,
        why=why,
        options=RestoreOptions(
            request.accept_duplicates,
            request.maps,
            request.allow_dropped,
            dict(request.offsets),
            request.claim,
        ),
        forked_from=request.forked_from or _forked_from(store, job),
        owners=_owners(point.manifest, request.maps),
        attempt=point.manifest.attempt if point.place or in_copy_dir(point.name) else 0,
        unasked=unasked,
    )
    still()
    return _write(store, job, origin, still)


def _write(store: Store, job: JobName, origin: Origin, still: Callable[[], None]) -> Generation:
    """The generation that this origin opens: the one that is intended so already, or a new one."""
    opening = generations.opening(store, job)
    intended = read_origin(store, job, opening) if opening else None
    if opening and intended and _intention(intended) == _intention(origin):
        return opening
    generation = next_generation(store, job, origin.parent)
    while not create_origin(store, job, generation, origin):
        generation = Generation(generation + 1)
    try:
        still()
    except WeirError as error:  # who started it may have missed the intention, and a later start takes it up
        generations.drop(store, job, generation, error.text)
        raise
    id = origin.checkpoint
    if not origin.saved and id is not None and not store.exists(paths.completed(job, id)):
        gone = "it was deleted meanwhile: newer ones are retained"
        generations.drop(store, job, generation, gone)
        raise NoSuchCheckpointError(job=job, point=origin.restored_from, reason=gone)
    return generation


def next_generation(store: Store, job: JobName, parent: int) -> Generation:
    """The number of a restore that is written down now; `parent` is the generation of its point."""
    return Generation(max([parent, *generations.numbers(store, job)]) + 1)


def _intention(origin: Origin) -> Origin:
    """What was asked for, whenever and by whomever."""
    return replace(origin, created_at="", why="")


def _owners(manifest: Manifest, maps: Sequence[str]) -> dict[str, str]:
    """The queries that their sinks know by another name: those of the point, and those renamed now."""
    renamed = renames(maps)
    kept = {name: owner for name, owner in manifest.owners.items() if name not in renamed.values()}
    return kept | {name: manifest.owners.get(was, was) for name, was in renamed.items()}


def _forked_from(store: Store, job: JobName) -> str:
    """A fork stays one: its channels were begun under the other name."""
    live = known_origin(store, job, generations.live(store, job))
    return live.forked_from if live is not None else ""


def _enter(store: Store, job: JobName, manifest: Manifest) -> None:
    """Make a checkpoint of a copy-dir one of the job's own, whose directory may be new."""
    id = CheckpointId(manifest.id)
    data = mf.encode(manifest)
    aborted = store.exists(paths.aborted(job, id))
    if not aborted and store.create(paths.completed(job, id), data) is Created.NOW:
        return
    try:
        own = mf.read(store, job, id)
    except ValueError:
        own = None
    if own is None or (own.lineage, own.begun_at) != (manifest.lineage, manifest.begun_at):
        reason = "the job has had another checkpoint of this number since"
        raise NoSuchCheckpointError(job=job, point=f"chk-{id}", reason=reason)
    store.put(paths.completed(job, id), data)


def check(store: Store, job: JobName, request: RestoreRequest, point: Point) -> None:
    """Raise for a point that the job, as its files are now, can't resume from, whatever its code is."""
    check_timeline(store, job, point.name, point.manifest)
    _check_depth(store, job, point)
    _check_sources(store, job, request, point)


def ahead(store: Store, job: JobName, manifest: Manifest) -> list[str]:
    """The queries that have delivered more since the point, and whose sinks can't be rewound."""
    live = generations.live(store, job)

    def last(name: str) -> int:
        return QueryFiles(store, paths.query(job, live, QueryName(name))).last_committed()

    return [n for n, cut in manifest.queries.items() if not cut.rewindable and last(n) > cut.batch]


def _check_depth(store: Store, job: JobName, point: Point) -> None:
    """Raise `RewindBegunError` for a point that is newer than what sinks are being rewound to.

    A restore that has rewound some sinks may only be finished, or go to an older point: a newer one needs
    output that those sinks no longer have.
    """
    manifest = point.manifest
    for generation, known in generations.rewinding(store, job).items():
        origin = read_origin(store, job, generation)
        assert origin is not None, "only a generation with an origin is rewound to"
        cuts = known if known is not None else _cuts_of(store, job, origin)
        if cuts is None:
            continue  # an earlier weir began it, and its point is gone: only the sinks themselves can tell
        newer = [
            name
            for name, cut in manifest.queries.items()
            if cut.batch > cuts.get(QueryName(name), cut.batch) or manifest.lineage != origin.lineage
        ]
        if newer:
            raise RewindBegunError(job=job, point=point.name, begun=origin.restored_from, query=newer[0])


def _cuts_of(store: Store, job: JobName, origin: Origin) -> dict[QueryName, BatchId] | None:
    """The batches that a restore rewinds sinks to; None when its point can't be read."""
    try:
        manifest = (
            facts(SavepointPlace(origin.restored_from).read())
            if origin.saved
            else named(store, job, origin.restored_from)
        )
    except (NoSuchCheckpointError, DamagedCheckpointError, NotASavepointError):
        return None
    return {QueryName(name): BatchId(cut.batch) for name, cut in manifest.queries.items()}


def _check_sources(store: Store, job: JobName, request: RestoreRequest, point: Point) -> None:
    """Raise for a point whose sources can't continue where it ends.

    `OtherInputError` where a source has received other lines than a savepoint holds; `InputGoneError`
    where its journal no longer has what follows the point, `InputFilesGoneError` where files are gone that a
    query has read since. The latter two are left out when state may be dropped or offsets are set: only the
    job's code says which queries still read the source.
    """
    kept: Iterable[SavedFile] = ()
    if is_place(point.name):
        place = SavepointPlace(point.name)
        check_lines(place, files.folder_of(store) / paths.job(job))
        kept = place.read().files
    if not (request.allow_dropped or request.offsets):
        _check_journals(store, job, point, kept)
        _check_files(store, job, point, [file.path for file in kept or point.manifest.files()])


def check_lines(place: SavepointPlace, job: Path) -> None:
    """Raise `OtherInputError` when a source has received other lines where a savepoint has its own.

    The entries of a journal never change, so those of the job's own past are as the savepoint has them;
    others are of another life of the job, or of a fork that has gone its own way since.
    """
    journals = [file for file in place.read().files if is_journal(file)]
    differs = files.parallel(lambda file: _differs(job / file.path, file), journals)
    for file in (file for file, other in zip(journals, differs, strict=True) if other):
        _, source, _, entry = file.path.split("/")
        folder = job / JOURNALS / source
        reason = f"{entry} of its journal is not the savepoint's, whose unread lines would be lost"
        raise OtherInputError(job=job.name, place=place.url, source=source, reason=reason, folder=folder)


def _differs(path: Path, file: SavedFile) -> bool:
    digest = hashlib.sha256()
    try:
        for piece in files.pieces(path):
            digest.update(piece)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise files.failed("read", path, error, str(path.parent)) from error
    return digest.hexdigest() != file.sha256


def is_journal(file: SavedFile) -> bool:
    """Whether a file of a savepoint is of a source's journal, which outlives generations."""
    return file.path.startswith(f"{JOURNALS}/")


def _check_journals(store: Store, job: JobName, point: Point, kept: Iterable[SavedFile]) -> None:
    """Raise when the journals of a job can't serve the queries of a point; `kept` are a savepoint's files.

    `InputGoneError` when lines are gone that a query resumes with. `OtherInputError` when the savepoint's own
    lines do not follow those of the journal: brought there, they would cut off what it has received.
    """
    saved: dict[str, set[int]] = {}
    for file in filter(is_journal, kept):
        _, source, _, entry = file.path.split("/")
        saved.setdefault(source, set()).add(int(entry.removesuffix(".json")))
    for query, cut in point.manifest.queries.items():
        for source, position in journal.positions(cut.offsets).items():
            place = f"{paths.job(job)}/{JOURNALS}/{source}"
            numbers = journal.numbers(store, place)
            own, tail = journal.dense_tail(numbers), journal.dense_tail([*numbers, *saved.get(source, ())])
            if tail.start > own.stop and journal.has_lines(store, place, own):
                reason = f"it holds entries up to {own.stop - 1}, and the savepoint's begin with {tail.start}"
                folder = files.folder_of(store) / place
                raise OtherInputError(job=job, place=point.name, source=source, reason=reason, folder=folder)
            if not journal.serves(tail, position):
                has = f"holds {tail.start} to {tail.stop - 1}" if tail else "is empty"
                raise InputGoneError(
                    job=job, point=point.name, source=source, query=query, entry=position, has=has
                )


def _check_files(store: Store, job: JobName, point: Point, names: Iterable[str]) -> None:
    """Raise `InputFilesGoneError` for files that the live queries read after the point and that are gone.

    A file source lists its folder: it would read nothing in their place. `names` are the files of the point.
    """
    ends: dict[str, int] = {}
    for match in filter(None, map(_SOURCE_LOG.fullmatch, names)):
        ends[match["log"]] = max(int(match["entry"]), ends.get(match["log"], -1))
    root = files.folder_of(store) / paths.generation(job, generations.live(store, job))
    for query in point.manifest.queries:
        for log in sorted(root.glob(f"queries/{query}/sources/*")):
            since = read_since(log, ends.get(str(log.relative_to(root)), -1)) if log.is_dir() else ()
            # Of a folder that is not there Spark itself says so.
            gone = [path for path in since if path.parent.is_dir() and not path.exists()]
            if gone:
                raise InputFilesGoneError(
                    job=job, point=point.name, query=query, count=len(gone), file=gone[0]
                )


@contextmanager
def kept_or_dropped(
    store: Store, job: JobName, generation: Generation, note: Callable[[str], None]
) -> Iterator[None]:
    """While an intention is carried out: one that can't be done, now or later, is dropped.

    Then the next start resumes with what is live. What the same start may do another time, or with other
    settings, is kept, and so is a restore that has begun to rewind sinks.
    """
    origin = read_origin(store, job, generation)
    assert origin is not None, "an opening generation has its origin"
    source, withdraw = f"the restore from {origin.restored_from}", f"weir restore {job} --withdraw"
    later = f"{source} resumes at the next start; to cancel it: {withdraw}"
    try:
        yield
    except FencedError:
        raise
    except PinnedStateError:  # the same start with other settings may do it
        note(later)
        raise
    except _OUT_OF_REACH:
        note(
            f"{source} waits for it, and the earlier files are unchanged: put it back, resume from "
            f"another point: weir restore {job} latest, or cancel the restore: {withdraw}"
        )
        raise
    except _FAILED as error:
        if not generations.drop(store, job, generation, error.text):
            note(f"{source} has begun to rewind sinks, so it is not cancelled: the next start resumes it")
        elif begun := generations.awaited(store, job):
            note(f"{source} is cancelled: the next start resumes the one from {begun}, which has begun")
        else:
            note(f"{source} is cancelled: the job stays where it was")
        raise
    except Exception:
        note(later)
        raise
