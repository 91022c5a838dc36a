"""What is peculiar to HDFS as a store: temporary files, servers that are away, and what it says of errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.hdfs_server import HdfsServer
from tests.needed import missing
from weir.errors import OutcomeUnknownError, PreflightError, StorageError
from weir.storage import Created, open_store
from weir.storage.open import absolute, beside, is_local, spark_url


def hdfs_store(url: str, patience: float = 30.0) -> Any:
    if find_spec("hdfs_native") is None:
        missing("no hdfs-native here: pip install 'weir[hdfs]'")
    from weir.storage.hadoop import HdfsStore

    return HdfsStore(url, patience)


def test_its_places_are_none_of_this_machine() -> None:
    for url in ("hdfs://nn:8020/a", "hdfs://service/a", "hdfs:/a", "hdfs:///a", "viewfs://cluster/a"):
        assert not is_local(url)
        assert absolute(url) == spark_url(url) == url
        assert beside(url, "j/journal").is_relative_to(Path.home())
    assert is_local("hdfs") and is_local("a/hdfs:")


def test_without_its_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.delitem(sys.modules, "weir.storage.hadoop", raising=False)
    with pytest.raises(PreflightError, match=r"pip install 'weir\[hdfs\]'"):
        open_store("hdfs://nn:8020/a")


@pytest.mark.parametrize("below", ["", "/a/b"])
def test_its_url_opens_it_again(hdfs_place: str, below: str) -> None:
    open_store(f"{hdfs_place}{below}/").put("x/y", b"1")
    store = open_store(f"{hdfs_place}{below}")
    assert open_store(store.url).get("x/y") == b"1"
    assert list(open_store(f"{store.url}/x").list("")) == ["y"]


def test_a_value_of_many_blocks_and_an_empty_one_come_back(hdfs_place: str) -> None:
    store, large = open_store(hdfs_place), os.urandom(9 << 20)
    store.put("large", large)
    store.put("empty", b"")
    assert store.get("large") == large and store.get("empty") == b""
    store.put("large", b"small")
    assert store.get("large") == b"small"


def test_folders_that_are_empty_go_with_the_last_key(hdfs_place: str) -> None:
    from hdfs_native import Client

    store = open_store(f"{hdfs_place}/root")
    for key in ("a/b/c/1", "a/2"):
        store.put(key, b"")
    store.delete("a/b/c/1")
    client, root = Client(hdfs_place), "/" + f"{hdfs_place}/root".split("/", 3)[3]
    assert [status.path for status in client.list_status(root, True)] == [f"{root}/a", f"{root}/a/2"]
    store.delete("a/2")
    assert list(client.list_status(root)) == []


def test_what_killed_writers_have_left_is_never_listed_and_deleted_after_an_hour(hdfs_place: str) -> None:
    from hdfs_native import Client

    store, client = open_store(f"{hdfs_place}/root"), Client(hdfs_place)
    folder = "/" + f"{hdfs_place}/root/a".split("/", 3)[3]
    client.mkdirs(folder, create_parent=True)
    hour = 3_600_000
    for name, age in ((".x.0123.tmp", 2 * hour), (".y.4567.tmp", hour // 2), (".hidden", 2 * hour)):
        client.create(f"{folder}/{name}").close()
        client.set_times(f"{folder}/{name}", int(time.time() * 1000) - age, 0)
    assert list(store.list("")) == []
    store.put("a/key", b"1")
    assert list(store.list("")) == ["a/key"]
    until = time.monotonic() + 30
    left = [".hidden", ".y.4567.tmp", "key"]
    while (found := [one.path.rpartition("/")[2] for one in client.list_status(folder)]) != left:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def test_a_writer_whose_temporary_file_was_swept_does_not_believe_that_it_has_won(
    hdfs_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped for longer than an hour, at the worst moment."""
    store, other = hdfs_store(hdfs_place), open_store(hdfs_place)
    beside = store._beside

    def stopped(path: str, data: bytes) -> str:
        temporary: str = beside(path, data)
        store._cluster.client.delete(temporary)
        other.create("a", b"theirs")
        return temporary

    monkeypatch.setattr(store, "_beside", stopped)
    with pytest.raises(OutcomeUnknownError, match="another one"):
        store.create("a", b"ours")
    assert store.get("a") == b"theirs"


def test_a_writer_that_is_collected_asks_no_namenode(hdfs_place: str) -> None:
    """The client's own closes its file when it is collected: in any thread, which may then wait for ever."""
    client, path = hdfs_store(hdfs_place)._cluster.client, f"/{hdfs_place.rpartition('/')[2]}/written"
    from hdfs_native import WriteOptions

    from weir.storage import hadoop

    inner = hadoop._create(path, WriteOptions(create_parent=True), client)
    gc.collect()
    inner.write(b"one")
    inner.close()
    assert client.read(path).read() == b"one"


def test_a_namenode_that_hangs_leaves_the_outcome_open_and_is_waited_for(
    hdfs: HdfsServer, hdfs_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(hdfs_place).put("before", b"")
    store = hdfs_store(hdfs_place, patience=3.0)
    beside = store._beside

    def then_it_hangs(path: str, data: bytes) -> str:
        temporary: str = beside(path, data)
        hdfs.pause("nn1")
        return temporary

    monkeypatch.setattr(store, "_beside", then_it_hangs)
    try:
        with pytest.raises(OutcomeUnknownError, match="HDFS does not answer"):
            store.create("a", b"one")
        monkeypatch.undo()
        began = time.monotonic()
        with pytest.raises(StorageError, match="HDFS does not answer"):
            store.create("b", b"")  # nothing was renamed: it is known that it failed
        with pytest.raises(StorageError, match="HDFS does not answer"):
            store.get("before")
        assert time.monotonic() - began < 30
    finally:
        hdfs.resume("nn1")
    store = hdfs_store(hdfs_place)
    assert store.get("a") in (None, b"one")
    won = store.create("a", b"two") is Created.NOW
    assert store.get("a") == (b"two" if won else b"one")


STRANGER = """
import sys
from weir.errors import StorageError
from weir.storage import open_store

store = open_store(sys.argv[1])
for act in (lambda: store.put("a/b", b""), lambda: store.delete("a/c"), lambda: list(store.list("closed"))):
    try:
        act()
        print("done")
    except StorageError as error:
        print(error)
"""


def test_a_missing_permission_is_named(hdfs_place: str) -> None:
    from hdfs_native import Client

    store = open_store(hdfs_place)
    store.put("a/c", b"")
    store.put("closed/d", b"")
    Client(hdfs_place).set_permission("/" + f"{hdfs_place}/closed".split("/", 3)[3], 0o700)
    environment = {**os.environ, "HADOOP_USER_NAME": "stranger"}
    command = [sys.executable, "-c", STRANGER, hdfs_place]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert "permission is missing: Permission denied: user=stranger" in line


def test_a_namenode_that_is_not_there_is_named_with_its_reason() -> None:
    for url, reason in (
        ("hdfs://127.0.0.1:1/a", "can't be reached: Connection refused"),
        ("hdfs://nowhere.invalid:1/a", "can't be reached: failed to lookup address"),
    ):
        with pytest.raises(StorageError, match=reason):
            hdfs_store(url, patience=0.2).get("a")
    with pytest.raises(StorageError, match="HADOOP_CONF_DIR"):
        hdfs_store("hdfs://unknown-service/a").get("a")


def test_what_the_client_can_not_do_is_an_error_of_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfAnEncryptionZone:
        def read(self, path: str) -> None:
            raise NotImplementedError("File encryption")

    store = hdfs_store("hdfs://127.0.0.1:1/a", patience=0.2)
    monkeypatch.setattr(store._cluster, "client", OfAnEncryptionZone())
    with pytest.raises(StorageError, match=r"could not read .*File encryption"):
        store.get("b")


def test_views_and_the_default_hdfs_are_those_of_hadoops_settings(
    hdfs: HdfsServer, hdfs_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    path = "/" + hdfs_place.split("/", 3)[3]
    open_store(f"hdfs:{path}").put("a", b"1")
    assert open_store(hdfs_place).get("a") == open_store(f"hdfs://{path}").get("a") == b"1"
    view = open_store(f"viewfs://weir/one{path}")
    assert view.create("b/c", b"2") is Created.NOW and view.create("b/c", b"3") is Created.EXISTS
    assert list(view.list("")) == ["b/c"]
    assert open_store(f"{hdfs.url}/one{path}").get("b/c") == b"2"
    with pytest.raises(StorageError, match="HADOOP_CONF_DIR"):
        open_store("viewfs:///one/a").get("b")


@pytest.mark.long
def test_safe_mode_is_waited_for_and_named(hdfs: HdfsServer, hdfs_place: str) -> None:
    open_store(hdfs_place).put("a", b"1")
    store = hdfs_store(hdfs_place, patience=3.0)
    hdfs.safe_mode(True)
    try:
        with pytest.raises(StorageError, match="the NameNode is in safe mode"):
            store.create("b", b"")
        assert store.get("a") == b"1"
    finally:
        hdfs.safe_mode(False)
    assert store.create("b", b"") is Created.NOW


@pytest.mark.long
def test_a_namenode_that_is_killed_and_started_again_has_all_that_was_written(
    hdfs: HdfsServer, hdfs_place: str
) -> None:
    store = open_store(hdfs_place)
    for number in range(20):
        assert store.create(f"log/{number}", str(number).encode()) is Created.NOW
    hdfs.kill("nn1")
    hdfs.start_namenode()
    assert store.create("log/20", b"20") is Created.NOW  # it is waited for
    assert {key: store.get(key) for key in store.list("")} == {
        f"log/{number}": str(number).encode() for number in range(21)
    }


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_second_namenode_takes_over(
    how: str, hdfs: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HdfsServer(tmp_path, failover=True) as pair:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(pair.conf))
        store = open_store("hdfs://weir/root")
        assert store.create("a", b"1") is Created.NOW
        getattr(pair, how)("nn1")
        pair.activate("nn2")
        for _ in range(4):
            try:
                store.put("b", b"2")
                break
            except (OutcomeUnknownError, StorageError):
                continue
        assert store.create("a", b"3") is Created.EXISTS
        assert {key: store.get(key) for key in store.list("")} == {"a": b"1", "b": b"2"}
