"""The text files of a checkpointLocation: parsed, changed and written."""

from __future__ import annotations

import pytest

from weir.spark.logs import (
    CommitEntry,
    FileEntry,
    OffsetEntry,
    OperatorEntry,
    file_entries,
    log_offset,
    versioned,
    without_middle,
)

BY_PLACE = 'v1\n{"batchWatermarkMs":7, "conf":{"a":"1"}}\n{"logOffset":3}\n-'
BY_NAME = (
    'v2\n{"batchWatermarkMs":0,"conf":{"a":"1"},"sourceMetadataInfo":{"a":1,"b":2}}\na:{"logOffset":3}\nb:-'
)


@pytest.mark.parametrize("text", [BY_PLACE, BY_NAME])
def test_what_is_not_changed_is_written_byte_for_byte(text: str) -> None:
    assert OffsetEntry.parse(text).text == text
    assert OffsetEntry.parse(text.encode()).data == text.encode()
    assert OffsetEntry.parse(text).with_offsets(lambda end: end).text == text
    assert OffsetEntry.parse(text).problem() is None


def test_sources_are_found_by_place_or_by_name() -> None:
    by_place, by_name = OffsetEntry.parse(BY_PLACE), OffsetEntry.parse(BY_NAME)
    assert dict(by_place.ends()) == {"0": '{"logOffset":3}', "1": "-"}
    assert dict(by_name.ends()) == {"a": '{"logOffset":3}', "b": "-"}
    assert list(by_place.offsets()) == list(by_name.offsets()) == [{"logOffset": 3}, None]
    assert (by_place.watermark_ms, by_name.watermark_ms) == (7, None)


def test_sources_change_places_and_names() -> None:
    assert OffsetEntry.parse(BY_PLACE).reordered([None, 0]).lines == ("-", '{"logOffset":3}')
    assert OffsetEntry.parse(BY_PLACE).with_ends({1: "5"}).lines == ('{"logOffset":3}', "5")
    assert OffsetEntry.parse(BY_PLACE).numbered({4: 1}) == {4: "-"}
    renamed = OffsetEntry.parse(BY_NAME).renamed({"a": "c", "b": None})
    assert renamed.lines == ('c:{"logOffset":3}',)
    assert renamed.metadata["sourceMetadataInfo"] == {"c": 1}


def test_what_fits_one_kind_of_log_is_refused_for_the_other() -> None:
    with pytest.raises(ValueError, match="have no names"):
        OffsetEntry.parse(BY_PLACE).renamed({})
    by_name = OffsetEntry.parse(BY_NAME)
    with pytest.raises(ValueError, match="have names"):
        by_name.reordered([0])
    with pytest.raises(ValueError, match="have names"):
        by_name.with_ends({0: "-"})
    with pytest.raises(ValueError, match="have names"):
        by_name.numbered({0: 0})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("v1", "is cut off"),
        ("v1\n{", "is cut off"),
        ("v1\n[]", "is cut off"),
        ('v1\n{}\n{"logOff', "is cut off"),
        ('v2\n{}\na:{"logOff', "is cut off"),
        ("first\n{}", "can't be read"),
    ],
)
def test_damage_of_an_entry_is_named(text: str, problem: str) -> None:
    assert OffsetEntry.parse(text).problem() == problem


def test_a_decision_record_gets_other_state() -> None:
    entry = CommitEntry.parse('v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["x"]]}}')
    assert (entry.state_format, entry.state_ids, entry.watermark_ms) == (2, {"0": [["x"]]}, 5)
    assert entry.with_state({}).text == 'v2\n{"nextBatchWatermarkMs":5}'
    assert entry.with_state({"1": [["y"]]}, "v3").text.startswith("v3\n")
    assert entry.with_state({"1": [["y"]]}).state_ids == {"1": [["y"]]}
    assert CommitEntry.parse("v1").state_format == 1


def test_an_operator_gets_another_number_without_a_change_of_the_old_entry() -> None:
    store = {"storeName": "s", "numPartitions": 2, "stateSchemaFilePaths": ["/a/state/3/_stateSchema/d/0_x"]}
    entry = OperatorEntry(
        "v2", {"operatorInfo": {"operatorId": 3, "operatorName": "k"}, "stateStoreInfo": [store]}
    )
    moved = entry.moved("/b", id=7)
    assert moved.content["operatorInfo"] == {"operatorId": 7, "operatorName": "k"}
    assert moved.stores[0]["stateSchemaFilePaths"] == ["/b/state/7/_stateSchema/d/0_x"]
    assert entry.content["operatorInfo"]["operatorId"] == 3
    assert entry.stores[0]["stateSchemaFilePaths"] == ["/a/state/3/_stateSchema/d/0_x"]


def test_a_log_of_files_knows_its_entries_and_compactions() -> None:
    assert file_entries(["1.compact", "2", ".2.crc", "x", "2.tmp"]) == {1: "1.compact", 2: "2"}
    assert FileEntry.parse(FileEntry(({"path": "a"},)).data).files == ({"path": "a"},)
    assert FileEntry().data == b"v1" and FileEntry.parse(b"v1").known
    assert not FileEntry.parse(b"v2").known
    cut = without_middle(b'v1\n{"path":"a"}\n{"pa', b'th":"y"}\n{"path":"z"}')
    assert [one["path"] for one in FileEntry.parse(cut).files] == ["a", "z"]
    assert (log_offset('{"logOffset":3}'), log_offset("-"), log_offset('{"entry":3}')) == (3, None, None)
    with pytest.raises(ValueError, match="Unterminated"):
        log_offset('{"logOff')


def test_a_version_alone_is_no_file() -> None:
    with pytest.raises(ValueError, match="after its version"):
        versioned("v1")
