"""Keep the files of a checkpoint from Spark's purge: the step between the cut and the ack.

    generations/NNNN/pins/<path>            a hard link (or a copy, where there are none), shared by
                                            all checkpoints that need the file
    generations/NNNN/pins/full-<k>/<path>   a full checkpoint's own copy

Spark never edits a file, it writes a new one and renames it: so a link keeps the content. A pin is
summed up once, and only new ones cost anything. Whatever a kill leaves is found and used by the next
checkpoint, or deleted by a sweep (`retention.py`). Small files, most of them entries of logs, get no pin:
their content goes into the manifest, which is forced to the disk anyway, where each pin is by itself.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weir.checkpoint import manifest as mf
from weir.checkpoint.copies import Copies
from weir.checkpoint.manifest import File, Manifest, kept_at
from weir.clock import Clock, retry
from weir.config import CheckpointStorage
from weir.errors import BadValueError, CheckpointTooLargeError, StorageError
from weir.ids import CheckpointId, Generation, JobName
from weir.spark.closure import GoneError
from weir.spark.zips import members
from weir.storage import Store, files, paths
from weir.storage.files import Sum
from weir.storage.generation import read_origin

MEMORY_LIMIT = 5 * 1024 * 1024
"""Bytes of all files of one checkpoint in storage `memory`."""

_FORGET_AFTER = 100
"""How many checkpoints later an unused sum is computed again, if it is ever needed."""
_FOLDER_TRIES = (0.0, 0.0)
"""The pauses after which a file is put into a folder that was gone, and was created again."""
T = TypeVar("T")
_SHARED_ZIP = re.compile(r"(.*/)?\d+\.zip")
"""A snapshot of state format 1, which may be written again with other files beside it."""


@dataclass(frozen=True)
class Kept:
    """Files that are safe now."""

    files: tuple[File, ...] = ()
    new_bytes: int = 0
    pinning: float = 0.0
    copying: float = 0.0

    @property
    def seconds(self) -> dict[str, float]:
        return {"pinning": self.pinning, "copying": self.copying}


@dataclass
class _Pin:
    """A pin that is known; changed under the lock only."""

    file: File
    brought_by: CheckpointId
    used_by: CheckpointId
    copied: bool = False


class Pins:
    """The pins of one generation. For use from any thread."""

    def __init__(
        self,
        store: Store,
        job: JobName,
        generation: Generation,
        *,
        storage: CheckpointStorage = CheckpointStorage.FILESYSTEM,
        copy_dir: str | None = None,
        inline: int = 0,
        clock: Clock | None = None,
    ) -> None:
        """Files of up to `inline` bytes are kept in the manifest."""
        self._store = store
        self._job = job
        self._generation = generation
        self._live = files.folder_of(store) / paths.generation(job, generation)
        self._folder = files.folder_of(store) / paths.pins(job, generation)
        self._in_memory = storage is CheckpointStorage.MEMORY
        self._small = inline
        self._clock = clock or Clock()
        self._copies = _second_place(store, copy_dir, job, self._clock) if copy_dir else None
        self._claimed = False
        self._lock = threading.Lock()
        self._known: dict[str, _Pin] = {}
        self._inline: dict[tuple[CheckpointId, str], int] = {}
        self._made = 0
        """How often a folder was created."""
        self._durable: set[Path] = set()
        """Folders that are on the disk with all above them; empty again as soon as one is created."""

    @property
    def copied_to(self) -> str:
        """For the manifest: where the files are besides; "" without a copy-dir."""
        return self._copies.url if self._copies else ""

    def seed(self, retained: Iterable[Manifest]) -> None:
        """Learn from the retained checkpoints what is kept already; at the start."""
        for manifest in retained:
            if manifest.generation != self._generation or manifest.full:
                continue
            id = CheckpointId(manifest.id)
            copied = bool(self._copies) and manifest.copied_to == self.copied_to
            with self._lock:
                for file in manifest.files():
                    if not file.within or file.bytes <= self._small:
                        self._known[file.path] = _Pin(file, id, id, copied)

    def keep(
        self,
        folder: str,
        names: Sequence[str],
        *,
        checkpoint: CheckpointId,
        full: bool = False,
        pinned: Callable[[], None] = lambda: None,
    ) -> Kept:
        """Keep the files `names` below `folder`, itself below the generation; "" is the generation.

        When it returns, the files are safe from Spark, their names are on the disk, and they are
        copied, if there is a copy-dir; before that takes its time, `pinned` is called. Safe to repeat.
        Raises `GoneError` for a file that vanished or was written again before it was kept,
        `StorageError` when the storage refuses, and `CheckpointTooLargeError` in storage `memory`.
        """
        wanted = [f"{folder}/{name}" if folder else name for name in names]
        try:
            if self._in_memory:
                return self._take_in(wanted, checkpoint)
            if full:
                return self._copy_all(wanted, checkpoint, pinned)
            return self._pin(wanted, checkpoint, pinned)
        except OSError as error:
            raise files.failed(
                "keep files of a checkpoint in", self._folder, error, self._store.url
            ) from error

    def export_manifest(self, manifest: Manifest) -> None:
        """Write the manifest to the copy-dir, where its files are already. Safe to repeat."""
        if self._copies is not None:
            self._claim(self._copies)
            self._copies.put_manifest(CheckpointId(manifest.id), mf.encode(manifest))

    def remove(self, kept: Iterable[str]) -> None:
        """Delete what no retained or pending checkpoint needs: names as `Manifest.kept` gives them.

        Their copies are left to `remove_copies`, which may take long.
        """
        gone = list(kept)
        try:
            for name in gone:
                (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise files.failed("delete", self._folder, error, self._store.url) from error
        with self._lock:
            for name in gone:
                self._known.pop(name, None)

    def remove_copies(self, kept: Iterable[str]) -> None:
        """Delete the copies of what was deleted here."""
        if self._copies is not None:
            self._copies.remove((self._generation, name) for name in kept)

    def _pin(self, wanted: Sequence[str], checkpoint: CheckpointId, safe: Callable[[], None]) -> Kept:
        began = self._clock.monotonic()
        known = self._recall(wanted, checkpoint)
        for path in wanted:
            if path not in known and (file := self._within(path)) is not None:
                known[path] = _Pin(file, checkpoint, checkpoint)
        linked = [path for path in wanted if path not in known or not known[path].file.within]
        pinned_before = self._pinned_in_folders_of(linked)
        self._check_same(path for path in pinned_before.intersection(linked) if path not in known)
        fresh = []
        for path in linked:
            # False where a pin is there already
            is_new = path not in pinned_before and self._put(path, path, files.link, there=False)
            if is_new or path not in known:
                fresh.append(path)
        if (stale := self._stale_zip({path: path for path in wanted})) is not None:
            if stale in fresh:
                (self._folder / stale).unlink(missing_ok=True)
            raise GoneError(stale)
        sums = files.parallel(lambda path: files.settled(self._folder / path), fresh)
        for path, found in zip(fresh, sums, strict=True):
            known[path] = _Pin(_file(path, found), checkpoint, checkpoint)
        self._sync(fresh)
        safe()
        pinned = self._clock.monotonic()
        pins = {path: known[path] for path in wanted}
        self._copy_out({path: pins[path].file for path in linked if not pins[path].copied})
        with self._lock:
            for pin in pins.values():
                pin.copied = bool(self._copies)
            self._known |= pins
        return Kept(
            tuple(pin.file for pin in pins.values()),
            sum(pin.file.bytes for pin in pins.values() if pin.brought_by == checkpoint),
            pinned - began,
            self._clock.monotonic() - pinned,
        )

    def _recall(self, wanted: Iterable[str], checkpoint: CheckpointId) -> dict[str, _Pin]:
        """What is known of these files; what only an aborted checkpoint had is new to this one."""
        with self._lock:
            for path in [p for p, pin in self._known.items() if pin.used_by < checkpoint - _FORGET_AFTER]:
                del self._known[path]
            known = {path: self._known[path] for path in wanted if path in self._known}
            brought = {pin.brought_by for pin in known.values()} - {checkpoint}
        void = {id for id in brought if self._store.exists(paths.aborted(self._job, id))}
        with self._lock:
            for pin in known.values():
                pin.used_by = max(pin.used_by, checkpoint)
                if pin.brought_by in void:
                    pin.brought_by = checkpoint
        return known

    def _within(self, path: str) -> File | None:
        """The file with its content, if it is small; None when it must be linked.

        Zips of state are always linked: they are looked into later (`_stale_zip`).
        """
        if not self._small or path.endswith(".zip"):
            return None
        try:
            with open(self._live / path, "rb", buffering=0) as live:
                data = live.read(self._small + 1)
        except FileNotFoundError:  # there may be a pin of it
            return None
        return _inline(path, data) if len(data) <= self._small else None

    def _pinned_in_folders_of(self, wanted: Iterable[str]) -> set[str]:
        """The pins that are in the folders of these files."""
        pins: set[str] = set()
        for folder in {path.rpartition("/")[0] for path in wanted}:
            with suppress(FileNotFoundError):
                pins.update(f"{folder}/{name}" for name in os.listdir(self._folder / folder))
        return pins

    def _check_same(self, left: Iterable[str]) -> None:
        """Refuse pins that no checkpoint is known to have, and that differ from the live files.

        An aborted checkpoint may have left them. After a power loss Spark may have run a batch again, which
        wrote other content under the same name. The next sweep deletes such a pin, if nothing needs it.
        """
        for path in left:
            live, pin = self._live / path, self._folder / path
            try:
                if os.path.samestat(live.stat(), pin.stat()) or files.checksum(live) == files.checksum(pin):
                    continue
            except FileNotFoundError:  # purged since it was linked
                continue
            reason = "an aborted checkpoint kept another file of this name; the next cleanup deletes it"
            raise StorageError(verb="use", path=pin, reason=reason, root=self._store.url)

    def _put(self, path: str, place: str, write: Callable[[Path, Path], T], there: T | None = None) -> T:
        """Write a live file to its place, whose folder may be missing: a sweep may remove one that is empty.

        Where a file is `there` meanwhile, that is the answer. Raises `GoneError` when the live file is gone.
        """
        source, target = self._live / path, self._folder / place

        def step() -> T:
            try:
                return write(source, target)
            except FileNotFoundError:
                if there is not None and target.exists():
                    return there
                if not source.exists():
                    raise GoneError(path) from None
                with self._lock:  # before it is there: nobody must take it for an old one that is durable
                    self._made += 1
                    self._durable.clear()
                target.parent.mkdir(parents=True, exist_ok=True)
                raise

        try:
            return retry(step, _FOLDER_TRIES, self._clock.sleep, on=FileNotFoundError)
        except FileNotFoundError:
            raise GoneError(path) from None

    def _stale_zip(self, places: Mapping[str, str]) -> str | None:
        """A snapshot that names files which are not kept with it: it was written again since the listing."""
        for path in filter(_SHARED_ZIP.fullmatch, places):
            folder = path.rpartition("/")[0]
            beside = (f"{folder}/{name}" for name in members(self._folder / places[path]))
            if not places.keys() >= set(beside):
                return path
        return None

    def _copy_all(self, wanted: Sequence[str], checkpoint: CheckpointId, safe: Callable[[], None]) -> Kept:
        began = self._clock.monotonic()
        places = {path: kept_at(path, checkpoint, full=True) for path in wanted}
        copied = files.parallel(lambda path: self._put(path, places[path], files.copy), wanted)
        sums = dict(zip(wanted, copied, strict=True))
        if (stale := self._stale_zip(places)) is not None:
            raise GoneError(stale)
        self._sync(places.values())
        safe()
        pinned = self._clock.monotonic()
        taken = {path: _file(path, found) for path, found in sums.items()}
        self._copy_out({places[path]: file for path, file in taken.items()})
        return Kept(
            tuple(taken.values()),
            sum(file.bytes for file in taken.values()),
            pinned - began,
            self._clock.monotonic() - pinned,
        )

    def _take_in(self, wanted: Sequence[str], checkpoint: CheckpointId) -> Kept:
        began = self._clock.monotonic()
        taken: list[File] = []
        size = 0
        for path in wanted:
            try:
                size += (self._live / path).stat().st_size
                self._admit(checkpoint, wanted[0], size)
                data = (self._live / path).read_bytes()
            except FileNotFoundError as error:
                raise GoneError(path) from error
            taken.append(_inline(path, data))
        return Kept(tuple(taken), size, self._clock.monotonic() - began)

    def _admit(self, checkpoint: CheckpointId, whose: str, size: int) -> None:
        """Count what a checkpoint takes in from all its queries and channels."""
        with self._lock:
            self._inline = {key: n for key, n in self._inline.items() if key[0] > checkpoint - _FORGET_AFTER}
            self._inline[checkpoint, whose] = size
            total = sum(n for (id, _), n in self._inline.items() if id == checkpoint)
        if total > MEMORY_LIMIT:
            raise CheckpointTooLargeError(bytes=total, limit=MEMORY_LIMIT)

    def _copy_out(self, kept: Mapping[str, File]) -> None:
        """Copy pins to the copy-dir; what is read must be what was summed up."""
        if self._copies is None or not kept:
            return
        self._claim(self._copies)
        copied = self._copies.put(self._generation, {name: self._folder / name for name in kept})
        for name, found in copied.items():
            if found != Sum(kept[name].bytes, kept[name].crc):
                reason = "it has changed since it was kept"
                raise StorageError(verb="copy", path=self._folder / name, reason=reason, root=self._store.url)

    def _claim(self, copies: Copies) -> None:
        if not self._claimed:
            origin = read_origin(self._store, self._job, self._generation)
            assert origin is not None, "a generation that runs has its origin"
            copies.claim(origin.lineage)
            self._claimed = True

    def _sync(self, names: Iterable[str]) -> None:
        """Force the names to the disk, and once those of the folders that they are in."""
        with self._lock:
            made, durable = self._made, set(self._durable)
        own = {(self._folder / name).parent for name in names}
        above = {parent for folder in own - durable for parent in files.up_to(folder, self._folder.parent)}
        files.sync_folders(own | above)
        with self._lock:
            if made == self._made:
                self._durable |= own


def _second_place(store: Store, copy_dir: str, job: JobName, clock: Clock) -> Copies:
    copies = Copies(copy_dir, job, clock)
    if copies.url == store.url:
        raise BadValueError(
            key="execution.checkpointing.copy-dir",
            value=copy_dir,
            origin="the settings",
            reason="it is execution.checkpointing.dir itself, which already holds the files",
        )
    return copies


def _file(path: str, sum: Sum) -> File:
    return File(path=path, bytes=sum.bytes, crc=sum.crc)


def _inline(path: str, data: bytes) -> File:
    return File(path=path, bytes=len(data), crc=zlib.crc32(data), inline=base64.b64encode(data).decode())
