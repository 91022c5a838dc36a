"""A savepoint as a point that a job can go on from: its facts, and its files in a new generation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from weir.checkpoint.edits import edit_of
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut, no_cut
from weir.errors import (
    DamagedSavepointError,
    InconsistentSavepointError,
    InputGoneError,
    NotASavepointError,
    OtherInputError,
)
from weir.ids import JobName
from weir.job.sources import journal
from weir.protocol.checkpoints import Alignment
from weir.savepoint.manifest import MANIFEST, SavedFile, SavedQuery, Savepoint
from weir.savepoint.place import Place, lacks
from weir.storage import Store, files, paths
from weir.storage.members import JOURNALS, below


def find(url: str, job: str, forked_from: str = "") -> tuple[Place, Manifest]:
    """The savepoint at a place, when every file of it is whole; one of this job, or of the other.

    Raises `NotASavepointError` and `DamagedSavepointError`, also when its cuts do not belong together.
    """
    place = Place(url)
    savepoint = place.read()
    if savepoint.job not in (job, forked_from):
        raise NotASavepointError(place=place.url, reason=f"it was taken of job {savepoint.job!r}")
    damaged = [one for one in files.parallel(lambda f: (f, place.damage(f)), savepoint.files) if one[1]]
    if damaged:
        raise DamagedSavepointError(place=place.url, file=damaged[0][0].path, damage=damaged[0][1])
    if lacking := lacks(place, savepoint):
        file, _, missing = lacking[0].partition(" ")
        raise DamagedSavepointError(place=place.url, file=file, damage=missing)
    manifest = facts(savepoint)
    if wrong := manifest.inconsistencies():
        raise InconsistentSavepointError(place=place.url, file=MANIFEST, damage=no_cut(wrong))
    return place, manifest


def facts(savepoint: Savepoint) -> Manifest:
    """What it consists of, as a checkpoint says it; its files are not among it."""
    return Manifest(
        id=savepoint.id,
        job=savepoint.job,
        generation=savepoint.generation,
        attempt=savepoint.attempt,
        alignment=Alignment(savepoint.alignment),
        full=True,
        trigger=savepoint.trigger,
        begun_at=savepoint.taken_at,
        completed_at=savepoint.taken_at,
        seconds=savepoint.seconds,
        lineage=savepoint.lineage,
        owners=savepoint.owners,
        backend=savepoint.backend,
        parallelism=savepoint.parallelism,
        spark=savepoint.spark,
        weir=savepoint.weir,
        queries={name: _cut(query) for name, query in savepoint.queries.items()},
        channels={
            name: ChannelCut(first=one.first, behind=one.behind, batch=one.batch)
            for name, one in savepoint.channels.items()
        },
    )


def bring_back(place: Place, root: Path, to: Callable[[str], Path | None]) -> Manifest:
    """Copy every file to where `to` says, below the generation `root`; None leaves it out.

    Safe to repeat, and to be killed in. Journals of sources outlive generations: of those only what is
    not there any more comes back. Raises `OtherInputError` as `check_input` does, and `OutsideError` for a
    target that is not below the generation, before anything is brought.
    """
    savepoint = place.read()
    manifest = facts(savepoint)
    job = root.parent.parent
    check_input(place, job)
    targets: dict[str, Path] = {}
    for file in savepoint.files:
        if _is_journal(file):
            targets[file.path] = below(job / JOURNALS, job / file.path)
        elif (target := to(file.path)) is not None:
            targets[file.path] = below(root, target)
    try:
        for folder in {target.parent for target in targets.values()}:
            folder.mkdir(parents=True, exist_ok=True)

        def bring(file: SavedFile) -> None:
            target = targets[file.path]
            if not (_is_journal(file) and target.exists()):
                place.bring(file, target, edit_of(manifest, file.path, root))

        files.parallel(bring, [file for file in savepoint.files if file.path in targets])
        above = (one for target in targets.values() for one in files.up_to(target, job))
        files.sync_folders(above)
    except OSError as error:
        raise files.failed("restore", root, error, place.url) from error
    return manifest


def check_input(place: Place, job: Path) -> None:
    """Raise `OtherInputError` when a source has received other lines where a savepoint has its own.

    The entries of a journal never change, so those of the job's own past are as the savepoint has them;
    others are of another life of the job, or of a fork that has gone its own way since.
    """
    journals = [file for file in place.read().files if _is_journal(file)]
    differs = files.parallel(lambda file: _differs(job / file.path, file), journals)
    for file in (file for file, other in zip(journals, differs, strict=True) if other):
        _, source, _, entry = file.path.split("/")
        folder = job / JOURNALS / source
        reason = f"{entry} of its journal is not the savepoint's, whose unread lines would be lost"
        raise OtherInputError(job=job.name, place=place.url, source=source, reason=reason, folder=folder)


def check_journals(
    store: Store, job: JobName, point: str, manifest: Manifest, kept: Iterable[SavedFile] = ()
) -> None:
    """Raise when the journals of a job can't serve the queries of a point; `kept` are a savepoint's files.

    `InputGoneError` when lines are gone that a query resumes with. `OtherInputError` when the savepoint's own
    lines do not follow those of the journal: brought there, they would cut off what it has received.
    """
    saved: dict[str, set[int]] = {}
    for file in filter(_is_journal, kept):
        _, source, _, entry = file.path.split("/")
        saved.setdefault(source, set()).add(int(entry.removesuffix(".json")))
    for query, cut in manifest.queries.items():
        for source, position in journal.positions(cut.offsets).items():
            place = f"{paths.job(job)}/{JOURNALS}/{source}"
            there = journal.numbers(store, place)
            own, tail = journal.dense_tail(there), journal.dense_tail([*there, *saved.get(source, ())])
            if tail.start > own.stop and journal.has_lines(store, place, own):
                reason = f"it holds entries up to {own.stop - 1}, and the savepoint's begin with {tail.start}"
                folder = files.folder_of(store) / place
                raise OtherInputError(job=job, place=point, source=source, reason=reason, folder=folder)
            if not journal.serves(tail, position):
                has = f"holds {tail.start} to {tail.stop - 1}" if tail else "is empty"
                raise InputGoneError(
                    job=job, point=point, source=source, query=query, entry=position, has=has
                )


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


def _is_journal(file: SavedFile) -> bool:
    return file.path.startswith(f"{JOURNALS}/")


def _cut(query: SavedQuery) -> QueryCut:
    return QueryCut(
        batch=query.batch,
        unaligned=query.unaligned,
        offsets=query.offsets,
        positions=query.positions,
        set_back=query.set_back,
        watermark_ms=query.watermark_ms,
        rewindable=query.sink.rewindable if query.sink is not None else False,
    )
