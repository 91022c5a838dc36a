"""Is everything there, and as it was written? Of one savepoint, or of all that a job has.

Damage is a result, not a failure. Nothing is changed, except that the catalogue of savepoints knows from
then on when each was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from weir.checkpoint import manifest as mf
from weir.client.ask import Caller
from weir.client.savepoints import Bytes, unseen
from weir.client.savepoints import verify as verify_savepoint
from weir.client.spark import ask_state
from weir.clock import Clock
from weir.errors import ExternalError, NotASavepointError
from weir.ids import CheckpointId, JobName, job_name
from weir.monitor.savepoints import known
from weir.restore import damage
from weir.restore.point import verify_id
from weir.savepoint import catalogue
from weir.savepoint.catalogue import out_of_reach
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import Verified, leave
from weir.storage import Store, open_store
from weir.storage import generation as generations
from weir.storage.open import absolute, is_local

_SAVEPOINT = "savepoint"

Show = Callable[[str], AbstractContextManager[Bytes]]
"""Called with what is checked next; what it gives is called with how far that is."""


def _silent(_text: str) -> AbstractContextManager[Bytes]:
    return nullcontext(unseen)


@dataclass(frozen=True)
class Checked:
    """One thing that was verified."""

    what: str
    """"savepoint", "checkpoint", "live files of" or "record"."""
    name: str
    files: int | None
    bytes: int | None
    damage: tuple[str, ...]
    place: str = ""
    """Where its state can be loaded from; "" when it can't be."""
    rows: int | None = None
    """Rows of state that were loaded; None when nobody asked."""
    left_out: tuple[str, ...] = ()
    """State that can't be looked into."""

    def form(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "place"}


def of_savepoint(path: str, show: Show = _silent) -> Checked:
    """Every file of a savepoint, read and compared with its manifest; raises `NotASavepointError`."""
    place = SavepointPlace(path)
    with show(f"checking {place.url}") as progress:
        found = verify_savepoint(path, progress).found
    return Checked(_SAVEPOINT, place.url, found.files, found.bytes, found.damage, place.url)


def of_job(caller: Caller, *, savepoint_dir: str | None, show: Show = _silent) -> Iterator[Checked]:
    """The live files of a job, when nobody runs it, its checkpoints, and its savepoints."""
    job = caller.look()
    dir, name, store = caller.dir, job_name(job.name), open_store(caller.dir)
    if job.over:  # those of a running job change while one looks
        generation = generations.live(store, name)
        damaged = [
            *damage.look(store, name, generation, thorough=True),
            *damage.look_beside(store, name, generation),
        ]
        found = tuple(one.text for one in damaged)
        yield Checked("live files of", job.name, None, None, found, _state_of(dir, job.name))
    for id in mf.completed(store, name):
        with show(f"checking chk-{id} of {job.name}"):
            checked = _checkpoint(store, name, id, _state_of(dir, f"{job.name}/chk-{id}"))
        if not checked.damage or id in mf.completed(store, name):  # else it was deleted meanwhile
            yield checked
    for key in catalogue.damaged(store, name):
        unread = "can't be read, so the place of its savepoint is not known"
        yield Checked("record", key, None, None, (unread,))
    for entry in known(dir, job.name, savepoint_dir):
        if entry.savepoint is None:
            yield Checked(_SAVEPOINT, entry.place, None, None, (entry.trouble,))
        else:
            yield _reached(entry.place, show)


def load(
    checked: list[Checked],
    spark: Mapping[str, Any],
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Checked]:
    """The same, after Spark has loaded all state of what is intact so far."""
    wanted = [one for one in checked if one.place and not one.damage]
    if not wanted:
        return checked
    places = [one.place for one in wanted]
    request = {"do": "load", "paths": places, "rows": {path: _known_rows(path) for path in places}, **spark}
    answers = ask_state(request, waiting)["loaded"]
    found = {one.place: answer for one, answer in zip(wanted, answers, strict=True)}
    loaded = []
    for one in checked:
        if one not in wanted:
            loaded.append(one)
            continue
        answer = found[one.place]
        rows, damaged = answer["rows"], tuple(answer["damage"])
        if one.what == _SAVEPOINT:  # the catalogue keeps when it was verified
            facts = (Clock().now().isoformat(), one.files or 0, one.bytes or 0, damaged)
            leave(SavepointPlace(one.place), Verified(*facts, rows=rows))
        loaded.append(replace(one, rows=rows, damage=damaged, left_out=tuple(answer["left_out"])))
    return loaded


def _known_rows(path: str) -> dict[str, dict[int, int]]:
    """The rows of each operator, as a savepoint has recorded them."""
    with suppress(NotASavepointError):
        queries = SavepointPlace(path).read().queries
        return {
            name: {one.id: one.rows for one in query.operators if one.rows is not None}
            for name, query in queries.items()
        }
    return {}


def _reached(path: str, show: Show) -> Checked:
    """A savepoint of a job; one whose storage fails does not hide the others."""
    try:
        return of_savepoint(path, show)
    except ExternalError as error:
        return Checked(_SAVEPOINT, path, None, None, (out_of_reach(error),))


def _state_of(dir: str, name: str) -> str:
    """Where Spark finds the state of a job's live files, or of a checkpoint."""
    return f"{absolute(dir)}/{name}" if is_local(dir) else ""


def _checkpoint(store: Store, job: JobName, id: CheckpointId, place: str) -> Checked:
    found = tuple(verify_id(store, job, id))
    with suppress(ValueError):  # its manifest can't be read
        if (manifest := mf.read(store, job, id)) is not None:
            count = sum(1 for _ in manifest.files())
            return Checked("checkpoint", f"chk-{id}", count, manifest.full_bytes, found, place)
    return Checked("checkpoint", f"chk-{id}", None, None, found)
