"""Is a savepoint intact? Every file is read and compared with the manifest.

What was found is left beside the manifest, as `verified.json`, so that a catalogue can show it. Whether
the state can be loaded is looked at by a process with Spark (`state/load.py`); `leave` notes it too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from weir.checkpoint.kept_files import damages
from weir.checkpoint.manifest import no_cut
from weir.clock import Clock
from weir.errors import ExternalError, NotASavepointError
from weir.savepoint.manifest import MANIFEST, SavedFile, facts
from weir.savepoint.object_store import discard, is_mark
from weir.savepoint.place import SavepointPlace
from weir.savepoint.take import Progress, TakenSavepoint
from weir.savepoint.write import begin, delete
from weir.storage import files, open_store

VERIFIED = "verified.json"


@dataclass(frozen=True)
class Verified:
    """What a look at every file has found."""

    at: str
    files: int
    bytes: int
    damage: tuple[str, ...] = ()
    """What is wrong, each with its path; nothing when it is intact."""
    rows: int | None = None
    """Rows of state that Spark loaded; None when it was not asked to."""

    @property
    def whole(self) -> bool:
        return not self.damage


def verify(place: SavepointPlace, clock: Clock, progress: Progress = lambda _done, _total: None) -> Verified:
    """Read every file of a savepoint; raises `NotASavepointError` when it is none.

    The finding is left beside the manifest, where that is possible.
    """
    savepoint = place.read()
    manifest, full = facts(savepoint), savepoint.bytes
    done, lock = 0, threading.Lock()

    def seen(file: SavedFile) -> None:
        nonlocal done
        with lock:
            done += file.bytes
            so_far = done
        progress(so_far, full)

    damage = damages(place, savepoint.files, manifest, seen)
    if wrong := manifest.inconsistencies():
        damage.insert(0, f"{MANIFEST} {no_cut(wrong)}")
    found = Verified(clock.now().isoformat(), len(savepoint.files), full, tuple(damage))
    leave(place, found)
    return found


def leave(place: SavepointPlace, found: Verified) -> None:
    """Leave a finding beside the manifest, where that is possible."""
    with suppress(ExternalError):  # a place that can't be written may be intact
        open_store(place.url).put(VERIFIED, json.dumps(asdict(found)).encode())


def last_verified(place: SavepointPlace) -> Verified | None:
    """What the last look at it has found; None when there was none."""
    data = open_store(place.url).get(VERIFIED)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        found = json.loads(data or b"null")
        return Verified(**{**found, "damage": tuple(found["damage"])}) if found else None
    return None


# Copy a savepoint to another storage, and delete one.


def copy(
    place: SavepointPlace,
    target: str,
    progress: Progress = lambda _done, _total: None,
    read: Callable[[], None] = lambda: None,
) -> TakenSavepoint:
    """Copy a savepoint into a folder or URL, under its own name; the copy is as good as the original.

    `read` is called when all is read: the storage may take long to make the rest durable.

    When it raises, nothing of the copy is left. Raises `DamagedSavepointError` when the original is
    not intact, `NotASavepointError` when it is none.
    """
    savepoint = place.read()
    full = savepoint.bytes
    writing = begin(target, savepoint.name, savepoint.lineage)
    done, lock = 0, threading.Lock()

    def counted(file: SavedFile) -> Iterator[bytes]:
        nonlocal done
        for chunk in place.chunks(file):
            yield chunk
            with lock:
                done += len(chunk)
                all_read = done == full
            progress(done, full)
            if all_read:
                read()

    try:
        files.parallel(lambda file: writing.add(file.path, counted(file)), savepoint.files)
        return TakenSavepoint(writing.finish(savepoint), savepoint)
    finally:
        writing.give_up()


def dispose(place: SavepointPlace) -> TakenSavepoint:
    """Delete a savepoint, intact or damaged.

    Raises `NotASavepointError` for a place that is none, or that holds other files too.
    """
    savepoint = place.read()
    own = {MANIFEST, VERIFIED, *(file.path for file in savepoint.files)}
    others = sorted(name for name in set(place.names()) - own if place.folder or not is_mark(name))
    if others:
        reason = f"it holds other files too, like {others[0]}: move them away first"
        raise NotASavepointError(place=place.url, reason=reason)
    delete(place.url)
    return TakenSavepoint(place.url, savepoint)


def clear(place: SavepointPlace) -> bool:
    """Delete what a killed writer or a killed deletion has left in an object store; False when there is none.

    Whoever asks for it knows that they are dead. On a file system nothing of them can be seen.
    """
    return place.folder is None and discard(open_store(place.url))
