"""Any order of triggers, polls, batches, acks, timeouts, aborts, crashes and restarts: a completed
checkpoint is a consistent cut, and every channel drains.

The model plays Spark over a diamond (S -> L, R -> J): offset and commit logs, planned batches that
run again with their old end offsets, readers polled one after the other with what they know then,
barriers that have reached only some channels. Where a reader goes, what counts in a channel, what
an ack is worth and where a cut lies are the real functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.channel.log import Barrier, Entry, Segment, Tail, apply, counts, segments
from weir.channel.position import Facts, Position, Status, next_position
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, QueryName, Run, Token
from weir.protocol.checkpoints import (
    AckOutcome,
    Alignment,
    Cut,
    Pending,
    Refusal,
    TriggerFacts,
    aligned_cut,
    may_trigger,
    subsumed,
    take_ack,
)

TOKEN = Token(Attempt(1), Run(1))
INPUTS = {"S": [], "L": ["S"], "R": ["S"], "J": ["L", "R"]}
"""For each query the queries whose channels it reads; a channel has the name of its writer."""
DOWNSTREAM_FIRST = ["J", "L", "R", "S"]
WRITERS = ["S", "L", "R"]
MAX_CONCURRENT = 2


@dataclass
class Query:
    name: str
    planned: list[dict[str, Position]] = field(default_factory=list)
    """For each batch the end position on each channel: the offset log."""
    committed: int = 0
    appended: int = 0
    """How many committed batches are in the channel."""
    barrier_due: CheckpointId | None = None
    polled: dict[str, Position] = field(default_factory=dict)

    def start(self, channel: str) -> Position:
        return self.planned[-1][channel] if self.planned else Position()

    def joint(self) -> dict[BatchId, CheckpointId]:
        if not INPUTS[self.name]:
            return {}
        return {
            BatchId(n): CheckpointId(min(p.barrier for p in ends.values()))
            for n, ends in enumerate(self.planned)
        }


class Checkpoints(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queries = {name: Query(name) for name in INPUTS}
        self.channels: dict[str, list[Entry]] = {name: [] for name in WRITERS}
        self.last_id = 0
        self.pending: dict[CheckpointId, Pending] = {}
        self.root_cuts: dict[CheckpointId, BatchId] = {}
        self.completed: dict[CheckpointId, dict[QueryName, Cut]] = {}
        self.aborted: set[CheckpointId] = set()

    # Spark

    def status(self, id: CheckpointId) -> Status:
        if id in self.aborted:
            return Status.ABORTED
        return Status.COMPLETED if id in self.completed else Status.PENDING

    @rule(name=st.sampled_from(["L", "R", "J"]), data=st.data())
    def poll(self, name: str, data: st.DataObject) -> None:
        """One reader looks for its end; its siblings may look much later."""
        query = self.queries[name]
        if len(query.planned) > query.committed:
            return
        channel = data.draw(st.sampled_from(INPUTS[name]))
        start = query.start(channel)
        entries = self.channels[channel]
        facts = Facts(
            start,
            _tail(entries[: start.entry]),
            entries[start.entry :],
            self.status,
            min((query.start(c).barrier for c in INPUTS[name]), default=None) if query.planned else None,
        )
        query.polled[channel] = next_position(facts)

    @rule(name=st.sampled_from(list(INPUTS)))
    def plan(self, name: str) -> None:
        query = self.queries[name]
        if len(query.planned) > query.committed:
            return
        ends = {c: query.polled.get(c, query.start(c)) for c in INPUTS[name]}
        if INPUTS[name] and all(ends[c] == query.start(c) for c in ends):
            return
        query.planned.append(ends)
        query.polled.clear()

    @rule(name=st.sampled_from(list(INPUTS)))
    def commit(self, name: str) -> None:
        query = self.queries[name]
        if query.committed < len(query.planned):
            query.committed += 1

    @rule(names=st.lists(st.sampled_from(list(INPUTS)), min_size=1, max_size=8))
    def run(self, names: list[str]) -> None:
        """Whole batches, as in quiet times: the small steps above happen between them."""
        for name in names:
            self.commit(name)
            for channel in INPUTS[name]:
                self._poll(name, channel)
            self.plan(name)
            self.commit(name)
            if name in WRITERS:
                self.append(name)
                self.append(name)

    # the channel writer

    @rule(name=st.sampled_from(WRITERS))
    def append(self, name: str) -> None:
        """Enter the next committed batch; a barrier that it reached is due directly behind it."""
        query = self.queries[name]
        if query.barrier_due is not None:
            self._append_barrier(name, query.barrier_due)
            query.barrier_due = None
        elif query.appended < query.committed:
            batch = BatchId(query.appended)
            self.channels[name].append(Segment(batch, TOKEN, f"data/{batch}"))
            query.appended += 1
            joint = query.joint()
            now, before = joint.get(batch, 0), joint.get(BatchId(batch - 1), 0)
            if now > before:
                query.barrier_due = CheckpointId(now)

    def _append_barrier(self, name: str, id: CheckpointId) -> BatchId:
        tail = _tail(self.channels[name])
        barrier = Barrier(id, tail.last, TOKEN)
        if counts(tail, barrier):
            self.channels[name].append(barrier)
        return tail.last

    # the coordinator

    @rule(unaligned=st.booleans())
    def trigger(self, unaligned: bool) -> None:
        alignment = Alignment.UNALIGNED if unaligned else Alignment.ALIGNED
        facts = TriggerFacts(
            0.0,
            True,
            False,
            len(self.pending),
            any(p.alignment is Alignment.UNALIGNED for p in self.pending.values()),
            None,
            alignment,
            MAX_CONCURRENT,
            0.0,
        )
        refused = may_trigger(facts)
        if refused is not None:
            assert refused is Refusal.TOO_MANY and self.pending
            return
        self.last_id += 1
        id = CheckpointId(self.last_id)
        self.pending[id] = Pending(id, alignment, 0.0, frozenset(map(QueryName, INPUTS)))
        if unaligned:
            self._take_last_committed(id)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def barrier_at_the_root(self, data: st.DataObject) -> None:
        """In the order of the ids; it may come long after the trigger, or never before a crash."""
        waiting = [
            k for k, p in self.pending.items() if p.alignment is Alignment.ALIGNED and k not in self.root_cuts
        ]
        if waiting:
            self.root_cuts[waiting[0]] = self._append_barrier("S", waiting[0])

    @precondition(lambda self: self.pending)
    @rule(names=st.sets(st.sampled_from(list(INPUTS)), min_size=1), data=st.data())
    def ack(self, names: set[str], data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.pending)))
        for name in sorted(names):
            if id in self.pending:
                self._ack_if_there(id, name)

    def _ack_if_there(self, id: CheckpointId, name: str) -> None:
        query = self.queries[name]
        cut = aligned_cut(query.joint(), id) if INPUTS[name] else self.root_cuts.get(id)
        if cut is None or cut >= query.committed or (name in WRITERS and cut >= query.appended):
            return
        self._ack(id, Cut(QueryName(name), cut))

    def _ack(self, id: CheckpointId, cut: Cut) -> None:
        before = dict(self.pending)
        after, outcome = take_ack(self.pending, [*self.completed, *self.aborted], id, cut)
        assert (outcome is AckOutcome.SUCCESS) == (cut.query in before[id].missing)
        self.pending = dict(after)
        if self.pending[id].complete:
            self.completed[id] = dict(self.pending.pop(id).cuts)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def turn_unaligned(self, data: st.DataObject) -> None:
        """Past the aligned timeout: whoever is still waiting takes its last committed batch."""
        self._take_last_committed(data.draw(st.sampled_from(sorted(self.pending))))

    def _take_last_committed(self, id: CheckpointId) -> None:
        for name in DOWNSTREAM_FIRST:
            if id in self.pending and name in self.pending[id].missing:
                query = self.queries[name]
                done = query.appended if name in WRITERS else query.committed
                self._ack(id, Cut(QueryName(name), BatchId(done - 1), unaligned=True))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.pending)))
        del self.pending[id]
        self.aborted.add(id)

    @rule(data=st.data())
    def late_ack(self, data: st.DataObject) -> None:
        ended = sorted([*self.completed, *self.aborted])
        if ended:
            id = data.draw(st.sampled_from(ended))
            same, outcome = take_ack(self.pending, ended, id, Cut(QueryName("J"), BatchId(0)))
            assert outcome is AckOutcome.LATE and same is self.pending

    @rule()
    def crash(self) -> None:
        """Everything in memory is gone; a start appends what was committed, and aborts what had begun."""
        self.aborted |= self.pending.keys()
        self.pending = {}
        self.root_cuts = {}
        for name, query in self.queries.items():
            query.polled.clear()
            query.barrier_due = None
            while name in WRITERS and query.appended < query.committed:
                self.append(name)
                query.barrier_due = None

    # what must hold

    @invariant()
    def completed_checkpoints_are_consistent_cuts(self) -> None:
        for cuts in self.completed.values():
            for reader, inputs in INPUTS.items():
                for channel in inputs:
                    self._check_edge(cuts[QueryName(channel)], cuts[QueryName(reader)], channel)

    def _check_edge(self, writer: Cut, reader: Cut, channel: str) -> None:
        ends = self.queries[reader.query].planned
        position = ends[reader.batch][channel] if reader.batch > NO_BATCH else Position()
        read = [s.batch for s in segments(Tail(), self.channels[channel][: position.entry])]
        assert read == list(range(len(read)))
        assert len(read) - 1 <= writer.batch, f"{reader} has read {read} of {writer}"
        if not writer.unaligned and not reader.unaligned:
            assert len(read) - 1 == writer.batch, f"aligned, and {reader} has read {read} of {writer}"

    @invariant()
    def every_checkpoint_has_one_end(self) -> None:
        assert not self.completed.keys() & self.aborted
        assert len(self.completed) + len(self.aborted) + len(self.pending) == self.last_id
        assert not set(subsumed(self.completed, 2)) & set(sorted(self.completed)[-2:])

    def teardown(self) -> None:
        """However it stands: once what is pending has ended, everything that was written is read."""
        for id in list(self.pending):
            self.aborted.add(id)
        self.pending = {}
        for _ in range(
            4
            * (sum(map(len, self.channels.values())) + sum(len(q.planned) for q in self.queries.values()) + 4)
        ):
            for name in WRITERS:
                self.append(name)
            for name, inputs in INPUTS.items():
                self.commit(name)
                for channel in inputs:
                    self._poll(name, channel)
                if inputs:
                    self.plan(name)
        for reader, inputs in INPUTS.items():
            for channel in inputs:
                position = self.queries[reader].start(channel)
                rest = segments(Tail(), self.channels[channel][position.entry :])
                assert not rest, f"{reader} never reads {len(rest)} segments of {channel}"

    def _poll(self, name: str, channel: str) -> None:
        class Fixed:
            def draw(self, _: object) -> str:
                return channel

        Checkpoints.poll(self, name, Fixed())


def _tail(entries: list[Entry]) -> Tail:
    tail = Tail()
    for entry in entries:
        tail = apply(tail, entry)
    return tail


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
