"""Is a savepoint whole? Every file is read and compared with the manifest.

What was found is left beside the manifest, as `verified.json`, so that a catalogue can show it. That
the state can be loaded needs Spark, and is not looked at here.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass

from weir.clock import Clock
from weir.errors import ExternalError
from weir.savepoint.manifest import SavedFile, Savepoint
from weir.savepoint.place import Place
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

    @property
    def whole(self) -> bool:
        return not self.damage


def verify(place: Place, clock: Clock, progress: Progress = lambda _done, _total: None) -> Verified:
    """Read every file of a savepoint; raises `NotASavepointError` when it is none.

    The finding is left beside the manifest, where that is possible.
    """
    savepoint = place.read()
    look = _Look(place, savepoint, progress)
    damage = [found for found in files.parallel(look, savepoint.files) if found]
    found = Verified(clock.now().isoformat(), len(savepoint.files), savepoint.bytes, tuple(damage))
    with suppress(ExternalError):  # a place that can't be written may be whole
        open_store(place.url).put(VERIFIED, json.dumps(asdict(found)).encode())
    return found


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
