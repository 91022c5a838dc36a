"""The files of a cut for another place and shape: text in, text out, and a folder of links."""

from __future__ import annotations

from pathlib import Path

from weir.spark.cut import conf_of, is_operator, is_state, scratch
from weir.spark.logs import OffsetEntry, OperatorEntry

OFFSETS = 'v1\n{"batchWatermarkMs":7,"conf":{"a":"1","spark.sql.shuffle.partitions":"2"}}\n{"logOffset":3}\n-'


def test_state_is_told_from_what_describes_it() -> None:
    described = [
        "state/0/_metadata/metadata",
        "state/0/_metadata/v2/0",
        "state/0/_stateSchema/default/0_abc",
        "state/0/0/_metadata/schema",
        "state/0/0/left-keyToNumValues/_metadata/schema",
        "offsets/3",
    ]
    state = ["state/0/0/4.delta", "state/11/3/SSTs/000012-x.sst", "state/0/1/left-keyToNumValues/4_u.zip"]
    assert [path for path in described + state if is_state(path)] == state
    assert [path for path in described + state if is_operator(path)] == described[:2]


def test_only_the_named_settings_change(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/3").write_text(
        OffsetEntry.parse(OFFSETS).with_conf({"spark.sql.shuffle.partitions": "5"}).text
    )
    assert (tmp_path / "offsets/3").read_text().split("\n")[2:] == ['{"logOffset":3}', "-"]
    from weir.ids import BatchId

    assert conf_of(tmp_path, BatchId(3)) == {"a": "1", "spark.sql.shuffle.partitions": "5"}


def test_an_operator_is_described_for_its_new_place() -> None:
    entry = OperatorEntry(
        "v2",
        {
            "stateStoreInfo": [
                {
                    "storeName": "default",
                    "numPartitions": 2,
                    "stateSchemaFilePaths": [
                        "file:/old/queries/q/state/0/_stateSchema/default/0_x",
                        "state/0/_stateSchema/default/4_y",
                    ],
                }
            ]
        },
    )
    moved = OperatorEntry.parse(entry.moved(Path("/new/q"), partitions=5).text).stores[0]
    assert moved["numPartitions"] == 5
    assert moved["stateSchemaFilePaths"] == [
        "file:/new/q/state/0/_stateSchema/default/0_x",
        "/new/q/state/0/_stateSchema/default/4_y",
    ]
    assert OperatorEntry.parse(entry.moved(Path("/new/q")).data).stores[0]["numPartitions"] == 2


def test_scratch_is_a_place_that_spark_finds(tmp_path: Path) -> None:
    near = scratch(tmp_path / "query")
    assert near.parent == tmp_path and near.is_dir()
    far = scratch(tmp_path / "with space" / "query")
    assert " " not in str(far) and far.is_dir()
    far.rmdir()
