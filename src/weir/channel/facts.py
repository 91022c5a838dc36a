"""What a reader learns from files, and from nothing else: so a killed driver's successor sees the same.

Small reads by name, which keep what can't change any more. Nothing here is listed but the reading
query's offset log, at its start and when Spark has purged past what was read of it. `Planning` puts
the facts together and asks `position.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from weir.channel.log import (
    Entry,
    Segment,
    beginning,
    entry_key,
    lost,
    need_entry,
    read_entry,
    segments,
    tail_behind,
)
from weir.channel.position import Bound, Facts, Mode, Position, Status, joint_barrier, next_position
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

    def forget_before(self, checkpoint: CheckpointId) -> None:
        """Nobody asks about these any more."""
        for old in [one for one in self._settled if one < checkpoint]:
            del self._settled[old]

    def _look(self, store: Store, checkpoint: CheckpointId) -> Status:
        # A zombie may write its manifest after the next attempt has aborted it: then it is aborted.
        if store.exists(f"aborted-{checkpoint}.json"):
            return Status.ABORTED
        if store.exists(f"chk-{checkpoint}.json"):
            return Status.COMPLETED
        return Status.PENDING if store.exists(f"begun-{checkpoint}.json") else Status.UNKNOWN


class JointPosition:
    """The newest entry of the reading query's own offset log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: int | None = None

    def barrier(self) -> CheckpointId | None:
        """The lowest barrier among the query's channels; None before its first batch is planned."""
        if self._newest is not None:
            while self._store.exists(f"offsets/{self._newest + 1}"):
                self._newest += 1
        data = None if self._newest is None else self._store.get(f"offsets/{self._newest}")
        while data is None:  # the first look, or Spark has purged what was the newest then
            names = (key.rsplit("/", 1)[1] for key in self._store.list("offsets"))
            self._newest = max((int(name) for name in names if name.isdigit()), default=None)
            if self._newest is None:
                return None
            data = self._store.get(f"offsets/{self._newest}")
        return joint_barrier(data.decode())


class Ahead:
    """The entries of the channel, each read once; what is behind the reader is dropped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: dict[int, Entry] = {}

    def get(self, number: int) -> Entry | None:
        """An entry, or None at the end of the log. Raises `LostSegmentError` when it is a hole."""
        if number not in self._entries:
            entry = read_entry(self._store, number)
            if entry is None and self._store.exists(entry_key(number + 1)):
                entry = need_entry(self._store, number)  # both may have come since
            if entry is None:
                return None
            self._entries[number] = entry
        return self._entries[number]

    def need(self, number: int) -> Entry:
        """An entry that must be there."""
        entry = self.get(number)
        if entry is None:
            raise lost(f"{self._store.url}/{entry_key(number)}")
        return entry

    def before(self, number: int) -> Entry | None:
        """The entry in front of this number; None at the beginning of the channel."""
        return self.need(number - 1) if number else None

    def start(self) -> int:
        """Where a reader starts that has no position yet."""
        return beginning(self._store)

    def forget_before(self, number: int) -> None:
        for old in [one for one in self._entries if one < number - 1]:
            del self._entries[old]


class Planning:
    """Where the batches of one reader end, as the files say when it looks."""

    def __init__(self, channel: Store, query: Store, checkpoints: Store | None, mode: Mode) -> None:
        self._ahead = Ahead(channel)
        self._joint = JointPosition(query)
        self._checkpoints = Checkpoints(checkpoints)
        self._mode = mode

    def start(self) -> Position:
        """The position of a reader that has none yet."""
        return Position(self._ahead.start())

    def next(self, start: Position, bound: Bound, until: int | None = None) -> Position:
        """The end of the batch that begins at `start`."""
        self._ahead.forget_before(start.entry)
        self._checkpoints.forget_before(start.barrier)
        over = not start.barrier or self._checkpoints.status(start.barrier) is Status.COMPLETED
        return next_position(
            Facts(
                start=start,
                tail=tail_behind(self._ahead.before(start.entry), start.barrier),
                ahead=self._from(start.entry),
                status=self._checkpoints.status,
                joint=None if over else self._joint.barrier(),
                mode=self._mode,
                bound=bound,
                until=until,
            )
        )

    def segments(self, start: int, end: int) -> list[Segment]:
        """The segments of the batch between two positions."""
        tail = tail_behind(self._ahead.before(start))
        return segments(tail, (self._ahead.need(number) for number in range(start, end)))

    def _from(self, number: int) -> Iterator[Entry]:
        while (entry := self._ahead.get(number)) is not None:
            yield entry
            number += 1
