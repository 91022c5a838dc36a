"""One suite for every store: the guarantees that are written on the verbs of `Store`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from weir.errors import ExternalError, OutcomeUnknownError, StorageError
from weir.storage import Created, DenseLog, Store, local
from weir.storage.local import LocalStore
from weir.storage.object_store import ObjectStore
from weir.storage.open import open_store
from weir.storage.unreliable import UnreliableStore


@pytest.fixture(params=["local", "memory", "s3", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return ObjectStore("memory://")
    if request.param == "local":
        return LocalStore(tmp_path / "root")
    return open_store(f"{request.getfixturevalue(f'{request.param}_place')}/root")


def test_what_is_created_can_be_read_and_is_not_created_twice(store: Store) -> None:
    assert store.create("a/b", b"one") is Created.NOW
    assert store.create("a/b", b"two") is Created.EXISTS
    assert store.get("a/b") == b"one"


def test_put_replaces_whatever_was_there(store: Store) -> None:
    store.put("a", b"one")
    store.put("a", b"two")
    assert store.get("a") == b"two"


def test_an_absent_key_is_none_and_can_be_deleted(store: Store) -> None:
    assert store.get("no") is None
    assert not store.exists("no")
    store.delete("no")


def test_list_is_sorted_and_keeps_to_the_folder(store: Store) -> None:
    for key in ("x/2", "x/10", "x/y/1", "xx/1"):
        store.put(key, b"")
    assert list(store.list("x")) == ["x/10", "x/2", "x/y/1"]
    assert list(store.list("nothing")) == []


def test_deleted_keys_are_gone(store: Store) -> None:
    store.put("a", b"1")
    store.delete("a")
    assert store.get("a") is None
    assert list(store.list("")) == []


def test_of_many_creators_one_wins(store: Store) -> None:
    start, outcomes = threading.Barrier(8), []

    def create(name: int) -> None:
        start.wait()
        outcomes.append((store.create("lock", str(name).encode()), name))

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [name for outcome, name in outcomes if outcome is Created.NOW]
    assert len(winners) == 1
    assert store.get("lock") == str(winners[0]).encode()


def test_writers_of_one_log_agree_on_one_dense_order(store: Store) -> None:
    start = threading.Barrier(4)

    def write(name: int) -> None:
        log = DenseLog(store, "log")
        start.wait()
        for number in range(10):
            assert log.append({"who": name, "number": number}, lambda _: True)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = list(DenseLog(store, "log").read_new())
    assert len(entries) == 40
    for name in range(4):
        assert [e["number"] for e in entries if e["who"] == name] == list(range(10))


def test_an_append_that_is_no_longer_wanted_writes_nothing(store: Store) -> None:
    DenseLog(store, "log").append({"fence": 2}, lambda _: True)
    assert not DenseLog(store, "log").append({"old": 1}, lambda entry: "fence" not in entry)
    assert list(DenseLog(store, "log").read_new()) == [{"fence": 2}]


def check_appends(store: Store, seed: int) -> None:
    failing = UnreliableStore(store, seed, failing=0.6, failing_reads=0.2)
    log = DenseLog(failing, "log")
    for number in range(10):
        while True:
            try:
                assert log.append({"number": number}, lambda _: True)
                break
            except (OutcomeUnknownError, StorageError):
                continue
    assert [e["number"] for e in DenseLog(store, "log").read_new()] == list(range(10))


@pytest.mark.parametrize("store", ["local", "memory"], indirect=True)
@pytest.mark.parametrize("seed", range(20))
def test_appends_through_a_failing_store_land_once_each(store: Store, seed: int) -> None:
    check_appends(store, seed)


@pytest.mark.parametrize("store", ["s3", "hdfs"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_appends_through_a_failing_server_land_once_each(store: Store, seed: int) -> None:
    check_appends(store, seed)


def refuses(*_: Any, **__: Any) -> Any:
    raise GenericError("no connection")


def unreachable(*_: Any) -> Any:
    from weir.storage.hadoop import RefusedError

    raise RefusedError("no connection", passing=True)


def no_answer(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but only for the store's files: all else in this process has the disk as it is."""

    def called(path: Any, *args: Any, **options: Any) -> Any:
        if "commits" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return verb(path, *args, **options)

    return called


def test_what_can_not_be_read_is_an_error_and_never_absent(
    store: Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    store.put("j/commits/1", b"")
    for verb in ("get", "head", "list"):
        monkeypatch.setattr(obstore, verb, refuses)
    if request.node.callspec.params["store"] == "hdfs":
        monkeypatch.setattr(store, "_patience", 0.0)
        monkeypatch.setattr(store, "_ask", unreachable)
    for verb in ("scandir", "stat", "open"):
        monkeypatch.setattr(os, verb, no_answer(getattr(os, verb)))
    with pytest.raises(StorageError, match="list"):
        store.list("j/commits")
    with pytest.raises(StorageError, match="look for"):
        store.exists("j/commits/1")
    with pytest.raises(StorageError, match="read"):
        store.get("j/commits/1")


NO_HANDLES = """
import resource, sys
from pathlib import Path
from weir.errors import StorageError
from weir.storage.files import below
from weir.storage.local import LocalStore

def told(work):
    try:
        return f"took it for {list(work())}"
    except StorageError as error:
        return error.why

store = LocalStore(Path(sys.argv[1]))
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
found = [told(lambda: store.list("j/commits")), told(lambda: below(Path(sys.argv[1])))]
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(*found, *store.list("j/commits"), sep="\\n")
"""


def test_a_process_without_a_free_handle_takes_no_folder_for_an_empty_one(tmp_path: Path) -> None:
    """A process of its own: others in this one could not go on either."""
    LocalStore(tmp_path).put("j/commits/1", b"")
    done = subprocess.run([sys.executable, "-c", NO_HANDLES, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed, below, after = done.stdout.splitlines()
    assert os.strerror(errno.EMFILE) in listed and os.strerror(errno.EMFILE) in below
    assert after == "j/commits/1"


def test_a_store_whose_reads_fail_raises_and_then_answers(store: Store) -> None:
    failing = UnreliableStore(store, seed=1, failing=0.0, failing_reads=0.5)
    failing.put("a/b", b"1")
    seen = []
    for _ in range(50):
        try:
            seen.append((failing.get("a/b"), failing.exists("a/b"), list(failing.list("a"))))
        except ExternalError:
            continue
    assert 0 < len(seen) < 50
    assert set(map(str, seen)) == {"(b'1', True, ['a/b'])"}


def test_a_local_key_stays_below_the_root(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    for key in ("../outside", "/etc/passwd", "a/../../b"):
        with pytest.raises(StorageError):
            store.put(key, b"")


def test_a_place_that_is_a_file_is_refused_with_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        LocalStore(tmp_path / "file").create("a", b"")
    assert "weir doctor" in caught.value.hint


def test_new_folders_are_forced_to_the_disk_with_all_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss takes the whole branch, and what was said to be durable with it."""
    synced: list[str] = []
    monkeypatch.setattr(local, "sync_folder", lambda folder: synced.append(str(folder)))
    store = local.LocalStore(tmp_path / "new")
    store.create("a/b/key", b"1")
    new = tmp_path / "new"
    assert synced == [str(one) for one in (tmp_path, new, new / "a", new / "a/b")]
    store.create("a/b/other", b"1")
    assert synced[4:] == [str(new / "a/b")]


def test_a_link_that_was_made_and_not_answered_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does, whose client asks again when an answer is lost."""
    link = os.link

    def badly_answered(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "link", badly_answered)
    assert store.create("a", b"one") is Created.NOW
    monkeypatch.undo()
    assert store.create("a", b"two") is Created.EXISTS
    assert store.get("a") == b"one"


def test_what_fails_after_the_link_may_have_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_folder: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local, "sync_folder", fails)
    with pytest.raises(OutcomeUnknownError):
        LocalStore(tmp_path).create("a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"
