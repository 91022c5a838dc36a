"""Is a savepoint whole? Every file is read and compared with the manifest.

What was found is left beside the manifest, as `verified.json`, so that a catalogue can show it. Whether
the state can be loaded is looked at by a process with Spark (`state/load.py`); `leave` notes it too.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass

from weir.checkpoint.manifest import no_cut
from weir.clock import Clock
from weir.errors import ExternalError
from weir.savepoint.as_point import facts
from weir.savepoint.manifest import MANIFEST, SavedFile, Savepoint
from weir.savepoint.place import Place, lacks
from weir.savepoint.take import Progress
from weir.storage import files, open_store

VERIFIED = "verified.json"


@dataclass(frozen=True)
class Verified:
    """What a look at every file has found."""

    at: str
    files: int
    bytes: int
    damage: tuple[str, ...] = ()
    """What is wrong, each with its path; nothing when it is whole."""
    rows: int | None = None
    """Rows of state that Spark loaded; None when it was not asked to."""

    @property
    def whole(self) -> bool:
        return not self.damage


def verify(place: Place, clock: Clock, progress: Progress = lambda _done, _total: None) -> Verified:
    """Read every file of a savepoint; raises `NotASavepointError` when it is none.

    The finding is left beside the manifest, where that is possible.
    """
    savepoint = place.read()
    look = _Look(place, savepoint, progress)
    damage = [found for found in files.parallel(look, savepoint.files) if found] or lacks(place, savepoint)
    if wrong := facts(savepoint).inconsistencies():
        damage.insert(0, f"{MANIFEST} {no_cut(wrong)}")
    found = Verified(clock.now().isoformat(), len(savepoint.files), savepoint.bytes, tuple(damage))
    leave(place, found)
    return found


def leave(place: Place, found: Verified) -> None:
    """Leave a finding beside the manifest, where that is possible."""
    with suppress(ExternalError):  # a place that can't be written may be whole
        open_store(place.url).put(VERIFIED, json.dumps(asdict(found)).encode())


def last_verified(place: Place) -> Verified | None:
    """What the last look at it has found; None when there was none."""
    data = open_store(place.url).get(VERIFIED)
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(data or b"null")
        return Verified(**{**found, "damage": tuple(found["damage"])}) if found else None
    return None


class _Look:
    def __init__(self, place: Place, savepoint: Savepoint, progress: Progress) -> None:
        self._place = place
        self._progress = progress
        self._total = savepoint.bytes
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, file: SavedFile) -> str | None:
        damage = self._place.damage(file)
        with self._lock:
            self._done += file.bytes
            done = self._done
        self._progress(done, self._total)
        return f"{file.path} {damage}" if damage else None
