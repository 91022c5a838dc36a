"""Generations: which incarnation of the live files a job works on.

A job's first start opens generation 1. Its origin is written once and says what was decided there
and must not change by itself: the lineage that ties sinks to these files, and the parallelism of
keyed state, which Spark fixes at the first batch.

A restore opens another one. Its origin is the durable intention; `copied.json` follows when its files are in
place, `rewinding.json` when the first sink is about to be rewound, `live.json` when all of them are. The
highest generation that is live is the one that the job works on; those below it are never touched again. One
that can't be restored is dropped, and its number is never used again. One that has begun to rewind sinks is
never dropped: it is finished, or a restore to an older point takes its place.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from weir.clock import Clock
from weir.errors import DamagedOriginError, StorageError
from weir.ids import BatchId, CheckpointId, Generation, JobName, QueryName
from weir.storage import paths, sums
from weir.storage.local import reason
from weir.storage.open import is_local, local_path
from weir.storage.store import Created, Store

FIRST = Generation(1)


@dataclass(frozen=True)
class RestoreOptions:
    """What the request of a restore changes and allows; every start of the generation follows it."""

    accept_duplicates: bool = False
    """Output that can't be rewound may be delivered again."""
    maps: tuple[str, ...] = ()
    """Which old operator or source becomes which, where the user had to say it."""
    allow_dropped: bool = False
    """State that nothing in the job takes may be lost."""
    offsets: Mapping[str, str] = field(default_factory=dict)
    """Sources that resume elsewhere than at the point, and where."""
    claim: bool = False
    """The savepoint is weir's from now on: it is deleted once a checkpoint takes its place."""


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
    why: str = ""
    saved: int = 0
    """The checkpoint that the savepoint is a copy of, when it was opened from one."""
    options: RestoreOptions = RestoreOptions()
    forked_from: str = ""
    """The job that the savepoint was taken of, where this one is another."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Queries that had another name when their sinks were opened first: the name that the sinks know."""
    attempt: int = 0
    """The attempt that the point was taken by, where that may have been in another directory.

    What it holds is fenced by that one, so the restore needs a higher one. 0 where an earlier weir did not
    record it.
    """
    unasked: bool = False
    """Whether weir decided for it, because live files were damaged, and no person did."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The id of the checkpoint that it was opened from, itself or as a savepoint."""
        if self.saved:
            return CheckpointId(self.saved)
        return CheckpointId(int(self.restored_from.removeprefix("chk-"))) if self.restored_from else None

    def encode(self) -> bytes:
        """As it is stored: one flat object, which an earlier weir reads too."""
        body = asdict(self)
        return json.dumps(body | body.pop("options")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Origin:
        """What is stored so; raises `ValueError`, `TypeError` or `AttributeError` for anything else."""
        body = json.loads(data)
        options = {field.name: body.pop(field.name) for field in fields(RestoreOptions) if field.name in body}
        options["maps"] = tuple(options.get("maps", ()))
        origin = cls(**body, options=RestoreOptions(**options))
        _ = origin.checkpoint  # "chk-41" has a number
        if not all(isinstance(n, int) for n in (origin.parallelism, origin.parent, origin.saved)):
            raise ValueError("a number is none")
        return origin


def read_origin(store: Store, job: JobName, generation: Generation) -> Origin | None:
    """The origin of a generation, or None; raises `DamagedOriginError` when it can't be read."""
    key = paths.origin(job, generation)
    data = store.get(key)
    if data is None:
        return None
    try:
        crc = store.get(paths.origin_sum(job, generation))
        if crc is not None and crc != sums.of(data):  # one that an earlier weir wrote has none
            raise sums.ChangedError
        return Origin.decode(data)
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedOriginError(job=job, file=f"{store.url}/{key}", reason=str(error)) from error


def known_origin(store: Store, job: JobName, generation: Generation) -> Origin | None:
    """The same for a display: None also where it can't be read."""
    try:
        return read_origin(store, job, generation)
    except DamagedOriginError:
        return None


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
    data = origin.encode()
    if store.create(paths.origin(job, generation), data) is not Created.NOW:
        return False
    # Beside it, because an earlier weir refuses an origin with a field that it does not know.
    store.put(paths.origin_sum(job, generation), sums.of(data))
    return True


def numbers(store: Store, job: JobName) -> list[Generation]:
    """The generations that have an origin, or have been live and lost it, in order."""
    folders = {int(name) for name in _folders(store, paths.generations(job)) if name.isdigit()}
    known = (Generation(number) for number in sorted(folders))
    return [n for n in known if store.exists(paths.origin(job, n)) or store.exists(paths.live(job, n))]


def is_live(store: Store, job: JobName, generation: Generation) -> bool:
    """Whether the job has ever worked on it."""
    if store.exists(paths.live(job, generation)):
        return True
    try:
        origin = read_origin(store, job, generation)
    except DamagedOriginError:
        return generation == FIRST  # every later one is of a restore, and needs its mark
    return origin is not None and not origin.restored_from


def live(store: Store, job: JobName) -> Generation:
    """The generation that the job works on: the highest that is live; the first when none is."""
    return _highest_live(store, job) or FIRST


def opening(store: Store, job: JobName) -> Generation | None:
    """A restore that is not live yet: the last one that was asked for, unless it was dropped.

    Then one that has begun to rewind sinks is still to be finished; of several the last one.
    """
    later = _not_live(store, job)
    rewinding = [n for n in later if _has_begun_to_rewind(store, job, n)]
    wanted = [n for n in (*rewinding, *later[-1:]) if not store.exists(paths.dropped(job, n))]
    return max(wanted, default=None)


def awaited(store: Store, job: JobName) -> str:
    """The point of a restore that is not live yet, as its origin has it; "" when there is none."""
    origin = _awaited(store, job)
    return origin.restored_from if origin is not None else ""


def awaited_attempt(store: Store, job: JobName) -> int:
    """The attempt that the next one must be above, for a restore that is not live yet; 0 when any will do."""
    origin = _awaited(store, job)
    return origin.attempt if origin is not None else 0


def _awaited(store: Store, job: JobName) -> Origin | None:
    number = opening(store, job)
    return read_origin(store, job, number) if number is not None else None


def drop(store: Store, job: JobName, generation: Generation, why: str) -> bool:
    """A restore that was asked for can't be done: it never becomes live. Safe to repeat.

    False, and nothing is dropped, when it has begun to rewind sinks: the live files are ahead of them.
    """
    if _has_begun_to_rewind(store, job, generation):
        return False
    store.create(paths.dropped(job, generation), json.dumps({"why": why}).encode())
    return True


def begin_rewind(
    store: Store, job: JobName, generation: Generation, cuts: Mapping[QueryName, BatchId]
) -> None:
    """The first sink is about to be rewound; the `cuts` are the batches to rewind to. Safe to repeat."""
    store.create(paths.rewinding(job, generation), sums.add(json.dumps({"cuts": cuts}).encode()))


def rewinding(store: Store, job: JobName) -> dict[Generation, dict[QueryName, BatchId] | None]:
    """The restores that have begun to rewind sinks and are not live, and to which batches.

    None of one that an earlier weir began, which did not record it, and where the record is damaged.
    """
    cuts: dict[Generation, dict[QueryName, BatchId] | None] = {}
    for number in _not_live(store, job):
        data = store.get(paths.rewinding(job, number))
        if data is None:
            continue
        try:
            recorded = json.loads(sums.strip(data)).get("cuts")
            cuts[number] = recorded and _batches(recorded)
        except (ValueError, TypeError, AttributeError):
            cuts[number] = None
    return cuts


def _batches(body: Any) -> dict[QueryName, BatchId]:
    """A batch for each query; raises `ValueError`, `TypeError` or `AttributeError` for what is none."""
    return {QueryName(name): BatchId(int(batch)) for name, batch in body.items()}


def _not_live(store: Store, job: JobName) -> list[Generation]:
    """The restores that were asked for since the live generation, in order; dropped or not."""
    since = _highest_live(store, job) or 0
    return [n for n in numbers(store, job) if n > since]


def _has_begun_to_rewind(store: Store, job: JobName, generation: Generation) -> bool:
    return store.exists(paths.rewinding(job, generation))


def delivered_elsewhere(store: Store, job: JobName, generation: Generation) -> dict[QueryName, BatchId]:
    """For queries whose sink knew no batch when the generation began: the last one delivered before.

    Either the query got a new sink, or the sink's ledger was lost with the job's directory. Raises
    `DamagedOriginError`.
    """
    key = paths.elsewhere(job, generation)
    data = store.get(key)
    try:
        return _batches(json.loads(data or b"{}"))
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedOriginError(job=job, file=f"{store.url}/{key}", reason=sums.wrong(error)) from error


def note_elsewhere(
    store: Store, job: JobName, generation: Generation, last: Mapping[QueryName, BatchId]
) -> None:
    """Record that, before the generation is live. Safe to repeat."""
    if last:
        store.put(paths.elsewhere(job, generation), json.dumps(last).encode())


def ahead(store: Store, job: JobName, generation: Generation) -> dict[QueryName, BatchId]:
    """The queries whose sinks hold more than the live files know of, each with the last batch that it holds.

    As a start recorded it; none when no start has refused for that.
    """
    data = store.get(paths.ahead(job, generation))
    try:
        return _batches(json.loads(data or b"{}"))
    except (ValueError, TypeError, AttributeError):
        return {}  # the next start finds it again


def note_ahead(
    store: Store, job: JobName, generation: Generation, delivered: Mapping[QueryName, BatchId]
) -> None:
    """Record that, or that it is so no longer. Safe to repeat."""
    key = paths.ahead(job, generation)
    if delivered:
        store.put(key, json.dumps(delivered).encode())
    elif store.exists(key):
        store.delete(key)


def mark_live(store: Store, job: JobName, generation: Generation) -> None:
    """From now on the job works on this generation. Safe to repeat."""
    store.create(paths.live(job, generation), b"{}")


def timeline(store: Store, job: JobName) -> dict[Generation, CheckpointId | None]:
    """The generations that the live one descends from, each with its last checkpoint that counts.

    None: all of them count. A checkpoint that was taken after the point of a later rollback is of another
    timeline: no job goes back to it.
    """
    at = live(store, job)
    ancestors: dict[Generation, CheckpointId | None] = {at: None}
    while (origin := known_origin(store, job, at)) is not None and origin.restored_from:
        at = Generation(origin.parent)
        ancestors[at] = origin.checkpoint
    return ancestors


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
