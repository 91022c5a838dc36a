"""The reducer, steps 5 to 7: ack, complete, notify. Everything is kept, written and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from weir.ids import CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol.checkpoint import AbortReason, Ack, AckOutcome, take_ack
from weir.protocol.checkpoint_state import CoordinationState, ReaderPlace, Underway
from weir.protocol.messages import CheckpointsAcked, Noted
from weir.protocol.states import CheckpointEvent
from weir.protocol.turn import Turn, abort

# 5 ack


def snapshot_taken(turn: Turn, fact: f.SnapshotTaken) -> None:
    pending = {one.id: one.state for one in turn.state.pending.values()}
    ack = Ack(fact.query, fact.found.batch, fact.found.unaligned)
    after, outcome = take_ack(pending, turn.state.outlived, fact.id, ack)
    if outcome is AckOutcome.SUCCESS:
        one = turn.state.pending[fact.id]
        since = one.since(turn.now)
        acked, phases = {**one.acked, fact.query: since}, {**one.phases, "ack": since}
        one = replace(one, state=after[fact.id], acked=acked, phases=phases)
        turn.keep(one)
        turn.do(f.PassPoint("checkpoint.acked"))
        _complete_if_ready(turn, one)
    elif outcome is AckOutcome.LATE:
        late = f"the ack of query {fact.query} for checkpoint {fact.id} came too late"
        after_seconds = turn.now - turn.state.outlived[fact.id].begun_at
        turn.do(f.Report(Noted(f"{late}, after {after_seconds:.1f} s")))
        _outlived_over(turn, fact.id, fact.query)


def _outlived_over(turn: Turn, id: CheckpointId, query: QueryName) -> None:
    """One snapshot less is under way for a checkpoint that has expired."""
    one = turn.state.outlived[id]
    one = replace(one, queries=one.queries - {query})
    left = {**turn.state.outlived, id: one}
    if not one.queries:
        del left[id]
        turn.do(f.Discard(id))
    turn.change(outlived=left)


def report_acks(turn: Turn) -> None:
    """Report who has acked what is still pending: once a look, and not of one that completes within it."""
    acked = {one.id: one.acked for one in turn.state.pending.values() if one.acked}
    counts = {id: len(acks) for id, acks in acked.items()}
    if counts and counts != turn.state.acks_reported:
        turn.change(acks_reported=counts)
        form = {int(id): {str(query): since for query, since in acks.items()} for id, acks in acked.items()}
        turn.do(f.Report(CheckpointsAcked(form)))


def channel_kept(turn: Turn, fact: f.ChannelKept) -> None:
    one = turn.state.pending.get(fact.id)
    if one is not None:
        one = replace(one, channels={**one.channels, fact.channel: True})
        turn.keep(one)
        _complete_if_ready(turn, one)


def keep_failed(turn: Turn, fact: f.KeepFailed) -> None:
    if fact.id in turn.state.pending:
        abort(turn, turn.state.pending[fact.id], AbortReason.STORAGE, fact.why)
    elif fact.id in turn.state.outlived and fact.query is not None:
        _outlived_over(turn, fact.id, fact.query)


# 6 complete


def is_ready(one: Underway) -> bool:
    """Whether everything of a checkpoint is kept."""
    return one.state.complete and all(one.channels.values())


def _complete_if_ready(turn: Turn, one: Underway) -> None:
    if one.seconds is None and is_ready(one):
        turn.do(f.Assemble(one))


def assembled(turn: Turn, fact: f.Assembled) -> None:
    one = turn.state.pending.get(fact.id)
    if one is None:
        return
    if fact.inconsistencies:
        abort(turn, one, AbortReason.INCONSISTENT, fact.inconsistencies[0])
        return
    turn.keep(replace(one, seconds=fact.seconds))
    turn.do(f.Export(one.id))


def exported(turn: Turn, fact: f.Exported) -> None:
    if fact.id in turn.state.pending:
        turn.do(f.WriteManifest(fact.id))


def manifest_refused(turn: Turn, fact: f.ManifestRefused) -> None:
    if fact.id in turn.state.pending:
        abort(turn, turn.state.pending[fact.id], AbortReason.STORAGE, fact.why)


def manifest_written(turn: Turn, fact: f.ManifestWritten) -> None:
    """From here on it is complete, whatever follows."""
    one = turn.state.pending.get(fact.id)
    turn.end(fact.id, CheckpointEvent.COMPLETE)
    assert one is not None and one.seconds is not None
    turn.change(ended_at=turn.now, failures=0)
    one = replace(one, phases={**one.phases, "complete": one.since(turn.now) - one.seconds})
    turn.do(
        f.PassPoint("checkpoint.completed"),
        f.Retain(one.id, held=one.wish is not None and one.wish.holder is not None),
        f.Release(one.id),
        f.Subsume(one, turn.state.rules.retained, trimmed_to(turn.state, one)),
    )


# 7 notify


def may_trim(state: CoordinationState, id: CheckpointId) -> bool:
    """Whether channels can be trimmed to a checkpoint: an older one may still keep what lies before it."""
    return all(other > id for other in state.pending)


def slowest(places: Iterable[ReaderPlace]) -> int:
    """Where the slowest of some readers resumes."""
    return min(place[0] for place in places)


def trimmed_to(state: CoordinationState, one: Underway) -> Mapping[QueryName, int]:
    """For each channel that can be trimmed now, the entry at which its slowest reader resumes."""
    if not may_trim(state, one.id):
        return {}
    read = {name: state.flow.readers(name) for name in state.flow.writers}
    return {
        name: slowest(one.resumes(reader, name) for reader in readers)
        for name, readers in read.items()
        if readers
    }


def subsumed(turn: Turn, fact: f.Subsumed) -> None:
    for id in fact.ids:
        if id in turn.state.ended:
            turn.end(id, CheckpointEvent.SUBSUME)
    one = fact.by.one
    one = replace(one, phases={**one.phases, "notify": fact.seconds})
    turn.do(f.ReportCompleted(one, fact.ids))
    if one.wish is not None:
        turn.do(f.AnswerWish(one.wish, one.id))
    turn.do(f.IssuePermit(one.id), f.Discard(one.id))
