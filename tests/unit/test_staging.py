"""Stagings whose record is torn: whoever needs one says so, and nobody else minds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.played_files import PlayedFiles
from weir.errors import LostStagingError, StorageError
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks import Outcome
from weir.sinks.function import FunctionSink
from weir.sinks.staging import StagedFiles
from weir.storage.local import LocalStore

TOKEN = Token(Attempt(1), Run(1))
STAGED = Staged(BatchId(3), TOKEN, ("a.delta",))
KEY = "staged/000000003-1-1.json"
TORN = [b"", b"\0\0\0", b'{"files": ["data/', b"[]", b'{"files": []}']


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_record_is_no_staging_without_files(tmp_path: Path, torn: bytes) -> None:
    store = LocalStore(tmp_path)
    staging = StagedFiles(store, "staged")
    staging.record(STAGED, ["data/000000003-1-1/part-0"])
    assert staging.recorded() == [STAGED]
    assert staging.files_of(STAGED, "job/query", "the sink") == ("data/000000003-1-1/part-0",)
    store.put(KEY, torn)
    assert staging.recorded() == [Staged(BatchId(3), TOKEN)], "it may be of a batch that nobody needs"
    with pytest.raises(LostStagingError) as raised:
        staging.files_of(STAGED, "job/query", "the sink")
    assert raised.value.what == (
        "batch 3 of query 'job/query' was committed by Spark, "
        f"but its staged output is gone from {store.url}/{KEY}, which can't be read"
    )
    staging.discard(BatchId(3), TOKEN, ())
    assert staging.recorded() == []


def test_files_that_go_before_they_are_recorded_are_no_batch_without_rows(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    staging = StagedFiles(store, "staged")
    folder = staging.folder_of(STAGED.batch, TOKEN)
    for part in ("part-0", "part-1"):
        store.put(f"{folder}/{part}", b"rows")
    staging.completed(STAGED.batch, TOKEN)
    store.delete(f"{folder}/part-1")
    with pytest.raises(StorageError, match="1 of the files that batch 3 has just written are gone"):
        staging.written(STAGED)


def test_a_staging_that_is_gone_is_told_with_its_sink(tmp_path: Path) -> None:
    with pytest.raises(LostStagingError, match="its staged output is gone from the sink, because"):
        StagedFiles(LocalStore(tmp_path), "staged").files_of(STAGED, "job/query", "the sink")


@pytest.mark.parametrize("torn", TORN)
def test_the_rows_of_a_committed_batch_are_not_left_out_in_silence(tmp_path: Path, torn: bytes) -> None:
    store = LocalStore(tmp_path)
    sink = PlayedFiles(store)
    sink.open("job/query", "lineage", TOKEN)
    batch = Staged(BatchId(0), TOKEN)
    sink.write(batch, 2)
    sink.record(batch)
    (key,) = store.list("_weir/staged")
    store.put(key, torn)
    (found,) = sink.staged()
    with pytest.raises(LostStagingError, match="which can't be read"):
        sink.commit(found)
    assert sink.open("job/query", "lineage", TOKEN).last == -1


@pytest.mark.parametrize("torn", TORN)
def test_a_function_has_its_batch_whatever_the_record_says(tmp_path: Path, torn: bytes) -> None:
    """There are no files in it: that it is there is all."""
    sink = FunctionSink(lambda frame, batch: None, str(tmp_path))
    sink.open("job/query", "lineage", TOKEN)
    sink.record(Staged(BatchId(0), TOKEN))
    store = LocalStore(tmp_path)
    (key,) = [key for key in store.list("") if "staged/" in key]
    store.put(key, torn)
    (found,) = sink.staged()
    assert sink.commit(found) is Outcome.DONE_NOW
