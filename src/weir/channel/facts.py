"""What a reader learns from files: it lives in a process of its own, and nobody tells it anything.

Small reads by name, which keep what can't change any more. Nothing here is listed but the reading
query's offset log, once, at its start.
"""

from __future__ import annotations

from weir.channel.log import Entry, first_number, read_entry
from weir.channel.position import Status, joint_barrier
from weir.errors import LostSegmentError
from weir.ids import CheckpointId
from weir.storage import Store


class Checkpoints:
    """The job's checkpoints folder, asked about checkpoints whose barrier is in the log.

    `begun-k` is there before the barrier is: so only a pending checkpoint can still change.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._settled: dict[CheckpointId, Status] = {}

    def status(self, checkpoint: CheckpointId) -> Status:
        if self._store is None:
            return Status.UNKNOWN
        if checkpoint not in self._settled:
            found = self._look(self._store, checkpoint)
            if found is Status.PENDING:
                return found
            self._settled[checkpoint] = found
        return self._settled[checkpoint]

    def _look(self, store: Store, checkpoint: CheckpointId) -> Status:
        if store.exists(f"chk-{checkpoint}.json"):
            return Status.COMPLETED
        if store.exists(f"aborted-{checkpoint}.json"):
            return Status.ABORTED
        return Status.PENDING if store.exists(f"begun-{checkpoint}.json") else Status.UNKNOWN


class JointPosition:
    """The newest entry of the reading query's own offset log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: int | None = None

    def barrier(self) -> CheckpointId | None:
        """The lowest barrier among the query's channels; None before its first batch is planned."""
        if self._newest is None:
            names = (key.rsplit("/", 1)[1] for key in self._store.list("offsets"))
            self._newest = max((int(name) for name in names if name.isdigit()), default=None)
        if self._newest is None:
            return None
        while self._store.exists(f"offsets/{self._newest + 1}"):
            self._newest += 1
        data = self._store.get(f"offsets/{self._newest}")
        return joint_barrier(data.decode()) if data else None


class Ahead:
    """The entries of the channel, each read once; what is behind the reader is dropped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: dict[int, Entry] = {}

    def get(self, number: int) -> Entry | None:
        if number not in self._entries:
            entry = read_entry(self._store, number)
            if entry is None:
                return None
            self._entries[number] = entry
        return self._entries[number]

    def need(self, number: int) -> Entry:
        """An entry that must be there."""
        entry = self.get(number)
        if entry is None:
            raise LostSegmentError(file=f"{self._store.url}/log/{number:09d}.json")
        return entry

    def before(self, number: int) -> Entry | None:
        """The entry in front of this number; None at the beginning of the channel."""
        if number == 0:
            return None
        before = self.get(number - 1)
        if before is None and first_number(self._store) != number:
            return self.need(number - 1)
        return before

    def forget_before(self, number: int) -> None:
        for old in [one for one in self._entries if one < number - 1]:
            del self._entries[old]
