"""Which completed checkpoints are retained, and what is deleted: their records, and files that none needs.

Which are subsumed is decided in `protocol/checkpoint.py`. Records are deleted first and files after them: a
kill in between leaves files that nothing refers to, never a reference to a file that is gone. Nothing here
touches a live file of Spark or of a channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weir.checkpoint import manifest as mf
from weir.checkpoint.copies import Copies
from weir.checkpoint.manifest import Manifest
from weir.checkpoint.records import is_left_behind
from weir.ids import NO_BATCH, BatchId, CheckpointId, Generation, JobName, QueryName
from weir.protocol.checkpoint import subsumed
from weir.storage import Store, files, paths
from weir.storage import generation as generations
from weir.storage.paths import Live

if TYPE_CHECKING:
    from weir.checkpoint.snapshots import Snapshots

ABORTED_KEPT = 100
"""How many records of aborted checkpoints stay; a barrier of one may still be in a channel."""

_FULL = re.compile(r"full-(\d+)/")


@dataclass(frozen=True)
class Dropped:
    """The checkpoints that were deleted."""

    ids: Sequence[CheckpointId] = ()
    left: Callable[[], None] | None = None
    """What is left to do where they were copied to, if anything; it may take long."""


class Retained:
    """The retained checkpoints of a job. For one thread at a time: the coordinator has a lock."""

    def __init__(self, live: Live, snapshots: Snapshots) -> None:
        self._live = live
        self._snapshots = snapshots
        self._manifests: dict[CheckpointId, Manifest] = {}
        self._held: set[CheckpointId] = set()
        self._useless: set[CheckpointId] = set()
        """Those that the job can never be restored from: it was rewound past them, or they are no cut."""

    def learn(self) -> None:
        """Read what is there, at a start."""
        for id in mf.completed(self._live.store, self._live.job):
            with suppress(ValueError):  # it is damaged: of no use, and left for whoever looks
                manifest = mf.read(self._live.store, self._live.job, id)
                if manifest is not None:
                    self._manifests[id] = manifest
                    rewound_past = is_left_behind(self._live.store, self._live.job, manifest)
                    if rewound_past or manifest.inconsistencies():  # an earlier version did not look
                        self._useless.add(id)
        self._snapshots.pins.seed(self._manifests.values())

    def add(self, manifest: Manifest, *, held: bool) -> None:
        """One more has completed; a held one is not deleted before it is released."""
        id = CheckpointId(manifest.id)
        self._manifests[id] = manifest
        if held:
            self._held.add(id)

    def release(self, id: CheckpointId) -> None:
        """It may be deleted like any other. Safe to repeat."""
        self._held.discard(id)

    def offsets(self, name: QueryName) -> list[str] | None:
        """The offsets of a query in each of them; None when it has none in one: it may need anything."""
        cuts = [m.queries[name] for m in self._manifests.values() if name in m.queries]
        if any(cut.batch == NO_BATCH for cut in cuts):
            return None
        return [line for cut in cuts for line in cut.offsets]

    def cuts(self, name: QueryName) -> list[BatchId]:
        """The batches that they may rewind a query to."""
        queries = (manifest.queries for manifest in self._manifests.values())
        return [BatchId(cuts[name].batch) for cuts in queries if name in cuts]

    @property
    def ids(self) -> list[CheckpointId]:
        """Oldest first."""
        return sorted(self._manifests)

    def newest(self) -> Manifest | None:
        """The newest one of these live files."""
        own = [id for id, one in self._manifests.items() if one.generation == self._live.generation]
        return self._manifests[max(own)] if own else None

    def subsume(self, kept: int) -> Dropped:
        """Delete what is beyond this number, but for what is held or a restore was asked for.

        What the job was rewound past goes first. What fails is tried again the next time.
        """
        needed = self._held | wanted(self._live.store, self._live.job)
        old = [id for id in subsumed(self._manifests, kept, self._useless) if id not in needed]
        rest = [one for id, one in self._manifests.items() if id not in old]
        dropped = self._snapshots.drop([self._manifests[id] for id in old], rest)
        for id in dropped.ids:
            del self._manifests[id]
        return dropped

    def delete_all(self) -> None:
        """Delete all of them, and their files."""
        old = [self._manifests.pop(id) for id in sorted(self._manifests)]
        dropped = self._snapshots.drop(old, ())
        if dropped.left is not None:
            dropped.left()
        self._snapshots.sweep(self.all())

    def all(self) -> list[Manifest]:
        return list(self._manifests.values())


def drop(store: Store, job: JobName, ids: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Delete the records of completed checkpoints; which are gone. Safe to repeat, and to be killed in.

    `begun-k` goes before `chk-k`. A reader of a channel that stands at barrier k sees completed, and
    then nothing, which is unknown and holds nobody; the other way round it would see a checkpoint
    that has begun and not ended, and wait for it for ever. One that a restore was asked for by then stays.
    """
    gone = []
    for id in ids:
        store.delete(paths.begun(job, id))
        if id in wanted(store, job):
            continue
        data = store.get(paths.completed(job, id))
        store.delete(paths.completed(job, id))
        if data is not None and id in wanted(store, job):  # asked for between the look and the deletion
            store.put(paths.completed(job, id), data)
            continue
        gone.append(id)
    return gone


def wanted(store: Store, job: JobName) -> frozenset[CheckpointId]:
    """The checkpoints that restores need which are not live yet: the one to come, and any that is begun."""
    needed = {generations.opening(store, job), *generations.rewinding(store, job)} - {None}
    origins = [generations.read_origin(store, job, one) for one in needed if one is not None]
    ids = [origin.checkpoint for origin in origins if origin is not None]
    return frozenset(id for id in ids if id is not None)


def drop_copied(job: JobName, dropped: Iterable[Manifest]) -> None:
    """Delete their manifests among the copies; it may take long. If killed before, a sweep does it."""
    for one in dropped:
        if one.copied_to:
            Copies(one.copied_to, job).remove_manifest(CheckpointId(one.id))


def sweep(
    store: Store,
    job: JobName,
    retained: Iterable[Manifest],
    pending: Iterable[str] = (),
    *,
    void: Iterable[CheckpointId] = (),
    copy_dir: str | None = None,
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Delete what nothing needs, and say what: keys below the store, and URLs of copies.

    That is: pins and copies that no retained checkpoint has and that are not `pending` (names as in
    `Pins.keep`), temporary files, records of old aborted checkpoints, and what a restore has left
    that was never finished. Safe to repeat, and to be killed in. While a checkpoint is being kept,
    its files must be among the pending ones; from another process only while nobody runs the job.
    `void` are taken for aborted, though they are not yet. `check` is asked before each deletion here: it
    raises when another driver may use these files.
    """
    one = Sweep(store, job, retained, pending, void=void, dry_run=dry_run, check=check)
    swept = one.here()
    for found in one.copies(copy_dir):
        if not dry_run:
            found.remove_manifests()
            found.remove(found.void)
            found.tidy()
        swept += found.names
    return swept


@dataclass(frozen=True)
class SweptCopies:
    """What nothing needs in one copy-dir."""

    place: Copies
    manifests: Sequence[CheckpointId]
    void: Sequence[tuple[Generation, str]]
    """Copies, as `Copies.kept` names them."""
    check: Callable[[], None]

    @property
    def names(self) -> list[str]:
        gone = [paths.completed(self.place.job, id) for id in self.manifests]
        return [f"{self.place.url}/{key}" for key in [*gone, *(self.place.key(*copy) for copy in self.void)]]

    def remove_manifests(self) -> None:
        self.check()
        for id in self.manifests:
            self.place.remove_manifest(id)

    def remove(self, copies: Sequence[tuple[Generation, str]]) -> None:
        """Delete these of the void ones."""
        self.check()
        self.place.remove(copies)

    def tidy(self) -> None:
        """Remove the folders that are empty then."""
        self.place.remove_empty_folders()


class Sweep:
    """One sweep, in its steps: what is here, then what is in each place of copies (see `sweep`)."""

    def __init__(
        self,
        store: Store,
        job: JobName,
        retained: Iterable[Manifest],
        pending: Iterable[str] = (),
        *,
        void: Iterable[CheckpointId] = (),
        dry_run: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        retained = list(retained)
        self._store = store
        self._job = job
        self._busy = set(pending)
        self._dry_run = dry_run
        self._check = check
        self._there = mf.ids(store, job)
        self._there["aborted"] |= set(void)
        self._newest = max((id for ids in self._there.values() for id in ids), default=CheckpointId(0))
        self._own = self._there["chk"] - self._there["aborted"]
        self._begun = self._there["begun"] - self._there["chk"] - self._there["aborted"]
        passed_over = self._own - {CheckpointId(one.id) for one in retained}
        self._sure = True
        self._needed: set[tuple[Generation, str]] = set()
        self._places: set[str] = set()
        for one in retained:
            self._need(one)
        for id in passed_over:
            self._need(_parse(store.get(paths.completed(job, id))))

    def here(self) -> list[str]:
        """Delete what nothing needs in the job's own directory; what it is."""
        swept = self._records()
        for number in generations.numbers(self._store, self._job):
            swept += self._pins(number)
        return swept + self._dead_restores()

    def copies(self, copy_dir: str | None) -> Iterator[SweptCopies]:
        """List what nothing needs in each place of copies; it may take long, and nothing is deleted.

        What a checkpoint claims after `here` is not known: the caller leaves it out.
        """
        for place in sorted((self._places | {copy_dir or ""}) - {""}):
            if (found := self._copies(Copies(place, self._job))) is not None:
                yield found

    def _records(self) -> list[str]:
        """Old aborts, each `begun-k` before its `aborted-k`; manifests of checkpoints that were aborted."""
        job, there = self._job, self._there
        void = [paths.completed(job, id) for id in sorted(there["chk"] & there["aborted"])]
        for id in sorted(there["aborted"])[:-ABORTED_KEPT]:
            void += [paths.begun(job, id)] if id in there["begun"] else []
            void.append(paths.aborted(job, id))
        return self._delete(void)

    def _pins(self, generation: Generation) -> list[str]:
        folder = paths.pins(self._job, generation)
        top = files.folder_of(self._store) / folder
        return self._delete(
            [f"{folder}/{name}" for name in files.below(top) if self._unneeded(generation, name)], top
        )

    def _dead_restores(self) -> list[str]:
        """What was copied into a generation that never became live and never will.

        Its origin stays, and what says that it was dropped: without that it would be taken up again.
        """
        store, job, swept = self._store, self._job, []
        alive = generations.live(store, job)
        for number in generations.numbers(store, job):
            passed = number < alive or store.exists(paths.dropped(job, number))
            if passed and not generations.is_live(store, job, number):
                folder = paths.generation(job, number)
                stay = {paths.origin(job, number), paths.dropped(job, number), paths.rewinding(job, number)}
                top = files.folder_of(store) / folder
                there = {f"{folder}/{name}" for name in files.below(top)}
                swept += self._delete(sorted(there - stay), top)
        return swept

    def _copies(self, copies: Copies) -> SweptCopies | None:
        """The same in a copy-dir; what a manifest there refers to stays, unless it is older or aborted.

        Nothing goes when the copies are of another lineage, or when the job has no checkpoint of its
        own: then they may be all that is left of it.
        """
        origin = generations.read_origin(self._store, self._job, generations.live(self._store, self._job))
        if not self._own or origin is None or not copies.belong_to(origin.lineage):
            return None
        others = [id for id in copies.manifests() if id not in self._own]
        old = [id for id in others if id < min(self._own) or id in self._there["aborted"]]
        for id in set(others) - set(old):
            self._need(_parse(copies.manifest(id)))
        void = [copy for copy in copies.kept() if self._unneeded(*copy)]
        return SweptCopies(copies, old, void, self._check)

    def _unneeded(self, generation: Generation, name: str) -> bool:
        """Whether a pin or copy may go; a full checkpoint that has not ended keeps what it has."""
        if files.is_temporary(name.rpartition("/")[2]):
            return not self._busy
        full = _FULL.match(name)
        if full is not None and (int(full[1]) in self._begun or int(full[1]) > self._newest):
            return False
        return self._sure and name not in self._busy and (generation, name) not in self._needed

    def _need(self, manifest: Manifest | None) -> None:
        """Take a checkpoint into account; one that can't be read may need anything."""
        if manifest is None:
            self._sure = False
            return
        self._needed |= {(Generation(manifest.generation), name) for name in manifest.kept()}
        self._places.add(manifest.copied_to)

    def _delete(self, keys: list[str], folder: Path | None = None) -> list[str]:
        if not self._dry_run:
            for key in keys:
                self._check()
                self._store.delete(key)
            if folder is not None:
                files.remove_empty(folder)
        return keys


def _parse(data: bytes | None) -> Manifest | None:
    try:
        return mf.decode(data or b"")
    except ValueError:
        return None
