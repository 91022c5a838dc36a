"""The completed checkpoints that are kept, and which of them may go."""

from __future__ import annotations

from contextlib import suppress

from weir.checkpoint import manifest as mf
from weir.checkpoint import retention
from weir.checkpoint.manifest import Manifest
from weir.checkpoint.records import is_left_behind
from weir.checkpoint.snapshots import Dropped, Snapshots
from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName
from weir.protocol.checkpoint import subsumed
from weir.storage.live import Live


class Retained:
    """The retained checkpoints of a job. Not for several threads at once: the coordinator has a lock."""

    def __init__(self, live: Live, snapshots: Snapshots) -> None:
        self._live = live
        self._snapshots = snapshots
        self._manifests: dict[CheckpointId, Manifest] = {}
        self._held: set[CheckpointId] = set()
        self._useless: set[CheckpointId] = set()
        """Those that the job can never be restored from."""

    def __bool__(self) -> bool:
        return bool(self._manifests)

    def learn(self) -> None:
        """Read what is there, at a start."""
        for id in mf.completed(self._live.store, self._live.job):
            with suppress(ValueError):  # it is damaged: of no use, and left for whoever looks
                manifest = mf.read(self._live.store, self._live.job, id)
                if manifest is not None:
                    self._manifests[id] = manifest
                    if self._is_useless(manifest):
                        self._useless.add(id)
        self._snapshots.seed(self._manifests.values())

    def _is_useless(self, manifest: Manifest) -> bool:
        """Whether nothing can be restored from it: the job was rolled back past it, or it is no cut."""
        left_behind = is_left_behind(self._live.store, self._live.job, manifest)
        return left_behind or bool(manifest.inconsistencies())  # an earlier version did not look

    def add(self, manifest: Manifest, *, held: bool) -> None:
        """One more has completed; a held one is not let go before it is released."""
        id = CheckpointId(manifest.id)
        self._manifests[id] = manifest
        if held:
            self._held.add(id)

    def release(self, id: CheckpointId) -> None:
        """It may be let go like any other. Safe to repeat."""
        self._held.discard(id)

    def offsets(self, name: QueryName) -> list[str] | None:
        """The offsets of a query in each of them; None when it has none in one: it may need anything."""
        cuts = [one.queries[name] for one in self._manifests.values() if name in one.queries]
        if any(cut.batch == NO_BATCH for cut in cuts):
            return None
        return [line for cut in cuts for line in cut.offsets]

    def cuts(self, name: QueryName) -> list[BatchId]:
        """The batches that they lead a query back to."""
        queries = (one.queries for one in self._manifests.values())
        return [BatchId(one[name].batch) for one in queries if name in one]

    @property
    def ids(self) -> list[CheckpointId]:
        return sorted(self._manifests)

    @property
    def first_id(self) -> CheckpointId | None:
        return min(self._manifests, default=None)

    @property
    def last_id(self) -> CheckpointId | None:
        return max(self._manifests, default=None)

    def newest(self) -> Manifest | None:
        """The newest one of these live files."""
        own = [id for id, one in self._manifests.items() if one.generation == self._live.generation]
        return self._manifests[max(own)] if own else None

    def subsume(self, kept: int) -> Dropped:
        """Let go of what is beyond this number, but for what is held or a restore was asked for.

        What the job was rolled back past goes first. What fails is tried again the next time.
        """
        needed = self._held | retention.wanted(self._live.store, self._live.job)
        old = [id for id in subsumed(self._manifests, kept, self._useless) if id not in needed]
        rest = [one for id, one in self._manifests.items() if id not in old]
        dropped = self._snapshots.drop([self._manifests[id] for id in old], rest)
        for id in dropped.ids:
            del self._manifests[id]
        return dropped

    def delete_all(self) -> None:
        """Let go of all of them, and of their files."""
        old = [self._manifests.pop(id) for id in sorted(self._manifests)]
        dropped = self._snapshots.drop(old, ())
        if dropped.left is not None:
            dropped.left()
        self._snapshots.sweep(self.all())

    def all(self) -> list[Manifest]:
        return list(self._manifests.values())
