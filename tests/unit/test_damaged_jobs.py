"""One damaged job, journal or folder never hides the others, and a damaged journal never stops a job."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.fake_job import FakeJob, Weir
from tests.played_files import WholeStore
from weir.clock import Clock
from weir.errors import LostLedgerError, StorageError
from weir.monitor.job import jobs
from weir.protocol.contents import Contents
from weir.sinks.files_ledger import log_of
from weir.storage import BoundedLog
from weir.supervisor.history import History
from weir.supervisor.journal import JobJournal
from weir.web.metrics import exposed
from weir.web.site import Site


@pytest.fixture
def weir(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weir:
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_DIR", str(tmp_path))
    return weir


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return FakeJob(tmp_path).state("STARTING").state("RUNNING").batch(41)


def enter(log: BoundedLog[Contents], entry: dict[str, Any]) -> bool:
    return log.append(lambda _: entry)


def journal_of(folder: Path, name: str = "wordcount") -> Path:
    return folder / name / "journal/journal.sqlite"


def spoiled(path: Path) -> None:
    """The header is another, and so are its neighbours."""
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    path.write_bytes(b"no database " + path.read_bytes()[12:])


def test_a_damaged_journal_is_moved_aside_and_another_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    old = JobJournal(path, Clock())
    old.event(1, "state", {"state": "RUNNING"})
    old.close()
    assert old.moved_to is None
    spoiled(path)
    new = JobJournal(path, Clock())
    assert new.moved_to is not None and new.moved_to.read_bytes().startswith(b"no database")
    assert new.moved_to.name.startswith("journal.sqlite.damaged-")
    new.event(2, "state", {"state": "RUNNING"})
    new.close()
    assert [one.attempt for one in History(path).events("state")] == [2]


def test_a_page_that_is_damaged_is_found_when_the_journal_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    old = JobJournal(path, Clock())
    for number in range(300):
        old.event(number, "note", {"text": "x" * 100})
    old.close()
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 8] = bytes(4096 * 5)
    path.write_bytes(bytes(data))
    new = JobJournal(path, Clock())
    assert new.moved_to is not None
    new.close()


def test_a_journal_without_room_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    JobJournal(path, Clock()).close()

    def refuses(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", refuses)
    with pytest.raises(sqlite3.OperationalError):
        JobJournal(path, Clock())
    assert [one.name for one in tmp_path.iterdir()] == ["journal.sqlite"]


def test_one_damaged_job_hides_no_other(job: FakeJob, weir: Weir, tmp_path: Path) -> None:
    other = FakeJob(tmp_path, "other").state("STARTING").state("RUNNING").batch(7)
    other.journal.close()
    spoiled(journal_of(tmp_path, "other"))
    (tmp_path / "begun/attempts").mkdir(parents=True)
    for name in ("attempts/000001.beat", "savepoints/1.json"):
        FakeJob(tmp_path, "deep").journal.close()
        (tmp_path / "deep" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "deep" / name).write_bytes(b"[" * 100_000)
        assert weir("list", "--all").code == 0 and weir("savepoints", "deep").code == 0
        shutil.rmtree(tmp_path / "deep")
    answer = weir("list", "--all")
    assert answer.code == 0 and "wordcount" in answer.out and "other" in answer.out
    assert "begun" not in answer.out and "its history can't be read" in " ".join(answer.out.split())
    names = [one["name"] for one in weir("list", "--all", "--json").json["jobs"]]
    assert names == ["other", "wordcount"]
    site = Site(str(tmp_path), Clock())
    assert [one.name for one in site.jobs()] == names
    figures = exposed(site).decode()
    assert 'weir_job_up{weir_job="wordcount"} 1.0' in figures
    assert weir("status", "other").code in (0, 3)


def test_what_can_not_be_read_at_all_says_so(
    job: FakeJob, weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(dir: str, name: str, clock: Clock) -> object:
        raise StorageError(verb="read", path="x", reason="Input/output error", root=dir)

    monkeypatch.setattr("weir.monitor.job.look", fails)
    (one,) = jobs(str(tmp_path), Clock())
    assert (one.name, one.state) == ("wordcount", "UNREADABLE") and "Input/output error" in one.advice
    answer = weir("list")
    assert answer.code == 0 and "UNREADABLE" in answer.out and "Input/output error" in answer.out
    assert weir("list", "--json").json["jobs"][0]["state"] == "UNREADABLE"


def test_a_torn_record_of_the_newest_attempt_is_said_as_it_is(
    job: FakeJob, weir: Weir, tmp_path: Path
) -> None:
    job.killed()
    (record,) = (tmp_path / "wordcount/attempts").glob("*.json")
    record.write_text('{"attempt": 1, "pi')
    answer = weir("repair", "wordcount")
    said = " ".join(answer.err.split())
    assert answer.code == 1 and "1970" not in said and "can't be read" in said and "weir run FILE" in said


# the ledger of a files sink


def entries(store: WholeStore, count: int = 6) -> None:
    log = log_of(store)
    opened = {"kind": "opened", "owner": "job", "lineage": "l", "attempt": 1, "run": 1}
    assert log.append(lambda _: opened)
    for batch in range(count - 1):
        entry: dict[str, object] = {"kind": "batch", "batch": batch, "attempt": 1, "run": 1}
        entry["body"] = {"files": [f"data/{batch}"]}
        assert enter(log, entry)


def test_a_hole_in_a_ledger_is_an_error_and_never_fewer_files() -> None:
    store = WholeStore()
    entries(store)
    assert len(log_of(store).catch_up().in_order()) == 5
    store.delete("_weir/log/000000003.json")
    with pytest.raises(LostLedgerError, match=r"000000003\.json is gone, and later entries are there"):
        log_of(store).catch_up()
    with pytest.raises(LostLedgerError):
        log_of(store).append(lambda _: {"kind": "fence", "attempt": 2, "run": 1})
    for number in (4, 5):
        store.delete(f"_weir/log/00000000{number}.json")
    assert len(log_of(store).catch_up().in_order()) == 2, "its end may be where it likes"


@pytest.mark.parametrize("torn", [b"", b'{"kind": "ba', b"[]", b'{"kind": "batch"}', b"\xff"])
def test_a_torn_entry_is_said_by_its_name(torn: bytes) -> None:
    store = WholeStore()
    entries(store)
    store.put("_weir/log/000000003.json", torn)
    with pytest.raises(LostLedgerError, match=r"_weir/log/000000003\.json can't be read"):
        log_of(store).catch_up()


def test_a_torn_snapshot_is_made_up_for_by_the_one_before_it() -> None:
    store = WholeStore()
    entries(store)
    log = log_of(store)
    for number in (2, 4):
        part = log_of(store)
        log.keep(number, _upto(store, number))
        assert part.catch_up().in_order() == log.catch_up().in_order()
    store.put("_weir/snapshots/000000004.json", b"{")
    assert len(log_of(store).catch_up().in_order()) == 5
    store.put("_weir/snapshots/000000002.json", b"{")
    with pytest.raises(LostLedgerError, match="_weir/snapshots/000000004"):
        log_of(store).catch_up()


def _upto(store: WholeStore, number: int) -> dict[str, object]:
    first = WholeStore()
    for at in range(number):
        first.put(f"_weir/log/{at:09d}.json", store.get(f"_weir/log/{at:09d}.json") or b"")
    return log_of(first).catch_up().encode()
