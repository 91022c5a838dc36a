"""What of a query's state can't take another shape is known before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from weir.protocol.operators import Family, Operator, StateStore
from weir.spark.checkpoint_files import HASHMAP, ROCKSDB
from weir.spark.logs import PARTITIONS, PROVIDER
from weir.spark.reshape import CODEC, ROW_CHECKSUM, partition_columns, refusals

PROVIDERS = {"rocksdb": ROCKSDB, "hashmap": HASHMAP}
KEY = ("string",)


def struct(*types: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": f"c{n}", "type": one} for n, one in enumerate(types)]}


def operator(kind: str, *families: str, key: tuple[Any, ...] = KEY, store: str = "default") -> Operator:
    made = (Family(name=name, key_schema=struct(*key), value_schema=struct("long")) for name in families)
    return Operator(id=3, kind=kind, stores=(StateStore(name=store, families=tuple(made)),), partitions=2)


def conf(backend: str = "rocksdb", **more: str) -> dict[str, str]:
    return {PROVIDER: PROVIDERS.get(backend, backend), PARTITIONS: "2", CODEC: "lz4", **more}


AGGREGATE = operator("stateStoreSave", "default")
PLAIN = [
    AGGREGATE,
    operator("stateStoreSave", "default", key=()),
    operator("dedupe", "default"),
    operator("dedupeWithinWatermark", "default"),
    operator("sessionWindowStateStoreSaveExec", "default", key=("string", "timestamp")),
    operator("symmetricHashJoin", "default", store="left-keyToNumValues"),
    operator("flatMapGroupsWithState", "default"),
    operator("applyInPandasWithState", "default"),
]
FAMILIES = [
    operator("transformWithStateInPySparkExec", "default", "total", "$ttl_total"),
    operator("symmetricHashJoin", "left-keyToNumValues", "left-keyWithIndexToValue"),
]
JOIN_4 = operator("symmetricHashJoin", "left-keyWithTsToValues", "left-tsWithKey")
LIMIT = operator("globalLimit")


@pytest.mark.parametrize("one", [*PLAIN, *FAMILIES, LIMIT], ids=lambda one: one.kind)
def test_rocksdb_takes_any_number_of_partitions(one: Operator) -> None:
    assert refusals([one], conf(), partitions=5, backend="rocksdb") == []


@pytest.mark.parametrize("one", PLAIN, ids=lambda one: one.kind)
@pytest.mark.parametrize("backends", [("hashmap", "hashmap"), ("hashmap", "rocksdb"), ("rocksdb", "hashmap")])
def test_plain_state_goes_anywhere(one: Operator, backends: tuple[str, str]) -> None:
    assert refusals([one], conf(backends[0]), partitions=5, backend=backends[1]) == []


@pytest.mark.parametrize("one", [*FAMILIES, JOIN_4, LIMIT, operator("new in Spark 9", "default")])
def test_nothing_is_refused_where_nothing_changes(one: Operator) -> None:
    assert refusals([one], conf(), partitions=2, backend="rocksdb") == []


@pytest.mark.parametrize(
    ("one", "settings", "backend", "why"),
    [
        (JOIN_4, conf(), "rocksdb", "join state of version 4"),
        (FAMILIES[0], conf(), "hashmap", "no transformWithState on the hashmap backend"),
        (FAMILIES[1], conf(), "hashmap", "no join state of version 3 on the hashmap backend"),
        (LIMIT, conf(), "hashmap", "no schema of its state"),
        (LIMIT, conf("hashmap"), "rocksdb", "no schema of its state"),
        (operator("new in Spark 9", "default"), conf(), "rocksdb", "can't rewrite state of this kind"),
        (operator("dedupe"), conf(), "rocksdb", "the schema of its state is not there"),
        (AGGREGATE, conf("com.example.Provider"), "rocksdb", "com.example.Provider is not known to weir"),
        (AGGREGATE, conf("hashmap", **{CODEC: "snappy"}), "hashmap", "compressed with snappy"),
        (AGGREGATE, conf(**{CODEC: "snappy"}), "hashmap", "compressed with snappy"),
        (AGGREGATE, conf("hashmap", **{ROW_CHECKSUM: "true"}), "rocksdb", "rows carry checksums"),
        (operator("dedupe", "default", key=("variant",)), conf("hashmap"), "hashmap", "keys of type variant"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    one: Operator, settings: dict[str, str], backend: str, why: str
) -> None:
    (refused,) = refusals([AGGREGATE, one][one is AGGREGATE :], settings, partitions=5, backend=backend)[-1:]
    assert (refused.operator, refused.kind) == (3, one.kind)
    assert why in refused.why and refused.hint


def test_a_key_that_nobody_can_place_may_still_change_the_backend() -> None:
    one = operator("dedupe", "default", key=("variant",))
    assert refusals([one], conf("hashmap"), partitions=2, backend="rocksdb") == []
    assert refusals([one], conf("rocksdb"), partitions=5, backend="hashmap") == []


@pytest.mark.parametrize(
    ("one", "columns"),
    [
        (operator("stateStoreSave", "default", key=("string", "long")), 2),
        (operator("stateStoreSave", "default", key=()), 0),
        (operator("sessionWindowStateStoreSaveExec", "default", key=("string", "timestamp")), 1),
        (operator("symmetricHashJoin", "default", key=("string",), store="right-keyToNumValues"), 1),
        (
            operator(
                "symmetricHashJoin", "default", key=("string", "long"), store="right-keyWithIndexToValue"
            ),
            1,
        ),
    ],
)
def test_the_columns_that_decide_where_a_key_is(one: Operator, columns: int) -> None:
    assert partition_columns(one, one.stores[0]) == columns
