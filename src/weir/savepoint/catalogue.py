"""Which savepoints there are: those below a savepoint-dir, and those that the history names.

What can't be read or reached is listed too, with the reason: a user should see that something is there.
Nothing here writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from weir.config import Keep
from weir.errors import ExternalError, NotASavepointError
from weir.ids import CheckpointId, JobName
from weir.savepoint.manifest import MANIFEST, Savepoint
from weir.savepoint.place import SavepointPlace
from weir.savepoint.restorable import Restorable
from weir.savepoint.take import TakenSavepoint
from weir.savepoint.verify import Verified, last_verified
from weir.savepoint.write import HIDDEN
from weir.storage import Store, open_store, paths, sums
from weir.storage.log import numbers
from weir.storage.open import is_local, local_path

SCHEDULE = "schedule"
"""The trigger of savepoints that weir may delete."""


@dataclass(frozen=True)
class CatalogueEntry:
    """One savepoint in the catalogue."""

    place: str
    savepoint: Savepoint | None = None
    """None when it can't be read."""
    trouble: str = ""
    """Why it can't be read."""
    verified: Verified | None = None
    restorable: Restorable | None = None
    """Whether the present code of its job takes it; None when nobody looked, or it can't be read."""


def entries(dirs: Iterable[str], named: Iterable[str] = ()) -> list[CatalogueEntry]:
    """The savepoints directly below these places, and those at the `named` ones, oldest first.

    A named place that is gone is left out; one that can't be reached may be there.
    """
    places = dict.fromkeys(place for one in dirs for place in below(one))
    for place in named:
        if place not in places and not _is_gone(place):
            places[place] = None
    found = [_entry(place) for place in places]
    return sorted(found, key=lambda one: (one.savepoint.taken_at if one.savepoint else "", one.place))


def scheduled(found: Iterable[CatalogueEntry], job: str, lineage: str) -> list[CatalogueEntry]:
    """What the schedule took in this life of a job, newest first.

    Another life, another job of this name elsewhere, or a fork, which keeps the lineage, may write to the
    same place: those are its own.
    """
    ours = (job, lineage, SCHEDULE)
    taken = [
        entry
        for entry in found
        if (one := entry.savepoint) is not None and (one.job, one.lineage, one.trigger) == ours
    ]
    return sorted(taken, key=taken_at, reverse=True)


def superfluous(newest_first: Sequence[CatalogueEntry], keep: Keep, now: datetime) -> list[CatalogueEntry]:
    """What of the schedule may go; the newest one always stays."""
    older = enumerate(newest_first[1:], start=1)
    return [one for number, one in older if not keep.covers(number, now - taken_at(one))]


def taken_at(entry: CatalogueEntry) -> datetime:
    assert entry.savepoint is not None
    return datetime.fromisoformat(entry.savepoint.taken_at)


def _is_gone(place: str) -> bool:
    try:
        return not open_store(place).exists(MANIFEST)
    except ExternalError:
        return False


def _entry(place: str) -> CatalogueEntry:
    try:
        where = SavepointPlace(place)
        return CatalogueEntry(place, where.read(), verified=last_verified(where))
    except NotASavepointError as error:
        return CatalogueEntry(place, trouble=error.why)
    except ExternalError as error:
        return CatalogueEntry(place, trouble=out_of_reach(error))


def out_of_reach(error: ExternalError) -> str:
    """What is wrong with a place whose storage fails, as a phrase that follows its name."""
    return f"can't be reached: {error.what}" + (f", because {error.why}" if error.why else "")


def below(dir: str) -> list[str]:
    """The places directly below a savepoint-dir; none when nobody named one."""
    if not dir:
        return []
    if not is_local(dir):
        store = open_store(dir)
        names = [key.removesuffix(f"/{MANIFEST}") for key in store.list("") if key.endswith(f"/{MANIFEST}")]
        return [f"{store.url}/{name}" for name in names if "/" not in name]
    top = Path(local_path(dir)).absolute()
    try:
        names = sorted(os.listdir(top))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ExternalError(what=f"{dir} can't be listed: {error.strerror}") from error
    seen = [top / name for name in names if not name.startswith(HIDDEN)]
    return [str(folder) for folder in seen if (folder / MANIFEST).exists()]


# Where a job's savepoints are: one small record each beside its checkpoints, by whoever took it.
#
# <dir>/<job>/savepoints/<id>.json
#
# The journal of a supervisor tells it too, but stays on its machine, and a notebook keeps none. A record
# only says where to look: the savepoint is its owner's, who may have moved or deleted it.


def record(store: Store, taken: TakenSavepoint) -> None:
    """Write down where a savepoint is. Safe to repeat."""
    saved = taken.savepoint
    key = paths.saved(JobName(saved.job), CheckpointId(saved.id))
    body = {"path": taken.place, "taken_at": saved.taken_at}
    store.put(key, sums.add(json.dumps(body).encode()))


def recorded(store: Store, job: JobName) -> list[str]:
    """The places of the savepoints that were taken, there or not, the newest first.

    A damaged record is passed over: see `damaged`.
    """
    return [place for _, place in _records(store, job) if place is not None]


def damaged(store: Store, job: JobName) -> list[str]:
    """The keys of the records that can't be read, the newest first."""
    return [key for key, place in _records(store, job) if place is None]


def _records(store: Store, job: JobName) -> Iterator[tuple[str, str | None]]:
    """The key of each record and the place that it names; None where it is damaged."""
    for id in sorted(numbers(store, paths.savepoints(job)), reverse=True):
        key = paths.saved(job, CheckpointId(id))
        if (data := store.get(key)) is None:
            continue
        place = None
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            place = json.loads(sums.strip(data))["path"]
        yield key, place if isinstance(place, str) else None
