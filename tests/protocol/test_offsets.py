"""What `--set-offsets` may say of which source, and what becomes of it."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from weir.errors import BadOffsetsError
from weir.protocol.offsets import (
    Kind,
    OffsetChoice,
    QuerySource,
    SourcePosition,
    Word,
    check_form,
    choices,
    fixed_position,
    kafka_offsets,
    log_entry,
)

ORDERS = QuerySource("kafka orders", Kind.KAFKA, "orders")
FILES = QuerySource("json /in", Kind.FILES, "drops")
CHANNEL = QuerySource("channel clean", Kind.OWN)
RATE = QuerySource("rate", Kind.COUNTED, "ticks")
SCRIPT = QuerySource("weir-script /in.jsonl", Kind.OTHER, "rows")
NAMED = QuerySource("named a", Kind.NAMED)
SOURCES = {"counts": [ORDERS, FILES, CHANNEL, RATE, SCRIPT, NAMED], "new": [ORDERS]}


def said(**given: str) -> dict[int, OffsetChoice]:
    """What is said of the query `counts`, by number."""
    places = {f"counts/{where}": value for where, value in given.items()}
    return choices(places, SOURCES)["counts"]


def refused(place: str, value: str) -> str:
    with pytest.raises(BadOffsetsError) as error:
        choices({place: value}, SOURCES)
    assert place in error.value.what
    return error.value.why


def test_a_source_is_found_by_its_number_and_by_the_name_that_its_author_gave_it() -> None:
    assert said(**{"@0": "latest"})[0].word is Word.LATEST
    assert said(orders="latest")[0].word is Word.LATEST
    assert said(drops="earliest", **{"@0": "initial"}).keys() == {0, 1}


def test_a_frame_that_is_used_twice_is_set_twice() -> None:
    twice = {"counts": [ORDERS, ORDERS]}
    assert choices({"counts/orders": "latest"}, twice)["counts"].keys() == {0, 1}


def test_of_several_wrong_values_one_error_names_each_and_its_hint_is_there_once() -> None:
    wrong = {"counts/orders": "yesterday", "counts/drops": "latest", "counts/@9": "latest"}
    for look in (lambda: choices(wrong, SOURCES), lambda: check_form({**wrong, "counts": "latest"})):
        with pytest.raises(BadOffsetsError) as error:
            look()
        assert "counts/orders: 'yesterday' is not a place" in error.value.why
        assert "drops: " not in error.value.text
        assert error.value.text.count("WHERE is earliest") == 1
    assert error.value.what == "--set-offsets counts/orders, counts can't be used"
    with pytest.raises(BadOffsetsError, match=r"counts/orders, counts/@9 can't be used"):
        choices(wrong, SOURCES)


def test_a_time_names_its_zone() -> None:
    at = said(orders="timestamp:2026-11-16T00:00:00Z")[0]
    assert at.since == datetime(2026, 11, 16, tzinfo=timezone.utc)
    assert at.since_ms == 1794787200000
    assert said(orders="timestamp:2026-11-16T01:00:00+01:00")[0].since_ms == at.since_ms
    assert "no time zone" in refused("counts/orders", "timestamp:2026-11-16T00:00:00")
    assert "not a time of the form" in refused("counts/orders", "timestamp:yesterday")


@pytest.mark.parametrize("value", ["later", "1200", "[1]", "", "timestamp", '{"orders":'])
def test_what_is_no_place_is_refused(value: str) -> None:
    assert "not a place to resume from" in refused("counts/orders", value)


@pytest.mark.parametrize("place", ["counts", "counts/", "/@0", "counts/@x", "counts/@"])
def test_what_names_no_source_is_refused(place: str) -> None:
    assert "of the form" in refused(place, "latest")


def test_a_source_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert "@0 orders, @1 drops, @2 channel clean" in refused("counts/order", "latest")
    assert "no such source" in refused("counts/@9", "latest")
    assert "no query 'sums'" in refused("sums/@0", "latest")
    assert choices({"new/orders": "latest"}, SOURCES)["new"].keys() == {0}, "a new query can be set, too"
    with pytest.raises(BadOffsetsError, match="the same source"):
        said(orders="latest", **{"@0": "earliest"})


@pytest.mark.parametrize("value", ["latest", "timestamp:2026-11-16T00:00:00Z", '{"entry": 1}'])
def test_the_positions_of_the_jobs_own_files_are_never_set(value: str) -> None:
    assert "belongs to the job's own files" in refused("counts/@2", value)
    assert "Spark finds 'named a' by its name" in refused("counts/@5", value)


def test_of_any_source_it_can_be_said_that_it_begins() -> None:
    """The plan refuses that for one of the job's own that has a position."""
    assert said(**{"@2": "initial", "@5": "initial"}).keys() == {2, 5}
    assert "belongs to the job's own files" in fixed_position(CHANNEL)
    assert fixed_position(ORDERS) == ""


def test_rate_and_socket_can_only_begin_again() -> None:
    assert said(ticks="initial")[3].word is Word.INITIAL
    for value in ("earliest", "latest", "timestamp:2026-11-16T00:00:00Z", '{"offset": 1}'):
        assert "'rate' can only start from its beginning" in refused("counts/ticks", value)


def test_of_another_source_weir_knows_no_words_but_takes_its_offset() -> None:
    assert said(rows='{"batch": 1}')[4].offset == {"batch": 1}
    assert said(rows="initial")[4].word is Word.INITIAL
    assert "'weir-script /in.jsonl'" in refused("counts/rows", "earliest")


@pytest.mark.parametrize(
    "given", ['{"orders": 1}', '{"orders": {}}', '{"orders": {"a": 1}}', '{"orders": {"0": -3}}', "{}"]
)
def test_an_offset_of_kafkas_has_topics_and_partitions(given: str) -> None:
    with pytest.raises(BadOffsetsError, match="by topic and partition"):
        kafka_offsets(said(orders=given)[0])
    assert kafka_offsets(said(orders='{"o": {"0": 5, "1": -2}}')[0]) == {"o": {0: 5, 1: -2}}


@pytest.mark.parametrize("given", ['{"logOffset": -1}', '{"logOffset": true}', '{"log": 1}', "{}"])
def test_an_offset_of_files_is_an_entry_of_their_log(given: str) -> None:
    with pytest.raises(BadOffsetsError, match="logOffset"):
        log_entry(said(drops=given)[1])
    assert log_entry(said(drops='{"logOffset": 3}')[1]) == 3


def test_partitions_that_are_not_named_stay_where_they_were() -> None:
    one = SourcePosition("", '{"o":{"0":5}}', others=(("o", 1), ("o", 2)))
    stood = '{"o":{"0":1,"1":7},"gone":{"0":9}}'
    assert json.loads(one.after(stood)) == {"o": {"0": 5, "1": 7}}, "2 came since, and begins by itself"
    with pytest.raises(LookupError, match="o-1, o-2"):
        one.after("-")
    assert SourcePosition("", '{"o":{"0":5}}').after(stood) == '{"o":{"0":5}}'
