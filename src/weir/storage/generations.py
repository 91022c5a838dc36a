"""Generations: which incarnation of the live files a job works on.

A job's first start opens generation 1. Its origin is written once and says what was decided there
and must not change by itself: the lineage that ties sinks to these files, and the parallelism of
keyed state, which Spark fixes at the first batch.

A restore opens another one. Its origin is the durable intention; `copied.json` follows when its
files are in place, `live.json` when the sinks are rewound to it. The highest generation that is live
is the one that the job works on; those below it are never touched again. One that can't be restored
is dropped, and its number is never used again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from weir.clock import Clock
from weir.errors import StorageError
from weir.ids import BatchId, CheckpointId, Generation, JobName, QueryName
from weir.storage import paths
from weir.storage.local import reason
from weir.storage.open import is_local, local_path
from weir.storage.store import Created, Store

FIRST = Generation(1)


@dataclass(frozen=True)
class Origin:
    """How a generation began."""

    lineage: str
    backend: str
    parallelism: int
    spark: str
    created_at: str
    restored_from: str = ""
    """What it was opened from: "chk-41", or the place of a savepoint; "" for a start with nothing."""
    parent: int = 0
    """The generation that this checkpoint was taken of."""
    accept_duplicates: bool = False
    """Whether output that can't be taken back may be delivered again."""
    why: str = ""
    saved: int = 0
    """The checkpoint that the savepoint is a copy of, when it was opened from one."""
    maps: tuple[str, ...] = ()
    """Which old operator or source becomes which, where the user had to say it."""
    allow_dropped: bool = False
    """Whether state may be given up that nothing in the job takes."""
    offsets: Mapping[str, str] = field(default_factory=dict)
    """Sources that do not go on where the point has them, and where they begin instead."""
    claim: bool = False
    """Whether the savepoint is weir's from now on: it is deleted when a checkpoint makes up for it."""
    forked_from: str = ""
    """The job that the savepoint was taken of, where this one is another."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Queries that had another name when their sinks were opened first: the name that the sinks know."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The id of the checkpoint that it was opened from, itself or as a savepoint."""
        if self.saved:
            return CheckpointId(self.saved)
        return CheckpointId(int(self.restored_from.removeprefix("chk-"))) if self.restored_from else None


def read_origin(store: Store, job: JobName, generation: Generation) -> Origin | None:
    data = store.get(paths.origin(job, generation))
    if not data:
        return None
    content = json.loads(data)
    return Origin(**content | {"maps": tuple(content.get("maps", ()))})


def open_origin(
    store: Store,
    job: JobName,
    generation: Generation,
    *,
    backend: str,
    parallelism: int,
    spark: str,
    clock: Clock,
) -> Origin:
    """The origin of the generation; written now when this is its first start. Safe to repeat."""
    new = Origin(str(uuid.uuid4()), backend, parallelism, spark, clock.now().isoformat())
    create_origin(store, job, generation, new)
    origin = read_origin(store, job, generation)
    assert origin is not None, "an origin that was created can be read"
    return origin


def create_origin(store: Store, job: JobName, generation: Generation, origin: Origin) -> bool:
    """Write the origin of a new generation; False when it has one already."""
    data = json.dumps(asdict(origin)).encode()
    return store.create(paths.origin(job, generation), data) is Created.NOW


def numbers(store: Store, job: JobName) -> list[Generation]:
    """The generations that have an origin, in order."""
    found = {int(name) for name in _folders(store, paths.generations(job)) if name.isdigit()}
    return [Generation(n) for n in sorted(found) if store.exists(paths.origin(job, Generation(n)))]


def is_live(store: Store, job: JobName, generation: Generation) -> bool:
    """Whether the job has ever worked on it."""
    origin = read_origin(store, job, generation)
    if origin is None:
        return False
    return not origin.restored_from or store.exists(paths.live(job, generation))


def live(store: Store, job: JobName) -> Generation:
    """The generation that the job works on: the highest that is live; the first when none is."""
    return _highest_live(store, job) or FIRST


def opening(store: Store, job: JobName) -> Generation | None:
    """A restore that was asked for and is not live yet; of several the last one that was asked for."""
    newest = max(numbers(store, job), default=Generation(0))
    if newest <= (_highest_live(store, job) or 0) or store.exists(paths.dropped(job, newest)):
        return None
    return newest


def awaited(store: Store, job: JobName) -> str:
    """What a restore that was asked for goes on from, as its origin has it; "" when there is none."""
    number = opening(store, job)
    origin = read_origin(store, job, number) if number is not None else None
    return origin.restored_from if origin is not None else ""


def drop(store: Store, job: JobName, generation: Generation, why: str) -> bool:
    """A restore that was asked for can't be done: the job stays where it is. Safe to repeat.

    False, and nothing is dropped, when sinks are taken back already: the live files are ahead of them.
    """
    if is_rewinding(store, job):
        return False
    store.create(paths.dropped(job, generation), json.dumps({"why": why}).encode())
    return True


def begin_rewind(store: Store, job: JobName, generation: Generation) -> None:
    """The first sink is about to be taken back. Safe to repeat."""
    store.create(paths.rewinding(job, generation), b"{}")


def is_rewinding(store: Store, job: JobName) -> bool:
    """Whether sinks are taken back, or may be, behind what is live: for any restore since then."""
    since = _highest_live(store, job) or 0
    return any(store.exists(paths.rewinding(job, n)) for n in numbers(store, job) if n > since)


def delivered_elsewhere(store: Store, job: JobName, generation: Generation) -> dict[QueryName, BatchId]:
    """For queries whose sink knew of no batch when the generation began: the last one delivered before.

    Either the query got a new sink, or the sink's ledger was lost with the job's directory.
    """
    data = store.get(paths.elsewhere(job, generation))
    return {QueryName(name): BatchId(batch) for name, batch in json.loads(data or b"{}").items()}


def note_elsewhere(
    store: Store, job: JobName, generation: Generation, last: Mapping[QueryName, BatchId]
) -> None:
    """Write that down, before the generation is live. Safe to repeat."""
    if last:
        store.put(paths.elsewhere(job, generation), json.dumps(last).encode())


def mark_live(store: Store, job: JobName, generation: Generation) -> None:
    """From now on the job works on this generation. Safe to repeat."""
    store.create(paths.live(job, generation), b"{}")


def timeline(store: Store, job: JobName) -> dict[Generation, CheckpointId | None]:
    """The generations that the live one descends from, each with its last checkpoint that counts.

    None: all of them count. A checkpoint that was taken behind the point of a later rollback is of
    another timeline: no job goes back to it.
    """
    at = live(store, job)
    found: dict[Generation, CheckpointId | None] = {at: None}
    while (origin := read_origin(store, job, at)) is not None and origin.restored_from:
        at = Generation(origin.parent)
        found[at] = origin.checkpoint
    return found


def _highest_live(store: Store, job: JobName) -> Generation | None:
    return next((n for n in reversed(numbers(store, job)) if is_live(store, job, n)), None)


def _folders(store: Store, prefix: str) -> Iterator[str]:
    """The folders directly below a folder; without walking through all of it where that is possible."""
    if is_local(store.url):
        top = Path(local_path(store.url)) / prefix
        try:
            return iter(os.listdir(top))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as error:
            raise StorageError(verb="list", path=str(top), reason=reason(error), root=store.url) from error
    return (key.removeprefix(f"{prefix}/").split("/")[0] for key in store.list(prefix))
