"""From a checkpoint or savepoint to live files: which one, is it whole, and a new generation made of it.

`intend` writes down what is to be restored; nothing else changes. The next start of the job calls
`open_generation`, which brings every file back into the new generation, and after the sinks are
rewound that generation becomes live (`storage/generations.py`). The old one is never touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from weir.checkpoint import manifest as mf
from weir.checkpoint.edits import edit_of
from weir.checkpoint.kept import KeptFiles
from weir.checkpoint.manifest import File, Manifest, no_cut
from weir.checkpoint.needs import left_out
from weir.clock import Clock
from weir.errors import (
    DamagedCheckpointError,
    DamagedSavepointError,
    ExternalError,
    InconsistentCheckpointError,
    LeftBehindError,
    NoSuchCheckpointError,
    NotASavepointError,
    NotRewindableError,
    RewindBegunError,
    WeirError,
)
from weir.ids import BatchId, CheckpointId, Generation, JobName, QueryName
from weir.savepoint import restoring as saved
from weir.savepoint.catalogue import below as savepoints_below
from weir.savepoint.catalogue import out_of_reach
from weir.savepoint.manifest import SavedFile
from weir.savepoint.maps import renames
from weir.savepoint.place import Place
from weir.savepoint.records import recorded
from weir.spark.layout import QueryFiles
from weir.storage import Created, Store, files, generations, open_store, paths
from weir.storage.generations import Origin, create_origin, known_origin, read_origin
from weir.storage.members import below

LATEST = "latest"
_ELSEWHERE = re.compile(r"(?P<root>.+)/(?P<job>[^/]+)/checkpoints/(?P<name>chk-\d+\.json)")

PassedOver = Callable[[str, str], None]
"""Told of each newer point that is damaged or can't be reached, and what is wrong with it."""


Target = Callable[[str], "Path | None"]
"""Where a file of the point goes; None for one that nothing in the job needs."""


def _silently(_point: str, _damage: str) -> None: ...


def _held() -> None:
    """Whoever holds the job need not look whether somebody else does."""


@dataclass(frozen=True)
class Found:
    """A point that a job can go on from."""

    point: str
    """Which one: "chk-41", the place of a savepoint, or that of a manifest in a copy-dir."""
    manifest: Manifest


@dataclass(frozen=True)
class Changes:
    """What a restore changes on the way, as the user said it; by default nothing."""

    maps: tuple[str, ...] = ()
    allow_dropped: bool = False
    parallelism: int | None = None
    """None: as the point has it."""
    backend: str | None = None
    offsets: Mapping[str, str] = field(default_factory=dict)
    claim: bool = False
    forked_from: str = ""
    """The job that the point is of, where it is another one than the job that goes on."""


@dataclass(frozen=True)
class From:
    """A checkpoint or savepoint that a start was told to go on from."""

    point: str
    accept_duplicates: bool = False
    changes: Changes = field(default_factory=Changes)

    def to_wire(self) -> dict[str, Any]:
        """As a message carries it."""
        return asdict(self)

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> From:
        changes = dict(body.get("changes", {}))
        return cls(
            body["point"],
            body.get("accept_duplicates", False),
            Changes(**changes | {"maps": tuple(changes.get("maps", ()))}),
        )


def find(
    store: Store,
    job: JobName,
    point: str,
    passed_over: PassedOver = _silently,
    forked_from: str = "",
    savepoint_dir: str = "",
) -> Found:
    """The checkpoint or savepoint that a user means, when every file of it is whole.

    `point` is "latest" (the newest checkpoint or savepoint on the way to the live files that is whole;
    savepoints are those that the job has taken, and those in `savepoint_dir`), "chk-41", "41", the place
    of a manifest in a copy-dir, or the place of a savepoint. Raises `NoSuchCheckpointError`, and
    `DamagedCheckpointError` when what was asked for can't be restored; for a savepoint
    `NotASavepointError` and `DamagedSavepointError`.
    """
    if point == LATEST:
        return _latest(store, job, passed_over, savepoint_dir)
    if is_place(point):
        return Found(point, saved.find(point, job, forked_from)[1])
    return Found(point, _checkpoint(store, job, point))


def _checkpoint(store: Store, job: JobName, point: str) -> Manifest:
    elsewhere = _ELSEWHERE.fullmatch(point)
    manifest = _from_copies(job, point, elsewhere) if elsewhere else named(store, job, point)
    if wrong := manifest.inconsistencies():
        file = f"chk-{manifest.id}.json"
        raise InconsistentCheckpointError(job=job, checkpoint=manifest.id, file=file, damage=no_cut(wrong))
    damage = verify(store, manifest)
    if damage:
        raise _damaged(job, manifest.id, damage[0])
    return manifest


def is_place(point: str) -> bool:
    """Whether it is the place of a savepoint, and not the name of a checkpoint."""
    return "/" in point and _ELSEWHERE.fullmatch(point) is None


def may_be_claimed(point: str) -> bool:
    """Whether it is a savepoint, or may turn out to be one: a checkpoint is the job's own already."""
    return point == LATEST or is_place(point)


def is_left_behind(store: Store, job: JobName, manifest: Manifest) -> bool:
    """Whether the job was taken back behind a point of its own: then it can't go on from there."""
    return _is_of(store, job, manifest) and not _is_on(_way(store, job), manifest)


def check_timeline(store: Store, job: JobName, point: str, manifest: Manifest) -> None:
    """Raise `LeftBehindError` for a point that the job was rewound past."""
    if is_left_behind(store, job, manifest):
        raise LeftBehindError(job=job, point=point)


def check_depth(store: Store, job: JobName, point: str, manifest: Manifest) -> None:
    """Raise `RewindBegunError` for a point that is newer than what sinks are being rewound to.

    A restore that has rewound some sinks may only be finished, or go to an older point: a newer one needs
    output that those sinks no longer have.
    """
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
            raise RewindBegunError(job=job, point=point, begun=origin.restored_from, query=newer[0])


def _cuts_of(store: Store, job: JobName, origin: Origin) -> dict[QueryName, BatchId] | None:
    """The batches that a restore rewinds sinks to; None when its point can't be read."""
    try:
        manifest = (
            saved.facts(Place(origin.restored_from).read())
            if origin.saved
            else named(store, job, origin.restored_from)
        )
    except (NoSuchCheckpointError, DamagedCheckpointError, NotASavepointError):
        return None
    return {QueryName(name): BatchId(cut.batch) for name, cut in manifest.queries.items()}


def check_input(
    store: Store, job: JobName, point: str, manifest: Manifest, changes: Changes | None = None
) -> None:
    """Raise for a point whose sources can't continue where it ends.

    `OtherInputError` where a source has received other lines than a savepoint holds; `InputGoneError`
    where its journal no longer has what follows the point. The latter is left to the start when state may
    be dropped or offsets are set: only the job's code says which queries still read the source.
    """
    kept: Iterable[SavedFile] = ()
    if is_place(point):
        place = Place(point)
        saved.check_input(place, files.folder_of(store) / paths.job(job))
        kept = place.read().files
    if changes is None or not (changes.allow_dropped or changes.offsets):
        saved.check_journals(store, job, point, manifest, kept)


def attempt_of(point: str) -> int:
    """Above which attempt a job goes on from a point: what it holds is fenced by its own.

    One of the job's own checkpoints says nothing: its directory knows all attempts.
    """
    if is_place(point):
        return Place(point).read().attempt
    elsewhere = _ELSEWHERE.fullmatch(point)
    return _from_copies(JobName(elsewhere["job"]), point, elsewhere).attempt if elsewhere else 0


def attempt_of_latest(store: Store, job: JobName, savepoint_dir: str) -> int:
    """The same for "latest". A job that has live files is above all of them; one that lost them is not."""
    if _way(store, job) is not None:
        return 0
    found = [0]
    for place in filter(is_place, _newest_first(store, job, savepoint_dir)):
        with suppress(NotASavepointError, ExternalError):  # "latest" passes it over
            found.append(attempt_of(place))
    return max(found)


def candidates(store: Store, job: JobName) -> list[CheckpointId]:
    """The completed checkpoints that the live files descend from, newest first; whole or not."""
    way = _way(store, job)

    def on_the_way(id: CheckpointId) -> bool:
        manifest = _read(store, job, id)
        return manifest is None or way is None or _is_ours(store, way, job, manifest)

    return [id for id in reversed(mf.completed(store, job)) if on_the_way(id)]


def newest(store: Store, job: JobName) -> Manifest | None:
    """The newest of the candidates that can be read, its files whole or not; None without one."""
    return next(filter(None, (_read(store, job, id) for id in candidates(store, job))), None)


def verify(store: Store, manifest: Manifest) -> list[str]:
    """What is wrong with a checkpoint, each with the path of a file; nothing when it is intact.

    Reads every file, and looks whether the cuts belong together: an earlier weir did not before it completed
    one. Of a manifest without a checksum it looks, too, whether the files are all that its cut needs.
    """
    if wrong := manifest.inconsistencies():
        return [f"chk-{manifest.id}.json {no_cut(wrong)}"]
    kept = KeptFiles(store, manifest)

    def look(file: File) -> str | None:
        damage = kept.damage(file)
        return f"{file.path} {damage}" if damage else None

    found = [wrong for wrong in files.parallel(look, manifest.files()) if wrong]
    if found or manifest.format > 1:
        return found
    return left_out(
        {name: cut.batch for name, cut in manifest.queries.items()},
        {name: (cut.first, cut.behind) for name, cut in manifest.channels.items()},
        {file.path: partial(kept.open, file) for file in manifest.files()},
    )


def verify_id(store: Store, job: JobName, id: CheckpointId) -> list[str]:
    """The same of a checkpoint by its number."""
    manifest = _read(store, job, id)
    return [f"chk-{id}.json can't be read"] if manifest is None else verify(store, manifest)


def intend(
    store: Store,
    job: JobName,
    point: str,
    *,
    accept_duplicates: bool,
    clock: Clock,
    why: str,
    changes: Changes | None = None,
    found: Found | None = None,
    savepoint_dir: str = "",
    still: Callable[[], None] = _held,
    unasked: bool = False,
) -> Generation:
    """Record, durably, that the next start resumes from a point; the generation it will be.

    The point is verified first, unless it was `found` a moment ago. `still` may raise, for a job that
    somebody has started meanwhile: it is called before anything is written, and right before and after the
    intention itself, which is then dropped. To ask again for what is intended already changes nothing. One
    of a copy-dir is entered among the job's own checkpoints.

    Refused is a point of another timeline (the sinks were rewound past it, and what they hold since is not
    what it knows of), one that is newer than what sinks are being rewound to, and one whose sources can't
    continue where it ends. `unasked` where no person has decided for it.
    """
    changes = changes or Changes()
    found = found or find(store, job, point, forked_from=changes.forked_from, savepoint_dir=savepoint_dir)
    still()
    point, manifest = found.point, found.manifest
    place = Place(point).url if is_place(point) else ""
    if _ELSEWHERE.fullmatch(point):
        _enter(store, job, manifest)
    if not accept_duplicates and (stuck := ahead(store, job, manifest)):
        raise NotRewindableError(job=job, query=stuck[0], point=place or f"chk-{manifest.id}")
    if not place:
        named(store, job, f"chk-{manifest.id}")  # to verify takes its time; it may be dropped by now
    check_timeline(store, job, point, manifest)
    check_depth(store, job, point, manifest)
    check_input(store, job, point, manifest, changes)
    origin = Origin(
        lineage=manifest.lineage,
        backend=changes.backend or manifest.backend,
        parallelism=changes.parallelism or manifest.parallelism,
        spark=manifest.spark,
        created_at=clock.now().isoformat(),
        restored_from=place or f"chk-{manifest.id}",
        saved=manifest.id if place else 0,
        parent=manifest.generation,
        accept_duplicates=accept_duplicates,
        why=why,
        maps=changes.maps,
        allow_dropped=changes.allow_dropped,
        offsets=dict(changes.offsets),
        claim=changes.claim,
        forked_from=changes.forked_from or _forked_from(store, job),
        owners=_owners(manifest, changes.maps),
        attempt=manifest.attempt if place or _ELSEWHERE.fullmatch(point) else 0,
        unasked=unasked,
    )
    still()
    opening = generations.opening(store, job)
    there = read_origin(store, job, opening) if opening else None
    if opening and there and _intention(there) == _intention(origin):
        return opening
    number = max([manifest.generation, *generations.numbers(store, job)]) + 1
    while not create_origin(store, job, Generation(number), origin):
        number += 1
    generation = Generation(number)
    try:
        still()
    except WeirError as error:  # who started it may have missed the intention, and a later start takes it up
        generations.drop(store, job, generation, error.text)
        raise
    if not place and not store.exists(paths.completed(job, CheckpointId(manifest.id))):
        gone = "it was deleted meanwhile: newer ones are retained"
        generations.drop(store, job, generation, gone)
        raise NoSuchCheckpointError(job=job, point=f"chk-{manifest.id}", reason=gone)
    return generation


def lay_out(
    store: Store, job: JobName, generation: Generation, layout: str, clock: Clock
) -> tuple[Generation, bool]:
    """The generation whose files are, or will be, laid out so; and whether it had to be another one.

    What a start with other code left in the intended one would be taken for what this plan needs, so
    the same restore is intended once more, and begins with nothing. Safe to repeat.
    """
    key, data = paths.laid_out(job, generation), json.dumps({"layout": layout}).encode()
    if not store.exists(paths.copied(job, generation)):
        store.create(key, data)
    if store.get(key) == data:
        return generation, False
    origin = read_origin(store, job, generation)
    assert origin is not None, "only a restore is laid out"
    again = replace(origin, created_at=clock.now().isoformat())
    number = max(generations.numbers(store, job)) + 1
    while not create_origin(store, job, Generation(number), again):
        number += 1
    store.create(paths.laid_out(job, Generation(number)), data)
    return Generation(number), True


def open_generation(
    store: Store,
    job: JobName,
    generation: Generation,
    target: Target | None = None,
    change: Callable[[], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Bring every file of the intended checkpoint to its place in the generation; the checkpoint.

    With `target` a file may go elsewhere, or nowhere; `change` is called when all of them are there,
    and does what a changed job needs. Safe to repeat, and to be killed in: `copied.json` is written
    last, and only what is whole is brought. `check` is asked before each step, and raises when the
    generation is another's by now. Raises `DamagedCheckpointError`, and `NoSuchCheckpointError` when
    it was dropped since.
    """
    origin = read_origin(store, job, generation)
    assert origin is not None and origin.checkpoint is not None, "only a restore is opened"
    root = files.folder_of(store) / paths.generation(job, generation)
    there = store.exists(paths.copied(job, generation))
    to = target or (lambda path: root / path)
    check()
    if origin.saved:
        place = Place(origin.restored_from)
        manifest = saved.facts(place.read()) if there else saved.bring_back(place, root, to)
    else:
        manifest = named(store, job, origin.restored_from)
        if not there:
            _bring_back(store, manifest, root, to)
    check()
    if not there and change is not None:
        change()
        check()
    if not there:
        body = {"from": origin.restored_from, "bytes": manifest.full_bytes}
        store.create(paths.copied(job, generation), json.dumps(body).encode())
    return manifest


_Way = dict[Generation, CheckpointId | None]


def _way(store: Store, job: JobName) -> _Way | None:
    """The timeline that the live files are on; None when there are none, and so any will do."""
    live = generations.live(store, job)
    return generations.timeline(store, job) if generations.is_live(store, job, live) else None


def _is_on(way: _Way | None, manifest: Manifest) -> bool:
    last = way.get(Generation(manifest.generation), CheckpointId(0)) if way is not None else None
    return last is None or manifest.id <= last


def _is_of(store: Store, job: JobName, manifest: Manifest) -> bool:
    """Whether it was taken in this life of the job; a savepoint may come from another one.

    A fork keeps the lineage, but its generations are its own.
    """
    live = known_origin(store, job, generations.live(store, job))
    return live is None or (job, live.lineage) == (manifest.job, manifest.lineage)


def _owners(manifest: Manifest, maps: Sequence[str]) -> dict[str, str]:
    """The queries that their sinks know by another name: those of the point, and those renamed now."""
    renamed = renames(maps)
    kept = {name: owner for name, owner in manifest.owners.items() if name not in renamed.values()}
    return kept | {name: manifest.owners.get(was, was) for name, was in renamed.items()}


def _forked_from(store: Store, job: JobName) -> str:
    """A fork stays one: its channels were begun under the other name."""
    live = known_origin(store, job, generations.live(store, job))
    return live.forked_from if live is not None else ""


def ahead(store: Store, job: JobName, manifest: Manifest) -> list[str]:
    """The queries that have delivered more since the point, and can't take it back."""
    live = generations.live(store, job)

    def last(name: str) -> int:
        return QueryFiles(store, paths.query(job, live, QueryName(name))).last_committed()

    return [n for n, cut in manifest.queries.items() if not cut.rewindable and last(n) > cut.batch]


def _bring_back(store: Store, manifest: Manifest, root: Path, to: Target) -> None:
    kept = KeptFiles(store, manifest)
    found = {file.path: at for file in manifest.files() if (at := to(file.path)) is not None}
    targets = {path: below(root, target) for path, target in found.items()}
    folders = {target.parent for target in targets.values()}
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        files.parallel(
            lambda file: kept.bring_back(file, targets[file.path], edit_of(manifest, file.path, root)),
            [file for file in manifest.files() if file.path in targets],
        )
        for folder in folders:
            for left in filter(lambda path: files.is_temporary(path.name), list(folder.iterdir())):
                left.unlink()
        above = (one for target in targets.values() for one in files.up_to(target, root.parent))
        files.sync_folders(above)
    except OSError as error:
        raise files.failed("restore", root, error, store.url) from error


def _latest(store: Store, job: JobName, passed_over: PassedOver, savepoint_dir: str) -> Found:
    wrong: list[str] = []

    def pass_over(point: str, damage: str) -> None:
        wrong.append(f"{point} {damage}")
        passed_over(point, damage)

    for point in _newest_first(store, job, savepoint_dir, pass_over):
        try:
            return find(store, job, point)
        except (NoSuchCheckpointError, NotASavepointError):
            continue  # it was dropped meanwhile
        except (DamagedCheckpointError, DamagedSavepointError) as error:
            pass_over(point, f"{error.fields['file']} {error.fields['damage']}")
        except ExternalError as error:
            if not is_place(point):
                raise
            pass_over(point, out_of_reach(error))
    if wrong:
        raise NoSuchCheckpointError(job=job, point=LATEST, reason=f"no checkpoint is whole: {wrong[0]}")
    reason = "it has no completed checkpoint, and no savepoint that can be found"
    raise NoSuchCheckpointError(job=job, point=LATEST, reason=reason)


def _newest_first(
    store: Store, job: JobName, savepoint_dir: str, passed_over: PassedOver = _silently
) -> list[str]:
    """The checkpoints and savepoints that the live files descend from; a checkpoint before its copy.

    A savepoint that was edited or converted is none of them: it must be named. Nor is one that can't be
    reached: how new it is, nobody knows.

    By number, which grows with every checkpoint. Where there are no live files, as of a job that comes
    back from its savepoints, numbers of several lives may be there, and it goes by time.
    """
    way = _way(store, job)
    points: dict[str, tuple[str, int, bool]] = {}
    for id in candidates(store, job):
        manifest = _read(store, job, id)
        time = manifest.completed_at if manifest is not None and way is None else ""
        points[f"chk-{id}"] = (time, id, True)
    places = recorded(store, job)
    try:
        places += savepoints_below(savepoint_dir)
    except ExternalError as error:
        passed_over(savepoint_dir, out_of_reach(error))
    for place in dict.fromkeys(places):
        try:
            savepoint = Place(place).read()
        except NotASavepointError:
            continue
        except ExternalError as error:
            passed_over(place, out_of_reach(error))
            continue
        manifest = saved.facts(savepoint)
        elsewhere = way is not None and not _is_ours(store, way, job, manifest)
        if not (savepoint.derived or manifest.job != job or elsewhere):
            points[place] = (manifest.completed_at if way is None else "", manifest.id, False)
    return sorted(points, key=lambda point: points[point], reverse=True)


def _is_ours(store: Store, way: _Way, job: JobName, manifest: Manifest) -> bool:
    return _is_of(store, job, manifest) and _is_on(way, manifest)


def named(store: Store, job: JobName, point: str) -> Manifest:
    """A completed checkpoint by its name, whole or not; raises `NoSuchCheckpointError`."""
    number = point.removeprefix("chk-")
    there = mf.completed(store, job)
    if not number.isdigit() or int(number) not in there:
        names = ", ".join(f"chk-{id}" for id in there) or "none"
        reason = f"there is no such checkpoint; completed and retained are: {names}"
        raise NoSuchCheckpointError(job=job, point=point, reason=reason)
    id = CheckpointId(int(number))
    manifest = _read(store, job, id)
    if manifest is None:
        raise _damaged(job, id, f"chk-{id}.json can't be read")
    return manifest


def _from_copies(job: JobName, point: str, place: re.Match[str]) -> Manifest:
    """A checkpoint of a copy-dir; its files are there, wherever the manifest says they were copied to."""
    data = open_store(f"{place['root']}/{place['job']}/checkpoints").get(place["name"])
    if data is None:
        raise NoSuchCheckpointError(job=job, point=point, reason="there is no such file")
    try:
        manifest = mf.decode(data)
    except ValueError as error:
        raise NoSuchCheckpointError(job=job, point=point, reason="it can't be read") from error
    if manifest.job != job or place["job"] != job:
        reason = f"it is a checkpoint of job {manifest.job!r}"
        raise NoSuchCheckpointError(job=job, point=point, reason=reason)
    return manifest.model_copy(update={"copied_to": open_store(place["root"]).url})


def _enter(store: Store, job: JobName, manifest: Manifest) -> None:
    """Make a checkpoint of a copy-dir one of the job's own, whose directory may be new."""
    id = CheckpointId(manifest.id)
    data = mf.encode(manifest)
    aborted = store.exists(paths.aborted(job, id))
    if not aborted and store.create(paths.completed(job, id), data) is Created.NOW:
        return
    there = _read(store, job, id)
    if there is None or (there.lineage, there.begun_at) != (manifest.lineage, manifest.begun_at):
        reason = "the job has had another checkpoint of this number since"
        raise NoSuchCheckpointError(job=job, point=f"chk-{id}", reason=reason)
    store.put(paths.completed(job, id), data)


def _read(store: Store, job: JobName, id: CheckpointId) -> Manifest | None:
    """The manifest, or None when it can't be read."""
    try:
        return mf.read(store, job, id)
    except ValueError:
        return None


def _intention(origin: Origin) -> Origin:
    """What was asked for, whenever and by whomever."""
    return replace(origin, created_at="", why="")


def _damaged(job: JobName, id: int, damage: str) -> DamagedCheckpointError:
    file, _, wrong = damage.partition(" ")
    return DamagedCheckpointError(job=job, checkpoint=id, file=file, damage=wrong)
