"""The reducer, steps 2 to 4: barrier, align, snapshot. The cut of each query is found and kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weir.ids import CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol.checkpoint import AbortReason, Alignment, Pending
from weir.protocol.checkpoint_state import Underway
from weir.protocol.messages import CheckpointBegun
from weir.protocol.turn import Turn, abort

PATIENCE = 5.0
"""How long a barrier may wait for the segment of a root's running batch. Next to a batch that takes longer,
the one that each reader then runs for the barrier alone costs little. A quarter of the timeout is the most:
the readers need the rest."""


def _begun(turn: Turn, by: f.WriteBegun, id: CheckpointId, at: str) -> Underway:
    queries = frozenset(turn.state.flow.order)
    began = turn.state.triggers.triggered_at
    one = Underway(Pending(id, by.alignment, began, queries), by.trigger, by.full, at, by.wish)
    turn.keep(one)
    return one


def begun_refused(turn: Turn, fact: f.BegunRefused) -> None:
    """Its record may be there, so readers may wait for it: it is aborted like any other."""
    one = _begun(turn, fact.by, fact.id, fact.at)
    abort(turn, one, AbortReason.STORAGE, fact.why)


# 2 barrier


def begun_written(turn: Turn, fact: f.BegunWritten) -> None:
    others = [frozenset(one.found) for one in turn.state.pending.values()]
    one = _begun(turn, fact.by, fact.id, fact.at)
    one = replace(one, phases={"trigger": one.since(turn.now)})
    turn.keep(one)
    queries: list[str] = [*turn.state.flow.order]
    begun = CheckpointBegun(one.id, one.state.alignment.value, one.trigger, one.full, queries)
    turn.do(f.PassPoint("checkpoint.begun"), f.Report(begun))
    if one.state.alignment is Alignment.UNALIGNED:
        _cut_here(turn, one, turn.state.flow.order)
        return
    turn.do(f.SkipCommitted(others))
    for name, inputs in turn.state.flow.inputs.items():
        if not inputs:
            writes = name in turn.state.flow.writers
            turn.do(f.PlanBarrier(one.id, name) if writes else f.CutHere(one.id, name, unaligned=False))


def batch_planned(turn: Turn, fact: f.BatchPlanned) -> None:
    one = turn.state.pending.get(fact.id)
    if one is not None and fact.query not in one.found:
        turn.keep(replace(one, awaited={**one.awaited, fact.query: fact.batch}))


def segment_entered(turn: Turn, fact: f.SegmentEntered) -> None:
    """Send a barrier after the batch that a root was in; when that takes long, where the root stands.

    A reader that finds the barrier together with the segment ends one batch there; one that finds it
    later would need a batch for it alone. Checkpoints that come to the same place share a barrier, that
    of the newest: each with its own would need a batch too.
    """
    waiting = [one for one in turn.state.pending.values() if fact.query in one.awaited]
    if not waiting:
        return
    late = waiting[0].since(turn.now) >= min(PATIENCE, turn.state.rules.timeout / 4)
    here = [one.id for one in waiting if late or one.awaited[fact.query] <= fact.batch]
    if here:
        turn.do(f.SendBarrier(fact.query, tuple(here)))


def downstream_first(order: Sequence[QueryName]) -> Sequence[QueryName]:
    """In this order no reader is cut ahead of its writer."""
    return order[::-1]


def _cut_here(turn: Turn, one: Underway, names: Iterable[QueryName]) -> None:
    """Take each query's last committed batch, one after the other."""
    one = replace(one, here=tuple(downstream_first(tuple(names))))
    turn.keep(one)
    _cut_next(turn, one)


def _cut_next(turn: Turn, one: Underway) -> None:
    """One that has reached the barrier meanwhile is cut at the barrier, never after it."""
    if not one.here:
        return
    name = one.here[0]
    if one.state.alignment is Alignment.UNALIGNED:
        turn.do(f.CutHere(one.id, name, unaligned=True))
    elif name in turn.state.flow.writers:
        turn.do(f.SendBarrier(name, (one.id,), unaligned=True))
    else:
        turn.do(f.CutAtBarrierOrHere(one.id, name))


# 3 align


def lost(turn: Turn, fact: f.Lost) -> None:
    """The cut of a query can't be known any more."""
    for one in turn.state.waiting(fact.query):
        abort(turn, one, AbortReason.DECLINED, fact.why)


def declined(turn: Turn, fact: f.Declined) -> None:
    for id in fact.ids:
        if id in turn.state.pending:
            abort(turn, turn.state.pending[id], AbortReason.DECLINED, fact.why)


def press(turn: Turn, one: Underway, fact: f.Observed) -> None:
    """What becomes of a checkpoint that still waits for somebody."""
    waited, rules = one.since(turn.now), turn.state.rules
    if waited >= rules.timeout:
        missing = ", ".join(sorted(one.state.missing))
        abort(turn, one, AbortReason.EXPIRED, f"missing: {missing}" if missing else "")
        return
    unfound = [name for name in turn.state.flow.order if name not in one.found]
    late = rules.turns_after is not None and waited >= rules.turns_after
    if unfound and late and one.state.alignment is Alignment.ALIGNED:
        _cut_here(turn, replace(one, turned=True), unfound)
    elif stands := [name for name in unfound if name in fact.standing]:
        _cut_here(turn, one, stands)


def cut_found(turn: Turn, fact: f.CutFound) -> None:
    for id in fact.ids:
        one = turn.state.pending.get(id)
        if one is not None and fact.query not in one.found:
            _cut(turn, one, fact)


# 4 snapshot


def _cut(turn: Turn, one: Underway, fact: f.CutFound) -> None:
    name = fact.query
    one = replace(
        one,
        found={**one.found, name: fact.found},
        positions={**one.positions, name: fact.positions},
        awaited={root: batch for root, batch in one.awaited.items() if root != name},
        barriers={**one.barriers, name: one.since(turn.now)},
        here=tuple(query for query in one.here if query != name),
    )
    turn.keep(one)
    turn.do(f.TakeSnapshot(one.id, name, fact.found, one.full))
    _cut_next(turn, one)
    if len(one.found) == len(turn.state.flow.order):
        _keep_channels(turn, one)


def _keep_channels(turn: Turn, one: Underway) -> None:
    """When every cut is found, it is known how far back the readers of each channel are."""
    flow = turn.state.flow
    written = [name for name in flow.order if one.found[name].end is not None]
    turn.keep(replace(one, channels=dict.fromkeys(written, False)))
    for name in written:
        readers = tuple(one.resumes(reader, name)[0] for reader in flow.readers(name))
        turn.do(f.KeepChannel(one.id, name, one.found[name], readers, one.full))
