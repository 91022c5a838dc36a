"""The one resolver: from what a user names to a point that is there, and of which every file is intact.

A name is "latest", "chk-41", "41", the place of a savepoint, or the place of a manifest in a copy-dir. What
the point has of each query, which a plan needs, is read by `describe`. Nothing is written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from weir.checkpoint import manifest as mf
from weir.checkpoint.kept_files import KeptFiles, damages
from weir.checkpoint.manifest import Manifest, no_cut
from weir.checkpoint.records import Timeline, is_of, is_on, timeline
from weir.errors import (
    DamagedCheckpointError,
    DamagedSavepointError,
    ExternalError,
    InconsistentCheckpointError,
    InconsistentSavepointError,
    NoSuchCheckpointError,
    NotASavepointError,
)
from weir.ids import CheckpointId, JobName
from weir.restore.request import LATEST, in_copy_dir, is_place
from weir.savepoint import about
from weir.savepoint.catalogue import below as savepoints_below
from weir.savepoint.catalogue import out_of_reach, recorded
from weir.savepoint.manifest import MANIFEST, facts
from weir.savepoint.place import SavepointPlace
from weir.savepoint.query_change import Before
from weir.savepoint.take import saved_queries
from weir.storage import Store, open_store
from weir.storage.generation import Origin
from weir.storage.manifest import NEWER, NewerManifestError

_ENTRY = re.compile(r"channels/(?P<channel>[^/]+)/log/(?P<entry>\d+)\.json")

PassedOver = Callable[[str, str], None]
"""Called with each newer point that is damaged or can't be reached, and with what is wrong with it."""


def _silently(_point: str, _damage: str) -> None: ...


@dataclass(frozen=True)
class Point:
    """A checkpoint or a savepoint that a job can resume from."""

    name: str
    """Which one: "chk-41", the place of a savepoint, or that of a manifest in a copy-dir."""
    manifest: Manifest
    queries: Mapping[str, Before] = field(default_factory=dict)
    """What the point has of each query; nothing before `describe`."""

    @property
    def place(self) -> str:
        """The URL of a savepoint; "" for a checkpoint."""
        return SavepointPlace(self.name).url if is_place(self.name) else ""

    @property
    def known_as(self) -> str:
        """What an origin calls it: one of a copy-dir is among the job's own checkpoints by then."""
        return self.place or f"chk-{self.manifest.id}"


def resolve(
    store: Store,
    job: JobName,
    name: str,
    passed_over: PassedOver = _silently,
    forked_from: str = "",
    savepoint_dir: str = "",
) -> Point:
    """The checkpoint or savepoint that a user means, when every file of it is intact.

    "latest" is the newest checkpoint or savepoint on the way to the live files that is intact; savepoints
    are those that the job has taken, and those in `savepoint_dir`. Raises `NoSuchCheckpointError`, and
    `DamagedCheckpointError` when what was asked for can't be restored; for a savepoint
    `NotASavepointError` and `DamagedSavepointError`.
    """
    if name == LATEST:
        return _latest(store, job, passed_over, savepoint_dir)
    if is_place(name):
        return Point(name, _savepoint(name, job, forked_from))
    return Point(name, _checkpoint(store, job, name))


def _checkpoint(store: Store, job: JobName, name: str) -> Manifest:
    """A checkpoint of the job, or of a copy-dir, that was verified."""
    manifest = _copied(job, name) if in_copy_dir(name) else named(store, job, name)
    if wrong := manifest.inconsistencies():
        file = f"chk-{manifest.id}.json"
        raise InconsistentCheckpointError(job=job, checkpoint=manifest.id, file=file, damage=no_cut(wrong))
    damage = verify(store, manifest)
    if damage:
        raise _damaged(job, manifest.id, damage[0])
    return manifest


def _savepoint(url: str, job: str, forked_from: str) -> Manifest:
    """A savepoint of this job, or of the one that it is a fork of, that was verified."""
    place = SavepointPlace(url)
    savepoint = place.read()
    if savepoint.job not in (job, forked_from):
        raise NotASavepointError(place=place.url, reason=f"it was taken from job {savepoint.job!r}")
    manifest = facts(savepoint)
    if damage := damages(place, savepoint.files, manifest):
        file, _, wrong_with_it = damage[0].partition(" ")
        raise DamagedSavepointError(place=place.url, file=file, damage=wrong_with_it)
    if wrong := manifest.inconsistencies():
        raise InconsistentSavepointError(place=place.url, file=MANIFEST, damage=no_cut(wrong))
    return manifest


def _latest(store: Store, job: JobName, passed_over: PassedOver, savepoint_dir: str) -> Point:
    wrong: list[str] = []

    def pass_over(point: str, damage: str) -> None:
        wrong.append(f"{point} {damage}")
        passed_over(point, damage)

    for name in _newest_first(store, job, savepoint_dir, pass_over):
        try:
            return resolve(store, job, name)
        except (NoSuchCheckpointError, NotASavepointError):
            continue  # it was deleted meanwhile
        except (DamagedCheckpointError, DamagedSavepointError) as error:
            pass_over(name, f"{error.fields['file']} {error.fields['damage']}")
        except ExternalError as error:
            if not is_place(name):
                raise
            pass_over(name, out_of_reach(error))
    if wrong:
        raise NoSuchCheckpointError(job=job, point=LATEST, reason=f"no checkpoint is intact: {wrong[0]}")
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
    way = timeline(store, job)
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
            savepoint = SavepointPlace(place).read()
        except NotASavepointError:
            continue
        except ExternalError as error:
            passed_over(place, out_of_reach(error))
            continue
        manifest = facts(savepoint)
        elsewhere = way is not None and not _is_ours(store, way, job, manifest)
        if not (savepoint.derived or manifest.job != job or elsewhere):
            points[place] = (manifest.completed_at if way is None else "", manifest.id, False)
    return sorted(points, key=lambda point: points[point], reverse=True)


def _is_ours(store: Store, way: Timeline, job: JobName, manifest: Manifest) -> bool:
    return is_of(store, job, manifest) and is_on(way, manifest)


def candidates(store: Store, job: JobName) -> list[CheckpointId]:
    """The completed checkpoints that the live files descend from, newest first; intact or not."""
    way = timeline(store, job)

    def on_the_way(id: CheckpointId) -> bool:
        manifest = _read(store, job, id)
        return manifest is None or way is None or _is_ours(store, way, job, manifest)

    return [id for id in reversed(mf.completed(store, job)) if on_the_way(id)]


def newest(store: Store, job: JobName) -> Manifest | None:
    """The newest of the candidates that can be read, its files intact or not; None without one."""
    return next(filter(None, (_read(store, job, id) for id in candidates(store, job))), None)


def newest_intact(store: Store, job: JobName, passed_over: PassedOver) -> Point | None:
    """The newest of the candidates that is intact; None without one."""
    for id in candidates(store, job):
        manifest = _read(store, job, id)
        problems = [_unreadable(store, job, id)] if manifest is None else verify(store, manifest)
        if manifest is not None and not problems:
            return Point(f"chk-{id}", manifest)
        passed_over(f"checkpoint {id}", problems[0])
    return None


def verify(store: Store, manifest: Manifest) -> list[str]:
    """What is wrong with a checkpoint, each with the path of a file; nothing when it is intact.

    Reads every file, and looks whether the cuts belong together: an earlier weir did not before it completed
    one. Of a manifest without a checksum it looks, too, whether the files are all that its cut needs.
    """
    if wrong := manifest.inconsistencies():
        return [f"chk-{manifest.id}.json {no_cut(wrong)}"]
    return damages(KeptFiles(store, manifest), manifest.files(), manifest)


def verify_id(store: Store, job: JobName, id: CheckpointId) -> list[str]:
    """The same of a checkpoint by its number."""
    manifest = _read(store, job, id)
    return [_unreadable(store, job, id)] if manifest is None else verify(store, manifest)


def named(store: Store, job: JobName, name: str) -> Manifest:
    """A completed checkpoint by its name, intact or not; raises `NoSuchCheckpointError`."""
    number = name.removeprefix("chk-")
    completed = mf.completed(store, job)
    if not number.isdigit() or int(number) not in completed:
        names = ", ".join(f"chk-{id}" for id in completed) or "none"
        reason = f"there is no such checkpoint; completed and retained are: {names}"
        raise NoSuchCheckpointError(job=job, point=name, reason=reason)
    id = CheckpointId(int(number))
    manifest = _read(store, job, id)
    if manifest is None:
        wrong = _unreadable(store, job, id)
        if wrong.endswith(NEWER):
            raise NoSuchCheckpointError(job=job, point=name, reason=wrong)
        raise _damaged(job, id, wrong)
    return manifest


def _copied(job: JobName, name: str) -> Manifest:
    """A checkpoint of a copy-dir; its files are there, wherever the manifest says they were copied to."""
    place = in_copy_dir(name)
    assert place is not None, "only a manifest in a copy-dir is read so"
    data = open_store(f"{place['root']}/{place['job']}/checkpoints").get(place["name"])
    if data is None:
        raise NoSuchCheckpointError(job=job, point=name, reason="there is no such file")
    try:
        manifest = mf.decode(data)
    except NewerManifestError as error:
        raise NoSuchCheckpointError(job=job, point=name, reason=str(error)) from error
    except ValueError as error:
        raise NoSuchCheckpointError(job=job, point=name, reason="it can't be read") from error
    if manifest.job != job or place["job"] != job:
        reason = f"it is a checkpoint of job {manifest.job!r}"
        raise NoSuchCheckpointError(job=job, point=name, reason=reason)
    return manifest.model_copy(update={"copied_to": open_store(place["root"]).url})


def _read(store: Store, job: JobName, id: CheckpointId) -> Manifest | None:
    """The manifest, or None when it can't be read."""
    try:
        return mf.read(store, job, id)
    except ValueError:
        return None


def _unreadable(store: Store, job: JobName, id: CheckpointId) -> str:
    """Why the manifest can't be used: it is damaged, or a newer weir wrote it, which is no damage."""
    try:
        mf.read(store, job, id)
    except NewerManifestError as error:
        return f"chk-{id}.json can't be used: {error}"
    except ValueError:
        pass
    return f"chk-{id}.json can't be read"


def _damaged(job: JobName, id: int, damage: str) -> DamagedCheckpointError:
    file, _, wrong = damage.partition(" ")
    return DamagedCheckpointError(job=job, checkpoint=id, file=file, damage=wrong)


def attempt_of(name: str) -> int:
    """Above which attempt a job resumes from a point: what it holds is fenced by its own.

    One of the job's own checkpoints says nothing: its directory knows all attempts.
    """
    if is_place(name):
        return SavepointPlace(name).read().attempt
    copied = in_copy_dir(name)
    return _copied(JobName(copied["job"]), name).attempt if copied else 0


def attempt_of_latest(store: Store, job: JobName, savepoint_dir: str) -> int:
    """The same for "latest". A job that has live files is above all of them; one that lost them is not."""
    if timeline(store, job) is not None:
        return 0
    found = [0]
    for place in filter(is_place, _newest_first(store, job, savepoint_dir)):
        with suppress(NotASavepointError, ExternalError):  # "latest" passes it over
            found.append(attempt_of(place))
    return max(found)


def describe(store: Store, point: Point) -> Point:
    """The same point, with what it has of each query."""
    if is_place(point.name):
        return of_savepoint(point.name)
    saved = saved_queries(store, point.manifest, {})
    kept = KeptFiles(store, point.manifest)
    contents = {file.path: partial(kept.content, file) for file in point.manifest.files()}
    queries = {name: about.before(query) for name, query in saved.items()}
    return replace(point, queries=_readers(queries, point.manifest, contents))


def intended(store: Store, job: JobName, origin: Origin) -> Point:
    """The point that a generation is opened from, described; it was verified when that was decided."""
    if origin.saved:
        return of_savepoint(origin.restored_from)
    name = origin.restored_from
    return describe(store, Point(name, named(store, job, name)))


def of_savepoint(place: str) -> Point:
    """The point that a savepoint is, described, and not verified."""
    where = SavepointPlace(place)
    savepoint = where.read()
    queries = {name: about.before(query) for name, query in savepoint.queries.items()}
    contents = {file.path: partial(where.content, file) for file in savepoint.files}
    manifest = facts(savepoint)
    return Point(place, manifest, _readers(queries, manifest, contents))


def _readers(
    queries: Mapping[str, Before], manifest: Manifest, contents: Mapping[str, Callable[[], bytes]]
) -> dict[str, Before]:
    """The same queries, which know what they have not read of their channels."""
    return {
        name: replace(query, unread=partial(_unread, manifest, contents, name))
        for name, query in queries.items()
    }


def _unread(
    manifest: Manifest, contents: Mapping[str, Callable[[], bytes]], reader: str, channel: str
) -> int:
    """How many batches of rows the point has in a channel that a reader has not read."""
    at, _ = manifest.queries[reader].positions.get(channel, (0, 0))
    found = ((_ENTRY.fullmatch(path), content) for path, content in contents.items())
    entries = (
        json.loads(content())
        for entry, content in found
        if entry is not None and entry["channel"] == channel and int(entry["entry"]) >= at
    )
    return sum(entry["kind"] == "segment" and bool(entry["rows"]) for entry in entries)
