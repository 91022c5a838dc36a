"""One fact on its way through the reducer, and the end that any fact may bring: an abort."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weir.errors import CheckpointsFailedError
from weir.ids import CheckpointId
from weir.protocol import checkpoint_facts as f
from weir.protocol.checkpoint import COUNTED, AbortReason
from weir.protocol.checkpoint_facts import Action
from weir.protocol.checkpoint_state import CoordinationState, Outlived, Underway
from weir.protocol.messages import CheckpointAborted
from weir.protocol.states import CHECKPOINT, CheckpointEvent, CheckpointState, move

_REMEMBERED = 100
"""How many ended checkpoints are known, besides the retained ones."""


class Turn:
    """One fact on its way through: the state as it becomes, and the actions so far."""

    def __init__(self, state: CoordinationState, now: float) -> None:
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    def do(self, *actions: Action) -> None:
        self.actions += actions

    def change(self, **values: Any) -> None:
        self.state = replace(self.state, **values)

    def keep(self, one: Underway) -> None:
        self.state = self.state.with_pending(one)

    def end(self, id: CheckpointId, event: CheckpointEvent) -> None:
        """Move a checkpoint; raises `IllegalMoveError`, and moves nothing, for one that can't."""
        states = self.state.ended
        after = move("checkpoint", CHECKPOINT, states.get(id, CheckpointState.PENDING), event)
        ended = {**states, id: after}
        # Every retained one is remembered, and the newest of those that can't move any more.
        over = [other for other, state in ended.items() if state is not CheckpointState.COMPLETED]
        for old in sorted(over)[:-_REMEMBERED]:
            del ended[old]
        pending = {other: one for other, one in self.state.pending.items() if other != id}
        self.change(pending=pending, ended=ended)


def abort_all(turn: Turn, reason: AbortReason, detail: str) -> None:
    for one in list(turn.state.pending.values()):
        abort(turn, one, reason, detail)


def abort(turn: Turn, one: Underway, reason: AbortReason, detail: str) -> None:
    """Durable, with a reason. What was kept for it is deleted by a sweep, when nothing else needs it."""
    turn.end(one.id, CheckpointEvent.ABORT)
    turn.change(ended_at=turn.now)
    aborted = CheckpointAborted(
        id=one.id,
        alignment=one.state.alignment.value,
        trigger=one.trigger,
        seconds=one.since(turn.now),
        reason=reason.value,
        detail=detail,
        phases=one.phases_so_far(),
        acked={str(query): since for query, since in one.acked.items()},
    )
    turn.do(f.Release(one.id), f.WriteAborted(one.id, reason, detail), f.Report(aborted))
    taking = frozenset(one.found) - one.acked.keys()
    if reason is AbortReason.EXPIRED and taking:
        outlived = Outlived(one.state.begun_at, taking)
        turn.change(outlived={**turn.state.outlived, one.id: outlived})
    else:
        turn.do(f.Discard(one.id))
    why = f"{reason.value}: {detail}" if detail else reason.value
    if one.wish is not None:
        turn.do(f.AnswerWish(one.wish, one.id, why))
    turn.do(f.NotifyAborted(one.id, why))
    _count_failure(turn, reason, why)


def _count_failure(turn: Turn, reason: AbortReason, why: str) -> None:
    if reason not in COUNTED:
        return
    count, limit = turn.state.failures + 1, turn.state.rules.tolerable
    turn.change(failures=count)
    if limit is not None and count > limit:
        turn.do(f.Fail(CheckpointsFailedError(count=count, limit=limit, reason=why)))
