"""Which generation a job works on, and which one is being opened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.clock import ManualClock
from weir.ids import BatchId, CheckpointId, Generation, QueryName, SourceName, job_name
from weir.storage import Store, paths
from weir.storage.generation import (
    FIRST,
    Origin,
    RestoreOptions,
    begin_rewind,
    create_origin,
    drop,
    is_live,
    live,
    mark_live,
    numbers,
    open_origin,
    opening,
    read_origin,
    rewinding,
    timeline,
)
from weir.storage.local import LocalStore
from weir.storage.object_store import ObjectStore

JOB = job_name("job")


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield LocalStore(tmp_path) if request.param == "local" else ObjectStore("memory://")


def first(store: Store) -> Origin:
    return open_origin(
        store, JOB, FIRST, backend="rocksdb", parallelism=4, spark="4.3.0", clock=ManualClock()
    )


def intend(store: Store, number: int, checkpoint: int, parent: int) -> Generation:
    origin = Origin("lineage", "rocksdb", 4, "4.3.0", "now", f"chk-{checkpoint}", parent)
    assert create_origin(store, JOB, Generation(number), origin)
    return Generation(number)


def test_before_the_first_start_the_first_generation_is_the_one_to_open(store: Store) -> None:
    assert numbers(store, JOB) == []
    assert (live(store, JOB), opening(store, JOB)) == (FIRST, None)


def test_the_first_generation_is_live_from_its_origin_on(store: Store) -> None:
    origin = first(store)
    assert (live(store, JOB), opening(store, JOB)) == (FIRST, None)
    assert first(store) == origin == read_origin(store, JOB, FIRST)


def test_a_restore_is_opening_until_it_is_marked_live(store: Store) -> None:
    first(store)
    second = intend(store, 2, 41, 1)
    store.create(paths.copied(JOB, second), b"{}")
    assert (live(store, JOB), opening(store, JOB)) == (FIRST, second)
    mark_live(store, JOB, second)
    mark_live(store, JOB, second)
    assert (live(store, JOB), opening(store, JOB)) == (second, None)


def test_of_several_intentions_the_last_counts_and_the_others_never_become_live(store: Store) -> None:
    first(store)
    second, third = intend(store, 2, 41, 1), intend(store, 3, 40, 1)
    assert opening(store, JOB) == third
    mark_live(store, JOB, third)
    assert (live(store, JOB), opening(store, JOB)) == (third, None)
    assert not is_live(store, JOB, second)


def test_an_intention_that_came_while_another_one_was_opened_is_opened_next(store: Store) -> None:
    first(store)
    second, third = intend(store, 2, 41, 1), intend(store, 3, 40, 1)
    mark_live(store, JOB, second)
    assert (live(store, JOB), opening(store, JOB)) == (second, third)


def test_of_intentions_that_are_dropped_only_one_that_has_begun_to_rewind_is_taken_up_again(
    store: Store,
) -> None:
    first(store)
    second, third = intend(store, 2, 41, 1), intend(store, 3, 40, 1)
    assert drop(store, JOB, third, "it can't be done") and opening(store, JOB) is None
    begin_rewind(store, JOB, second, {QueryName("counts"): BatchId(7)})
    assert opening(store, JOB) == second
    assert not drop(store, JOB, second, "sinks are being rewound") and opening(store, JOB) == second
    fourth = intend(store, 4, 39, 1)
    assert opening(store, JOB) == fourth
    assert drop(store, JOB, fourth, "it can't be done") and opening(store, JOB) == second
    assert rewinding(store, JOB) == {second: {"counts": 7}}
    mark_live(store, JOB, second)
    assert rewinding(store, JOB) == {} and opening(store, JOB) is None


def test_a_restore_into_an_empty_directory_need_not_be_the_first_generation(store: Store) -> None:
    fourth = intend(store, 4, 41, 3)
    assert (live(store, JOB), opening(store, JOB)) == (FIRST, fourth)
    mark_live(store, JOB, fourth)
    assert live(store, JOB) == fourth
    assert timeline(store, JOB) == {fourth: None, Generation(3): CheckpointId(41)}


def test_the_timeline_leaves_out_what_a_rollback_went_behind(store: Store) -> None:
    first(store)
    assert timeline(store, JOB) == {FIRST: None}
    mark_live(store, JOB, intend(store, 2, 41, 1))
    mark_live(store, JOB, third := intend(store, 3, 47, 2))
    assert timeline(store, JOB) == {third: None, Generation(2): 47, FIRST: 41}
    mark_live(store, JOB, fourth := intend(store, 4, 40, 1))
    assert timeline(store, JOB) == {fourth: None, FIRST: 40}


def test_an_origin_of_an_older_release_can_be_read(store: Store) -> None:
    old = b'{"lineage":"l","backend":"hashmap","parallelism":2,"spark":"4.2.0","created_at":"then"}'
    store.create(paths.origin(JOB, FIRST), old)
    origin = read_origin(store, JOB, FIRST)
    assert origin == Origin("l", "hashmap", 2, "4.2.0", "then")
    assert origin.checkpoint is None


def test_an_origin_is_stored_flat_as_an_earlier_weir_reads_it(store: Store) -> None:
    options = RestoreOptions(True, ("a=b",), True, {"counts/rows": "latest"}, True)
    origin = Origin("l", "hashmap", 2, "4.2.0", "then", "chk-41", 1, options=options, owners={"new": "old"})
    create_origin(store, JOB, FIRST, origin)
    body = json.loads(store.get(paths.origin(JOB, FIRST)) or b"")
    assert body["accept_duplicates"] is True and body["maps"] == ["a=b"] and body["claim"] is True
    assert body["offsets"] == {"counts/rows": "latest"} and body["allow_dropped"] is True
    assert not any(isinstance(value, dict) for key, value in body.items() if key not in ("offsets", "owners"))
    assert read_origin(store, JOB, FIRST) == origin


def test_the_journal_of_a_source_is_of_no_generation() -> None:
    places = {paths.source(JOB, Generation(n), SourceName("lines")) for n in (1, 2)}
    assert places == {"job/sources/lines"}
