"""What the entries of a channel mean, from wherever the log is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.channel.log import (
    Barrier,
    ChannelLog,
    Entry,
    Fence,
    Segment,
    SegmentFile,
    Tail,
    apply,
    cut_files,
    cut_of,
    decode,
    encode,
    end_number,
    entry_key,
    first_kept,
    first_number,
    read_entry,
    segments,
    tail_behind,
    trim,
)
from weir.errors import LostSegmentError
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.storage import sums
from weir.storage.local import LocalStore

tokens = st.builds(Token, st.integers(1, 3).map(Attempt), st.integers(1, 2).map(Run))
batches = st.integers(0, 5).map(BatchId)
barriers = st.integers(1, 5).map(CheckpointId)
files = st.lists(st.builds(SegmentFile, st.just("part-0"), st.integers(0, 9), st.integers(0, 99)), max_size=2)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        Segment, batches, tokens, st.just("data/0"), files.map(tuple), st.none() | st.integers(0, 9), barriers
    ),
    st.builds(Barrier, barriers, batches, tokens),
    st.builds(Fence, tokens, batches, st.just("job/query"), st.just("lineage"), barriers),
)


@given(entries)
def test_an_entry_comes_back_from_json_as_it_was(entry: Entry) -> None:
    assert decode(json.loads(json.dumps(encode(entry)))) == entry


@given(st.lists(entries, max_size=20))
def test_batches_that_count_only_grow_and_no_lower_token_comes_behind_a_fence(log: list[Entry]) -> None:
    tail = Tail()
    for entry in log:
        before, tail = tail, apply(tail, entry)
        assert tail.fence >= before.fence
        assert tail.last >= before.last
        assert tail == before or entry.token >= before.fence
    found = [one.batch for one in segments(Tail(), log)]
    assert found == sorted(set(found))


def test_an_unknown_kind_says_that_a_newer_weir_wrote_it(tmp_path: Path) -> None:
    entry = {"kind": "watermark", "millis": 0}
    with pytest.raises(ValueError, match="newer weir"):
        decode(entry)
    store = LocalStore(tmp_path)
    store.create(entry_key(0), sums.add(json.dumps(entry).encode()))
    with pytest.raises(ValueError, match="newer weir"):
        read_entry(store, 0)
    with pytest.raises(ValueError, match="newer weir"):
        list(ChannelLog(store).read_new())


ONE, TWO = Token(Attempt(1), Run(1)), Token(Attempt(2), Run(1))
FIRST, SECOND = CheckpointId(1), CheckpointId(2)
LOG: list[Entry] = [
    Fence(ONE, NO_BATCH, "job/query", "lineage"),
    Segment(BatchId(0), ONE, "data/0-1"),
    Barrier(FIRST, BatchId(0), ONE),
    Fence(TWO, BatchId(0), "job/query", "lineage", FIRST),
    Segment(BatchId(1), TWO, "data/1-2", barrier=FIRST),
    Barrier(SECOND, BatchId(1), TWO),
    Segment(BatchId(2), TWO, "data/2-2", barrier=SECOND),
]
ZOMBIE: list[Entry] = [
    Segment(BatchId(3), ONE, "data/3-1", barrier=FIRST),
    Barrier(CheckpointId(3), BatchId(3), ONE),
]
NEXT = Segment(BatchId(3), TWO, "data/3-2", barrier=SECOND)


@pytest.mark.parametrize("cut", range(len(LOG)))
def test_one_entry_tells_the_state_of_the_channel_behind_it(cut: int) -> None:
    late = [*ZOMBIE, NEXT]
    whole = segments(Tail(), LOG + late)
    behind = tail_behind(LOG[cut])
    assert whole == segments(Tail(), LOG[: cut + 1]) + segments(behind, LOG[cut + 1 :] + late)


@pytest.mark.parametrize("first", range(len(LOG)))
def test_a_log_without_its_head_ends_in_the_same_state(first: int) -> None:
    def end(log: list[Entry]) -> Tail:
        tail = Tail()
        for entry in log:
            tail = apply(tail, entry)
        return replace(tail, owner="", lineage="")

    assert end(LOG[first:] + ZOMBIE) == end(LOG) == Tail(TWO, BatchId(2), SECOND)


def written(root: Path, log: list[Entry]) -> LocalStore:
    """The log on a disk, with a file and a checksum of Spark's for each segment."""
    store = LocalStore(root)
    for number, entry in enumerate(log):
        made = entry
        if isinstance(entry, Segment):
            made = replace(entry, files=(SegmentFile("part-0", 1, 9),))
            store.put(f"{entry.folder}/part-0", b"rows")
            store.put(f"{entry.folder}/.part-0.crc", b"sum")
        store.create(entry_key(number), json.dumps(encode(made)).encode())
    return store


def left(store: LocalStore) -> tuple[list[int], list[str]]:
    numbers = [int(key.rsplit("/", 1)[1].removesuffix(".json")) for key in store.list("log")]
    folders = Path(store.url) / "data"
    return numbers, sorted(one.name for one in folders.iterdir()) if folders.is_dir() else []


@pytest.mark.parametrize(
    ("low", "numbers", "folders"),
    [
        (0, [0, 1, 2, 3, 4, 5, 6], ["0-1", "1-2", "2-2"]),
        (1, [0, 1, 2, 3, 4, 5, 6], ["0-1", "1-2", "2-2"]),
        (2, [1, 2, 3, 4, 5, 6], ["0-1", "1-2", "2-2"]),
        (3, [2, 3, 4, 5, 6], ["1-2", "2-2"]),
        (5, [4, 5, 6], ["1-2", "2-2"]),
        (7, [6], ["2-2"]),
        (8, [0, 1, 2, 3, 4, 5, 6], ["0-1", "1-2", "2-2"]),
    ],
)
def test_what_every_reader_has_passed_is_deleted_and_the_entry_in_front_of_the_slowest_stays(
    tmp_path: Path, low: int, numbers: list[int], folders: list[str]
) -> None:
    store = written(tmp_path, LOG)
    trim(store, low)
    assert left(store) == (numbers, folders)
    trim(store, low)
    assert left(store) == (numbers, folders)


class _KilledError(Exception):
    pass


class _Killed(LocalStore):
    """Dies after so many deletions."""

    def __init__(self, root: str, after: int) -> None:
        super().__init__(root)
        self._after = after

    def delete(self, key: str) -> None:
        if self._after == 0:
            raise _KilledError
        self._after -= 1
        super().delete(key)


@pytest.mark.parametrize("after", range(9))
def test_a_trim_that_was_killed_leaves_no_hole_and_is_completed_by_the_next(
    tmp_path: Path, after: int
) -> None:
    store = written(tmp_path, LOG)
    with suppress(_KilledError):
        trim(_Killed(store.url, after), 7)
    numbers, folders = left(store)
    assert numbers == list(range(numbers[0], len(LOG)))
    named = [one.folder.removeprefix("data/") for one in LOG[numbers[0] :] if isinstance(one, Segment)]
    assert set(named[1:]) <= set(folders) <= set(named), "rows go before their entry"
    trim(store, 7)
    assert left(store) == ([6], ["2-2"])


def test_rows_that_a_later_entry_names_too_are_not_deleted_and_stagings_neither(tmp_path: Path) -> None:
    fence = Fence(TWO, BatchId(0), "job/query", "lineage")
    zombie, counted = Segment(BatchId(1), ONE, "data/1-1"), Segment(BatchId(1), TWO, "data/1-1")
    log: list[Entry] = [LOG[1], fence, zombie, Barrier(FIRST, BatchId(0), TWO), counted]
    store = written(tmp_path, log)
    store.put("data/2-2/part-0", b"staged")
    trim(store, 4)
    assert left(store) == ([3, 4], ["1-1", "2-2"])
    trim(store, 5)
    assert left(store) == ([4], ["1-1", "2-2"])


def test_the_files_of_a_cut_are_those_that_its_readers_need(tmp_path: Path) -> None:
    store = written(tmp_path, LOG + ZOMBIE)
    keys = [entry_key(number) for number in range(len(LOG) + 2)]
    assert cut_files(store, 0, 3) == [*keys[:3], "data/0-1/part-0"]
    store.put("schema.json", b"{}")
    assert cut_files(store, 1, 5) == ["schema.json", *keys[1:5], "data/1-2/part-0"]
    assert cut_files(store, 5, 9) == ["schema.json", *keys[5:9], "data/2-2/part-0"]
    assert cut_files(store, 5, 6) == ["schema.json", keys[5]]
    assert cut_files(store, 0, 0) == ["schema.json"]
    trim(store, 5)
    assert cut_files(store, 4, 6) == ["schema.json", keys[4], keys[5]]
    with pytest.raises(LostSegmentError, match=r"000000003\.json is gone"):
        cut_files(store, 3, 6)


def test_the_rows_of_a_cut_are_those_that_its_readers_have_not_read(tmp_path: Path) -> None:
    store = written(tmp_path, [Segment(BatchId(n), ONE, f"data/{n}-1") for n in range(4)])  # of a row each
    assert [cut_of(store, first, 4).rows for first in range(4)] == [4, 2, 1, 0]


def test_the_first_entry_to_keep_is_the_one_in_front_of_the_slowest_reader() -> None:
    assert first_kept([7, 5], 9) == 4
    assert first_kept([0, 5], 9) == 0
    assert first_kept([7, 8], 6) == 5, "a reader beyond the cut is set back to it"
    assert first_kept([], 6) == 5


def test_a_stray_entry_in_front_of_the_head_is_none(tmp_path: Path) -> None:
    store = written(tmp_path, LOG)
    trim(store, 5)
    store.put(entry_key(1), json.dumps(encode(ZOMBIE[0])).encode())
    assert first_number(store) == 4
    trim(store, 6)
    assert left(store)[0] == [5, 6]


def test_a_hole_behind_the_very_first_entry_stops_everybody(tmp_path: Path) -> None:
    store = written(tmp_path, LOG)
    store.delete(entry_key(2))
    with pytest.raises(LostSegmentError, match=r"000000002\.json is gone"):
        ChannelLog(store)


WHOLE = json.dumps(encode(LOG[1])).encode()
TORN = [b"", b"\0" * len(WHOLE), WHOLE[:-9], b"12", b'{"kind": "segment", "batch": 0}']


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_entry_is_lost_to_whoever_reads_it(tmp_path: Path, torn: bytes) -> None:
    store = written(tmp_path, LOG)
    store.put(entry_key(4), torn)
    told = r"000000004\.json can't be read"
    with pytest.raises(LostSegmentError, match=told):
        read_entry(store, 4)
    with pytest.raises(LostSegmentError, match=told):
        cut_files(store, 3, 6)
    log = ChannelLog(store)
    with pytest.raises(LostSegmentError, match=told):
        list(log.read_new())
    assert log.next_number == 4, "it is not passed over"
    with pytest.raises(LostSegmentError, match=told):
        log.append(encode(NEXT), lambda _: True)
    assert end_number(store) == len(LOG)


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_entry_that_every_reader_has_passed_is_deleted_with_the_others(
    tmp_path: Path, torn: bytes
) -> None:
    store = written(tmp_path, LOG)
    store.put(entry_key(1), torn)
    trim(store, 5)
    assert left(store) == ([4, 5, 6], ["0-1", "1-2", "2-2"]), "nobody can say which rows were its own"
    assert len(list(ChannelLog(store).read_new())) == 3


def test_nothing_is_deleted_in_front_of_a_torn_entry(tmp_path: Path) -> None:
    """It is the one that tells the slowest reader the state of the channel."""
    store = written(tmp_path, LOG)
    store.put(entry_key(4), b"")
    trim(store, 5)
    assert left(store) == ([0, 1, 2, 3, 4, 5, 6], ["0-1", "1-2", "2-2"])


class _Racing(LocalStore):
    """A listing that misses an entry which is created while it goes on, the first time."""

    _raced = False

    def list(self, prefix: str) -> Iterator[str]:
        missed = entry_key(5) if not self._raced else ""
        self._raced = True
        return iter([one for one in super().list(prefix) if one != missed])


@pytest.mark.parametrize("low", [0, 4])
def test_an_entry_that_came_while_the_log_was_listed_is_no_hole(tmp_path: Path, low: int) -> None:
    store = written(tmp_path, LOG)
    trim(store, low)
    assert first_number(_Racing(tmp_path)) == first_number(store)


def test_a_writer_that_slept_while_the_head_was_deleted_goes_on_at_what_is_left(tmp_path: Path) -> None:
    store = written(tmp_path, LOG[:2])
    slow = ChannelLog(store)
    assert len(list(slow.read_new())) == 2
    written(tmp_path, LOG)
    trim(store, 7)
    assert [one["batch"] for one in slow.read_new()] == [2]
    assert slow.next_number == 7


class _Trimming(LocalStore):
    """The head of the log is deleted just when somebody has listed it."""

    def list(self, prefix: str) -> Iterator[str]:
        found = list(super().list(prefix))
        trim(LocalStore(self.url), 7)
        return iter(found)


def test_a_log_that_is_trimmed_while_it_is_opened_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    written(tmp_path, LOG)
    log = ChannelLog(_Trimming(tmp_path))
    assert [one["batch"] for one in log.read_new()] == [2]
    assert log.next_number == 7


def test_a_log_without_its_head_is_read_and_written_from_what_is_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert (first_number(store), end_number(store)) == (0, 0)
    token = Token(Attempt(1), Run(1))
    for batch in range(4):
        ChannelLog(store).append(encode(Segment(BatchId(batch), token, "data/0")), lambda _: True)
    store.delete("log/000000000.json")
    store.delete("log/000000001.json")
    assert (first_number(store), end_number(store)) == (2, 4)
    assert read_entry(store, 0) is None
    ChannelLog(store).append(encode(Segment(BatchId(4), token, "data/0")), lambda _: True)
    last = read_entry(store, 4)
    assert isinstance(last, Segment)
    assert last.batch == 4
