"""Snapshots: the files of each cut are listed and kept, and deleted when nothing needs them.

Called by the coordinator, from its own thread and from a small pool. A file that a pending
checkpoint has claimed, or a retained one has, is never deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from weir import faults
from weir.channel.log import cut_of, first_kept, trim
from weir.checkpoint import retention
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.checkpoint.pins import Pins
from weir.checkpoint.vertex import Vertex
from weir.clock import Clock
from weir.config import Settings
from weir.ids import NO_BATCH, CheckpointId, QueryName
from weir.protocol.checkpoint import Found, unreferenced
from weir.spark.closure import GoneError, closure
from weir.storage import files, open_store
from weir.storage.attempts import Lease
from weir.storage.paths import Live

_TRIES = 3
_REMEMBERED = 100
_AT_ONCE = 50
"""Copies that are deleted at a time: as many as a checkpoint may wait for."""


class Snapshots:
    """The files of the checkpoints of one generation. For use from any thread."""

    def __init__(self, live: Live, settings: Settings, clock: Clock, lease: Lease) -> None:
        self._live = live
        self._lease = lease
        self._clock = clock
        self._copy_dir = settings.execution_checkpointing_copy_dir
        self.pins = Pins(
            live.store,
            live.job,
            live.generation,
            storage=settings.execution_checkpointing_storage,
            copy_dir=self._copy_dir,
            inline=settings.execution_checkpointing_data_inline_threshold,
            clock=clock,
        )
        self._removing = threading.Lock()
        """Held while files are deleted; nothing is claimed meanwhile."""
        self._sweeping = threading.Lock()
        self._claimed: set[str] = set()
        """Everything that was claimed since the sweep under way has begun."""
        self._lock = threading.Lock()
        """Never held for long: the coordinator takes it."""
        self._void: set[str] = set()
        """What was deleted, and whose copies are still there."""
        self._claims: dict[CheckpointId, set[str]] = {}
        self._over: set[CheckpointId] = set()

    def of_query(
        self, id: CheckpointId, vertex: Vertex, found: Found, *, full: bool, pinned: Callable[[], None]
    ) -> QueryCut:
        """Keep what the query needs to resume from its cut; `pinned` is called when Spark may purge."""
        faults.point("checkpoint.snapshot")
        cut = QueryCut(batch=found.batch, unaligned=found.unaligned, rewindable=vertex.rewindable)
        if found.batch == NO_BATCH:
            return cut
        for left in reversed(range(_TRIES)):
            began = self._clock.monotonic()
            try:
                names = [f"queries/{vertex.name}/{name}" for name in closure(vertex.root, found.batch).files]
                names += vertex.user_state(found.batch)
                listed = self._clock.monotonic()
                self._claim(id, names)
                kept = self.pins.keep("", names, checkpoint=id, full=full, pinned=pinned)
                break
            except GoneError:  # where Spark purged a file, a newer snapshot may have taken its place
                if not left:
                    raise
        planned = vertex.planned(found.batch)
        return cut.model_copy(
            update={
                "offsets": planned.ends,
                "positions": {name: (p.entry, p.barrier) for name, p in planned.positions.items()},
                "watermark_ms": planned.watermark_ms,
                "files": kept.files,
                "new_bytes": kept.new_bytes,
                "phases": {**vertex.waited(found, id), "listing": listed - began, **kept.seconds},
            }
        )

    def of_channel(
        self, id: CheckpointId, name: QueryName, found: Found, readers: Sequence[int], *, full: bool
    ) -> ChannelCut:
        """Keep what the readers of a channel, at these entries, still have to read up to the writer's cut."""
        assert found.end is not None
        first = first_kept(readers, found.end)
        folder = f"channels/{name}"
        cut = cut_of(open_store(self._live.channel(name)), first, found.end)
        self._claim(id, [f"{folder}/{one}" for one in cut.names])
        kept = self.pins.keep(folder, cut.names, checkpoint=id, full=full)
        return ChannelCut(
            first=first,
            behind=found.end,
            batch=found.batch,
            files=kept.files,
            new_bytes=kept.new_bytes,
            phases=kept.seconds,
            rows=cut.rows,
        )

    def release(self, id: CheckpointId) -> None:
        """The checkpoint has ended: from now on only its manifest, if there is one, needs its files."""
        with self._lock:
            self._claims.pop(id, None)
            self._over = {one for one in self._over if one > id - _REMEMBERED} | {id}

    def drop(self, old: Sequence[Manifest], retained: Iterable[Manifest]) -> retention.Dropped:
        """Delete checkpoints: their records first, then what nothing else refers to.

        One that a restore was asked for meanwhile stays.
        """
        if not old:
            return retention.Dropped()
        ids = retention.drop(self._live.store, self._live.job, [CheckpointId(one.id) for one in old])
        dropped = [one for one in old if one.id in ids]
        kept = [*retained, *(one for one in old if one.id not in ids)]
        faults.point("checkpoint.subsumed")
        with self._lock:
            needed = [list(one.kept()) for one in kept if one.generation == self._live.generation]
            needed += [list(names) for names in self._claims.values()]
            gone = [one for one in dropped if one.generation == self._live.generation]
            void = unreferenced((name for one in gone for name in one.kept()), needed)
            self.pins.remove(void)
            if copied := any(one.copied_to for one in dropped):
                self._void.update(void)
        if len(gone) == len(dropped) and not copied:
            return retention.Dropped(ids)
        return retention.Dropped(ids, lambda: self._drop_copied(dropped, void, kept))

    def _drop_copied(self, dropped: Sequence[Manifest], void: Sequence[str], kept: list[Manifest]) -> None:
        with self._removing:
            retention.drop_copied(self._live.job, dropped)
            with self._lock:
                still = self._void.intersection(void)  # what was claimed since has been copied again
                self._void -= still
            self.pins.remove_copies(still)
        if any(one.generation != self._live.generation for one in dropped):
            self.sweep(kept)

    def trim(self, lows: Mapping[QueryName, int]) -> None:
        """Delete the entries of channels that every reader has passed: their slowest ones resume here."""
        for name, low in lows.items():
            trim(open_store(self._live.channel(name)), low)

    def sweep(self, retained: Iterable[Manifest]) -> None:
        """Delete what killed and aborted checkpoints have left; it may take long.

        A copy-dir may be slow: checkpoints continue while it is listed, and what they claim by then stays.
        """
        with self._sweeping:
            with self._removing:
                with self._lock:
                    busy = {name for names in self._claims.values() for name in names}
                    self._claimed = set()
                sweep = retention.Sweep(
                    self._live.store, self._live.job, retained, busy, check=self._lease.check
                )
                sweep.here()
            for found in sweep.copies(self._copy_dir):
                found.remove_manifests()
                for start in range(0, len(found.void), _AT_ONCE):
                    with self._removing:
                        some = found.void[start : start + _AT_ONCE]
                        found.remove([copy for copy in some if not self._is_claimed(copy[1])])
                found.tidy()

    def _is_claimed(self, name: str) -> bool:
        """Whether a checkpoint may use a copy since the sweep has begun, or is writing it."""
        return name in self._claimed or bool(self._claimed and files.is_temporary(name.rpartition("/")[2]))

    def _claim(self, id: CheckpointId, names: Sequence[str]) -> None:
        """From now on these files are needed: their pins are left alone."""
        with self._removing, self._lock:
            self._void.difference_update(names)
            self._claimed.update(names)
            if id not in self._over:  # what an aborted one still keeps is swept
                self._claims.setdefault(id, set()).update(names)
