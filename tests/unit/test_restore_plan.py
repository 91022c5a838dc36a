"""The verdict on every source, operator and sink, and on the whole, before anything is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import AVERAGE, CONF, COUNT, SUM, aggregation, dedup, operator, shape, unknown
from weir.errors import BadMapError, BadOffsetsError
from weir.protocol.offsets import FIRST, Position
from weir.protocol.shapes import Computed, Shape
from weir.savepoint.plan import Overall, Part, Refused, RestorePlan, Verdict
from weir.savepoint.plan_text import text
from weir.savepoint.planning import Before, Options, plan

SMALL, LARGE = ("where (v < 8)", "reads json /in"), ("where (v >= 8)", "reads json /in")
HASHMAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def planned(old: Shape, new: Shape, *maps: str, **options: Any) -> RestorePlan:
    """The plan of a job of one query."""
    return plan({"counts": Before(old, CONF)}, {"counts": new}, Options(maps=maps, **options))


def part(found: RestorePlan, what: str = "operator", number: int = 0) -> Part:
    return [one for one in found.parts if one.what == what][number]


def verdicts(found: RestorePlan, what: str = "operator") -> dict[tuple[int | None, int | None], list[str]]:
    return {(one.old, one.new): [v.value for v in one.verdicts] for one in found.parts if one.what == what}


def test_an_unchanged_job_is_kept() -> None:
    same = shape(aggregation(0), dedup(1), sink="files /out")
    found = planned(same, same)
    assert found.overall is Overall.FITS
    assert found.exit_code == 0
    assert {verdict for one in found.parts for verdict in one.verdicts} == {Verdict.KEPT}
    query = found.query("counts")
    assert not query.operators_change and not query.sources_change


def test_a_dedup_in_front_of_an_aggregation_begins_without_state() -> None:
    below = aggregation(0, reads=["Deduplicate id", "reads json /in"])
    found = planned(shape(aggregation(0)), shape(below, dedup(1)))
    assert verdicts(found) == {(0, 0): ["kept"], (None, 1): ["new"]}
    assert part(found).notes == ("now also: Deduplicate id",)
    assert found.overall is Overall.FITS
    query = found.query("counts")
    assert (query.moves, query.dropped, query.added) == ({0: 0}, (), (1,))
    assert query.operators_change


def test_state_is_dropped_only_when_that_is_allowed() -> None:
    old, new = shape(aggregation(0), dedup(1)), shape(aggregation(0))
    found = planned(old, new)
    assert verdicts(found) == {(0, 0): ["kept"], (1, None): ["dropped"]}
    assert found.overall is Overall.LOSES
    assert found.exit_code == 10
    assert planned(old, new, allow_dropped=True).overall is Overall.FITS


def test_an_operator_that_was_moved_keeps_its_state() -> None:
    found = planned(shape(dedup(0)), shape(aggregation(0), dedup(1)))
    assert verdicts(found) == {(0, 1): ["moved"], (None, 0): ["new"]}
    assert found.query("counts").moves == {0: 1}


def test_swapped_twins_are_moved_to_where_they_are_now() -> None:
    found = planned(shape(dedup(0, *SMALL), dedup(1, *LARGE)), shape(dedup(0, *LARGE), dedup(1, *SMALL)))
    assert verdicts(found) == {(0, 1): ["moved"], (1, 0): ["moved"]}
    assert found.overall is Overall.FITS


def test_twins_that_can_not_be_told_apart_need_a_map() -> None:
    twins = shape(dedup(0, *SMALL), dedup(1, *LARGE))
    old = shape(*map(unknown, twins.operators), spark="")
    found = planned(old, twins)
    assert verdicts(found) == {(0, 0): ["ambiguous"], (1, 1): ["ambiguous"]}
    assert found.overall is Overall.NEEDS_MAP
    assert found.exit_code == 11
    assert "--map counts/0=0" in part(found).todo
    said = planned(old, twins, "counts/0=1", "counts/1=0")
    assert verdicts(said) == {(0, 1): ["moved"], (1, 0): ["moved"]}
    one_said = planned(old, twins, "counts/0=1")
    assert verdicts(one_said) == {(0, 1): ["moved"], (1, 0): ["moved"]}


def test_texts_of_another_spark_are_not_compared() -> None:
    old = shape(dedup(0, *SMALL), dedup(1, *LARGE), spark="4.2.1")
    new = shape(dedup(0, *LARGE), dedup(1, *SMALL), spark="4.3.0")
    assert planned(old, new).overall is Overall.NEEDS_MAP
    alone = planned(shape(dedup(0, key="id"), spark="4.2.1"), shape(dedup(0)))
    assert verdicts(alone) == {(0, 0): ["kept"]}


def test_another_key_of_the_same_type_is_asked_about() -> None:
    """Spark would take the users for ids."""
    old, new = shape(dedup(0)), shape(dedup(0, key="user"))
    found = planned(old, new)
    assert verdicts(found) == {(0, 0): ["ambiguous"]}
    assert "id became user" in part(found).why
    assert verdicts(planned(old, new, "counts/0=0")) == {(0, 0): ["kept"]}
    anew = planned(old, new, "counts/0=none")
    assert verdicts(anew) == {(0, None): ["dropped"], (None, 0): ["new"]}
    assert anew.overall is Overall.LOSES


def test_another_function_of_the_same_type_is_asked_about() -> None:
    """Spark would go on with the sum of v as the sum of w."""
    other = Computed(text="sum(w)", columns=1, start=(None,))
    found = planned(shape(aggregation(0, SUM)), shape(aggregation(0, other)))
    assert verdicts(found) == {(0, 0): ["ambiguous"]}
    assert "sum(v) became sum(w)" in part(found).why


def test_a_gained_column_is_converted() -> None:
    found = planned(shape(aggregation(0, COUNT)), shape(aggregation(0, COUNT, AVERAGE)))
    assert verdicts(found) == {(0, 0): ["converted"]}
    made = part(found).reshape
    assert made is not None
    assert made.fields == (0, None, None)
    assert made.fresh == (None, 0.0, 0)
    assert part(found).notes == ("avg(v) begins anew",)
    assert found.overall is Overall.FITS


def test_a_lost_column_is_a_loss() -> None:
    found = planned(shape(aggregation(0, COUNT, SUM)), shape(aggregation(0, COUNT)))
    assert verdicts(found) == {(0, 0): ["converted"]}
    assert part(found).lost == ("sum(v)",)
    assert found.overall is Overall.LOSES


def test_columns_that_changed_places_are_converted() -> None:
    """Their types are the same: Spark would go on with the count as the sum."""
    found = planned(shape(aggregation(0, COUNT, SUM)), shape(aggregation(0, SUM, COUNT)))
    assert verdicts(found) == {(0, 0): ["converted"]}
    made = part(found).reshape
    assert made is not None and made.fields == (1, 0)


def test_a_column_that_can_not_be_begun_is_refused_in_the_plan() -> None:
    odd = Computed(text="sum(w)", columns=1)
    found = planned(shape(aggregation(0, COUNT)), shape(aggregation(0, COUNT, odd)))
    assert verdicts(found) == {(0, 0): ["incompatible"]}
    assert found.overall is Overall.MISFITS
    assert found.exit_code == 12
    assert "--map counts/0=none" in part(found).todo


def test_another_key_type_does_not_fit() -> None:
    old = shape(dedup(0))
    new = shape(operator(0, "dedupe", "id string", "__dummy__ void", keys=["id"]))
    found = planned(old, new)
    assert verdicts(found) == {(0, 0): ["incompatible"]}
    assert part(found).why == "its key was (id bigint), is now (id string)"
    assert planned(old, new, "counts/0=none", allow_dropped=True).overall is Overall.FITS


def test_all_state_is_rescaled_but_that_of_one_partition() -> None:
    same = shape(aggregation(0), operator(1, "stateStoreSave", "", "n long", computes=[COUNT]))
    found = planned(same, same, parallelism=5)
    assert verdicts(found) == {(0, 0): ["rescaled"], (1, 1): ["kept"]}
    assert found.overall is Overall.FITS


def test_moved_rescaled_and_converted_at_once() -> None:
    found = planned(shape(dedup(0)), shape(aggregation(0), dedup(1)), parallelism=3, backend="hashmap")
    assert verdicts(found)[0, 1] == ["moved", "rescaled", "converted"]


def test_what_can_not_be_rescaled_is_refused_in_the_plan() -> None:
    odd = shape(operator(0, "someNewOperator", "k string", "n long"))
    found = planned(odd, odd, parallelism=5)
    assert verdicts(found) == {(0, 0): ["incompatible"]}
    assert planned(odd, odd).overall is Overall.FITS
    assert planned(odd, odd, parallelism=2).overall is Overall.FITS


def test_a_column_is_not_converted_beside_state_that_can_not_be_written_anew() -> None:
    odd = operator(1, "someNewOperator", "k string", "n long")
    found = planned(shape(aggregation(0), odd), shape(aggregation(0, COUNT, SUM), odd))
    assert verdicts(found) == {(0, 0): ["incompatible"], (1, 1): ["kept"]}


def test_queries_come_and_go() -> None:
    old = {"gone": Before(shape(dedup(0)), CONF), "stays": Before(shape(aggregation(0)), CONF)}
    new = {"stays": shape(aggregation(0)), "comes": shape(dedup(0), sources=["channel stays"])}
    found = plan(old, new, Options())
    assert [(q.name, q.there, q.wanted) for q in found.queries] == [
        ("stays", True, True),
        ("comes", False, True),
        ("gone", True, False),
    ]
    assert found.query("gone").dropped == (0,)
    assert found.query("comes").parts[0].notes == ("begins with what the channel holds at the cut",)
    assert found.query("comes").parts[1].notes == ()
    assert found.overall is Overall.LOSES


def test_sources_change_places_and_names() -> None:
    old = shape(sources=["json /a", "rate", "kafka orders"])
    found = planned(old, shape(sources=["rate", "json /a", "csv /c"]))
    assert verdicts(found, "source") == {
        (1, 0): ["moved"],
        (0, 1): ["moved"],
        (None, 2): ["new"],
        (2, None): ["dropped"],
    }
    assert found.query("counts").sources == (1, 0, None)
    assert found.query("counts").sources_change
    assert found.overall is Overall.LOSES


def test_a_source_at_another_place_is_asked_about() -> None:
    old = shape(dedup(0, "reads json /a"), sources=["json /a"])
    new = shape(dedup(0, "reads json /b"), sources=["json /b"])
    found = planned(old, new)
    assert verdicts(found, "source") == {(0, 0): ["ambiguous"]}
    assert verdicts(found) == {(0, 0): ["ambiguous"]}
    said = planned(old, new, "counts/@0=0")
    assert verdicts(said, "source") == {(0, 0): ["kept"]}
    assert verdicts(said) == {(0, 0): ["kept"]}


def test_a_source_of_weirs_keeps_its_name() -> None:
    old, new = shape(sources=["source lines"]), shape(sources=["source rows"])
    assert verdicts(planned(old, new), "source") == {(None, 0): ["new"], (0, None): ["dropped"]}
    assert verdicts(planned(old, new, "counts/@0=0"), "source") == {(0, 0): ["incompatible"]}


def set_to(old: Shape, new: Shape, stood: list[str], **positions: Position) -> RestorePlan:
    """The plan of a job of one query, some of whose sources (`at0`) the user sets."""
    at = {int(name.removeprefix("at")): one for name, one in positions.items()}
    before = Before(old, CONF, tuple(stood))
    return plan({"counts": before}, {"counts": new}, Options(positions={"counts": at}))


def test_a_source_that_the_user_sets_says_where_it_goes_on() -> None:
    old, new = shape(sources=["kafka o", "json /a"]), shape(sources=["json /a", "kafka o"])
    stood = ['{"o":{"0":1,"1":2}}', '{"logOffset":4}']
    given = Position("goes on at 7", '{"o":{"0":7}}', others=(("o", 1),))
    found = set_to(old, new, stood, at0=Position("all count as read", FIRST, log=b"v1"), at1=given)
    assert verdicts(found, "source") == {(1, 0): ["set"], (0, 1): ["set"]}
    assert part(found, "source").notes == ("all count as read",)
    assert found.overall is Overall.FITS
    query = found.query("counts")
    assert query.sources == (1, 0)
    assert query.ends == {0: FIRST, 1: '{"o":{"0":7,"1":2}}'}


def test_a_source_that_the_user_sets_is_changed_though_it_stays_in_its_place() -> None:
    same = shape(sources=["json /a"])
    query = set_to(same, same, ['{"logOffset":4}'], at0=Position("begins", log=b"")).query("counts")
    assert (query.sources, query.ends) == ((0,), {0: "-"})
    assert query.sources_change


def test_a_source_at_another_place_that_the_user_sets_is_not_asked_about() -> None:
    old, new = shape(sources=["json /a"]), shape(sources=["json /b"])
    found = set_to(old, new, ['{"logOffset":4}'], at0=Position("begins", log=b""))
    assert verdicts(found, "source") == {(None, 0): ["set"], (0, None): ["dropped"]}
    assert found.overall is Overall.FITS, "the position was given up by who set another"


def test_a_log_of_files_is_cut_only_where_it_is() -> None:
    same = shape(sources=["json /a"])
    found = set_to(same, same, ['{"logOffset":4}'], at0=Position("again", FIRST, until=4))
    assert found.query("counts").ends == {0: FIRST}
    with pytest.raises(BadOffsetsError, match="its log ends there"):
        set_to(same, same, ['{"logOffset":4}'], at0=Position("again", FIRST, until=5))
    with pytest.raises(BadOffsetsError, match="it has no log"):
        set_to(same, same, ["-"], at0=Position("again", FIRST, until=0))


def test_some_partitions_of_a_source_that_is_new_are_not_enough() -> None:
    given = Position("goes on", '{"o":{"0":7}}', others=(("o", 1),))
    with pytest.raises(BadOffsetsError, match="says nothing of o-1"):
        set_to(shape(sources=["json /a"]), shape(sources=["json /a", "kafka o"]), ["-"], at1=given)


def test_a_named_source_may_be_anywhere() -> None:
    old, new = shape(sources=["named a", "named b"]), shape(sources=["named b", "named a"])
    found = planned(old, new)
    assert verdicts(found, "source") == {(1, 0): ["kept"], (0, 1): ["kept"]}
    assert not found.query("counts").sources_change, "Spark finds them by their names"


@pytest.mark.parametrize("new", [["named a"], ["named c", "named b", "named a"]])
def test_named_sources_come_and_go_without_surgery(new: list[str]) -> None:
    found = planned(shape(sources=["named a", "named b"]), shape(sources=new), allow_dropped=True)
    assert found.overall is Overall.FITS
    assert not found.query("counts").sources_change


def test_a_named_source_goes_on_under_another_name() -> None:
    """Spark would find nothing by the new one, and begin again."""
    old, new = shape(sources=["named a", "named c"]), shape(sources=["named b", "named c"])
    asked = planned(old, new)
    assert verdicts(asked, "source") == {(0, 0): ["ambiguous"], (1, 1): ["kept"]}
    assert "--map counts/@0=0" in part(asked, "source", 1).todo
    said = planned(old, new, "counts/@0=0")
    assert verdicts(said, "source") == {(0, 0): ["moved"], (1, 1): ["kept"]}
    query = said.query("counts")
    assert query.sources_change and query.all_named
    assert query.names == {"a": "b"}


def test_a_name_that_another_source_takes_does_not_bring_its_position() -> None:
    same = shape(sources=["named a"])
    anew = planned(same, same, "counts/@0=none", allow_dropped=True)
    assert verdicts(anew, "source") == {(None, 0): ["new"], (0, None): ["dropped"]}
    assert anew.query("counts").names == {"a": None}
    both = shape(sources=["named a", "named b"])
    swapped = planned(both, both, "counts/@0=1", "counts/@1=0")
    assert swapped.query("counts").names == {"a": "b", "b": "a"}
    one = planned(both, shape(sources=["named b"]), "counts/@0=0", allow_dropped=True)
    assert one.query("counts").names == {"a": "b", "b": None}


@pytest.mark.parametrize("names", [("json /a", "named a"), ("named a", "json /a")])
def test_a_source_does_not_get_or_lose_the_name_that_spark_finds_it_by(names: tuple[str, str]) -> None:
    was, name = names
    found = planned(shape(sources=[was]), shape(sources=[name]), "counts/@0=0")
    assert verdicts(found, "source") == {(0, 0): ["incompatible"]}
    assert "a query of another name begins anew" in part(found, "source").todo


def test_a_sink_may_be_swapped() -> None:
    found = planned(shape(sink="files /a"), shape(sink="files /b"))
    assert verdicts(found, "sink") == {(None, 0): ["new"], (0, None): ["dropped"]}
    assert found.overall is Overall.FITS


def test_a_sink_that_can_not_go_on_is_a_verdict() -> None:
    found = planned(shape(sink="files /a"), shape(sink="files /a")).refusing({"counts": Refused("no", "yes")})
    assert found.overall is Overall.MISFITS
    assert (part(found, "sink").why, part(found, "sink").todo) == ("no", "yes")


@pytest.mark.parametrize(
    "given_map",
    ["counts", "counts/0", "counts/x=0", "other/0=0", "counts/3=0", "counts/0=3", "counts/@2=0", "/0=0"],
)
def test_a_map_that_names_nothing_is_refused(given_map: str) -> None:
    with pytest.raises(BadMapError, match="--map"):
        planned(shape(dedup(0)), shape(dedup(0)), given_map)


def test_two_maps_to_one_operator_are_refused() -> None:
    twins = shape(dedup(0, *SMALL), dedup(1, *LARGE))
    with pytest.raises(BadMapError, match="twice"):
        planned(twins, twins, "counts/0=1", "counts/1=1")


def test_the_plan_as_people_and_programs_read_it() -> None:
    gone = dedup(1, "where (v < 8)", "reads json /in").model_copy(update={"rows": 1200})
    old = shape(aggregation(0, COUNT), gone, sink="files /out")
    new = shape(aggregation(0, COUNT, SUM), sink="files /out")
    found = planned(old, new, parallelism=4)
    assert text(found) == "\n".join(
        [
            "counts",
            "  source   0        json /in                                 kept",
            "  operator 0        aggregation by k                         rescaled, converted",
            "      sum(v) begins anew",
            "  operator 1        dedup by id                              dropped",
            "      given up: 1200 rows of state",
            "  sink              files /out                               kept",
            "",
            "fits with loss: operator 1; to allow that: -n",
        ]
    )
    body = json.loads(found.model_dump_json())
    assert body["overall"] == "fits with loss"
    assert body["queries"][0]["parts"][1]["verdicts"] == ["rescaled", "converted"]


texts = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=60)


@given(st.lists(texts, max_size=3), st.lists(texts, max_size=3), st.integers(50, 120))
def test_no_line_is_longer_than_asked_for(old: list[str], new: list[str], width: int) -> None:
    def made(keys: list[str]) -> Shape:
        dedups = [dedup(id, "reads json /in", key=key) for id, key in enumerate(keys)]
        return shape(*dedups, sources=[f"json /{key}" for key in keys])

    found = planned(made(old), made(new))
    assert max(map(len, text(found, width).split("\n"))) <= width
