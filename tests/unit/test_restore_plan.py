"""The verdict on every source, operator and sink, and on the whole, before anything is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import AVERAGE, CONF, COUNT, SUM, aggregation, dedup, operator, shape, unknown
from weir.errors import BadMapError, BadOffsetsError
from weir.protocol.offsets import FIRST, SourcePosition
from weir.protocol.restore_plan import Overall, PartVerdict, PlanPart, RefusedSink, RestorePlan, text
from weir.protocol.shape import Computed, PlannedSource, Shape
from weir.savepoint.query_change import Before, Options
from weir.savepoint.verdicts import plan

SMALL, LARGE = ("where (v < 8)", "reads json /in"), ("where (v >= 8)", "reads json /in")
HASHMAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def planned(old: Shape, new: Shape, *maps: str, **options: Any) -> RestorePlan:
    """The plan of a job of one query."""
    return plan({"counts": Before(old, CONF)}, {"counts": new}, Options(maps=maps, **options))


def part(found: RestorePlan, what: str = "operator", number: int = 0) -> PlanPart:
    return [one for one in found.parts if one.what == what][number]


def verdicts(found: RestorePlan, what: str = "operator") -> dict[tuple[int | None, int | None], list[str]]:
    return {(one.old, one.new): [v.value for v in one.verdicts] for one in found.parts if one.what == what}


def test_an_unchanged_job_is_kept() -> None:
    same = shape(aggregation(0), dedup(1), sink="files /out")
    found = planned(same, same)
    assert found.overall is Overall.FITS
    assert found.exit_code == 0
    assert {verdict for one in found.parts for verdict in one.verdicts} == {PartVerdict.KEPT}
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
    assert part(found).notes == ("avg(v) starts again: it covers the rows since the savepoint only",)
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


def set_to(old: Shape, new: Shape, stood: list[str], **positions: SourcePosition) -> RestorePlan:
    """The plan of a job of one query, some of whose sources (`at0`) the user sets."""
    at = {int(name.removeprefix("at")): one for name, one in positions.items()}
    before = Before(old, CONF, tuple(stood))
    return plan({"counts": before}, {"counts": new}, Options(positions={"counts": at}))


def test_a_source_that_the_user_sets_says_where_it_goes_on() -> None:
    old, new = shape(sources=["kafka o", "json /a"]), shape(sources=["json /a", "kafka o"])
    stood = ['{"o":{"0":1,"1":2}}', '{"logOffset":4}']
    given = SourcePosition("goes on at 7", '{"o":{"0":7}}', others=(("o", 1),))
    found = set_to(old, new, stood, at0=SourcePosition("all count as read", FIRST, log=b"v1"), at1=given)
    assert verdicts(found, "source") == {(1, 0): ["set"], (0, 1): ["set"]}
    assert part(found, "source").notes == ("all count as read",)
    assert found.overall is Overall.FITS
    query = found.query("counts")
    assert query.sources == (1, 0)
    assert query.ends == {0: FIRST, 1: '{"o":{"0":7,"1":2}}'}


def test_a_source_that_the_user_sets_is_changed_though_it_stays_in_its_place() -> None:
    same = shape(sources=["json /a"])
    query = set_to(same, same, ['{"logOffset":4}'], at0=SourcePosition("begins", log=b"")).query("counts")
    assert (query.sources, query.ends) == ((0,), {0: "-"})
    assert query.sources_change


def test_a_source_at_another_place_that_the_user_sets_is_not_asked_about() -> None:
    old, new = shape(sources=["json /a"]), shape(sources=["json /b"])
    found = set_to(old, new, ['{"logOffset":4}'], at0=SourcePosition("begins", log=b""))
    assert verdicts(found, "source") == {(None, 0): ["set"], (0, None): ["dropped"]}
    assert found.overall is Overall.FITS, "the position was given up by who set another"


def test_a_log_of_files_is_cut_only_where_it_is() -> None:
    same = shape(sources=["json /a"])
    found = set_to(same, same, ['{"logOffset":4}'], at0=SourcePosition("again", FIRST, until=4))
    assert found.query("counts").ends == {0: FIRST}
    with pytest.raises(BadOffsetsError, match="its log ends there"):
        set_to(same, same, ['{"logOffset":4}'], at0=SourcePosition("again", FIRST, until=5))
    with pytest.raises(BadOffsetsError, match="it has no log"):
        set_to(same, same, ["-"], at0=SourcePosition("again", FIRST, until=0))


def test_some_partitions_of_a_source_that_is_new_are_not_enough() -> None:
    given = SourcePosition("goes on", '{"o":{"0":7}}', others=(("o", 1),))
    with pytest.raises(BadOffsetsError, match="gives nothing for o-1"):
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
    assert "a query with another name starts from the beginning" in part(found, "source").todo


def test_a_sink_may_be_swapped() -> None:
    found = planned(shape(sink="files /a"), shape(sink="files /b"))
    assert verdicts(found, "sink") == {(None, 0): ["new"], (0, None): ["dropped"]}
    assert found.overall is Overall.FITS


def test_a_sink_that_can_not_go_on_is_a_verdict() -> None:
    found = planned(shape(sink="files /a"), shape(sink="files /a")).refusing(
        {"counts": RefusedSink("no", "yes")}
    )
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
            "      sum(v) starts again: it covers the rows since the savepoint only",
            "  operator 1        dedup by id                              dropped",
            "      lost: 1200 rows of state",
            "  sink              files /out                               kept",
            "",
            "fits with loss: counts operator 1 (1200 rows of state); to allow all of that: -n",
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


WINDOWS = ("window(ts, 30 seconds)",)


def chain(*, split: bool) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """A dedup and an aggregation in one query, and the same in two."""
    below = ["Deduplicate id", "reads json /in"]
    one = {"chain": shape(aggregation(0, reads=below), dedup(1), sink="files /out")}
    cut = aggregation(0, reads=["reads channel deduped"])
    two = {
        "deduped": shape(dedup(0), sink="channel deduped"),
        "chain": shape(cut, sources=["channel deduped"], sink="files /out"),
    }
    return (one, two) if split else (two, one)


def planned_all(old: dict[str, Shape], new: dict[str, Shape], *maps: str, **options: Any) -> RestorePlan:
    before = {name: Before(one, CONF, ("5",) * len(one.sources)) for name, one in old.items()}
    return plan(before, new, Options(maps=maps, **options))


def test_a_query_that_is_split_does_not_count_its_input_twice_unasked() -> None:
    """`-n` allows losses; what is read again is none, and is named."""
    found = planned_all(*chain(split=True), "chain/0=0", allow_dropped=True)
    source = next(found.query("deduped").of("source"))
    assert source.verdicts == (PartVerdict.AMBIGUOUS,)
    assert "operator 0 of chain (aggregation by k) has counted of it already would count twice" in source.why
    assert "--map chain/@0=deduped/@0" in source.todo
    assert "--set-offsets deduped/@0=initial" in source.todo
    assert "deduped source 0 ambiguous" in text(found, 200)
    said = SourcePosition("begins", log=b"")
    meant = planned_all(*chain(split=True), "chain/0=0", allow_dropped=True, positions={"deduped": {0: said}})
    assert meant.overall is Overall.FITS


def test_a_query_is_split_with_all_its_state() -> None:
    found = planned_all(*chain(split=True), "chain/@0=deduped/@0", "chain/1=deduped/0", "chain/0=0")
    assert found.overall is Overall.FITS, text(found)
    new = found.query("deduped")
    assert (new.base, new.there, new.moves, new.sources) == ("chain", False, {1: 0}, (0,))
    old = found.query("chain")
    assert (old.base, old.moves, old.sources) == ("chain", {0: 0}, (None,))
    left = [(one.what, one.old, one.notes) for one in old.parts if one.new is None]
    assert left == [
        ("source", 0, ("its position goes to query deduped, source 0",)),
        ("operator", 1, ("its state goes to query deduped, operator 0",)),
    ]


def test_two_queries_are_merged_with_all_their_state() -> None:
    maps = ("deduped/@0=chain/@0", "deduped/0=chain/1", "chain/0=0")
    found = planned_all(*chain(split=False), *maps)
    assert found.overall is Overall.FITS, text(found)
    query = found.query("chain")
    assert query.base == "chain"
    assert query.taken == {"chain": {0: 0}, "deduped": {0: 1}}
    assert query.origins == {0: "deduped"}
    assert query.operators_change and query.sources_change
    forgotten = planned_all(*chain(split=False), "deduped/0=chain/1", "chain/0=0", allow_dropped=True)
    assert next(forgotten.query("chain").of("source")).verdicts == (PartVerdict.AMBIGUOUS,)


def test_what_a_merged_query_had_not_read_is_a_loss() -> None:
    old, new = chain(split=False)
    before = {name: Before(one, CONF, ("5",), lambda _channel: 3) for name, one in old.items()}
    maps = ("deduped/@0=chain/@0", "deduped/0=chain/1", "chain/0=0")
    found = plan(before, new, Options(maps=maps))
    assert found.overall is Overall.LOSES
    assert "chain source 0 (3 batches in channel deduped that it had not read)" in text(found, 200)


def test_state_of_other_settings_is_not_mixed() -> None:
    old, new = chain(split=False)
    before = {name: Before(one, CONF, ("5",)) for name, one in old.items()}
    conf = {**CONF, "spark.sql.shuffle.partitions": "3"}
    before["deduped"] = Before(old["deduped"], conf, ("5",))
    maps = ("deduped/@0=chain/@0", "deduped/0=chain/1", "chain/0=0")
    found = plan(before, new, Options(maps=maps))
    wrong = [one for one in found.query("chain").parts if PartVerdict.INCOMPATIBLE in one.verdicts]
    assert "with another spark.sql.shuffle.partitions" in wrong[0].why


def test_a_new_source_of_a_stream_reaches_the_state_of_its_readers() -> None:
    old = {
        "all": shape(sources=["json /a"], sink="channel all"),
        "sums": shape(aggregation(0, reads=["reads channel all"]), sources=["channel all"]),
    }
    new = {**old, "all": shape(sources=["json /a", "csv /b"], sink="channel all")}
    found = planned_all(old, new)
    assert [one.verdicts[0].value for one in found.query("all").of("source")] == ["kept", "ambiguous"]
    plain = planned_all({"all": old["all"]}, {"all": new["all"]})
    part = list(plain.query("all").of("source"))[1]
    assert (part.verdicts[0], part.notes[0]) == (
        PartVerdict.NEW,
        "is read from its beginning, or where its options say",
    )


def test_a_new_reader_of_a_channel_below_state_is_asked_about() -> None:
    old = {"all": shape(sources=["json /a"]), "sums": shape(aggregation(0), sources=["json /in"])}
    more = aggregation(0, reads=["reads json /in", "reads channel all"])
    new = {"all": old["all"], "sums": shape(more, sources=["json /in", "channel all"])}
    found = planned_all(old, new)
    part = list(found.query("sums").of("source"))[1]
    assert part.verdicts == (PartVerdict.AMBIGUOUS,)
    given = {"sums": {1: SourcePosition("begins", log=b"", only_new="no")}}
    assert planned_all(old, new, positions=given).overall is Overall.FITS
    with pytest.raises(BadOffsetsError, match="no"):
        planned_all(old, old, positions={"sums": {0: SourcePosition("begins", log=b"", only_new="no")}})


def test_a_new_query_may_begin_where_another_one_stands() -> None:
    old = {"sums": shape(aggregation(0), sink="files /a")}
    new = {**old, "raw": shape(sink="files /b")}
    found = planned_all(old, new, "sums/@0=raw/@0")
    assert found.overall is Overall.FITS
    assert (found.query("raw").base, found.query("raw").sources) == ("sums", (0,))
    assert next(found.query("sums").of("source")).verdicts == (PartVerdict.KEPT,)


def test_a_renamed_query_is_recognised_and_keeps_everything() -> None:
    old = {"old": shape(aggregation(0), dedup(1), sink="files /out")}
    new = {"new": old["old"]}
    found = planned_all(old, new)
    assert found.overall is Overall.LOSES
    assert "--map old=new" in found.query("new").notes[0]
    assert "looks like old" in text(found)
    said = planned_all(old, new, "old=new")
    assert said.overall is Overall.FITS
    assert [one.name for one in said.queries] == ["new"]
    query = said.query("new")
    assert (query.base, query.was, query.there, query.moves) == ("old", "old", True, {0: 0, 1: 1})
    assert {verdict for one in query.parts for verdict in one.verdicts} == {PartVerdict.KEPT}
    changed = planned_all(old, {"new": shape(dedup(0), sink="files /out")}, "old=new", "old/0=none")
    assert changed.query("new").moves == {1: 0}


@pytest.mark.parametrize("given_map", ["chain=x", "x=chain", "chain=deduped", "chain=chain", "chain=none"])
def test_a_rename_that_names_nothing_is_refused(given_map: str) -> None:
    with pytest.raises(BadMapError, match="--map"):
        planned_all(*chain(split=True), given_map)


@pytest.mark.parametrize(
    "given_maps",
    [
        ["chain/1=deduped/@0"],
        ["chain/@0=deduped/0"],
        ["chain/1=deduped/4"],
        ["chain/1=other/0"],
        ["chain/1=deduped/0", "chain/0=deduped/0"],
        ["chain/@0=deduped/@0", "chain/@0=deduped/@0"],
    ],
)
def test_a_map_to_another_query_names_what_is_there(given_maps: list[str]) -> None:
    with pytest.raises(BadMapError, match="--map"):
        planned_all(*chain(split=True), *given_maps)


def keyed(*keys: str, types: str = "string") -> Shape:
    columns = ", ".join(f"{key.strip('()').replace(' ', '')} {types}" for key in keys)
    return shape(operator(0, "stateStoreSave", columns, "count0 long", keys, computes=[COUNT]))


@pytest.mark.parametrize("maps", [(), ("counts/0=0",)])
def test_keys_in_another_order_are_converted_whatever_a_map_says(maps: tuple[str, ...]) -> None:
    """Spark would take one for the other."""
    found = planned(keyed("k", "g"), keyed("g", "k"), *maps)
    assert verdicts(found) == {(0, 0): ["converted"]}
    rekey = part(found).rekey
    assert rekey is not None and rekey.fields == (1, 0)
    assert part(found).notes == ("its keys changed their order: k, g became g, k",)
    assert part(found).reshape is None


@pytest.mark.parametrize("maps", [(), ("counts/0=0",)])
def test_keys_in_another_order_that_can_not_be_converted_are_refused(maps: tuple[str, ...]) -> None:
    found = planned(keyed("k", "g", types="variant"), keyed("g", "k", types="variant"), *maps)
    assert verdicts(found) == {(0, 0): ["incompatible"]}
    assert part(found).why.startswith("its keys changed their order: k, g became g, k, and ")
    joined = shape(operator(0, "symmetricHashJoin", "a long, b long", "v long", keys=["a = b", "c = d"]))
    other = shape(operator(0, "symmetricHashJoin", "a long, b long", "v long", keys=["c = d", "a = b"]))
    found = planned(joined, other, *maps)
    assert verdicts(found) == {(0, 0): ["incompatible"]}
    assert part(found).certain


def test_a_longer_integer_is_carried_over() -> None:
    old = shape(operator(0, "stateStoreSave", "m integer", "count0 long", ["(id % 10)"], computes=[COUNT]))
    wide = ["(cast(id as bigint) % 10)"]
    new = shape(operator(0, "stateStoreSave", "m long", "count0 long", wide, computes=[COUNT]))
    found = planned(old, new)
    assert verdicts(found) == {(0, 0): ["converted"]}
    assert part(found).notes == ("its key (id % 10) was integer, is now bigint",)
    back = planned(new, old)
    assert verdicts(back) == {(0, 0): ["incompatible"]}
    assert part(back).why == "its key was ((cast(id as bigint) % 10) bigint), is now ((id % 10) integer)"


def test_a_longer_value_is_carried_over_with_the_others() -> None:
    total = Computed(text="sum(n)", columns=1, start=(None,))
    most = Computed(text="max(n)", columns=1, start=(None,))
    wide = [
        one.model_copy(update={"text": one.text.replace("n", "cast(n as bigint)")}) for one in (total, most)
    ]
    old = shape(operator(0, "stateStoreSave", "k string", "s long, m integer", ["k"], computes=[total, most]))
    new = shape(operator(0, "stateStoreSave", "k string", "s long, m long", ["k"], computes=wide))
    found = planned(old, new)
    assert verdicts(found) == {(0, 0): ["converted"]}, part(found)
    made = part(found).reshape
    assert made is not None
    assert (made.fields, made.started, made.lost) == ((0, 1), (), ())
    assert made.widened == ("max(cast(n as bigint))",)
    alone = planned(
        shape(operator(0, "stateStoreSave", "k string", "s long", ["k"], computes=[total])),
        shape(operator(0, "stateStoreSave", "k string", "s long", ["k"], computes=wide[:1])),
    )
    assert verdicts(alone) == {(0, 0): ["kept"]}
    short = Computed(text="sum(cast(n as smallint))", columns=1, start=(None,))
    other = shape(operator(0, "stateStoreSave", "k string", "s long", ["k"], computes=[short]))
    first = shape(operator(0, "stateStoreSave", "k string", "s long", ["k"], computes=[total]))
    assert verdicts(planned(first, other)) == {(0, 0): ["ambiguous"]}, "a shorter integer is another"


@pytest.mark.parametrize("maps", [(), ("counts/0=0",)])
def test_a_longer_window_is_named_and_never_mixed_up(maps: tuple[str, ...]) -> None:
    def windowed(text: str) -> Shape:
        return shape(operator(0, "stateStoreSave", "w string", "count0 long", [text], computes=[COUNT]))

    found = planned(windowed("window(ts, 30 seconds)"), windowed("window(ts, 1 minute)"), *maps)
    assert verdicts(found) == {(0, 0): ["incompatible"]}
    assert part(found).why.startswith("its window was 30 seconds long, is now 1 minute, and ")
    slid = planned(
        windowed("window(ts, 10 minutes, 5 minutes)"), windowed("window(ts, 10 minutes, 4 minutes)")
    )
    assert "began every 5 minutes, now every 4 minutes" in part(slid).why
    session = planned(
        windowed("session_window(ts, 5 seconds)"), windowed("session_window(ts, 10 seconds)"), *maps
    )
    assert verdicts(session) == {(0, 0): ["kept"] if maps else ["ambiguous"]}


def test_a_window_that_an_older_weir_described_is_the_same() -> None:
    before = "named_struct(start, knownnullable(precisetimestampconversion... e202cce2b0f007eb"
    older = {before: "window(ts, 30 seconds)"}
    reads = ("where (ts > now)", "reads json /in")
    old = operator(0, "stateStoreSave", "w string", "count0 long", [before], reads, [COUNT])
    new = operator(0, "stateStoreSave", "w string", "count0 long", WINDOWS, reads, [COUNT])
    assert verdicts(planned(shape(old), shape(new, older=older))) == {(0, 0): ["kept"]}
    other = {before.replace("e202", "9480"): "window(ts, 30 seconds)"}
    assert verdicts(planned(shape(old), shape(new, older=other))) == {(0, 0): ["ambiguous"]}


def nested(*fields: str) -> Shape:
    inner = {"type": "struct", "fields": [{"name": f, "type": "long", "nullable": True} for f in fields]}
    made = operator(0, "applyInPandasWithState", "k string", "groupState struct", ["k"])
    value = {"type": "struct", "fields": [{"name": "groupState", "type": inner, "nullable": True}]}
    family = made.stores[0].families[0].model_copy(update={"value_schema": value})
    store = made.stores[0].model_copy(update={"families": (family,)})
    return shape(made.model_copy(update={"stores": (store,)}))


def test_fields_of_a_struct_are_told_and_compared() -> None:
    more = planned(nested("c", "s"), nested("c", "s", "x"))
    assert verdicts(more) == {(0, 0): ["incompatible"]}
    assert (
        "struct<c bigint, s bigint>), is now (groupState struct<c bigint, s bigint, x bigint>)"
        in part(more).why
    )
    swapped = planned(nested("c", "s"), nested("s", "c"))
    assert verdicts(swapped) == {(0, 0): ["ambiguous"]}
    assert part(swapped).why == "its fields c, s became s, c, and look the same in the state"
    assert verdicts(planned(nested("c", "s"), nested("s", "c"), "counts/0=0")) == {(0, 0): ["kept"]}


def test_what_spark_would_surely_mix_up_is_certain() -> None:
    swapped = planned(shape(dedup(0, *SMALL), dedup(1, *LARGE)), shape(dedup(0, *LARGE), dedup(1, *SMALL)))
    assert all(one.certain for one in swapped.parts if one.what == "operator")
    assert part(planned(shape(dedup(0)), shape(dedup(0, key="user")))).certain
    today, tomorrow = (shape(dedup(0, key=f"(d>{day})")) for day in ("2026-11-17", "2026-11-18"))
    assert not part(planned(today, tomorrow)).certain, "one code writes another day every day"
    sources = planned(shape(sources=["json /a", "rate"]), shape(sources=["rate", "json /a"]))
    assert all(one.certain for one in sources.parts)


def shared(*folders: int) -> Shape:
    names = {0: "json /in", 1: "json /other"}
    sources = [
        PlannedSource(name=names.get(f, "json /in"), folder=f, used=(f"u{n}",)) for n, f in enumerate(folders)
    ]
    return shape().model_copy(update={"sources": tuple(sources)})


def test_uses_of_one_relation_stay_where_they_are() -> None:
    """They stand at the same offset and have one log: nothing is gained by moving them."""
    old = shared(0, 0)
    swapped = old.model_copy(update={"sources": old.sources[::-1]})
    found = plan({"counts": Before(old, CONF, ("3", "3"))}, {"counts": swapped}, Options())
    assert verdicts(found, "source") == {(0, 0): ["kept"], (1, 1): ["kept"]}
    assert not found.query("counts").sources_change


def test_folders_are_counted_by_relation() -> None:
    old, new = shared(0, 0, 1), shared(0, 1, 1)
    new = new.model_copy(
        update={
            "sources": (
                old.sources[2].model_copy(update={"folder": 0}),
                *(one.model_copy(update={"folder": 1}) for one in old.sources[:2]),
            )
        }
    )
    found = plan({"counts": Before(old, CONF, ("3", "3", "7"))}, {"counts": new}, Options())
    query = found.query("counts")
    assert query.sources == (2, 1, 0), "uses of one relation stand at one place"
    assert query.folders == {0: (1, 0), 1: (0, 1), 2: (0, 1)}
    apart = old.model_copy(
        update={"sources": tuple(one.model_copy(update={"folder": n}) for n, one in enumerate(old.sources))}
    )
    found = plan({"counts": Before(old, CONF, ("3", "3", "7"))}, {"counts": apart}, Options())
    assert found.query("counts").folders == {0: (0, 0), 1: (0, 1), 2: (1, 2)}
    assert found.query("counts").sources_change
    joined = plan({"counts": Before(apart, CONF, ("3", "4", "7"))}, {"counts": old}, Options())
    assert sorted(one.verdicts[0].value for one in joined.parts) == ["incompatible", "kept", "kept"]
