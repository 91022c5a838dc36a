"""Savepoints on real storages: written, read, copied across, and deleted, like those in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract import test_savepoint_store as in_memory
from weir.clock import Clock
from weir.errors import DamagedSavepointError, SavepointPlaceError
from weir.savepoint import object_store as in_store
from weir.savepoint.catalogue import below
from weir.savepoint.place import SavepointPlace
from weir.savepoint.verify import copy, dispose, verify
from weir.storage import Store, open_store
from weir.storage.local import LocalStore

own = in_memory.own
"""The fixture: a job's own directory, in which three attempts have been opened."""


@pytest.fixture(params=["s3", "hdfs"])
def target(request: pytest.FixtureRequest) -> str:
    place: str = request.getfixturevalue(f"{request.param}_place")
    return f"{place}/savepoints"


def test_a_savepoint_is_written_and_read_verified_listed_and_deleted(target: str) -> None:
    name = in_memory.saved(open_store(target), content=b"x" * 100_000)
    place = SavepointPlace(f"{target}/{name}")
    assert place.folder is None and place.read().job == in_memory.JOB
    assert verify(place, Clock()).whole
    assert below(target) == [place.url]
    dispose(place)
    assert below(target) == [] and list(open_store(target).list("")) == []


def test_a_damaged_file_is_found_and_not_copied(target: str, tmp_path: Path) -> None:
    name = in_memory.saved(open_store(target))
    open_store(target).put(f"{name}/{in_memory.FILES[0]}", b"y")
    place = SavepointPlace(f"{target}/{name}")
    assert verify(place, Clock()).damage == (f"{in_memory.FILES[0]} has changed",)
    with pytest.raises(DamagedSavepointError):
        copy(place, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_savepoint_is_copied_from_each_storage_to_each_other(
    s3_place: str, hdfs_place: str, tmp_path: Path
) -> None:
    first = in_memory.saved(open_store(f"{s3_place}/0"))
    place = f"{s3_place}/0/{first}"
    for target in (
        f"{hdfs_place}/1",
        str(tmp_path / "2"),
        f"{s3_place}/3",
        str(tmp_path / "4"),
        f"{hdfs_place}/5",
    ):
        place = copy(SavepointPlace(place), target).place
        assert place.startswith(target)
        assert verify(SavepointPlace(place), Clock()).whole
    assert SavepointPlace(place).read() == SavepointPlace(f"{s3_place}/0/{first}").read()


def test_two_writers_of_one_name_get_a_place_each(target: str) -> None:
    store = open_store(target)
    one, other = in_memory.begun(store), in_memory.begun(store)
    first, second = in_memory.written(one, b"one"), in_memory.written(other, b"other")
    assert other.finish(second).endswith("orders-7-abcd")
    assert one.finish(first).endswith("orders-7")
    with pytest.raises(SavepointPlaceError, match="a savepoint of this name exists"):
        in_memory.begun(store)


@pytest.mark.long
def test_a_writer_may_be_killed_anywhere_and_a_later_attempt_sweeps_it(target: str, own: LocalStore) -> None:
    def killed(at: int) -> Any:
        store: Store = open_store(f"{target}/{at}")
        dying = in_memory.Stepping(store, at, in_memory.kill)
        try:
            in_memory.saved(dying, in_memory.holder(own, 1))
        except in_memory.Killed:
            in_store.sweep(store, in_memory.holder(own, 2))
            assert not list(store.list("")) or in_memory.whole(store, "orders-7")
            name = in_memory.saved(store, in_memory.holder(own, 2))
            assert in_memory.whole(store, name)
        return dying

    in_memory.every_step(killed)


@pytest.mark.long
def test_a_deletion_may_be_killed_anywhere_and_any_sweep_continues_it(target: str) -> None:
    def killed(at: int) -> Any:
        store: Store = open_store(f"{target}/{at}")
        in_memory.saved(store)
        below = in_memory.Below(store, "orders-7")
        dying = in_memory.Stepping(below, at, in_memory.kill)
        try:
            in_store.delete(dying)
        except in_memory.Killed:
            in_store.sweep(store, None)
            if in_memory.whole(store, "orders-7"):
                in_store.delete(below)
            assert in_memory.only_marks(store)
        return dying

    in_memory.every_step(killed)
