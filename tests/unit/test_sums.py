"""The checksum in a small JSON file: a flipped digit is damage, and what has no sum is read as before."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.played_files import WholeStore
from weir.errors import LostLedgerError
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.contents import Contents
from weir.protocol.ledger import delivered, fence, opened
from weir.sinks.files_ledger import log_of
from weir.sinks.files_reader import read_files
from weir.storage import BoundedLog, DenseLog, open_store, sums

SEED = 20261118
TOKEN = Token(Attempt(1), Run(1))
ENTRY = "_weir/log/000000003.json"


@pytest.mark.parametrize("body", [{}, {"a": 1}, {"crc32": "the author's own", "b": [1, 2]}])
def test_what_was_summed_comes_back_as_it_was(body: dict[str, object]) -> None:
    data = json.dumps(body).encode()
    assert sums.strip(sums.add(data)) == data and sums.has(sums.add(data))
    assert sums.strip(data) == data and not sums.has(data)


def test_no_flip_of_a_bit_is_read_as_another_content() -> None:
    body = {"kind": "batch", "batch": 17, "attempt": 1, "run": 1, "body": {"files": ["_data/17-1-1/part-0"]}}
    data, chance = sums.add(json.dumps(body).encode()), random.Random(SEED)
    for _ in range(500):
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        try:
            found = json.loads(sums.strip(bytes(changed)))
        except ValueError:
            continue
        # Only a flip in the name of the sum is not seen: then nothing else is changed.
        assert {key: found.get(key) for key in body} == body, f"byte {at}, bit {bit}, seed {SEED}"
        assert at < 10, f"byte {at}, bit {bit}, seed {SEED}"


def enter(log: BoundedLog[Contents], entry: dict[str, Any]) -> bool:
    return log.append(lambda _: entry)


def ledger(store: WholeStore) -> None:
    log = log_of(store)
    for entry in (opened("job/counts", "l"), fence(TOKEN)):
        assert enter(log, entry)
    for batch in range(4):
        assert enter(log, delivered(BatchId(batch), TOKEN, {"files": [f"data/{batch}"]}))


def test_a_flipped_digit_in_a_ledger_is_damage_and_named() -> None:
    store = WholeStore()
    ledger(store)
    data = store.get(ENTRY)
    assert data is not None
    store.put(ENTRY, data.replace(b'"batch":1', b'"batch":0'))
    with pytest.raises(LostLedgerError, match=r"_weir/log/000000003\.json does not match its own checksum"):
        log_of(store).catch_up()
    with pytest.raises(LostLedgerError):
        log_of(store).append(lambda _: fence(Token(Attempt(2), Run(1))))


def test_entries_that_an_earlier_weir_wrote_are_read_as_before() -> None:
    store = WholeStore()
    ledger(store)
    for key in list(store.list("_weir/log")):
        store.put(key, sums.strip(store.get(key) or b""))
    assert log_of(store).catch_up().in_order() == [f"data/{batch}" for batch in range(4)]
    again = DenseLog(store, "_weir/log")
    assert again.append(opened("job/counts", "l"), lambda _: True), "its own entry, whose answer was lost"
    assert len(list(store.list("_weir/log"))) == 6


def test_an_earlier_weir_reads_an_entry_with_a_sum() -> None:
    store = WholeStore()
    ledger(store)
    log = log_of(store)
    for key in sorted(store.list("_weir/log")):
        log.state.apply(json.loads(store.get(key) or b""))
    assert log.state.in_order() == log_of(store).catch_up().in_order()


def test_a_flipped_digit_in_a_snapshot_is_made_up_for_by_the_entries() -> None:
    store = WholeStore()
    ledger(store)
    log = log_of(store)
    now = log.catch_up()
    log.keep(log.number, now.encode())
    (key,) = store.list("_weir/snapshots")
    data = store.get(key) or b""
    store.put(key, data.replace(b'"last":3', b'"last":7'))
    assert log_of(store).catch_up().ledger.last == 3


def test_a_reader_of_files_names_the_entry_and_the_description(tmp_path: object) -> None:
    store = open_store(str(tmp_path))
    log = log_of(store)
    about = {"format": "parquet", "options": {}, "partition_by": [], "schema": {"fields": []}}
    store.put("_weir/about.json", sums.add(json.dumps(about).encode()))
    assert log.append(lambda _: opened("job/counts", "l"))
    assert log.append(lambda _: fence(TOKEN))
    assert log.append(lambda _: delivered(BatchId(0), TOKEN, {"files": ["data/0"]}))
    assert len(read_files(str(tmp_path)).files) == 1
    for key, old, new in (
        ("_weir/about.json", b"parquet", b"parquft"),
        ("_weir/log/000000002.json", b"data/0", b"data/1"),
    ):
        data = store.get(key)
        assert data is not None and old in data
        store.put(key, data.replace(old, new))
        with pytest.raises(LostLedgerError, match=rf"{key} does not match its own checksum"):
            read_files(str(tmp_path))
        store.put(key, data)
