"""Savepoints in an object store: writers, deletions and sweeps, each killed or overtaken at any step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weir.clock import Clock
from weir.errors import OutcomeUnknownError, SavepointPlaceError
from weir.ids import Attempt, job_name
from weir.savepoint import object_store as in_store
from weir.savepoint import place as place_module
from weir.savepoint import verify as copying
from weir.savepoint import write as writing
from weir.savepoint.manifest import MANIFEST, SavedFile, Savepoint, decode, encode
from weir.savepoint.object_store import InStore, TakingAttempt
from weir.savepoint.place import SavepointPlace
from weir.storage import Created, Store
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.storage.manifest import FORMAT
from weir.storage.object_store import ObjectStore

JOB = job_name("orders")
NAMES = ["orders-7", "orders-7-abcd"]
FILES = ["sources/a/log/000000001.json", "sources/a/log/000000002.json"]


class Killed(BaseException):
    """As sudden as a kill: nothing in between may tidy up."""


class Stepping:
    """A store in which something happens in front of the n-th operation, once."""

    def __init__(self, inner: Store, at: int, happen: Callable[[], object]) -> None:
        self._inner, self._left, self._happen = inner, at, happen

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def happened(self) -> bool:
        return self._left < 0

    def create(self, key: str, data: bytes) -> Created:
        self._step()
        return self._inner.create(key, data)

    def put(self, key: str, data: bytes) -> None:
        self._step()
        self._inner.put(key, data)

    def get(self, key: str) -> bytes | None:
        self._step()
        return self._inner.get(key)

    def exists(self, key: str) -> bool:
        self._step()
        return self._inner.exists(key)

    def list(self, prefix: str) -> Iterator[str]:
        self._step()
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._step()
        self._inner.delete(key)

    def _step(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._happen()


def kill() -> None:
    raise Killed


@pytest.fixture
def own(tmp_path: Path) -> LocalStore:
    """The job's own directory, in which three attempts have been opened."""
    store = LocalStore(tmp_path / "weir")
    lock = AttemptLock(store, JOB, Clock())
    lock.acquire("a session", 1.0, lambda _record, _seconds: None)
    for _ in range(2):
        lock.advance("a session", 1.0)
    return store


def holder(own: Store, attempt: int) -> TakingAttempt:
    return TakingAttempt(own, JOB, Attempt(attempt))


def begun(store: Store, holder: TakingAttempt | None = None) -> InStore:
    return InStore(store, NAMES, holder)


def written(writer: InStore, content: bytes = b"x") -> Savepoint:
    return told(tuple(writer.add(path, [content]) for path in FILES))


def told(files: tuple[SavedFile, ...]) -> Savepoint:
    words = dict.fromkeys(
        ("taken_at", "taken_by", "trigger", "job_file", "job_version", "weir", "spark", "backend"), "?"
    )
    numbers = {"seconds": 1.0, "parallelism": 1, "generation": 1, "attempt": 1, "id": 7, "format": FORMAT}
    rest = {"alignment": "aligned", "lineage": "abcd", "queries": {}, "channels": {}}
    return Savepoint.model_validate({"job": JOB, "files": files, **words, **numbers, **rest})


def saved(store: Store, holder: TakingAttempt | None = None, content: bytes = b"x") -> str:
    writer = begun(store, holder)
    return writer.finish(written(writer, content)).rpartition("/")[2]


def whole(store: Store, name: str, content: bytes = b"x") -> bool:
    """Whether a savepoint of this name exists, with its own files."""
    data = store.get(f"{name}/{MANIFEST}")
    return data is not None and all(
        store.get(f"{name}/{file.path}") == content for file in decode(data, name).files
    )


def no_savepoint(store: Store) -> bool:
    return not any(key.endswith(MANIFEST) for key in store.list(""))


def only_marks(store: Store) -> bool:
    return all(in_store.is_mark(key.partition("/")[2]) for key in store.list(""))


def every_step(do: Callable[[int], Stepping]) -> int:
    """Call it with each number until there is no such operation; how many there were."""
    at = 0
    while do(at).happened:
        at += 1
    assert at > 3
    return at


def test_two_writers_of_one_name_get_a_place_each() -> None:
    store = ObjectStore("memory://")
    one, other = begun(store), begun(store)
    first, second = written(one, b"one"), written(other, b"other")
    assert other.finish(second).endswith("orders-7-abcd")
    assert one.finish(first).endswith("orders-7")
    other.give_up()
    one.give_up()
    assert whole(store, "orders-7", b"one") and whole(store, "orders-7-abcd", b"other")
    with pytest.raises(SavepointPlaceError, match="a savepoint of this name exists"):
        begun(store)


def test_the_loser_gives_up_and_the_winner_stays() -> None:
    store = ObjectStore("memory://")
    one, other = begun(store), begun(store)
    written(other)
    assert one.finish(written(one)).endswith("orders-7")
    with pytest.raises(
        SavepointPlaceError, match=r"being written .* weir savepoint dispose memory:///*orders-7-abcd"
    ):
        begun(store)
    other.give_up()
    assert whole(store, "orders-7") and not list(store.list("orders-7-abcd"))


def test_a_taking_that_lives_is_left_alone_by_all_others(own: Store) -> None:
    """A scheduled one, while the job is stopped with another, and somebody copies."""
    store = ObjectStore("memory://")
    scheduled = begun(store, holder(own, 2))
    savepoint = written(scheduled)
    for other in (holder(own, 2), holder(own, 1), TakingAttempt(own, job_name("fork"), Attempt(9)), None):
        InStore(store, ["orders-8"], other).give_up()
    assert scheduled.finish(savepoint) and whole(store, "orders-7")
    assert set(store.list("")) == {f"orders-7/{path}" for path in (*FILES, MANIFEST)}


def test_a_job_of_this_name_elsewhere_is_another_one(own: Store, tmp_path: Path) -> None:
    store = ObjectStore("memory://")
    elsewhere = LocalStore(tmp_path / "elsewhere")
    AttemptLock(elsewhere, JOB, Clock()).acquire("theirs", 1.0, lambda _record, _seconds: None)
    theirs = begun(store, holder(elsewhere, 1))
    written(theirs)
    assert in_store.sweep(store, holder(own, 3)) == []
    store.put("notes/taking.json", b"[]")
    store.put("more/taking.json", b"mine")
    assert in_store.sweep(store, holder(own, 3)) == []


def test_a_writer_may_be_killed_anywhere_and_a_later_attempt_sweeps_it(own: Store) -> None:
    def killed(at: int) -> Stepping:
        store = ObjectStore("memory://")
        dying = Stepping(store, at, kill)
        try:
            saved(dying, holder(own, 1))
        except Killed:
            before = set(store.list(""))
            assert in_store.sweep(store, holder(own, 1)) == [] and in_store.sweep(store, None) == []
            assert set(store.list("")) == before
            in_store.sweep(store, holder(own, 2))
            assert not list(store.list("")) or whole(store, "orders-7")
            if whole(store, "orders-7"):
                assert saved(store, holder(own, 2)) == "orders-7-abcd" and whole(store, "orders-7")
            else:
                assert saved(store, holder(own, 2)) == "orders-7"
        return dying

    every_step(killed)


def test_to_give_up_may_be_killed_anywhere(own: Store) -> None:
    def killed(at: int) -> Stepping:
        store = ObjectStore("memory://")
        dying = Stepping(store, at + 100, kill)
        writer = begun(dying, holder(own, 1))
        written(writer)
        dying._left = at
        try:
            writer.give_up()
            assert not list(store.list(""))
        except Killed:
            in_store.sweep(store, holder(own, 2))
            assert only_marks(store)
            assert whole(store, saved(store))
        return dying

    every_step(killed)


def test_a_deletion_may_be_killed_anywhere_and_any_sweep_goes_on_with_it() -> None:
    def killed(at: int) -> Stepping:
        store = ObjectStore("memory://")
        saved(store)
        below = Below(store, "orders-7")
        dying = Stepping(below, at, kill)
        try:
            in_store.delete(dying)
        except Killed:
            in_store.sweep(store, None)
            if whole(store, "orders-7"):
                in_store.delete(below)
            assert only_marks(store)
            name = saved(store)
            assert whole(store, name)
            in_store.delete(Below(store, name))
            assert only_marks(store)
            in_store.discard(below)
        assert not list(store.list(""))
        return dying

    every_step(killed)


class Below:
    """A store that is a folder of another one."""

    def __init__(self, inner: Store, name: str) -> None:
        self._inner, self._name = inner, name

    @property
    def url(self) -> str:
        return f"{self._inner.url}/{self._name}"

    def create(self, key: str, data: bytes) -> Created:
        return self._inner.create(f"{self._name}/{key}", data)

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(f"{self._name}/{key}", data)

    def get(self, key: str) -> bytes | None:
        return self._inner.get(f"{self._name}/{key}")

    def exists(self, key: str) -> bool:
        return self._inner.exists(f"{self._name}/{key}")

    def list(self, prefix: str) -> Iterator[str]:
        below = f"{self._name}/{prefix}" if prefix else self._name
        return (key.removeprefix(f"{self._name}/") for key in self._inner.list(below))

    def delete(self, key: str) -> None:
        self._inner.delete(f"{self._name}/{key}")


def finished(writer: InStore, savepoint: Savepoint) -> str | None:
    try:
        return writer.finish(savepoint)
    except SavepointPlaceError:
        return None
    finally:
        writer.give_up()


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_zombie_and_who_clears_after_it_never_leave_half_a_savepoint(own: Store, by_hand: bool) -> None:
    """Each at every step of the other: it is whole, or it is none and its writer knows."""

    def clear(store: Store) -> None:
        if by_hand:
            in_store.discard(Below(store, "orders-7"))
        else:
            in_store.sweep(store, holder(own, 2))

    def meanwhile_cleared(at: int) -> Stepping:
        store = ObjectStore("memory://")
        stepping = Stepping(store, at + 100, lambda: clear(store))
        zombie = begun(stepping, holder(own, 1))
        savepoint = written(zombie)
        stepping._left = at
        place = finished(zombie, savepoint)
        assert whole(store, "orders-7") if place else no_savepoint(store)
        return stepping

    def meanwhile_finished(at: int) -> Stepping:
        store = ObjectStore("memory://")
        zombie = begun(store, holder(own, 1))
        savepoint = written(zombie)
        places: list[str | None] = []
        stepping = Stepping(store, at, lambda: places.append(finished(zombie, savepoint)))
        clear(stepping)
        if stepping.happened and not by_hand:
            assert whole(store, "orders-7") if places[0] else no_savepoint(store)
        else:
            assert whole(store, "orders-7") or no_savepoint(store)
        return stepping

    every_step(meanwhile_cleared)
    every_step(meanwhile_finished)


def test_a_slow_sweep_never_deletes_what_a_new_writer_has_under_the_name_since(own: Store) -> None:
    """The deletion that it goes on with ends, and the name is used again, at any step of the sweep."""
    names = set()

    def overtaken(at: int) -> Stepping:
        store = ObjectStore("memory://")
        saved(store)
        slow: list[tuple[InStore, Savepoint]] = []

        def use_again() -> None:
            deleting._happen = lambda: None
            in_store._delete(store, "orders-7", lambda _there: True)
            for mark in [key for key in store.list("orders-7") if key in left]:
                store.delete(mark)  # the deletion was only slow
            writer = begun(store)
            slow.append((writer, written(writer, b"new")))

        deleting = Stepping(Below(store, "orders-7"), 4, kill)
        with pytest.raises(Killed):
            in_store.delete(deleting)
        left = list(store.list("orders-7"))
        stepping = Stepping(store, at, use_again)
        in_store.sweep(stepping, holder(own, 3))
        for writer, savepoint in slow:
            name = writer.finish(savepoint).rpartition("/")[2]
            names.add(name)
            assert whole(store, name, b"new")
        return stepping

    every_step(overtaken)
    assert names == set(NAMES), "the name was used again where nobody was at work"


def test_who_has_lost_the_name_leaves_it_to_whom_it_belongs_now(own: Store) -> None:
    store = ObjectStore("memory://")
    zombie = begun(store, holder(own, 1))
    lost = written(zombie)
    assert in_store.sweep(store, holder(own, 2)) == ["orders-7"]
    new = begun(store, holder(own, 2))
    savepoint = written(new, b"new")
    assert finished(zombie, lost) is None
    store.put("orders-7/deleting-0123.json", b"{}")  # a sweep that finds in a moment that it may not
    assert in_store.sweep(store, holder(own, 2)) == []
    store.delete("orders-7/deleting-0123.json")
    assert finished(new, savepoint) and whole(store, "orders-7", b"new")


def test_an_answer_that_was_lost_is_no_other_writer() -> None:
    class Forgetful(ObjectStore):
        def create(self, key: str, data: bytes) -> Created:
            super().create(key, data)
            raise OutcomeUnknownError(verb="create", path=key, reason="lost", root=self.url)

    store = Forgetful("memory://")
    assert saved(store) == "orders-7" and whole(store, "orders-7")


def test_what_an_earlier_weir_has_finished_meanwhile_stays() -> None:
    store = ObjectStore("memory://")
    writer = begun(store)
    savepoint = written(writer)
    theirs = encode(savepoint.model_copy(update={"taken_by": "an earlier weir"}))
    store.put(f"orders-7/{MANIFEST}", theirs)
    assert finished(writer, savepoint) is None
    assert store.get(f"orders-7/{MANIFEST}") == theirs and whole(store, "orders-7")


def test_what_is_left_is_disposed_of_by_hand_and_so_is_a_name_that_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ObjectStore("memory://")
    for module in (writing, copying, place_module):
        monkeypatch.setattr(module, "open_store", lambda url: Below(store, url.rpartition("/")[2]))
    place = SavepointPlace("s3://bucket/orders-7")
    monkeypatch.setattr(SavepointPlace, "url", property(lambda _self: "s3://bucket/orders-7"))
    written(begun(store))
    assert copying.clear(place) and not list(store.list("")) and not copying.clear(place)
    saved(store)
    store.put("orders-7/taking.json", json.dumps({"token": "left by a kill behind the manifest"}).encode())
    assert not copying.clear(place), "it is a savepoint"
    assert copying.dispose(place).savepoint.id == 7
    assert not list(store.list(""))
