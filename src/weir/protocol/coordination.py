"""The reducer of checkpoints: all seven steps as `(state, fact) -> (state, actions)`.

trigger -> barrier -> align -> snapshot -> ack -> complete -> notify (docs/design.md, section 5). The trigger
is here, the next three steps are in `cut.py`, the last three in `completion.py`. Pure: no I/O, threads or
clock; the time of a fact is handed in with it. `checkpoint/coordinator.py` observes the facts and carries
out the actions, the outcome of each before the next one; the machine of `tests/protocol` does the same
with a job in memory. Whatever goes wrong aborts checkpoints, with a reason, and never the job, unless
`tolerable-failed-checkpoints` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weir.ids import QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol import completion, cut
from weir.protocol.checkpoint import AbortReason, Alignment, TriggerFacts, TriggerRefusal, may_trigger
from weir.protocol.checkpoint_facts import Action, Fact
from weir.protocol.checkpoint_state import CheckpointWish, CoordinationState
from weir.protocol.messages import Noted
from weir.protocol.states import CheckpointState
from weir.protocol.turn import Turn, abort_all

LOOK = 0.2
"""How often a pending checkpoint is looked at, besides when a batch or a snapshot of it is there."""
REST = 0.5
"""How long to rest when nothing is pending and nothing is due."""
SWEEP_EVERY = 600.0


def step(state: CoordinationState, fact: Fact, now: float) -> tuple[CoordinationState, list[Action]]:
    """What becomes of the checkpoints by a fact, and what is to be done; `now` is when it was observed.

    The state that was given stays as it is; where this raises, nothing has moved.
    """
    turn = Turn(state, now)
    _STEPS[type(fact)](turn, fact)
    return turn.state, turn.actions


def pause(state: CoordinationState, now: float) -> float:
    """Until the next look, or the next trigger if that comes before; one that is due is waited for."""
    left = state.triggers.left(state.rules, now)
    if left is not None and left <= 0:
        return LOOK
    most = LOOK if state.pending or state.wishes else REST
    return most if left is None else min(most, left)


# what comes from outside


def _learned(turn: Turn, fact: f.Learned) -> None:
    turn.change(ended=dict.fromkeys(fact.completed, CheckpointState.COMPLETED))


def _ticked(turn: Turn, _fact: f.Ticked) -> None:
    turn.do(f.RetryAborts())
    swept_at = turn.state.swept_at
    if swept_at is None or turn.now - swept_at > SWEEP_EVERY:
        turn.change(swept_at=turn.now)
        turn.do(f.StartSweep())
    turn.do(f.CollectSnapshots())
    turn.do(*(f.Look(name) for name in turn.state.flow.order if turn.state.waiting(name)))
    due = turn.state.triggers.due(turn.state.rules, turn.now)
    turn.do(f.Observe(may_begin=bool(turn.state.wishes) or due is not None))


def _rows_committed(turn: Turn, fact: f.RowsCommitted) -> None:
    turn.change(triggers=turn.state.triggers.plus(fact.rows))


def _settings_changed(turn: Turn, fact: f.SettingsChanged) -> None:
    turn.change(rules=fact.rules)


def _asked(turn: Turn, fact: f.Asked) -> None:
    if turn.state.stopping:
        turn.do(f.AnswerWish(fact.wish, reason=TriggerRefusal.STOPPING.value))
    else:
        turn.change(wishes=(*turn.state.wishes, replace(fact.wish, asked_at=turn.now)))


def _rested(turn: Turn, _fact: f.Rested) -> None:
    turn.change(resting=True)
    _end_all(turn)


def _stopped(turn: Turn, _fact: f.Stopped) -> None:
    turn.change(stopping=True)
    _end_all(turn)


def _end_all(turn: Turn) -> None:
    abort_all(turn, AbortReason.STOPPING, "")
    turn.do(*(f.AnswerWish(wish, reason=TriggerRefusal.STOPPING.value) for wish in turn.state.wishes))
    turn.change(wishes=())


def _query_failed(turn: Turn, fact: f.QueryDown) -> None:
    abort_all(turn, AbortReason.QUERY_RESTARTED, f"query {fact.query}")


def _coordination_failed(turn: Turn, fact: f.CoordinationFailed) -> None:
    abort_all(turn, AbortReason.STORAGE, fact.why)
    turn.do(f.Report(Noted(f"checkpoint coordination failed; retrying: {fact.why}")))


def _observed(turn: Turn, fact: f.Observed) -> None:
    """The end of a look: who is late, and may another one begin."""
    for id in list(turn.state.pending):
        cut.press(turn, turn.state.pending[id], fact)
    completion.report_acks(turn)
    if not fact.may_begin:
        return
    if turn.state.wishes:
        _grant(turn, turn.state.wishes[0], fact)
    elif (due := turn.state.triggers.due(turn.state.rules, turn.now)) is not None:
        _try_due(turn, due, fact)


# 1 trigger


def _try_due(turn: Turn, trigger: str, fact: f.Observed) -> None:
    rules = turn.state.rules
    refusal = may_trigger(_trigger_facts(turn, rules.alignment, fact))
    if refusal is None:
        _begin(turn, f.WriteBegun(rules.alignment, trigger, rules.full))
    elif refusal is TriggerRefusal.NOT_BEGUN and turn.now - turn.state.triggers.triggered_at >= rules.timeout:
        _note_wait(turn, fact.without_position)


def _note_wait(turn: Turn, names: Sequence[QueryName]) -> None:
    """Report, once, that no checkpoint is taken though it is due."""
    if not turn.state.wait_noted:
        turn.change(wait_noted=True)
        turn.do(
            f.Report(Noted(f"no checkpoint is taken: {TriggerRefusal.NOT_BEGUN.value} ({', '.join(names)})"))
        )


def _grant(turn: Turn, wish: CheckpointWish, fact: f.Observed) -> None:
    rules = turn.state.rules
    alignment = Alignment.UNALIGNED if wish.final else rules.alignment
    refusal = may_trigger(replace(_trigger_facts(turn, alignment, fact), last_ended_at=None))
    if refusal is TriggerRefusal.TOO_MANY:
        return
    if refusal is TriggerRefusal.NOT_BEGUN and not wish.final and turn.now - wish.asked_at < rules.timeout:
        return
    turn.change(wishes=turn.state.wishes[1:])
    if refusal is None or wish.final:
        _begin(turn, f.WriteBegun(alignment, wish.trigger, wish.full, wish))
    else:
        turn.do(f.AnswerWish(wish, reason=_refused(refusal, fact)))


def _refused(refusal: TriggerRefusal, fact: f.Observed) -> str:
    why: str = refusal.value
    if refusal is TriggerRefusal.NOT_RUNNING:
        return fact.down or why
    if refusal is TriggerRefusal.NOT_BEGUN:
        return f"{why} ({', '.join(fact.without_position)})"
    return why


def _trigger_facts(turn: Turn, alignment: Alignment, fact: f.Observed) -> TriggerFacts:
    state = turn.state
    return TriggerFacts(
        now=turn.now,
        running=fact.running,
        stopping=state.stopping or state.resting,
        pending=len(state.pending),
        unaligned_pending=any(one.alignment is Alignment.UNALIGNED for one in state.pending.values()),
        last_ended_at=state.ended_at,
        alignment=alignment,
        max_concurrent=state.rules.max_concurrent,
        min_pause=state.rules.min_pause,
        begun=not fact.without_position,
    )


def _begin(turn: Turn, write: f.WriteBegun) -> None:
    """The next one is counted from now, whatever becomes of this one."""
    turn.change(triggers=turn.state.triggers.triggered(turn.now))
    turn.do(write)


_STEPS: Mapping[type[Fact], Callable[[Turn, Any], None]] = {
    f.Learned: _learned,
    f.Ticked: _ticked,
    f.Observed: _observed,
    f.RowsCommitted: _rows_committed,
    f.SettingsChanged: _settings_changed,
    f.Asked: _asked,
    f.Rested: _rested,
    f.Stopped: _stopped,
    f.QueryDown: _query_failed,
    f.CoordinationFailed: _coordination_failed,
    f.BegunWritten: cut.begun_written,
    f.BegunRefused: cut.begun_refused,
    f.BatchPlanned: cut.batch_planned,
    f.SegmentEntered: cut.segment_entered,
    f.CutFound: cut.cut_found,
    f.Declined: cut.declined,
    f.Lost: cut.lost,
    f.SnapshotTaken: completion.snapshot_taken,
    f.ChannelKept: completion.channel_kept,
    f.KeepFailed: completion.keep_failed,
    f.Assembled: completion.assembled,
    f.Exported: completion.exported,
    f.ManifestWritten: completion.manifest_written,
    f.ManifestRefused: completion.manifest_refused,
    f.Subsumed: completion.subsumed,
}
