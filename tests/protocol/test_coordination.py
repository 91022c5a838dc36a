"""The reducer of checkpoints by itself: what a fact may move, and what it may not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weir.checkpoint.complete import completed, manifest_of
from weir.checkpoint.manifest import ChannelCut, File, Provenance, QueryCut, encode
from weir.errors import IllegalMoveError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol import checkpoint_facts as f
from weir.protocol.checkpoint import AbortReason, Alignment, Found, Pending
from weir.protocol.checkpoint_facts import Action, Fact
from weir.protocol.checkpoint_state import CheckpointWish, CoordinationState, Flow, Rules, Triggers, Underway
from weir.protocol.coordination import _STEPS, step
from weir.protocol.states import CheckpointState

ROOT, READER = QueryName("root"), QueryName("reader")
ONE = CheckpointId(1)
MADE_BY = Provenance(
    job="job",
    weir="0",
    spark="4",
    lineage="l",
    backend="hashmap",
    generation=1,
    attempt=1,
    parallelism=2,
)
FLOW = Flow({ROOT: (), READER: (ROOT,)}, frozenset({ROOT}))


def fed(
    state: CoordinationState, facts: Sequence[Fact], now: float = 100.0
) -> tuple[CoordinationState, list[Action]]:
    """The state after these facts, and all that they ask for."""
    asked: list[Action] = []
    for fact in facts:
        state, actions = step(state, fact, now)
        asked += actions
    return state, asked


def new(**rules: float) -> CoordinationState:
    return CoordinationState(FLOW, Rules(**rules), Triggers(100.0))  # type: ignore[arg-type]


def begun(state: CoordinationState) -> CoordinationState:
    """Checkpoint 1 was asked for and begun."""
    state, asked = fed(state, [f.Asked(CheckpointWish("one")), f.Observed(may_begin=True)])
    (write,) = [one for one in asked if isinstance(one, f.WriteBegun)]
    return fed(state, [f.BegunWritten(write, ONE, "now")])[0]


def cut_found(query: QueryName, end: int | None = None) -> list[Fact]:
    found = Found(BatchId(3), end=end)
    positions = {ROOT: (7, ONE)} if query == READER else {}
    return [f.CutFound((ONE,), query, found, positions)]


CUTS = [*cut_found(ROOT, end=7), *cut_found(READER)]
KEPT: list[Fact] = [
    f.SnapshotTaken(ONE, ROOT, Found(BatchId(3))),
    f.SnapshotTaken(ONE, READER, Found(BatchId(3))),
    f.ChannelKept(ONE, ROOT),
]
WRITTEN: list[Fact] = [f.Assembled(ONE, 1.0), f.Exported(ONE), f.ManifestWritten(ONE)]


def test_every_kind_of_fact_has_a_step() -> None:
    assert set(_STEPS) == set(Fact.__subclasses__())


def test_the_whole_path_of_a_checkpoint() -> None:
    state, asked = fed(begun(new()), [*CUTS, *KEPT, *WRITTEN])
    assert [type(one).__name__ for one in asked if not isinstance(one, f.PassPoint)] == [
        "TakeSnapshot",
        "TakeSnapshot",
        "KeepChannel",
        "Assemble",
        "Export",
        "WriteManifest",
        "Retain",
        "Release",
        "Subsume",
    ]
    (subsume,) = [one for one in asked if isinstance(one, f.Subsume)]
    assert subsume.trim == {ROOT: 7}
    assert not state.pending and state.ended == {ONE: CheckpointState.COMPLETED}
    state, asked = fed(state, [f.Subsumed(subsume, [ONE], 0.1)])
    assert state.ended == {ONE: CheckpointState.SUBSUMED}
    (answer,) = [one for one in asked if isinstance(one, f.AnswerWish)]
    assert (answer.id, answer.reason) == (ONE, "")


def test_what_was_aborted_can_not_complete_and_nothing_moves() -> None:
    aborted, _ = fed(begun(new()), [f.QueryDown(ROOT)])
    assert aborted.ended == {ONE: CheckpointState.ABORTED}
    with pytest.raises(IllegalMoveError):
        step(aborted, f.ManifestWritten(ONE), 100.0)
    assert aborted.ended == {ONE: CheckpointState.ABORTED} and not aborted.pending


@pytest.mark.parametrize("late", [*CUTS, *KEPT, *WRITTEN[:2], f.Declined((ONE,), ""), f.KeepFailed(ONE, "")])
def test_what_comes_too_late_for_an_aborted_checkpoint_changes_nothing(late: Fact) -> None:
    aborted, _ = fed(begun(new()), [f.QueryDown(ROOT)])
    assert step(aborted, late, 100.0) == (aborted, [])


@pytest.mark.parametrize("twice", [*CUTS, *KEPT[:-1]])
def test_what_is_told_twice_counts_once(twice: Fact) -> None:
    state, _ = fed(begun(new()), [*CUTS, *KEPT[:-1]])
    assert fed(state, [twice]) == (state, [])


def test_the_state_that_was_given_stays_as_it_is() -> None:
    state = begun(new())
    before = repr(state)
    fed(state, [*CUTS, *KEPT, *WRITTEN])
    assert repr(state) == before


def test_an_aborted_beginning_is_written_though_its_record_may_not_be_there() -> None:
    state, asked = fed(new(), [f.Asked(CheckpointWish("one")), f.Observed(may_begin=True)])
    (write,) = [one for one in asked if isinstance(one, f.WriteBegun)]
    state, asked = fed(state, [f.BegunRefused(write, ONE, "now", "no answer")])
    assert f.WriteAborted(ONE, AbortReason.STORAGE, "no answer") in asked
    assert not state.pending and state.failures == 1


def test_one_that_expires_waits_for_nobody_and_its_late_ack_is_reported_once() -> None:
    state, _ = fed(begun(new(timeout=10.0)), [*CUTS, KEPT[0]])
    state, asked = fed(state, [f.Observed()], now=110.0)
    assert f.WriteAborted(ONE, AbortReason.EXPIRED, "missing: reader") in asked
    assert f.Discard(ONE) not in asked, "the snapshot of the reader is still being taken"
    state, asked = fed(state, [KEPT[1]], now=112.0)
    assert [type(one) for one in asked] == [f.Report, f.Discard]
    assert fed(state, [KEPT[1]], now=112.0) == (state, [])


@pytest.mark.parametrize("alignment", Alignment)
def test_a_query_that_reads_a_channel_twice_has_a_limit_for_its_faster_reader(alignment: Alignment) -> None:
    """Its position is that of the slower one, which may be before the barrier when the other is past it."""
    slower, wanted = (5, CheckpointId(0)), {}
    if alignment is Alignment.AT_LEAST_ONCE:
        wanted = {ROOT: (7, ONE)}
    underway = Underway(
        Pending(ONE, alignment, 0.0, frozenset({ROOT, READER})),
        "interval",
        full=False,
        begun_at="now",
        found={ROOT: Found(BatchId(3), end=7)},
        positions={READER: {ROOT: slower}},
        barriers={ROOT: 1.0, READER: 1.0},
        acked={ROOT: 1.0, READER: 1.0},
    )
    assert underway.resumes(READER, ROOT) == slower
    cuts = {READER: QueryCut(batch=3, positions={ROOT: slower})}
    made = manifest_of(underway, FLOW, cuts, {}, MADE_BY, "", "later", 1.0)
    assert made.queries[READER].set_back == wanted


def test_what_a_checkpoint_holds_in_channels_is_reported_and_changes_no_manifest() -> None:
    underway = Underway(
        Pending(ONE, Alignment.UNALIGNED, 0.0, frozenset({ROOT, READER})),
        "interval",
        full=False,
        begun_at="now",
        barriers={ROOT: 1.0, READER: 1.0},
        acked={ROOT: 1.0, READER: 1.0},
    )
    names = {"log/000000007.json": 300, "data/3-1-1/part-0": 1000, "data/4-1-1/part-0": 24}
    files = tuple(File(path=f"channels/root/{name}", bytes=size, crc=1) for name, size in names.items())
    channel = ChannelCut(first=6, behind=8, batch=4, files=files, rows=70)
    cuts = {ROOT: QueryCut(batch=4), READER: QueryCut(batch=2)}
    made = manifest_of(underway, FLOW, cuts, {ROOT: channel}, MADE_BY, "s3://copies", "later", 1.0)
    report = completed(underway, made, [])
    assert report.in_flight == {"rows": 70, "bytes": 1024} and report.copied_to == "s3://copies"
    assert b'"rows"' not in encode(made), "an earlier weir refuses what it does not know"
