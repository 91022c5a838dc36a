"""The records of a job's checkpoints: begun, then completed or aborted; and which are on the live timeline.

    begun-<k> -> chk-<k> | aborted-<k>

Each is created if absent, once. An id is taken by its `begun-<k>`: one that is there already, left by a
driver that lost its lease in between, is never used again, and is aborted. So an abort is written only
where `begun-<k>` is there and not a successor's: who sleeps in it ends nothing that is not its own. Where a
manifest and an abort are both there, the abort counts. The timeline has the points that the live files
descend from: a point that the job was rewound past is on another one, and can't be restored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.clock import Clock
from weir.errors import ExternalError, LeftBehindError
from weir.ids import Attempt, CheckpointId, Generation, JobName
from weir.protocol.checkpoint import AbortReason, is_abandoned, is_successors, last_id
from weir.storage import Created, Store, paths
from weir.storage import generation as generations
from weir.storage.generation import known_origin


@dataclass(frozen=True)
class Begun:
    """An id, and why it can't be used if the storage has refused it or not answered."""

    id: CheckpointId
    refused: str = ""


class Records:
    """The records of one job, as one attempt writes them. For use from one thread at a time."""

    def __init__(self, store: Store, job: JobName, attempt: Attempt, clock: Clock) -> None:
        self._store = store
        self._job = job
        self._attempt = attempt
        self._clock = clock
        self._last = CheckpointId(0)
        self._unwritten: dict[CheckpointId, bytes] = {}
        """Aborts that could not be written yet."""
        self._unanswered: dict[CheckpointId, bytes] = {}
        """Beginnings without an answer: the id may be a successor's by now."""

    def learn(
        self, restored: CheckpointId | None = None, barriers: Iterable[CheckpointId] = ()
    ) -> list[CheckpointId]:
        """Find the last id (`protocol.checkpoint.last_id`); which checkpoints have begun and not ended.

        Without those of a successor, which are there when this driver slept before it looked.
        """
        recorded = mf.ids(self._store, self._job)
        self._last = last_id((id for ids in recorded.values() for id in ids), restored, barriers)
        unended = sorted(recorded["begun"] - recorded["chk"] - recorded["aborted"])
        return [id for id in unended if not is_successors(self._begun_by(id), self._attempt)]

    def begin(self, about: Mapping[str, str]) -> Begun:
        """Take the next id; one that a replaced driver has taken is aborted."""
        while True:
            self._last = id = CheckpointId(self._last + 1)
            body = json.dumps({"id": id, "attempt": self._attempt, **about}).encode()
            try:
                if self._store.create(paths.begun(self._job, id), body) is Created.NOW:
                    return Begun(id)
                abandoned = is_abandoned(self._begun_by(id), self._attempt)
            except ExternalError as error:
                self._unanswered[id] = body
                return Begun(id, error.text)
            if abandoned:
                self.abort(id, AbortReason.RESTARTED, "")

    def _begun_by(self, id: CheckpointId) -> Attempt | None:
        """The attempt that has begun a checkpoint; None when its record does not name one."""
        data = self._store.get(paths.begun(self._job, id))
        try:
            attempt = json.loads(data or b"{}").get("attempt")
        except (ValueError, AttributeError):
            return None
        return Attempt(attempt) if isinstance(attempt, int) else None

    def complete(self, manifest: Manifest) -> str:
        """Write the manifest; "" when that makes the checkpoint complete, else why it does not.

        One that was written without an answer is complete: others may have seen it by now.
        """
        key = paths.completed(self._job, CheckpointId(manifest.id))
        data = mf.encode(manifest)
        try:
            created = self._store.create(key, data)
        except ExternalError as error:
            return "" if self._is_there(key, data) else error.text
        return "" if created is Created.NOW else "its manifest already exists"

    def _is_there(self, key: str, data: bytes) -> bool:
        try:
            if self._store.get(key) != data:
                return False
            self._store.put(key, data)  # what can be read may not be on the disk
        except ExternalError:
            return False
        return True

    def abort(self, id: CheckpointId, reason: AbortReason, detail: str) -> bool:
        """Write that it was aborted; False when it can't be now (a full disk): `write_aborts` tries again."""
        body = {"id": id, "reason": reason.value, "detail": detail, "at": self._clock.now().isoformat()}
        self._unwritten[id] = json.dumps(body).encode()
        self.write_aborts()
        return id not in self._unwritten

    def write_aborts(self) -> None:
        """Write what could not be written before. Safe to repeat."""
        for id, body in list(self._unwritten.items()):
            with suppress(ExternalError):
                if self._is_begun_here(id):
                    self._store.create(paths.aborted(self._job, id), body)
                del self._unwritten[id]

    def _is_begun_here(self, id: CheckpointId) -> bool:
        """Make sure that a checkpoint is begun; False when a successor has taken its id meanwhile."""
        if id not in self._unanswered:
            return True
        created = self._store.create(paths.begun(self._job, id), self._unanswered[id])
        by = self._attempt if created is Created.NOW else self._begun_by(id)
        del self._unanswered[id]
        return by == self._attempt or is_abandoned(by, self._attempt)


Timeline = dict[Generation, CheckpointId | None]


def timeline(store: Store, job: JobName) -> Timeline | None:
    """The timeline that the live files are on; None when there are none, and so any will do."""
    live = generations.live(store, job)
    return generations.timeline(store, job) if generations.is_live(store, job, live) else None


def is_on(line: Timeline | None, manifest: Manifest) -> bool:
    last = line.get(Generation(manifest.generation), CheckpointId(0)) if line is not None else None
    return last is None or manifest.id <= last


def is_of(store: Store, job: JobName, manifest: Manifest) -> bool:
    """Whether it was taken in this life of the job; a savepoint may come from another one.

    A fork keeps the lineage, but its generations are its own.
    """
    live = known_origin(store, job, generations.live(store, job))
    return live is None or (job, live.lineage) == (manifest.job, manifest.lineage)


def is_left_behind(store: Store, job: JobName, manifest: Manifest) -> bool:
    """Whether the job was rewound past this point of its own, so that it can't resume from it."""
    return is_of(store, job, manifest) and not is_on(timeline(store, job), manifest)


def check_timeline(store: Store, job: JobName, point: str, manifest: Manifest) -> None:
    """Raise `LeftBehindError` for a point that the job was rewound past."""
    if is_left_behind(store, job, manifest):
        raise LeftBehindError(job=job, point=point)
