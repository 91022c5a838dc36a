"""A channel that has lost what a reader still needs is found before a start, and told when it is read."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kept_job import CONF, KeptJob, write
from weir.channel import parquet
from weir.channel.log import trim
from weir.channel.position import Position
from weir.channel.writer import ChannelWriter
from weir.checkpoint.manifest import ChannelCut, QueryCut
from weir.errors import LostInputError, LostSegmentError, LostStagingError
from weir.ids import Attempt, BatchId, CheckpointId, Generation, QueryName, Run, Token
from weir.protocol.ledger import Staged
from weir.protocol.shape import Shape
from weir.restore import repair
from weir.restore.damage import check_returned, look
from weir.savepoint import about
from weir.sinks.staging import folder_of
from weir.storage import open_store, sums
from weir.storage.generation import FIRST, create_origin, note_elsewhere

TOKEN = Token(Attempt(1), Run(1))


class Chain:
    """all -> fast, slow: fences, segments and readers as a job leaves them."""

    def __init__(self, folder: Path) -> None:
        self.job = KeptJob(folder)
        root = self.job.root()
        self.channel = root / "channels/all"
        self.queries = root / "queries"
        self.writer = ChannelWriter("all", str(self.channel), str(self.queries / "all"))
        self.writer.open("job/all", "lineage", TOKEN)
        self.batch = -1

    def stage(self) -> Staged:
        self.batch += 1
        staged = Staged(BatchId(self.batch), TOKEN)
        folder = self.channel / folder_of(staged.batch, TOKEN)
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"value": [self.batch]}), folder / "part-0.parquet")
        self.writer.record(staged)
        self.commit("all", self.batch)
        return staged

    def run(self) -> int:
        """One more batch of the writer; where its segment ends."""
        self.writer.commit(self.stage())
        return self.writer.end

    def read(self, reader: str, entry: int) -> None:
        """The reader has committed one batch, which ends there."""
        self.commit(reader, 0, Position(entry, CheckpointId(0)))

    def commit(self, query: str, batch: int, *ends: Position) -> None:
        lines = ["v1", json.dumps({"conf": CONF}), *(json.dumps(end.offset("all")) for end in ends)]
        write(self.queries / query / "metadata", '{"id": "0"}')
        write(self.queries / query / f"offsets/{batch}", "\n".join(lines))
        write(self.queries / query / f"commits/{batch}", "v1\n{}")

    def rows(self, batch: int) -> Path:
        return self.channel / folder_of(BatchId(batch), TOKEN) / "part-0.parquet"

    def found(self) -> list[str]:
        return [one.text for one in look(self.job.store, self.job.job, FIRST)]


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path / "weir")
    ends = [made.run() for _ in range(3)]
    made.read("fast", ends[2])
    made.read("slow", ends[0])
    return made


def empty(path: Path) -> None:
    write(path, "")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("damage", "wrong"), [(Path.unlink, "is gone"), (empty, "is empty"), (cut_off, "is cut off")]
)
def test_rows_that_the_slowest_reader_has_before_it_must_be_whole(
    chain: Chain, damage: Callable[[Path], object], wrong: str
) -> None:
    assert chain.found() == []
    damage(chain.rows(0))
    assert chain.found() == [], "every reader has passed it"
    damage(chain.rows(1))
    assert chain.found() == [f"data/000000001-1-1/part-0.parquet of channel all {wrong}"]


def test_a_reader_that_was_taken_out_of_the_job_needs_nothing_any_more(chain: Chain) -> None:
    job = chain.job
    about.keep(job.store, job.job, FIRST, Attempt(1), QueryName("slow"), Shape())
    for name in ("all", "fast"):
        about.keep(job.store, job.job, FIRST, Attempt(2), QueryName(name), Shape())
    trim(open_store(str(chain.channel)), chain.writer.end)
    empty(chain.queries / "slow/commits/0")
    assert chain.found() == []
    about.keep(job.store, job.job, FIRST, Attempt(3), QueryName("slow"), Shape())
    assert chain.found() != [], "it is back, and can't go on"


def test_a_reader_that_comes_back_and_has_lost_its_place_is_named(chain: Chain) -> None:
    job, queries = chain.job, [QueryName(name) for name in ("all", "fast", "slow", "new")]
    check_returned(job.store, job.job, FIRST, queries)
    for name in ("all", "fast"):
        about.keep(job.store, job.job, FIRST, Attempt(2), QueryName(name), Shape())
    check_returned(job.store, job.job, FIRST, queries)
    trim(open_store(str(chain.channel)), chain.writer.end)
    with pytest.raises(LostInputError, match="query 'slow' resumes with entry") as refusal:
        check_returned(job.store, job.job, FIRST, queries)
    assert "give the query a new name" in refusal.value.hint
    check_returned(job.store, job.job, FIRST, queries[:2])


def test_a_reader_that_the_newest_checkpoint_has_counts(chain: Chain) -> None:
    job = chain.job
    for name in ("all", "fast"):
        about.keep(job.store, job.job, FIRST, Attempt(2), QueryName(name), Shape())
    job.complete(job.manifest(7, {name: QueryCut(batch=0) for name in ("all", "fast", "slow")}))
    chain.rows(1).unlink()
    assert chain.found() == ["data/000000001-1-1/part-0.parquet of channel all is gone"]


def test_a_query_that_a_restore_has_left_out_is_not_missed(chain: Chain) -> None:
    """Before the first checkpoint of the new files, the one that they were made of says what is certain."""
    job = chain.job
    job.complete(job.manifest(7, {name: QueryCut(batch=0) for name in ("all", "fast", "gone")}))
    second = Generation(2)
    origin = replace(job.origin, restored_from="chk-7", parent=1)
    create_origin(job.store, job.job, second, origin)
    shutil.copytree(chain.job.root() / "queries", job.root(2) / "queries")
    shutil.copytree(chain.job.root() / "channels", job.root(2) / "channels")
    assert [one.query for one in look(job.store, job.job, second)] == ["gone"], "nothing tells more"
    for name in ("all", "fast", "slow"):
        about.keep(job.store, job.job, second, Attempt(2), QueryName(name), Shape())
    assert look(job.store, job.job, second) == []


def test_a_hole_in_the_log_is_found(chain: Chain) -> None:
    (chain.channel / "log/000000002.json").unlink()
    assert chain.found() == ["log/000000002.json of channel all is gone"]
    write(chain.channel / "log/000000002.json", "{half")
    assert chain.found() == ["log/000000002.json of channel all can't be read"]


def test_a_writer_whose_newest_entry_is_lost_does_not_give_its_number_out_again(chain: Chain) -> None:
    """Who had passed it would never read what came in its place, and the others never what it was."""
    newest, staged = chain.channel / f"log/{chain.writer.end - 1:09d}.json", chain.stage()
    newest.unlink()
    for append in (lambda: chain.writer.commit(staged), lambda: chain.writer.append_barrier(CheckpointId(9))):
        with pytest.raises(LostSegmentError, match=f"{newest} is gone"):
            append()
    assert not newest.exists()
    with pytest.raises(LostSegmentError, match=f"{newest} is gone"):
        chain.stage()


@pytest.mark.parametrize("torn", ["", "{half", '{"kind": "segment"}'])
def test_an_entry_that_every_reader_has_passed_is_read_by_the_writer_and_must_be_whole(
    chain: Chain, torn: str
) -> None:
    write(chain.channel / "log/000000000.json", torn)
    assert chain.found() == ["log/000000000.json of channel all can't be read"]
    again = ChannelWriter("all", str(chain.channel), str(chain.queries / "all"))
    with pytest.raises(LostSegmentError, match="can't be read") as raised:
        again.open("job/all", "lineage", Token(Attempt(2), Run(1)))
    assert "'weir repair job'" in raised.value.hint
    trim(open_store(str(chain.channel)), 2)
    assert chain.found() == [], "the next checkpoint deletes it"


def test_an_entry_of_a_newer_weir_is_no_damage(chain: Chain) -> None:
    write(chain.channel / "log/000000002.json", sums.add(b'{"kind": "watermark"}'))
    with pytest.raises(ValueError, match="newer weir"):
        chain.found()
    write(chain.channel / "log/000000002.json", '{"kind": "watermark"}')
    assert chain.found() == ["log/000000002.json of channel all can't be read"], "without a sum who knows"


def test_a_reader_behind_the_end_of_the_log_has_lost_it(chain: Chain) -> None:
    chain.read("slow", chain.writer.end)
    (chain.channel / f"log/{chain.writer.end - 1:09d}.json").unlink()
    assert chain.found() == ["log/000000003.json of channel all is gone"]


def test_a_lost_folder_is_found_though_nobody_has_read_it(chain: Chain) -> None:
    for reader in ("fast", "slow"):
        shutil.rmtree(chain.queries / reader)
    cuts = {"all": QueryCut(batch=2)}
    channel = ChannelCut(first=0, behind=chain.writer.end, batch=2)
    chain.job.complete(chain.job.manifest(1, cuts, {"all": channel}))
    assert chain.found() == []
    shutil.rmtree(chain.channel)
    assert chain.found() == [f"the segment of batch {batch} of channel all is gone" for batch in range(3)]


def test_a_batch_that_is_committed_and_not_entered_must_be_staged(chain: Chain) -> None:
    chain.stage()
    assert chain.found() == [], "the next start enters it"
    empty(chain.rows(3))
    assert chain.found() == ["data/000000003-1-1/part-0.parquet of channel all is empty"]
    (chain.channel / "staged/000000003-1-1.json").unlink()
    assert chain.found() == ["the segment of batch 3 of channel all is gone"]


@pytest.mark.parametrize("torn", ["", '{"files": [{', "{}"])
def test_a_torn_record_of_a_committed_batch_is_found_and_never_an_empty_segment(
    chain: Chain, torn: str
) -> None:
    staged = chain.stage()
    other = replace(staged, token=Token(Attempt(1), Run(2)))
    chain.writer._staging.record(other, [])
    record = write(chain.channel / "staged/000000003-1-1.json", torn)
    assert chain.found() == ["staged/000000003-1-1.json of channel all can't be read"]
    with pytest.raises(LostStagingError, match=r"000000003-1-1\.json, which can't be read"):
        chain.writer.commit(staged)
    record.rename(record.with_name("000000004-1-1.json"))
    assert chain.found() == [], "Spark has not committed that batch"


def test_a_channel_that_a_query_got_with_this_generation_has_nothing_to_lose(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "weir")
    chain.commit("all", 0)
    assert chain.found() == ["the segment of batch 0 of channel all is gone"]
    note_elsewhere(chain.job.store, chain.job.job, FIRST, {QueryName("all"): BatchId(0)})
    assert chain.found() == []


def test_the_way_back_from_a_segment_that_was_deleted_by_hand_is_the_last_checkpoint(chain: Chain) -> None:
    names = [f"queries/{name}/{log}/0" for name in ("fast", "slow") for log in ("offsets", "commits")]
    kept = chain.job.pins().keep("", names, checkpoint=CheckpointId(1))
    chain.job.begin(1)
    cuts = {"all": QueryCut(batch=0), "fast": QueryCut(batch=0, files=kept.files), "slow": QueryCut(batch=0)}
    chain.job.complete(chain.job.manifest(1, cuts))
    assert repair.plan(chain.job.store, chain.job.job) is None
    chain.rows(2).unlink()
    way = repair.plan(chain.job.store, chain.job.job)
    assert way is not None and way.point == "chk-1"
    assert way.damage[0].text == "data/000000002-1-1/part-0.parquet of channel all is gone"
    assert "batches 1 to 2 run again" in way.replays[0].text


@pytest.mark.parametrize("damage", [empty, cut_off])
def test_a_writer_that_finds_its_file_torn_says_which_and_what_to_do(
    chain: Chain, damage: Callable[[Path], object]
) -> None:
    damage(chain.rows(1))
    with pytest.raises(LostSegmentError) as raised:
        parquet.describe(str(chain.rows(1)), "part-0.parquet")
    assert raised.value.what.startswith(f"the channel file {chain.rows(1)} can't be read: ")
    assert "'weir repair job'" in raised.value.hint and "'weir restore job latest'" in raised.value.hint


def test_an_error_of_the_machine_is_no_damage(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(pq, "ParquetFile", refused)
    with pytest.raises(OSError, match="too many open files"):
        parquet.open_parquet(str(chain.rows(1)))


def test_rows_are_on_the_disk_before_a_record_names_them(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    staging = type(chain.writer._staging)
    for name in ("sync", "record"):
        true = getattr(staging, name)

        def noted(*args: object, name: str = name, true: Callable[..., object] = true) -> object:
            done.append(name)
            return true(*args)

        monkeypatch.setattr(staging, name, noted)
    chain.stage()
    assert done == ["sync", "record"]
