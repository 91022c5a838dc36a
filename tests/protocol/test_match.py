"""Which operator gets the state of which old one: what can be told apart is, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import AVERAGE, COUNT, SUM, aggregation, dedup, operator, unknown
from weir.protocol.compatibility import FitLevel, Reshape, fit, reshape, similarity
from weir.protocol.match import Matched, match, match_sources
from weir.protocol.shape import Computed, PlannedOperator, PlannedSource


def matched(
    old: Sequence[PlannedOperator],
    new: Sequence[PlannedOperator],
    said: dict[int, int | None] | None = None,
    comparable: bool = True,
) -> Matched:
    return match(old, new, fit, said or {}, comparable=comparable)


def pairs(found: Matched) -> dict[int, int]:
    return {pair.old.id: pair.new.id for pair in found.pairs}


SMALL, LARGE = ("where (v < 8)", "reads json /in"), ("where (v >= 8)", "reads json /in")


def test_what_did_not_change_is_matched_in_place() -> None:
    found = matched([aggregation(0), dedup(1)], [aggregation(0), dedup(1)])
    assert pairs(found) == {0: 0, 1: 1}
    assert not found.choices and not found.old and not found.new


def test_an_operator_in_front_moves_the_others() -> None:
    found = matched([dedup(0)], [aggregation(0), dedup(1)])
    assert pairs(found) == {0: 1}
    assert [one.id for one in found.new] == [0]


def test_an_operator_that_is_gone_is_left_over() -> None:
    found = matched([aggregation(0), dedup(1)], [dedup(0)])
    assert pairs(found) == {1: 0}
    assert [one.id for one in found.old] == [0]


def test_twins_that_changed_places_are_told_apart_by_what_they_read() -> None:
    found = matched([dedup(0, *SMALL), dedup(1, *LARGE)], [dedup(0, *LARGE), dedup(1, *SMALL)])
    assert pairs(found) == {0: 1, 1: 0}


def test_twins_that_both_gained_a_condition_are_told_apart_by_the_rest() -> None:
    more = "where (k != x)"
    found = matched([dedup(0, *SMALL), dedup(1, *LARGE)], [dedup(0, more, *LARGE), dedup(1, more, *SMALL)])
    assert pairs(found) == {0: 1, 1: 0}


def test_twins_of_which_both_conditions_changed_are_not_guessed() -> None:
    found = matched(
        [dedup(0, *SMALL), dedup(1, *LARGE)],
        [dedup(0, "where (v < 9)", "reads json /in"), dedup(1, "where (v >= 9)", "reads json /in")],
    )
    assert not found.pairs
    assert [[one.id for one in choice.old] for choice in found.choices] == [[0, 1]]


def test_twins_are_not_guessed_when_nothing_is_known_of_them() -> None:
    old = [unknown(dedup(0, *SMALL)), unknown(dedup(1, *LARGE))]
    assert not matched(old, [dedup(0, *SMALL), dedup(1, *LARGE)]).pairs
    known = [dedup(0, *SMALL), dedup(1, *LARGE)]
    assert not matched(known, known, comparable=False).pairs


def test_what_differs_in_schema_needs_no_evidence() -> None:
    old = [unknown(aggregation(0, COUNT)), unknown(aggregation(1, COUNT, AVERAGE))]
    found = matched(old, [aggregation(0, COUNT, AVERAGE), aggregation(1, COUNT)])
    assert pairs(found) == {0: 1, 1: 0}


def test_twins_that_are_the_same_in_everything_keep_their_order() -> None:
    both = [dedup(0, *SMALL), dedup(1, *SMALL)]
    assert pairs(matched(both, both)) == {0: 0, 1: 1}


def test_one_of_two_twins_is_gone() -> None:
    found = matched([dedup(0, *SMALL), dedup(1, *LARGE)], [dedup(0, *LARGE)])
    assert pairs(found) == {1: 0}
    assert [one.id for one in found.old] == [0]
    assert not found.choices


def test_an_operator_over_another_source_is_not_taken_for_the_old_one() -> None:
    found = matched([dedup(0, "reads json /a")], [dedup(0, "reads json /b")])
    assert not found.pairs
    assert len(found.choices) == 1


def test_a_new_operator_of_the_old_schema_does_not_draw_the_state_to_itself() -> None:
    old = [aggregation(0, COUNT, reads=["reads json /a"])]
    new = [
        aggregation(0, COUNT, reads=["reads json /b"]),
        aggregation(1, COUNT, SUM, reads=["reads json /a"]),
    ]
    found = matched(old, new)
    assert pairs(found) == {0: 1}
    assert [one.id for one in found.new] == [0]


def test_what_was_said_counts_more_than_what_is_found() -> None:
    twins = [dedup(0, *SMALL), dedup(1, *LARGE)]
    assert pairs(matched(twins, twins, {0: 1, 1: 0})) == {0: 1, 1: 0}
    given_up = matched(twins, twins, {0: None})
    assert pairs(given_up) == {1: 1}
    assert [one.id for one in given_up.old] == [0]
    assert [one.id for one in given_up.new] == [0]


conditions = st.sampled_from([f"where (v > {number})" for number in range(4)])
sources = st.sampled_from(["reads json /a", "reads json /b"])
below = st.tuples(conditions, sources)


@st.composite
def operators(draw: st.DrawFn, most: int = 5) -> list[PlannedOperator]:
    def one(id: int) -> PlannedOperator:
        reads = draw(below)
        return dedup(id, *reads) if draw(st.booleans()) else aggregation(id, COUNT, reads=reads)

    return [one(id) for id in range(draw(st.integers(0, most)))]


@given(operators(), operators(), st.booleans())
def test_nothing_is_matched_twice_and_nothing_is_forgotten(
    old: list[PlannedOperator], new: list[PlannedOperator], comparable: bool
) -> None:
    found = matched(old, new, comparable=comparable)
    mine = [pair.old.id for pair in found.pairs] + [one.id for c in found.choices for one in c.old]
    its = [pair.new.id for pair in found.pairs] + [one.id for c in found.choices for one in c.new]
    assert sorted(mine + [one.id for one in found.old]) == [one.id for one in old]
    assert sorted(its + [one.id for one in found.new]) == [one.id for one in new]
    assert all(fit(pair.old, pair.new).level <= FitLevel.MISFIT for pair in found.pairs)


@given(operators(), st.randoms(use_true_random=False))
def test_in_any_order_each_operator_finds_itself(old: list[PlannedOperator], chance: object) -> None:
    shuffled = list(old)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    new = [one.model_copy(update={"id": id}) for id, one in enumerate(shuffled)]
    found = matched(old, new)
    assert not found.choices
    assert len(found.pairs) == len(old)
    for pair in found.pairs:
        assert (pair.old.kind, pair.old.evidence) == (pair.new.kind, pair.new.evidence)


@given(operators(most=4), operators(most=4))
def test_the_order_in_which_they_are_given_does_not_matter(
    old: list[PlannedOperator], new: list[PlannedOperator]
) -> None:
    one, other = matched(old, new), matched(old[::-1], new[::-1])
    known = {(pair.old.evidence, pair.new.evidence) for pair in one.pairs}
    assert known == {(pair.old.evidence, pair.new.evidence) for pair in other.pairs}


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [
        (dedup(0), dedup(0), FitLevel.SAME),
        (dedup(0), dedup(0, key="user"), FitLevel.ACCEPTED),
        (dedup(0), aggregation(0), FitLevel.OTHER),
        (aggregation(0, COUNT), aggregation(0, COUNT, SUM), FitLevel.RESHAPED),
        (dedup(0), operator(0, "dedupe", "id string", "__dummy__ void"), FitLevel.MISFIT),
        (
            operator(0, "symmetricHashJoin", "k string", "a long"),
            operator(0, "symmetricHashJoin", "k string", "a long, b long"),
            FitLevel.MISFIT,
        ),
        (
            operator(0, "transformWithStateExec", "k string", "n long", properties={"timeMode": "NoTime"}),
            operator(0, "transformWithStateExec", "k string", "n long", properties={"timeMode": "EventTime"}),
            FitLevel.MISFIT,
        ),
    ],
)
def test_how_well_state_fits(old: PlannedOperator, new: PlannedOperator, level: FitLevel) -> None:
    assert fit(old, new).level is level


def test_values_may_gain_fields_where_spark_lets_them() -> None:
    old, new = (
        operator(0, "transformWithStateExec", "k string", value) for value in ("n long", "n long, m long")
    )
    assert fit(old, new).level is FitLevel.MISFIT
    assert fit(old, new, evolving=True).level is not FitLevel.MISFIT


def test_a_state_variable_that_is_gone_is_told() -> None:
    def variables(*names: str) -> PlannedOperator:
        listed = [{"stateName": name, "stateVariableType": "ValueState"} for name in names]
        return operator(
            0, "transformWithStateExec", "k string", "n long", properties={"stateVariables": listed}
        )

    assert fit(variables("a", "b"), variables("b", "c")).lost == ("state variable a",)


def test_null_where_no_null_was_does_not_fit() -> None:
    old, new = dedup(0), dedup(0)
    key = old.stores[0].families[0].key_schema
    assert key is not None
    key["fields"][0]["nullable"] = False
    assert fit(old, new).level is FitLevel.MISFIT
    assert fit(new, old).level is FitLevel.SAME


def test_a_gained_column_begins_as_a_fresh_aggregate_would() -> None:
    made = reshape(aggregation(0, COUNT), aggregation(0, AVERAGE, COUNT))
    assert made == Reshape(fields=(None, None, 0), fresh=(0.0, 0, None), started=("avg(v)",), lost=())


def test_a_lost_column_is_left_out() -> None:
    made = reshape(aggregation(0, SUM, AVERAGE, COUNT), aggregation(0, SUM, COUNT))
    assert made == Reshape(fields=(0, 3), fresh=(None, None), started=(), lost=("avg(v)",))


def test_columns_that_changed_places_are_put_back() -> None:
    made = reshape(aggregation(0, COUNT, SUM), aggregation(0, SUM, COUNT))
    assert made == Reshape(fields=(1, 0), fresh=(None, None), started=(), lost=())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (unknown(aggregation(0, COUNT)), aggregation(0, COUNT, SUM), "does not record"),
        (aggregation(0, COUNT), aggregation(0, SUM), "nothing"),
        (
            aggregation(0, COUNT),
            aggregation(0, COUNT, Computed(text="sum(w)", columns=1)),
            "does not report what sum(w) begins with",
        ),
    ],
)
def test_what_can_not_be_reshaped_is_said(old: PlannedOperator, new: PlannedOperator, words: str) -> None:
    made = reshape(old, new)
    assert isinstance(made, str)
    assert words in made


def test_similarity_counts_what_is_shared() -> None:
    assert similarity(dedup(0, *SMALL), dedup(0, *SMALL)) == 1
    assert 0 < similarity(dedup(0, *SMALL), dedup(0, *LARGE)) < 1
    assert similarity(dedup(0, "reads json /a"), dedup(0, "reads json /b")) == 0


def named(*names: str) -> list[PlannedSource]:
    """`json /in: where (v < 8)` is a source with a condition."""
    parts = (name.partition(": ") for name in names)
    return [PlannedSource(name=name, used=(used,) if used else ()) for name, _, used in parts]


@pytest.mark.parametrize(
    ("old", "new", "offsets", "pairs", "doubtful"),
    [
        (["json /a"], ["json /a"], "1", {0: 0}, {}),
        (["json /a: where x"], ["json /a: where y"], "1", {0: 0}, {}),
        (["json /a", "kafka b"], ["kafka b", "json /a"], "12", {0: 1, 1: 0}, {}),
        (["json /a", "json /a"], ["json /a", "json /a"], "12", {0: 0, 1: 1}, {}),
        (["json /a: x", "json /a: y"], ["json /a: y", "json /a: x"], "12", {0: 1, 1: 0}, {}),
        (["json /a: x", "json /a: y"], ["json /a: z", "json /a: x"], "12", {0: 1, 1: 0}, {}),
        (["json /a: x", "json /a: y"], ["json /a: z", "json /a: u"], "11", {0: 0, 1: 1}, {}),
        (["json /a: x", "json /a: y"], ["json /a: z", "json /a: u"], "12", {}, {0: 0, 1: 1}),
        (["json /a"], ["rate", "json /a"], "1", {1: 0}, {}),
        (["json /a", "rate"], ["rate"], "12", {0: 1}, {}),
        (["json /a"], ["json /b"], "1", {}, {0: 0}),
        (["channel a"], ["channel b"], "1", {}, {}),
        (["", ""], ["json /a", "rate"], "12", {0: 0, 1: 1}, {}),
        ([""], ["json /a", "rate"], "1", {}, {0: 0}),
    ],
)
def test_sources_go_by_their_names(
    old: list[str], new: list[str], offsets: str, pairs: dict[int, int], doubtful: dict[int, int]
) -> None:
    assert match_sources(named(*old), named(*new), {}, offsets) == (pairs, doubtful)


def test_a_source_goes_where_it_is_said() -> None:
    old, new = named("json /a"), named("json /b")
    assert match_sources(old, new, {0: 0}) == ({0: 0}, {})
    assert match_sources(old, new, {0: None}) == ({}, {})
