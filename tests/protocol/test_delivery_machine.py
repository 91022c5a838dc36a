"""Any order of steps, crashes, takeovers and waking zombies: each batch is delivered once, and what
is delivered is what the state saw.

The model plays Spark: offset log, decision records that are created if absent and name the state
of the run that decided, and runs that go on after their successor has started. The sink, its
ledger and the decisions at a start are the real ones, on a store in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.errors import FencedError
from weir.ids import NO_BATCH, Attempt, BatchId, Run, Token
from weir.job.sinks.files import FilesSink
from weir.job.sinks.files_ledger import log_of
from weir.protocol.ledger import Staged, decided_by, plan_start
from weir.storage.objects import ObjectStore


class _PlainFiles(FilesSink):
    """The files sink with one small file for each batch, written without Spark."""

    def stage(self, frame: object, batch: BatchId, token: Token) -> None:
        folder = f"data/{batch:09d}-{token.attempt}-{token.run}"
        self._store.put(f"{folder}/part-0", str(frame).encode())


@dataclass
class _Spark:
    """What all runs share."""

    commits: dict[BatchId, str] = field(default_factory=dict)
    """For each decided batch the state id of the run that decided."""

    @property
    def last(self) -> BatchId:
        return max(self.commits, default=NO_BATCH)


@dataclass
class _RunModel:
    token: Token
    sink: FilesSink
    batch: BatchId
    step: str = "stage"
    pending: list[Staged] = field(default_factory=list)
    alive: bool = True

    @property
    def uid(self) -> str:
        return f"{self.token}@{self.batch}"

    def staged(self, stateful: bool) -> Staged:
        return Staged(self.batch, self.token, (self.uid,) if stateful else ())


class Delivery(RuleBasedStateMachine):
    stateful = True

    def __init__(self) -> None:
        super().__init__()
        self.store = ObjectStore("memory://")
        self.spark = _Spark()
        self.runs: list[_RunModel] = []
        self.attempts = 0

    def _commits_state(self, batch: BatchId) -> frozenset[str]:
        return frozenset({self.spark.commits[batch]}) if self.stateful else frozenset()

    @rule(crash_after=st.sampled_from(["nothing", "fence", "discard", "one commit"]))
    def start(self, crash_after: str) -> None:
        """A new run takes over; older ones may be dead or may not know it yet."""
        self.attempts += 1
        token = Token(Attempt(self.attempts), Run(1))
        sink = _PlainFiles("out", "parquet", {}, self.store)
        state = sink.open("job/query", "lineage", token)
        assert state.last <= self.spark.last
        if crash_after == "fence":
            return
        staged = sink.staged()
        committed = {
            BatchId(n): self._commits_state(BatchId(n)) for n in range(state.last + 1, self.spark.last + 1)
        }
        plan = plan_start(state.last, self.spark.last, staged, committed)
        assert not plan.lost, f"{plan.lost} committed by Spark, staged {staged}"
        sink.discard(self.spark.last, plan.commit)
        if crash_after == "discard":
            return
        for one in plan.commit:
            sink.commit(one)
            if crash_after == "one commit":
                return
        self.runs.append(_RunModel(token, sink, BatchId(self.spark.last + 1)))

    @precondition(lambda self: any(run.alive for run in self.runs))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Any living run, a zombie or not, takes its next step."""
        run = data.draw(st.sampled_from([r for r in self.runs if r.alive]))
        if run.step == "stage":
            run.sink.stage(run.uid, run.batch, run.token)  # type: ignore[arg-type]
            run.step = "record"
        elif run.step == "record":
            try:
                run.sink.record(run.staged(self.stateful))
            except FencedError:
                run.alive = False
                return
            run.pending.append(run.staged(self.stateful))
            run.step = "decide"
        elif run.batch in self.spark.commits:
            run.alive = False  # Spark: CONCURRENT_STREAM_LOG_UPDATE
        else:
            self.spark.commits[run.batch] = run.uid
            run.batch, run.step = BatchId(run.batch + 1), "stage"

    @precondition(lambda self: any(run.pending for run in self.runs))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """The committer of any run, even of one whose Spark query is dead, looks once."""
        run = data.draw(st.sampled_from([r for r in self.runs if r.pending]))
        staged = run.pending[0]
        if staged.batch not in self.spark.commits:
            return
        if not decided_by(staged, self._commits_state(staged.batch)):
            run.pending.clear()
            return
        try:
            run.sink.commit(staged)
            run.pending.pop(0)
        except FencedError:
            assert run.token < self.runs[-1].token or self.attempts > run.token.attempt
            run.pending.clear()

    @precondition(lambda self: any(run.alive for run in self.runs))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from([r for r in self.runs if r.alive]))
        run.alive = False
        run.pending.clear()

    @invariant()
    def what_is_visible_is_what_the_state_saw(self) -> None:
        visible = log_of(self.store).catch_up()
        assert [span.first for span in visible.files.values()] == list(range(len(visible.files)))
        for name, span in visible.files.items():
            assert span.first in self.spark.commits
            content = self.store.get(name)
            assert content is not None, f"{name} was delivered and is gone"
            if self.stateful:
                assert content.decode() == self.spark.commits[span.first]

    def teardown(self) -> None:
        """Whatever happened: one clean start delivers everything that Spark has committed."""
        self.start("nothing")
        assert len(log_of(self.store).catch_up().files) == len(self.spark.commits)
        self.what_is_visible_is_what_the_state_saw()


class StatelessDelivery(Delivery):
    """Without state nobody saw which run decided: once each is what counts."""

    stateful = False


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestStatelessDelivery = StatelessDelivery.TestCase
TestStatelessDelivery.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
