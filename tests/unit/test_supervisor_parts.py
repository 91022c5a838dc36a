"""The parts of the supervisor that need no driver: link, output files, journal, recovery, requests."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tests.full_disk import full_disk
from weir.clock import ManualClock
from weir.ids import job_name
from weir.link import Link
from weir.protocol import messages as m
from weir.storage.local import LocalStore
from weir.supervisor.history import History
from weir.supervisor.inbox import Requests
from weir.supervisor.journal import JobJournal
from weir.supervisor.process import DriverProcess, OutputFile
from weir.supervisor.recovery import PARTS, Recovery, timeline


def committed(batch: int, **fields: object) -> m.BatchCommitted:
    values: dict[str, object] = {"query": "q", "run": 1, "rows": 10, "seconds": 0.5, "at": "t", **fields}
    return m.BatchCommitted(batch=batch, **values)  # type: ignore[arg-type]


def test_messages_arrive_in_order_and_end_with_the_peer() -> None:
    left, socket = Link.pair()
    right = Link(socket)
    heard: list[m.Message] = []
    reader = threading.Thread(target=lambda: heard.extend(right.receive()))
    reader.start()
    sent: list[m.Message] = [m.Pong(1), m.Prepare({"a": "x" * 100_000}), m.StopQueries(2.0)]
    for message in sent:
        left.send(message)
    left.close()
    reader.join(timeout=10)
    assert heard == sent


def test_sending_to_a_peer_that_is_gone_is_no_error() -> None:
    left, socket = Link.pair()
    socket.close()
    for _ in range(3):
        left.send(m.Pong(1))


def test_output_of_any_size_is_kept_within_bounds(tmp_path: Path) -> None:
    output = OutputFile(tmp_path / "logs" / "driver.log", limit=1000, keep=2)
    for number in range(200):
        output.write(f"{number:04d}".encode() * 25)
    output.close()
    files = sorted(p.name for p in (tmp_path / "logs").iterdir())
    assert files == ["driver.log", "driver.log.1", "driver.log.2"]
    assert all(p.stat().st_size <= 1000 for p in (tmp_path / "logs").iterdir())
    assert (tmp_path / "logs" / "driver.log").read_bytes().endswith(b"0199")


def test_output_without_room_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    output = OutputFile(path, limit=40)
    output.write(b"before\n")
    with full_disk():
        output.write(b"lost\n")
        output.write(b"x" * 100)  # would be the first of another file
    output.write(b"after\n")
    kept = b"".join(file.read_bytes() for file in sorted(tmp_path.iterdir(), reverse=True))
    assert kept == b"before\nweir: 105 bytes could not be kept here\nafter\n"


def test_output_whose_folder_can_not_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    output = OutputFile(tmp_path / "logs" / "driver.log")
    output.write(b"lost\n")
    (tmp_path / "logs").unlink()
    output.write(b"kept\n")
    assert (tmp_path / "logs" / "driver.log").read_bytes().endswith(b"not be kept here\nkept\n")


def test_a_driver_is_not_held_up_by_output_that_can_not_be_kept_or_shown(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("for _ in range(300): print('x' * 1000)\n")

    def refuses(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")

    process = DriverProcess(file, [], "", lambda _: None, refuses)
    process.keep_output(OutputFile(Path("/dev/full")))
    assert process.wait(60) == 2  # it is not a job file, as it can say only behind all that it prints
    process.end()


def test_history_outlives_its_writer_and_is_read_while_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "journal" / "journal.sqlite"
    journal = JobJournal(path, ManualClock())
    journal.event(1, "state", {"state": "RUNNING"})
    journal.batch(1, committed(0))
    journal.batch(1, committed(1, rows=5, state_rows=7))
    history = History(path)
    assert [e.body["state"] for e in history.events("state")] == ["RUNNING"]
    assert history.batches() == []
    journal.flush()
    assert [b["batch"] for b in history.batches("q")] == [0, 1]
    (query,) = history.queries()
    assert (query["batch"], query["total_rows"], query["batches"], query["state_rows"]) == (1, 15, 2, 7)
    history.close()
    journal.close()
    again = JobJournal(path, ManualClock())
    again.event(2, "state", {"state": "FINISHED"})
    again.close()
    history = History(path)
    assert [e.attempt for e in history.events("state")] == [1, 2]
    last = history.last("state")
    assert last is not None and last.body == {"state": "FINISHED"}
    history.close()


def test_a_query_whose_batches_were_all_forgotten_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.supervisor.journal._KEPT", 1)
    monkeypatch.setattr("weir.supervisor.journal._PRUNE_EVERY", 3)
    journal = JobJournal(tmp_path / "journal.sqlite", ManualClock())
    for query in ("old", "new", "new"):
        journal.batch(1, committed(0, query=query))
    journal.flush()
    history = History(tmp_path / "journal.sqlite")
    assert [(row["query"], row["batches"]) for row in history.queries()] == [("new", 2)]
    history.close()
    journal.close()


def test_an_event_that_replaces_another_has_a_number_of_its_own(tmp_path: Path) -> None:
    journal = JobJournal(tmp_path / "journal.sqlite", ManualClock())
    history = History(tmp_path / "journal.sqlite")
    seen: list[object] = []
    last = 0
    for done in range(3):
        journal.event(1, "savepoint progress", {"done": done}, alone=True)
        for event in history.since(last):
            last = event.id
            seen.append(event.body["done"])
    assert seen == [0, 1, 2]
    assert len(history.events("savepoint progress")) == 1
    history.close()
    journal.close()


def test_the_parts_of_a_recovery_add_up_to_the_whole() -> None:
    recovery = Recovery("", "killed", began_at=100.0)
    recovery.add("detect", 1.0)
    recovery.add("process", 0.5)
    recovery.add("session", 4.0)
    recovery.add("reset sinks", 0.25)
    first = committed(7, durations={"latestOffset": 100, "getBatch": 150, "addBatch": 900}, state_load_ms=500)
    body = recovery.finish(first, now=108.0)
    parts = body["parts"]
    assert isinstance(parts, dict)
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == body["seconds"] == 8.0
    assert parts["reset sources"] == 0.25
    assert parts["load state"] == 0.5
    assert parts["first commit"] == 1.5
    assert [line[0] for line in timeline(parts)] == list(PARTS)


def test_a_recovery_tells_which_batches_had_been_planned_and_ran_again() -> None:
    recovery = Recovery("", "killed", began_at=100.0)
    recovery.started(m.QueryStarted("counts", 2, last_committed=6, last_planned=7), 104.0)
    recovery.started(m.QueryStarted("other", 2, last_committed=3, last_planned=3), 105.0)
    assert recovery.finish(committed(7), now=108.0)["replayed"] == {"counts": 7}
    assert recovery.finish_idle()["seconds"] == 5.0


def test_a_request_is_answered_once_and_only_by_whom_it_was_meant_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    client, server = Requests(store, job_name("job")), Requests(store, job_name("job"))
    identity = client.ask("cancel", "me")
    assert client.answer_to(identity) is None
    (request,) = server.pending()
    assert (request.verb, request.session) == ("cancel", "me")
    server.answer(request, done=True)
    assert server.pending() == []
    assert client.answer_to(identity) == {"done": True}
    assert client.answer_to(identity) is None
