"""What the entries of a channel mean, from wherever the log is read."""

from __future__ import annotations

import json
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
    decode,
    encode,
    end_number,
    first_number,
    read_entry,
    segments,
    tail_behind,
)
from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.storage.local import LocalStore

tokens = st.builds(Token, st.integers(1, 3).map(Attempt), st.integers(1, 2).map(Run))
batches = st.integers(0, 5).map(BatchId)
files = st.lists(st.builds(SegmentFile, st.just("part-0"), st.integers(0, 9), st.integers(0, 99)), max_size=2)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Segment, batches, tokens, st.just("data/0"), files.map(tuple), st.none() | st.integers(0, 9)),
    st.builds(Barrier, st.integers(1, 5).map(CheckpointId), batches, tokens),
    st.builds(Fence, tokens, batches, st.just("job/query"), st.just("lineage")),
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


def test_an_unknown_kind_says_that_a_newer_weir_wrote_it() -> None:
    with pytest.raises(ValueError, match="newer weir"):
        decode({"kind": "watermark", "batch": 0, "attempt": 1, "run": 1})


def test_one_entry_tells_the_state_of_the_channel_behind_it() -> None:
    one, two = Token(Attempt(1), Run(1)), Token(Attempt(2), Run(1))
    log: list[Entry] = [
        Fence(one, NO_BATCH, "job/query", "lineage"),
        Segment(BatchId(0), one, "data/0"),
        Barrier(CheckpointId(1), BatchId(0), one),
        Fence(two, BatchId(0), "job/query", "lineage"),
        Segment(BatchId(1), two, "data/1"),
    ]
    late: list[Entry] = [Segment(BatchId(1), one, "data/1"), Segment(BatchId(2), two, "data/2")]
    for cut in range(len(log) + 1):
        behind = tail_behind(log[cut - 1] if cut else None)
        whole = segments(Tail(), log + late)
        assert whole == segments(Tail(), log[:cut]) + segments(behind, log[cut:] + late)


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
