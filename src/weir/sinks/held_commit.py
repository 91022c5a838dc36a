"""`sink.commit: checkpoint`: what was delivered becomes visible when the job-wide checkpoint completes.

Spark's decisions are collected (`HeldCommitter`, one a query) instead of being delivered at once. When a
checkpoint completes, its permit goes to `Together`, which commits every sink up to the cut of its
query: sinks of one group (tables of one database) in one transaction, the others one by one. The id of
the checkpoint is in the ledger of each, with the batch of the cut. A permit is issued again at each
start, so a crash in between delays a commit and loses none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from weir import faults
from weir.clock import Deadline
from weir.errors import ExternalError, FencedError, RefusedRowError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol.ledger import Dense, Staged, decided_by
from weir.sinks.committer import check_dense
from weir.sinks.contract import Outcome, SinkPart, StagingSink, capabilities, until_known
from weir.spark.checkpoint_files import QueryFiles
from weir.storage.attempts import Lease

_NO_ANSWER = "a sink did not confirm its batches"


class HeldCommitter:
    """The staged batches of one run of one query, until a checkpoint permits their commit."""

    def __init__(
        self, sink: StagingSink, files: QueryFiles, adopted: Sequence[Staged], last: BatchId
    ) -> None:
        """`last` is the last batch that Spark has committed; those that are `adopted` end with it."""
        self.sink = sink
        self.can = capabilities(sink)
        self.closed = False
        """Its run is over with an error: the next one takes over what is held."""
        self.refused: BatchId | None = None
        """The first of the batches that its sink did not take."""
        self._files = files
        self._held = deque(adopted)
        self._dense = Dense(last)
        self._own: set[BatchId] = set()
        self._lock = threading.Lock()

    def wait_for_room(self) -> None:
        """Nothing to wait for: the checkpoint comes when it comes."""

    def check_next(self, batch: BatchId) -> None:
        """Raise `FencedError` unless this batch follows the last one: another run has decided for that."""
        check_dense(self._dense, batch)

    def submit(self, staged: Staged) -> None:
        """Take over a recorded staging; Spark is about to decide for it. Raises as `check_next` does."""
        with self._lock:
            self.check_next(staged.batch)
            self._dense = self._dense.then(staged.batch)
            self._held.append(staged)
            self._own.add(staged.batch)

    def drain(self, deadline: Deadline) -> bool:
        """What is held stays so; True."""
        return True

    def close(self) -> None:
        self.closed = True

    def due(self, upto: BatchId) -> list[Staged]:
        """The batches up to this one, all decided; raises `FencedError` when another run has decided one."""
        with self._lock:
            due = [one for one in self._held if one.batch <= upto]
        for one in due:
            if one.batch in self._own and not decided_by(one, self._files.committed_state(one.batch)):
                raise FencedError(who=f"run {one.token}", by=f"another run (it decided batch {one.batch})")
        return due

    def done(self, upto: BatchId) -> None:
        """They are committed."""
        with self._lock:
            while self._held and self._held[0].batch <= upto:
                self._own.discard(self._held.popleft().batch)

    def missing(self, upto: BatchId) -> int:
        """How many batches up to this one are held."""
        with self._lock:
            return sum(one.batch <= upto for one in self._held)

    def undelivered(self) -> bool:
        """Whether Spark has decided for a batch that is held."""
        with self._lock:
            return bool(self._held) and self._files.committed(self._held[0].batch)


@dataclass(frozen=True)
class Permit:
    """A completed checkpoint: every sink may commit up to the cut of its query."""

    checkpoint: CheckpointId
    cuts: Mapping[QueryName, BatchId]
    oldest: Mapping[QueryName, BatchId]
    """The oldest batch that a checkpoint leads each query back to, where that is known."""


class Together:
    """The commits of all sinks of a job. For any thread; one of its own does the work."""

    def __init__(self, lease: Lease, failed: Callable[[QueryName, Exception], None]) -> None:
        self._lease = lease
        self._failed = failed
        self._members: dict[QueryName, HeldCommitter] = {}
        self._permits: deque[Permit] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="weir-together", daemon=True)
        self._thread.start()

    def add(self, query: QueryName, held: HeldCommitter) -> None:
        """A query runs, for the first time or again."""
        with self._changed:
            self._members[query] = held

    def permit(self, permit: Permit) -> None:
        """Commit what this checkpoint covers; returns at once. Safe to repeat."""
        with self._changed:
            self._permits.append(permit)
            self._changed.notify_all()

    def undelivered(self) -> bool:
        """Whether some batch that Spark has decided for is not visible."""
        with self._changed:
            return any(held.undelivered() for held in self._members.values())

    def settle(self, seconds: float) -> bool:
        """Wait until every permit is used; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopped or not self._permits, seconds)

    def stop(self) -> None:
        """End the thread; what is held stays for the next start. Safe to repeat."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while (permit := self._next()) is not None:
            for names in self._groups(permit).values():
                self._commit(permit, names)
            with self._changed:
                self._permits.popleft()
                self._changed.notify_all()

    def _next(self) -> Permit | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._permits)
            return None if self._stopped else self._permits[0]

    def _groups(self, permit: Permit) -> dict[Hashable, list[QueryName]]:
        groups: dict[Hashable, list[QueryName]] = {}
        with self._changed:
            for name, held in self._members.items():
                if name in permit.cuts:
                    group = held.can.group if held.can.commit_together is not None else name
                    groups.setdefault(group, []).append(name)
        return groups

    def _commit(self, permit: Permit, names: Sequence[QueryName]) -> None:
        members = {name: self._members[name] for name in names}
        if any(held.closed for held in members.values()):
            return  # its next run brings the permit again, and then all of them go
        due: dict[QueryName, list[Staged]] = {}
        try:
            due = {name: held.due(permit.cuts[name]) for name, held in members.items()}
            if any(due.values()):
                until_known(partial(self._step, permit, members, due), _NO_ANSWER, self._rest)
            for name, held in members.items():
                held.done(permit.cuts[name])
                if held.can.forget is not None and name in permit.oldest:
                    with suppress(ExternalError):  # it is done with a later checkpoint
                        held.can.forget(permit.oldest[name])
        except Exception as error:  # whatever it is, the queries must not continue without it
            if isinstance(error, FencedError) and any(held.closed for held in members.values()):
                return  # by the next run of one of them
            for name in names:
                members[name].refused = next((one.batch for one in due.get(name, [])), None)
            # of those that commit together a refused row is of one; any other failure is of all
            query = error.fields.get("query") if isinstance(error, RefusedRowError) else None
            for name in [name for name in names if name == query] or names:
                self._failed(name, error)

    def _step(
        self,
        permit: Permit,
        members: Mapping[QueryName, HeldCommitter],
        due: Mapping[QueryName, list[Staged]],
    ) -> Outcome:
        self._lease.check()
        faults.point("sink.committing")
        commit_together = next(iter(members.values())).can.commit_together
        if commit_together is not None:
            parts = [SinkPart(held.sink, tuple(due[name])) for name, held in members.items()]
            return commit_together(parts, permit.checkpoint)
        outcome = Outcome.ALREADY_DONE
        for name, held in members.items():
            for one in due[name]:
                if one.batch == permit.cuts[name] and held.can.commit_at is not None:
                    outcome = held.can.commit_at(one, permit.checkpoint)
                else:
                    outcome = held.sink.commit(one)
                if outcome is Outcome.UNKNOWN:
                    return outcome
        return outcome

    def _rest(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, seconds):
                raise ExternalError(what=f"{_NO_ANSWER} before the query ended")
