"""Stores on real servers when it matters: many processes at once, answers that are lost, a slow network."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cutting_proxy import CuttingProxy
from tests.hdfs_server import HdfsServer
from tests.s3_server import S3Server
from weir.errors import OutcomeUnknownError
from weir.storage import Created, DenseLog, Store
from weir.storage.open import open_store

WRITERS = 8
RACE = """
import sys, time
from weir.storage import Created, open_store

url, name, rounds, gap = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
store = open_store(url)
store.create(f"ready/{name}", b"")
print("ready", flush=True)
start = float(sys.stdin.readline())
for number in range(rounds):
    time.sleep(max(0.0, start + number * gap - time.time()))
    if store.create(f"race/{number:03d}", name.encode()) is Created.NOW:
        print(number, flush=True)
"""


def race(url: str, rounds: int, gap: float) -> dict[int, list[str]]:
    """Who believes to have created each key: all writers begin with the same one at the same time."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, url, f"writer {number}", str(rounds), str(gap)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
    start = str(time.time() + 0.2)
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(f"{start}\n")
        writer.stdin.flush()
    winners: dict[int, list[str]] = {number: [] for number in range(rounds)}
    for name, writer in enumerate(writers):
        won, _ = writer.communicate(timeout=240)
        assert writer.returncode == 0
        for number in map(int, won.split()):
            winners[number].append(f"writer {name}")
    return winners


def check_race(url: str, rounds: int, gap: float) -> None:
    winners = race(url, rounds, gap)
    assert [len(names) for names in winners.values()] == [1] * rounds, winners
    store = open_store(url)
    for number, names in winners.items():
        assert store.get(f"race/{number:03d}") == names[0].encode()
    assert len(list(store.list("race"))) == rounds


@pytest.mark.parametrize("kind", ["local", "s3", "hdfs"])
def test_of_eight_processes_one_wins_each_round(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = str(tmp_path) if kind == "local" else request.getfixturevalue(f"{kind}_place")
    check_race(f"{place}/root", rounds=15, gap=0.15)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["local", "s3", "hdfs"])
def test_of_eight_processes_one_wins_each_of_many_rounds(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = str(tmp_path) if kind == "local" else request.getfixturevalue(f"{kind}_place")
    check_race(f"{place}/root", rounds=200, gap=0.15)


@pytest.fixture
def s3_proxy(s3: S3Server, s3_place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """Between this process and S3."""
    proxy = CuttingProxy(s3.port)
    for name, value in s3.environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def hdfs_proxy(hdfs: HdfsServer) -> Iterator[CuttingProxy]:
    """In front of the NameNode."""
    proxy = CuttingProxy(hdfs.ports["nn1"])
    yield proxy
    proxy.close()


def behind(hdfs_place: str, proxy: CuttingProxy) -> Store:
    return open_store(f"hdfs://127.0.0.1:{proxy.port}/{hdfs_place.rpartition('/')[2]}/root")


@pytest.mark.parametrize("heard", [False, True])
def test_a_create_in_hdfs_whose_answer_is_lost_is_known_to_have_won(
    hdfs_place: str, hdfs_proxy: CuttingProxy, heard: bool
) -> None:
    """The client asks once more by itself, and is answered that there is nothing to rename."""
    store = behind(hdfs_place, hdfs_proxy)
    hdfs_proxy.cut_at(b"rename2", heard=heard)
    assert store.create("a", b"one") is Created.NOW
    assert hdfs_proxy.cuts == 1
    assert store.create("a", b"two") is Created.EXISTS
    assert store.get("a") == b"one"
    assert list(store.list("")) == ["a"]


@pytest.mark.parametrize("heard", [False, True])
def test_a_put_in_hdfs_whose_answer_is_lost_has_replaced_the_value(
    hdfs_place: str, hdfs_proxy: CuttingProxy, heard: bool
) -> None:
    store = behind(hdfs_place, hdfs_proxy)
    store.put("a", b"one")
    hdfs_proxy.cut_at(b"rename2", heard=heard)
    store.put("a", b"two")
    assert hdfs_proxy.cuts == 1
    assert store.get("a") == b"two"


@pytest.mark.parametrize("word", [b"create", b"addBlock", b"complete", b"getBlockLocations"])
@pytest.mark.parametrize("heard", [False, True])
def test_any_other_answer_of_hdfs_may_be_lost_too(
    hdfs_place: str, hdfs_proxy: CuttingProxy, word: bytes, heard: bool
) -> None:
    store = behind(hdfs_place, hdfs_proxy)
    hdfs_proxy.cut_at(word, heard=heard)
    assert store.create("a", b"one") is Created.NOW
    assert store.get("a") == b"one"
    assert hdfs_proxy.cuts == 1
    assert list(store.list("")) == ["a"]


@pytest.mark.parametrize("heard", [False, True])
def test_a_create_in_s3_whose_answer_is_lost_is_known_to_have_won(
    s3_place: str, s3_proxy: CuttingProxy, heard: bool
) -> None:
    """obstore asks once more by itself, and is answered that the key is there."""
    store = open_store(s3_place)
    store.create("warm", b"")
    s3_proxy.cut_at(b"PUT ", heard=heard)
    assert store.create("a", b"one") is Created.NOW
    assert s3_proxy.cuts == 1
    assert store.create("a", b"one") is Created.EXISTS
    assert store.get("a") == b"one"


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_appends_land_once_each_though_answers_are_lost(kind: str, request: pytest.FixtureRequest) -> None:
    place, proxy = request.getfixturevalue(f"{kind}_place"), request.getfixturevalue(f"{kind}_proxy")
    store = open_store(place) if kind == "s3" else behind(place, proxy)
    log = DenseLog(store, "log")
    for number in range(10):
        proxy.cut_at(b"PUT " if kind == "s3" else b"rename2", heard=number % 2 == 0)
        for _ in range(3):
            try:
                assert log.append({"number": number}, lambda _: True)
                break
            except OutcomeUnknownError:
                continue
    assert proxy.cuts == 10
    assert [entry["number"] for entry in DenseLog(store, "log").read_new()] == list(range(10))


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_slow_network_makes_it_slow_and_nothing_else(kind: str, request: pytest.FixtureRequest) -> None:
    place, proxy = request.getfixturevalue(f"{kind}_place"), request.getfixturevalue(f"{kind}_proxy")
    store = open_store(place) if kind == "s3" else behind(place, proxy)
    proxy.delay = 0.1
    assert store.create("a/b", b"one") is Created.NOW
    assert store.create("a/b", b"two") is Created.EXISTS
    store.put("a/c", b"three")
    assert (store.get("a/b"), store.exists("a/c"), list(store.list("a"))) == (b"one", True, ["a/b", "a/c"])
    store.delete("a/b")
    assert list(store.list("")) == ["a/c"]
