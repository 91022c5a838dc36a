"""Files of nobody's in weir's folders: an editor's copy, a half-made backup, what a sync tool left behind.

They are no entries, whatever they are called: each look and each start sees what it would see without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fake_job import FakeJob, Weir
from tests.played_files import WholeStore
from tests.unit.test_every_damage import seen
from tests.wide_job import WideJob
from weir.clock import Clock
from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.restore.damage import look
from weir.restore.repair import plan
from weir.savepoint import about
from weir.savepoint.catalogue import damaged
from weir.sinks.compaction import SparkMerger, Upkeep
from weir.sinks.fence import anyone
from weir.sinks.files_ledger import FilesLedger, log_of
from weir.sinks.function import delete_marks
from weir.sinks.staging import StagedFiles
from weir.storage.attempts import AttemptLock, KnownAttempts
from weir.storage.generation import FIRST
from weir.storage.local import LocalStore

STRANGE = (
    *("notes", "000000001.json~", "000000001.json.bak", "000000002 (1).json", "copy of 000000001.json"),
    *("-3.json", "000000001-1-1.json.orig", "backup/000000009.json", "backup/000000009-1-1.json"),
)


@contextmanager
def strange_files(folder: Path) -> Iterator[None]:
    made = [folder / name for name in STRANGE]
    for path in made:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"nobody's")
    yield
    for path in made:
        assert path.read_bytes() == b"nobody's", "what is not weir's is not deleted"
        path.unlink()
    (folder / "backup").rmdir()


def test_every_look_at_a_job_passes_over_files_that_are_nobodys(tmp_path: Path) -> None:
    wide = WideJob(tmp_path / "weir")
    store, job = wide.kept.store, wide.kept.job
    folders = [path for path in wide.kept.folder.rglob("*") if path.is_dir() and "pins" not in path.parts]
    for folder in sorted(folders):
        with strange_files(folder):
            assert (look(store, job, FIRST), seen(wide), plan(store, job)) == ([], [], None), folder


def test_a_job_with_strange_files_is_listed_and_taken_over(weir: Weir, tmp_path: Path) -> None:
    FakeJob(tmp_path).state("STARTING").state("RUNNING").batch(41).killed()
    root = tmp_path / "wordcount"
    store = LocalStore(tmp_path)
    for name in ("attempts", "savepoints", "generations/0001/shapes", "checkpoints", "generations"):
        (root / name).mkdir(parents=True, exist_ok=True)
        with strange_files(root / name):
            assert weir("list", "--all", "--dir", str(tmp_path)).code == 0
            assert weir("status", "wordcount", "--dir", str(tmp_path)).code in (0, 3)
            newest = AttemptLock(store, "wordcount", Clock()).newest()  # type: ignore[arg-type]
            assert newest is not None and newest.attempt == 1
            assert KnownAttempts(store, "wordcount")(Token(Attempt(1), Run(1)))  # type: ignore[arg-type]
            assert damaged(store, "wordcount") == []  # type: ignore[arg-type]
            assert about.last(store, "wordcount", FIRST) == (0, {})  # type: ignore[arg-type]
            assert about.queries(store, "wordcount", FIRST) == set()  # type: ignore[arg-type]


def test_the_ledger_of_files_is_written_and_shortened_beside_strange_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "_weir/log").mkdir(parents=True)
    (tmp_path / "_weir/snapshots").mkdir()
    with strange_files(tmp_path / "_weir/log"), strange_files(tmp_path / "_weir/snapshots"):
        log = log_of(store)
        assert log.append(lambda _: {"kind": "opened", "owner": "job/q", "lineage": "l"})
        for batch in range(4):
            body = {
                "kind": "batch",
                "batch": batch,
                "attempt": 1,
                "run": 1,
                "body": {"files": [f"d/{batch}"]},
            }
            assert log.append(lambda _, body=body: body)  # type: ignore[misc]
            log.keep(log.number, log.state.encode())
        assert log_of(store).catch_up().in_order() == [f"d/{batch}" for batch in range(4)]


def test_a_staging_that_no_run_has_made_is_neither_delivered_nor_deleted() -> None:
    store, token = WholeStore(), Token(Attempt(1), Run(1))
    stagings = StagedFiles(store, "staged")
    own = Staged(BatchId(0), token)
    stagings.record(own, [])
    for name in STRANGE:
        for folder in ("staged", "data", "marks"):
            store.put(f"{folder}/{name}", b"nobody's")
    assert stagings.recorded() == [own]
    stagings.discard(BatchId(9), token, [])
    delete_marks(store, token)
    assert stagings.recorded() == []
    assert all(store.get(f"{folder}/{name}") for name in STRANGE for folder in ("staged", "data", "marks"))


def test_what_lies_beside_merged_files_is_not_a_merge() -> None:
    store, token = WholeStore(), Token(Attempt(2), Run(1))
    ledger = FilesLedger(store)
    ledger.open("job/q", "l", token, anyone, lambda _: None)
    for name in ("_merged/notes", "_merged/copy of 1-1-000001/part-0", "_merged/1-1-000001-a/part-0"):
        store.put(name, b"rows")
    Upkeep(ledger, store, SparkMerger("", "parquet", {}), None).discard()
    left = list(store.list("_merged"))
    assert left == ["_merged/copy of 1-1-000001/part-0", "_merged/notes"]
