"""The log of Spark's own file sink: moved with its folder, taken back with its query, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.errors import SinkMismatchError
from weir.ids import NO_BATCH, BatchId
from weir.spark.file_sink import LOG, FileSinkLog


def line(path: Path) -> str:
    told = {"path": f"file://{str(path).replace(' ', '%20')}", "size": 1, "isDir": False, "action": "add"}
    return json.dumps(told, separators=(",", ":"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batches 0 to 12, in folders by key; the log is compacted at 9."""
    folder = tmp_path / "out put"
    made = []
    (folder / LOG).mkdir(parents=True)
    for batch in range(13):
        file = folder / f"k={batch % 2}" / f"part-{batch}.parquet"
        file.parent.mkdir(exist_ok=True)
        file.touch()
        made.append(line(file))
        lines = made if batch == 9 else made[-1:]
        name = "9.compact" if batch == 9 else str(batch)
        (folder / LOG / name).write_text("\n".join(["v1", *lines]))
        (folder / LOG / f".{name}.crc").touch()
    return folder


def log(folder: Path) -> FileSinkLog:
    return FileSinkLog(folder, "archive")


def named(folder: Path) -> list[str]:
    """What the newest compaction and the entries behind it name, relative to the folder, or in full."""
    texts = [(folder / LOG / name).read_text() for name in ("9.compact", "10", "11", "12")]
    urls = [json.loads(one)["path"] for text in texts for one in text.split("\n")[1:]]
    return [url.replace("%20", " ").removeprefix(f"file://{folder}/") for url in urls]


def test_a_log_that_fits_is_left_as_it_is(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert log(folder).newest() == 12
    log(folder).fit(BatchId(12), NO_BATCH)
    log(folder).fit(BatchId(13), NO_BATCH)
    log(folder).rewind(BatchId(12))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    log(folder / "new").fit(NO_BATCH, NO_BATCH)
    log(folder / "new").rewind(NO_BATCH)


def test_names_follow_a_folder_that_was_moved_or_copied(folder: Path, tmp_path: Path) -> None:
    here = named(folder)
    assert here[0] == "k=0/part-0.parquet" and len(here) == 13
    shutil.copytree(folder, tmp_path / "else where/copy")
    folder.rename(tmp_path / "moved")
    for place in (tmp_path / "moved", tmp_path / "else where/copy"):
        assert named(place) != here
        log(place).fit(BatchId(12), NO_BATCH)
        assert named(place) == here
        assert not (place / LOG / ".9.compact.crc").exists()  # it would not fit the new content
    log(tmp_path / "moved").fit(BatchId(12), NO_BATCH)
    assert named(tmp_path / "moved") == here


def test_a_move_that_was_half_done_is_taken_up_again(folder: Path, tmp_path: Path) -> None:
    here = named(folder)
    old = (folder / LOG / "9.compact").read_text()
    moved = folder.rename(tmp_path / "moved")
    log(moved).fit(BatchId(12), NO_BATCH)
    (moved / LOG / "9.compact").write_text(old)
    log(moved).fit(BatchId(12), NO_BATCH)
    assert named(moved) == here


def test_files_that_did_not_come_along_are_refused(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "moved")
    (moved / "k=1/part-3.parquet").unlink()
    before = (moved / LOG / "9.compact").read_text()
    with pytest.raises(SinkMismatchError, match="names files that are not in this folder"):
        log(moved).fit(BatchId(12), NO_BATCH)
    assert (moved / LOG / "9.compact").read_text() == before


@pytest.mark.parametrize("planned", [11, NO_BATCH])
def test_output_that_the_live_files_know_nothing_of_is_refused(folder: Path, planned: int) -> None:
    with pytest.raises(
        SinkMismatchError, match=f"up to 12, and the live files know only those up to {planned}"
    ):
        log(folder).fit(BatchId(planned), NO_BATCH)


def test_a_log_is_taken_back_as_far_as_it_tells_batches_apart(folder: Path) -> None:
    log(folder).rewind(BatchId(10))
    assert log(folder).newest() == 10
    log(folder).fit(BatchId(10), NO_BATCH)
    log(folder).rewind(BatchId(9))
    assert log(folder).newest() == 9
    log(folder).rewind(BatchId(4))  # Spark has not deleted what it compacted yet
    assert log(folder).newest() == 4
    (folder / LOG / "2").unlink()
    with pytest.raises(SinkMismatchError, match="compacted after batch 3"):
        log(folder).rewind(BatchId(3))
    log(folder).rewind(NO_BATCH)
    assert log(folder).newest() == NO_BATCH
    assert (folder / "k=0/part-12.parquet").exists()


def test_a_driver_that_wakes_in_a_rewind_leaves_what_its_successor_wrote(folder: Path) -> None:
    class WokenError(Exception):
        pass

    def overtaken() -> None:
        """The successor rewinds too, and its first batch has the number of the one that it rewound."""
        log(folder).rewind(BatchId(11))
        (folder / LOG / "12").write_text("v1")

    steps: list[Callable[[], None]] = [overtaken, lambda: None]

    def check() -> None:
        steps.pop()()

    log(folder).rewind(BatchId(11), check)
    assert (folder / LOG / "12").read_text() == "v1"

    def fenced() -> None:
        raise WokenError

    with pytest.raises(WokenError):
        log(folder).rewind(BatchId(11), fenced)
    assert (folder / LOG / "12").exists()


def test_a_rewind_to_entries_that_name_files_elsewhere_is_refused_before_it_is_begun(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "k=1/part-11.parquet").unlink()
    (folder / "k=1/part-9.parquet").unlink()
    folder.rename(tmp_path / "moved")
    with pytest.raises(SinkMismatchError, match="names files that are not in this folder"):
        log(tmp_path / "moved").check_rewind(BatchId(11), new=False)


def test_a_new_folder_begins_behind_the_batch_that_the_query_goes_on_behind(tmp_path: Path) -> None:
    new = log(tmp_path / "new")
    with pytest.raises(SinkMismatchError, match="ends with batch -1, and the query resumes after batch 12"):
        new.check_rewind(BatchId(12), new=False)
    new.check_rewind(BatchId(12), new=True)
    for _ in range(2):
        new.rewind(BatchId(12))
        entries = {path.name: path.read_text() for path in (tmp_path / "new" / LOG).iterdir()}
        assert entries == dict.fromkeys(("9.compact", "10", "11", "12"), "v1")
    (tmp_path / "new" / LOG / "11").unlink()  # killed on the way
    new.rewind(BatchId(12))
    assert new.newest() == 12 and (tmp_path / "new" / LOG / "11").exists()
    new.fit(BatchId(13), BatchId(12))
    early = FileSinkLog(tmp_path / "early", "archive", interval=5)
    early.rewind(BatchId(3))
    assert sorted(path.name for path in (tmp_path / "early" / LOG).iterdir()) == ["0", "1", "2", "3"]


def test_a_folder_that_began_behind_a_batch_goes_back_before_it(tmp_path: Path) -> None:
    """Its compaction names nothing, and so tells that all files came later."""
    folder = tmp_path / "new"
    log(folder).rewind(BatchId(12))
    (folder / LOG / "13").write_text("\n".join(["v1", line(folder / "part-13.parquet")]))
    log(folder).check_rewind(BatchId(4), new=False)
    log(folder).rewind(BatchId(4))
    assert log(folder).newest() == 4
    assert not [path for path in (folder / LOG).iterdir() if path.name.isdigit() and int(path.name) > 4]
    log(folder).fit(BatchId(4), BatchId(4))


def test_a_log_that_lost_its_end_is_refused(folder: Path) -> None:
    for new in (True, False):
        with pytest.raises(SinkMismatchError, match=r"ends with batch 12, and .* after batch 20"):
            log(folder).check_rewind(BatchId(20), new=new)
    with pytest.raises(SinkMismatchError, match="resume from a checkpoint or savepoint with a new folder"):
        log(folder).fit(BatchId(20), BatchId(20))
