"""Any order of steps, crashes, takeovers, waking zombies and copies of the job's directory: each batch is
delivered once, and what is delivered is what the state of the job saw that goes on.

The model plays Spark: offset log, decision records that are created if absent and name the state
of the run that decided, and runs that go on after their successor has started. A start is two steps,
`recover` and `begin`, between which others act. A directory may be copied at any time; then both start
again and again, as supervisors do, until one of them is refused. The sink's folder may be put back to an
older state. The sink, its ledger, the attempts and the decisions at a start are the real ones, on stores in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.clock import ManualClock
from weir.errors import FencedError, LedgerWentBackError, LostStagingError, SinkTakenError, StorageError
from weir.ids import NO_BATCH, BatchId, Run, Token, job_name
from weir.protocol.ledger import Dense, Staged, decided_by, plan_start
from weir.sinks.committer import check_dense
from weir.sinks.files import FilesSink
from weir.sinks.files_ledger import log_of
from weir.storage import Store
from weir.storage.attempts import AttemptLock, KnownAttempts
from weir.storage.object_store import ObjectStore

JOB = job_name("job")
BEATEN = (FencedError, LedgerWentBackError)
"""What ends a run, and brings the next attempt."""
EXPLAINED = 2
"""How many batches more than its directory knows of a sink may have; a start rewinds those unasked."""


class _PlainFiles(FilesSink):
    """The files sink with one small file for each batch, written without Spark."""

    def stage(self, frame: object, batch: BatchId, token: Token) -> None:
        self._store.put(f"{self._staging.folder_of(batch, token)}/part-0", str(frame).encode())
        self._staging.completed(batch, token)


@dataclass
class _Directory:
    """One directory of the job: its attempts, and what Spark has in its live files."""

    name: str
    attempts: ObjectStore = field(default_factory=lambda: ObjectStore("memory://"))
    commits: dict[BatchId, str] = field(default_factory=dict)
    """For each decided batch the state id of the run that decided."""
    refused: bool = False
    """Another directory's job has its sink: it ended for good."""

    @property
    def last(self) -> BatchId:
        return max(self.commits, default=NO_BATCH)

    def copied(self, name: str) -> _Directory:
        return _Directory(name, copied(self.attempts), dict(self.commits))


def copied(store: Store) -> ObjectStore:
    new = ObjectStore("memory://")
    for key in store.list(""):
        new.put(key, store.get(key) or b"")
    return new


@dataclass
class _RunModel:
    directory: _Directory
    token: Token
    sink: FilesSink
    dense: Dense
    """What its start has delivered."""
    batch: BatchId = NO_BATCH
    step: str = "begin"
    pending: list[Staged] = field(default_factory=list)
    alive: bool = True

    @property
    def uid(self) -> str:
        return f"{self.token}@{self.batch} in {self.directory.name}"

    def staged(self, stateful: bool) -> Staged:
        return Staged(self.batch, self.token, (self.uid,) if stateful else ())

    def end(self) -> None:
        self.alive = False
        self.pending.clear()


class Delivery(RuleBasedStateMachine):
    stateful = True

    def __init__(self) -> None:
        super().__init__()
        self.store = ObjectStore("memory://")
        self.older: ObjectStore | None = None
        """The sink's folder as it was, for a while."""
        self.went_back = False
        self.names = map("dir{}".format, count(1))
        self.directories = [_Directory(next(self.names))]
        self.runs: list[_RunModel] = []

    def _state(self, directory: _Directory, batch: BatchId) -> frozenset[str]:
        return frozenset({directory.commits[batch]}) if self.stateful else frozenset()

    @rule(
        data=st.data(),
        crash_after=st.sampled_from(["nothing", "nothing", "attempt", "fence", "discard", "one commit"]),
    )
    def recover(self, data: st.DataObject, crash_after: str) -> None:
        """A new attempt opens the sink of its directory; older runs may be dead or may not know it yet."""
        going = [one for one in self.directories if not one.refused]
        if going:
            self._recover(data.draw(st.sampled_from(going)), crash_after)

    def _recover(self, directory: _Directory, crash_after: str) -> None:
        lock = AttemptLock(directory.attempts, JOB, ManualClock())
        attempt = lock.acquire(directory.name, 0.0, lambda *_: None)
        if crash_after == "attempt":
            return
        token = Token(attempt, Run(1), directory.name)
        sink = _PlainFiles("out", "parquet", {}, self.store)
        knows = KnownAttempts(directory.attempts, JOB)
        try:
            if sink.look("job/query", "lineage", token, knows).last > directory.last + EXPLAINED:
                assert len(self.directories) > 1 or self.went_back
                directory.refused = True  # `OutputAheadError`: a person is asked, and nobody is fenced
                return
            found = sink.open("job/query", "lineage", token, knows)
        except SinkTakenError:
            directory.refused = True
            return
        if crash_after == "fence":
            return
        delivered = found.last
        if delivered > directory.last:  # a copy is older than the sink: it goes back to what it knows
            assert len(self.directories) > 1 or self.went_back
            sink.rewind(directory.last)
            delivered = directory.last
        staged, last = sink.staged(), directory.last
        batches = [BatchId(n) for n in range(delivered + 1, last + 1)]
        plan = plan_start(delivered, last, staged, {n: self._state(directory, n) for n in batches})
        if plan.lost:
            assert self.went_back, f"{plan.lost} committed by Spark, staged {staged}"
            directory.refused = True  # `LostStagingError`, for good
            return
        sink.discard(last, plan.commit)
        if crash_after == "discard":
            return
        for one in plan.commit:
            sink.commit(one)
            if crash_after == "one commit":
                return
        self.runs.append(_RunModel(directory, token, sink, Dense(last)))

    @precondition(lambda self: any(run.alive for run in self.runs))
    @rule(data=st.data(), steps=st.integers(1, 5))
    def step(self, data: st.DataObject, steps: int) -> None:
        """Any living run, a zombie or not, takes its next steps."""
        run = data.draw(st.sampled_from([r for r in self.runs if r.alive]))
        for _ in range(steps):
            if run.alive:
                self._step(run)

    def _step(self, run: _RunModel) -> None:
        directory = run.directory
        if run.step == "begin":
            run.batch, run.step = BatchId(directory.last + 1), "stage"
        elif run.step == "stage":
            run.sink.stage(run.uid, run.batch, run.token)  # type: ignore[arg-type]
            run.step = "record"
        elif run.step == "record":
            staged = run.staged(self.stateful)
            try:
                run.sink.record(staged)
                check_dense(run.dense, run.batch)
            except BEATEN:
                run.end()
                return
            except StorageError:  # what was staged is gone
                assert self.went_back
                run.end()
                return
            run.dense = run.dense.then(run.batch)
            run.pending.append(staged)
            run.step = "decide"
        elif run.batch in directory.commits:
            run.alive = False  # Spark: CONCURRENT_STREAM_LOG_UPDATE
        else:
            directory.commits[run.batch] = run.uid
            run.batch, run.step = BatchId(run.batch + 1), "stage"

    @precondition(lambda self: any(run.pending for run in self.runs))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """The committer of any run, even of one whose Spark query is dead, looks once."""
        run = data.draw(st.sampled_from([r for r in self.runs if r.pending]))
        staged = run.pending[0]
        if staged.batch not in run.directory.commits:
            return
        if not decided_by(staged, self._state(run.directory, staged.batch)):
            run.pending.clear()
            return
        try:
            run.sink.commit(staged)
            run.pending.pop(0)
        except FencedError:
            newest = AttemptLock(run.directory.attempts, JOB, ManualClock()).newest()
            overtaken = newest is not None and newest.attempt > run.token.attempt
            assert overtaken or len(self.directories) > 1
            run.end()
        except (LedgerWentBackError, LostStagingError):
            assert self.went_back
            run.end()

    @precondition(lambda self: any(run.alive for run in self.runs))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([r for r in self.runs if r.alive])).end()

    @precondition(lambda self: len(self.directories) < 3 and not self.went_back)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """Somebody copies a directory, whether it runs or not."""
        original = data.draw(st.sampled_from(self.directories))
        self.directories.append(original.copied(next(self.names)))

    @precondition(lambda self: len(self.directories) == 1)
    @rule()
    def back_up(self) -> None:
        self.older = copied(self.store)

    @precondition(lambda self: self.older is not None and not self.went_back and len(self.directories) == 1)
    @rule()
    def put_back(self) -> None:
        """The folder of the sink becomes what it was, under the running job, at any moment of a batch."""
        assert self.older is not None
        for key in list(self.store.list("")):
            self.store.delete(key)
        for key in self.older.list(""):
            self.store.put(key, self.older.get(key) or b"")
        self.went_back = True

    def _owner(self) -> _Directory:
        """The directory whose job has opened the sink last."""
        session = log_of(self.store).catch_up().ledger.fence.session
        return next((one for one in self.directories if one.name == session), self.directories[0])

    @invariant()
    def what_is_visible_is_what_the_state_saw(self) -> None:
        visible, owner = log_of(self.store).catch_up(), self._owner()
        assert [span.first for span in visible.files.values()] == list(range(len(visible.files)))
        for name, span in visible.files.items():
            content = self.store.get(name)
            assert content is not None, f"{name} was delivered and is gone"
            if span.first > owner.last:  # a copy has opened the sink and not rewound it yet
                assert len(self.directories) > 1
                continue
            if self.stateful:
                assert content.decode() == owner.commits[span.first]

    def teardown(self) -> None:
        """Whatever happened: one clean start delivers everything that Spark has committed, in one place."""
        owner = self._owner()
        assert self.went_back or not owner.refused, "nobody goes on"
        if not owner.refused:
            self._recover(owner, "nothing")
        if owner.refused:
            assert self.went_back
            return
        assert len(log_of(self.store).catch_up().files) == len(owner.commits)
        self.what_is_visible_is_what_the_state_saw()
        others = [one for one in self.directories if one is not owner and _has_run(one)]
        self._all_refused(others)

    def _all_refused(self, others: Iterable[_Directory]) -> None:
        for other in others:
            if not other.refused:
                self._recover(other, "nothing")
            assert other.refused, f"{other.name} goes on beside {self._owner().name}"


def _has_run(directory: _Directory) -> bool:
    """Whether an attempt of its own was made there; before that it may be a directory that was moved."""
    newest = AttemptLock(directory.attempts, JOB, ManualClock()).newest()
    return newest is not None and newest.session == directory.name


def test_files_that_go_before_they_are_recorded_are_no_batch() -> None:
    machine = Delivery()
    (directory,) = machine.directories
    machine._recover(directory, "nothing")
    machine.older = copied(machine.store)
    (run,) = machine.runs
    while run.step != "record":
        machine._step(run)
    machine.put_back()
    while run.alive and not directory.commits:
        machine._step(run)
    for staged in run.pending:
        run.sink.commit(staged)
    machine.teardown()


@pytest.mark.parametrize("when", ("between batches", "staged", "recorded"))
def test_a_run_whose_sink_went_back_delivers_nothing_more(when: str) -> None:
    machine = Delivery()
    (directory,) = machine.directories
    machine._recover(directory, "nothing")
    (run,) = machine.runs

    def deliver_next() -> None:
        wanted = len(directory.commits) + 1
        while run.alive and len(directory.commits) < wanted:
            machine._step(run)
            if (when, run.step) in (("staged", "record"), ("recorded", "decide")) and wanted == 4:
                machine.put_back()
        with suppress(LedgerWentBackError, LostStagingError):
            for staged in list(run.pending):
                run.sink.commit(staged)
                run.pending.remove(staged)

    deliver_next()
    machine.older = copied(machine.store)
    deliver_next()
    deliver_next()
    visible = log_of(machine.store).catch_up().files
    assert len(visible) == 3
    if when == "between batches":
        machine.put_back()
    deliver_next()
    assert machine.went_back and (not run.alive or run.pending), "it did not notice"
    machine.what_is_visible_is_what_the_state_saw()
    machine.teardown()


def test_a_copy_that_is_far_behind_fences_nobody() -> None:
    machine = Delivery()
    (original,) = machine.directories
    machine._recover(original, "nothing")
    machine.directories.append(copy := original.copied(next(machine.names)))
    (run,) = machine.runs
    while len(original.commits) <= EXPLAINED:
        machine._step(run)
    for staged in run.pending:
        run.sink.commit(staged)
    machine._recover(copy, "nothing")
    assert copy.refused and machine._owner() is original
    run.pending.clear()
    while run.alive and len(original.commits) <= EXPLAINED + 1:
        machine._step(run)
    assert run.alive, "it was fenced by one that was refused"
    machine.teardown()


class StatelessDelivery(Delivery):
    """Without state nobody saw which run decided: once each is what counts."""

    stateful = False


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestStatelessDelivery = StatelessDelivery.TestCase
TestStatelessDelivery.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class LongDelivery(Delivery):
    """The same for a quarter of an hour."""


TestLongDelivery = pytest.mark.long(pytest.mark.timeout(3600)(LongDelivery.TestCase))
TestLongDelivery.settings = settings(max_examples=10_000, stateful_step_count=60, deadline=None)
