"""`weir checkpoint`, `checkpoints`, `restore` and `configure`, and checkpoints in `weir status`."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.fake_job import FakeJob, Weir
from tests.kept_job import write
from weir.checkpoint.manifest import Manifest, QueryCut, encode
from weir.cli import say
from weir.cli.restore_options import as_point
from weir.ids import CheckpointId, Generation
from weir.protocol.checkpoint import AbortReason, Alignment
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointBegun,
    CheckpointCompleted,
    CheckpointsAcked,
    Restored,
)
from weir.restore.request import RestoreRequest
from weir.storage import paths
from weir.storage.generation import Origin, begin_rewind, create_origin, opening, read_origin
from weir.storage.local import LocalStore
from weir.text import when

INTERVAL = "execution.checkpointing.interval"
PHASES = {"barrier": 0.01, "alignment": 0.25, "commit": 0.1, "listing": 0.02, "pinning": 0.03, "copying": 0.0}
PHASES |= {"ack": 0.004}


@pytest.fixture
def weir(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weir:
    monkeypatch.setenv("WEIR_EXECUTION_CHECKPOINTING_DIR", str(tmp_path))
    return weir


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path).state("STARTING").state("RUNNING").batch(41)
    create_origin(LocalStore(tmp_path), job.name, Generation(1), Origin("lineage", "rocksdb", 2, "4.3", "t"))
    return job


class Supervisor(threading.Thread):
    """Answers one request with what it is told to answer."""

    def __init__(self, job: FakeJob, **body: Any) -> None:
        super().__init__(daemon=True)
        self.job, self.body = job, body
        self.heard: list[tuple[str, dict[str, Any]]] = []
        for one in threading.enumerate():  # who has answered takes the request away behind its answer
            if isinstance(one, Supervisor) and one.heard:
                one.join(30)
        self.start()

    def run(self) -> None:
        while not (found := self.job.requests.pending()):
            threading.Event().wait(0.01)
        self.heard = [(request.verb, request.arguments) for request in found]
        self.job.requests.answer(found[0], **self.body)


def stored(job: FakeJob, id: int, attempt: int = 1) -> Manifest:
    """A completed checkpoint in the storage, without files."""
    manifest = Manifest(
        id=id,
        job=job.name,
        generation=1,
        attempt=attempt,
        alignment=Alignment.ALIGNED,
        trigger="interval",
        begun_at=job.clock.now().isoformat(),
        completed_at=job.clock.now().isoformat(),
        seconds=0.5,
        lineage="lineage",
        backend="rocksdb",
        parallelism=2,
        spark="4.3",
        weir="0.1.0",
        queries={"counts": QueryCut(batch=12, phases=PHASES)},
    )
    data = encode(manifest)
    LocalStore(job.dir).create(paths.completed(job.name, CheckpointId(id)), data)
    return manifest


def begun(job: FakeJob, id: int, **fields: Any) -> None:
    job.event("checkpoint begun", asdict(CheckpointBegun(id, "aligned", "interval", **fields)))


def completed(job: FakeJob, id: int, alignment: str = "aligned", **fields: Any) -> None:
    queries = {
        "counts": {
            "batch": 12,
            "unaligned": alignment == "unaligned",
            "new_bytes": 1000,
            "full_bytes": 5 * 2**20,
            "phases": PHASES,
        }
    }
    message = CheckpointCompleted(
        id,
        alignment,
        "interval",
        False,
        0.84,
        2 * 2**20,
        34 * 2**20,
        {"trigger": 0.001, "barrier": 0.02, "ack": 0.6, "complete": 0.01, "notify": 0.0},
        queries,
        **fields,
    )
    begun(job, id)
    job.event("checkpoint completed", asdict(message))


def aborted(job: FakeJob, id: int, reason: AbortReason = AbortReason.EXPIRED, detail: str = "") -> None:
    begun(job, id)
    job.event(
        "checkpoint aborted",
        asdict(CheckpointAborted(id, "aligned", "interval", 600.0, reason.value, detail)),
    )


def statuses(weir: Weir, *options: str) -> dict[int, str]:
    found = weir("checkpoints", "wordcount", "--json", *options).json["checkpoints"]
    return {one["id"]: one["status"] for one in found}


def test_the_list_has_every_status_and_says_why_the_last_abort_was(weir: Weir, job: FakeJob) -> None:
    assert "no checkpoint yet" in weir("checkpoints", "wordcount").out
    completed(job, 1)
    completed(job, 2, subsumed=[1])
    stored(job, 2)
    aborted(job, 3, AbortReason.STORAGE, "disk full")
    begun(job, 4)
    out = weir("checkpoints", "wordcount").out
    assert "the last abort, checkpoint 3: its files could not be kept: disk full" in out
    assert "0.840" in out and "2 MiB" in out and "34 MiB" in out
    assert statuses(weir) == {1: "subsumed", 2: "completed", 3: "aborted", 4: "pending"}
    assert statuses(weir, "--limit", "2") == {3: "aborted", 4: "pending"}


def flat(out: str) -> str:
    """Without the breaks of a narrow terminal."""
    return " ".join(out.split())


def lines(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_the_list_has_kind_trigger_times_of_phases_and_bytes(weir: Weir, job: FakeJob) -> None:
    completed(job, 41)
    at = weir("checkpoints", "wordcount", "--json").json["checkpoints"][0]["ended_at"]
    heads, names, first, second, *_ = lines(weir("checkpoints", "wordcount").out)
    assert heads + names == [
        *("kind", "status", "new"),
        *("id", "trigger", "at", "seconds", "barrier", "ack", "complete", "notify", "full"),
    ]
    phases = ["0.840", "0.020", "0.600", "0.010", "0.000"]
    assert first == ["41", "aligned", "subsumed", *phases, "2", "MiB"]
    assert second == ["interval", when(at, job.clock.now()), "34", "MiB"]


def test_the_list_has_a_line_for_each_query_of_the_newest_or_of_all(weir: Weir, job: FakeJob) -> None:
    for id in range(1, 6):
        completed(job, id)
    aborted(job, 6)
    of_query = ["counts", "12", "0.260", "0.100", "0.050", "0.977", "KiB", "5", "MiB"]
    shown = lines(weir("checkpoints", "wordcount").out)
    assert ["id", "query", "batch", "wait", "commit", "snapshot", "new", "full"] in shown
    assert [line[0] for line in shown if line[1:] == of_query] == ["5", "4", "3"]
    shown = lines(weir("checkpoints", "wordcount", "--queries").out)
    assert [line[0] for line in shown if line[1:] == of_query] == ["5", "4", "3", "2", "1"]


def test_a_wide_terminal_has_a_line_for_each_checkpoint_newest_first(
    weir: Weir, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in range(1, 4):
        completed(job, id)
    for columns, shown in ((109, []), (110, ["3", "aligned", "interval", "subsumed"])):
        monkeypatch.setattr(say, "out", Console(width=columns, highlight=False))
        table = lines(weir("checkpoints", "wordcount").out)[: 7 if columns < 110 else 4]
        assert ("trigger" in table[0]) is (columns == 110)
        rows = [line for line in table if line[0].isdigit()]
        assert [row[0] for row in rows] == ["3", "2", "1"]
        assert columns < 110 or rows[0][: len(shown)] == shown


def test_looking_for_a_checkpoint_that_is_not_there_is_no_restore(weir: Weir, job: FakeJob) -> None:
    answer = weir("checkpoints", "wordcount", "99")
    assert answer.code == 2 and "job 'wordcount' has no checkpoint 99" in answer.err


@pytest.mark.parametrize(("unaligned", "kind"), [([True, True], "unaligned"), ([False, True], "turned")])
def test_one_that_began_aligned_and_was_cut_unaligned_is_told_apart(
    unaligned: list[bool], kind: str, weir: Weir, job: FakeJob
) -> None:
    begun(job, 1)
    message = asdict(CheckpointCompleted(1, "unaligned", "interval", False, 0.5, 1, 1))
    message["queries"] = {f"q{n}": {"batch": n, "unaligned": one} for n, one in enumerate(unaligned)}
    job.event("checkpoint completed", message)
    assert lines(weir("checkpoints", "wordcount").out)[2][1] == kind


def test_as_json_a_checkpoint_has_the_documented_keys(weir: Weir, job: FakeJob) -> None:
    completed(job, 7)
    stored(job, 7)
    (one,) = weir("checkpoints", "wordcount", "7", "--json").json["checkpoints"]
    assert set(one) == {
        *("id", "status", "attempt", "alignment", "full", "trigger", "begun_at", "ended_at", "seconds"),
        *("new_bytes", "full_bytes", "reason", "phases", "queries"),
        *("acked", "missing", "in_flight_rows", "in_flight_bytes", "path", "copy"),
    }
    assert (one["new_bytes"], one["queries"]["counts"]["phases"]) == (2 * 2**20, PHASES)


def test_of_a_pending_checkpoint_is_shown_who_has_acked_and_who_has_not(weir: Weir, job: FakeJob) -> None:
    queries = ["clean", "counts", "late", "totals", "users"]
    begun(job, 7, queries=queries)
    assert "checkpoint 7 is pending: 0 of 5 queries have acknowledged; missing: clean" in flat(
        weir("checkpoints", "wordcount").out
    )
    acked = CheckpointsAcked({7: {"users": 0.1, "clean": 0.2, "late": 0.2, "totals": 0.3}})
    job.journal.event(1, "checkpoints acked", asdict(acked), alone=True)
    words = "4 of 5 queries have acknowledged; missing: counts"
    assert f"checkpoint 7 is pending: {words}" in flat(weir("checkpoints", "wordcount").out)
    assert words in flat(weir("checkpoints", "wordcount", "7").out)
    (one,) = weir("checkpoints", "wordcount", "--json").json["checkpoints"]
    assert (one["acked"], one["missing"]) == (["clean", "late", "totals", "users"], ["counts"])
    message = CheckpointAborted(7, "aligned", "interval", 600.0, "too long", acked={"clean": 0.2})
    job.event("checkpoint aborted", asdict(message))
    (one,) = weir("checkpoints", "wordcount", "--json").json["checkpoints"]
    assert (one["status"], one["acked"], one["missing"]) == ("aborted", ["clean"], queries[1:])
    assert "1 of 5 queries have acknowledged" in flat(weir("checkpoints", "wordcount", "7").out)


def test_a_journal_of_an_earlier_weir_says_nothing_of_acks(weir: Weir, job: FakeJob) -> None:
    job.event("checkpoint begun", {"id": 1, "alignment": "aligned", "trigger": "interval", "full": False})
    fields = {"id": 1, "alignment": "aligned", "trigger": "interval", "seconds": 1.0, "phases": {}}
    begun(job, 2, queries=["counts"])
    job.event("checkpoint aborted", {**fields, "id": 2, "reason": "it was declined", "detail": ""})
    sizes = {"full": False, "new_bytes": 1, "full_bytes": 2, "queries": {"counts": {"batch": 3}}}
    job.event("checkpoint completed", {**fields, **sizes, "id": 3, "subsumed": []})
    stored(job, 3)
    pending, aborted, completed = weir("checkpoints", "wordcount", "--json").json["checkpoints"]
    assert (pending["acked"], pending["missing"]) == (aborted["acked"], aborted["missing"]) == (None, None)
    assert (completed["acked"], completed["missing"]) == (["counts"], [])
    assert (completed["in_flight_rows"], completed["in_flight_bytes"]) == (None, None)
    assert "is pending:" not in weir("checkpoints", "wordcount").out
    (one,) = weir("checkpoints", "wordcount", "3", "--json").json["checkpoints"]
    assert (one["in_flight_rows"], one["in_flight_bytes"]) == (None, 0), "its manifest knows the bytes"


def test_a_checkpoint_says_where_it_lies_and_what_it_holds_in_flight(
    weir: Weir, job: FakeJob, tmp_path: Path
) -> None:
    held = {"rows": 1200, "bytes": 3 * 2**20}
    completed(job, 40, subsumed=[], copied_to="s3://bucket/copies")
    completed(job, 41, "unaligned", copied_to="s3://bucket/copies", in_flight=held)
    stored(job, 41)
    out = flat(weir("checkpoints", "wordcount", "41").out)
    key = "wordcount/checkpoints/chk-41.json"
    assert f"path: {tmp_path}/{key}" in out and f"copy: s3://bucket/copies/{key}" in out
    assert "in flight: 1.2k rows, 3 MiB in channels" in out
    gone, one = weir("checkpoints", "wordcount", "--json").json["checkpoints"]
    assert (gone["path"], gone["copy"]) == ("", ""), "what was subsumed can't be restored"
    assert (one["path"], one["copy"]) == (f"{tmp_path}/{key}", f"s3://bucket/copies/{key}")
    assert (one["in_flight_rows"], one["in_flight_bytes"]) == (1200, 3 * 2**20)


def test_one_checkpoint_is_shown_with_its_phases_query_by_query(weir: Weir, job: FakeJob) -> None:
    completed(job, 41, "unaligned")
    stored(job, 41)
    out = weir("checkpoints", "wordcount", "chk-41").out
    assert out.startswith("checkpoint 41 of wordcount is completed, at ")
    assert "0.840 s: trigger 0.001, barrier 0.020, ack 0.600" in out
    shown = lines(out)
    assert ["counts", "12", "unaligned", "0.977", "KiB", "5", "MiB"] in shown
    assert ["seconds", *PHASES] in shown
    assert ["counts", "0.010", "0.250", "0.100", "0.020", "0.030", "0.000", "0.004"] in shown


def test_a_checkpoint_that_is_not_there_or_no_number_is_said(weir: Weir, job: FakeJob) -> None:
    answer = weir("checkpoints", "wordcount", "99")
    assert answer.code == 2 and "has such a checkpoint" in answer.err and "weir checkpoints" in answer.err
    answer = weir("checkpoints", "wordcount", "newest")
    assert answer.code == 2 and "ID can't be 'newest'" in answer.err


def test_the_storage_decides_what_the_journal_did_not_see_to_its_end(weir: Weir, job: FakeJob) -> None:
    for id in (1, 2, 3):
        begun(job, id)
    stored(job, 1)
    reason = json.dumps({"reason": AbortReason.RESTARTED.value}).encode()
    LocalStore(job.dir).create(paths.aborted(job.name, CheckpointId(2)), reason)
    stored(job, 9, attempt=5)
    job.restart()
    found = weir("checkpoints", "wordcount", "--json").json["checkpoints"]
    assert [(one["id"], one["status"], one["reason"]) for one in found] == [
        (1, "completed", ""),
        (2, "aborted", "the job was started again before it completed"),
        (3, "aborted", "its driver ended before it completed"),
        (9, "completed", ""),
    ]
    assert found[3]["attempt"] == 5 and found[3]["queries"]["counts"]["batch"] == 12


def test_what_was_deleted_from_the_storage_is_no_longer_completed(weir: Weir, job: FakeJob) -> None:
    completed(job, 1)
    assert statuses(weir) == {1: "subsumed"}


def test_nothing_is_pending_when_nobody_works_on_it(weir: Weir, job: FakeJob) -> None:
    begun(job, 1)
    assert statuses(weir) == {1: "pending"}
    job.killed()
    assert statuses(weir) == {1: "aborted"}


def test_the_tables_fit_eighty_columns(weir: Weir, job: FakeJob) -> None:
    job.event("checkpoint begun", asdict(CheckpointBegun(1234567, "at-least-once", "interval", True)))
    completed(job, 1234568, "unaligned")
    long = asdict(
        CheckpointCompleted(1234569, "at-least-once", "request", True, 4321.0, 2**40 - 1, 2**40 - 1)
    )
    cut = {"batch": 123456789, "unaligned": True, "new_bytes": 2**40 - 1, "full_bytes": 2**40 - 1}
    long["phases"] = dict.fromkeys(("trigger", "barrier", "ack", "complete", "notify"), 4321.0)
    long["queries"] = {"q" * 90: {**cut, "phases": dict.fromkeys(PHASES, 4321.0)}}
    job.event("checkpoint completed", long)
    out = weir("checkpoints", "wordcount").out
    assert max(map(len, out.splitlines())) <= 80 and "123456789" in out and "12963" in out
    assert ["1234569", "at-least-once,", "subsumed", *["4321"] * 5, "1", "TiB"] in lines(out)
    tables = weir("checkpoints", "wordcount", "1234569").out.partition("\n\n")[2]
    assert max(map(len, tables.splitlines())) <= 80 and "4321" in tables


def test_orphans_are_listed_with_their_bytes_and_stay(weir: Weir, job: FakeJob) -> None:
    assert weir("checkpoints", "wordcount", "--orphans").out == (
        "the next cleanup of wordcount would delete nothing\n"
    )
    left = write(job.dir / paths.pins(job.name, Generation(1)) / "queries/counts/offsets/7", "left")
    key = str(left.relative_to(job.dir))
    out = weir("checkpoints", "wordcount", "--orphans").out
    assert out == f"      4 B  {key}\nthe next cleanup of wordcount would delete 1 file, 4 B\n"
    LocalStore(job.dir).create(paths.begun(job.name, CheckpointId(4)), b"{}")
    out = weir("checkpoints", "wordcount", "--orphans").out
    assert key not in out and "under way: checkpoint 4; pins and copies are left out" in out
    body = weir("checkpoints", "wordcount", "--orphans", "--json").json
    assert body == {"job": "wordcount", "orphans": [], "bytes": 0, "under_way": [4]}
    assert left.read_text() == "left"
    answer = weir("checkpoints", "wordcount", "4", "--orphans")
    assert answer.code == 2 and "ID can't be '4'" in answer.err


def test_the_oldest_checkpoints_make_room_in_the_journal(
    weir: Weir, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.supervisor.journal._CHECKPOINTS_KEPT", 10)
    monkeypatch.setattr("weir.supervisor.journal._PRUNE_EVERY", 20)
    for id in range(1, 51):
        completed(job, id)
    assert min(statuses(weir, "--limit", "100")) > 30
    assert "RUNNING" in weir("status", "wordcount").out


def test_a_checkpoint_is_asked_for_and_its_end_is_said(weir: Weir, job: FakeJob) -> None:
    body = {"done": True, "id": 41, "seconds": 0.84, "new_bytes": 2**20, "full_bytes": 34 * 2**20}
    supervisor = Supervisor(job, **body)
    answer = weir("checkpoint", "wordcount", "--full")
    assert answer.out == "checkpoint 41 of wordcount completed in 0.84 s: 1 MiB new of 34 MiB\n"
    assert supervisor.heard == [("checkpoint", {"full": True})]
    Supervisor(job, **body)
    answer = weir("checkpoint", "wordcount", "--json")
    del body["done"]
    assert (answer.code, answer.json) == (0, {"job": "wordcount", "status": "completed", **body})


def test_a_checkpoint_that_was_aborted_is_exit_code_one_with_the_reason(weir: Weir, job: FakeJob) -> None:
    Supervisor(job, done=False, id=41, reason="its files could not be kept: disk full")
    answer = weir("checkpoint", "wordcount")
    assert (answer.code, answer.out) == (1, "")
    assert "error: checkpoint 41 of wordcount was aborted" in answer.err
    assert "why: its files could not be kept: disk full" in answer.err
    Supervisor(job, done=False, id=41, reason="disk full")
    body = weir("checkpoint", "wordcount", "--json").json
    assert (body["id"], body["status"], body["error"]["why"]) == (41, "aborted", "disk full")


def test_a_checkpoint_that_was_refused_says_why(weir: Weir, job: FakeJob) -> None:
    Supervisor(job, done=False, reason="a query of the job is down")
    answer = weir("checkpoint", "wordcount")
    assert answer.code == 1
    assert "error: job 'wordcount' has not completed a checkpoint" in answer.err
    assert "why: a query of the job" in answer.err and "what to do: 'weir status wordcount'" in answer.err


@pytest.mark.parametrize(
    ("arguments", "due"),
    [
        (["checkpoint", "wordcount"], "completed a checkpoint"),
        (["restore", "wordcount", "latest"], "been restored"),
        (["configure", "wordcount", "-D", f"{INTERVAL}=1s"], "changed its settings"),
    ],
)
def test_waiting_ends_at_the_limit_and_the_request_stands(
    arguments: list[str], due: str, weir: Weir, job: FakeJob
) -> None:
    answer = weir(*arguments, "--timeout", "0")
    assert answer.code == 3 and f"has not {due} within 0 s" in answer.err
    assert [request.verb for request in job.requests.pending()] == [arguments[0]]


@pytest.mark.parametrize(
    "arguments", [["checkpoint", "wordcount"], ["configure", "wordcount", "-D", f"{INTERVAL}=1s"]]
)
def test_a_job_that_does_not_run_has_nobody_to_ask(arguments: list[str], weir: Weir, job: FakeJob) -> None:
    job.state("CANCELED").end()
    answer = weir(*arguments)
    assert answer.code == 5 and f"could {arguments[0]} it" in answer.err
    assert job.requests.pending() == []


@pytest.mark.parametrize("verb", ["checkpoint", "checkpoints", "restore", "configure"])
def test_a_job_that_does_not_exist_is_one_clear_message(verb: str, weir: Weir, tmp_path: Path) -> None:
    more = {"restore": ["latest"], "configure": ["-D", f"{INTERVAL}=1s"]}.get(verb, [])
    answer = weir(verb, "nope", *more)
    assert answer.code == 2 and "error: there is no job 'nope' in" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_running_job_is_restored_by_request(weir: Weir, job: FakeJob) -> None:
    restored = asdict(Restored(41, 2, "asked for", 1.5))
    supervisor = Supervisor(job, done=True, **restored)
    answer = weir("restore", "wordcount", "41", "--accept-duplicates")
    assert answer.out == "wordcount resumes from checkpoint 41, as generation 2\n"
    ((verb, asked),) = supervisor.heard
    assert (verb, RestoreRequest.from_wire(asked)) == (
        "restore",
        RestoreRequest("chk-41", accept_duplicates=True),
    )
    Supervisor(job, done=True, **restored)
    body = weir("restore", "wordcount", "latest", "--json").json
    assert body == {
        "job": "wordcount",
        "point": "latest",
        "checkpoint": 41,
        "generation": 2,
        "seconds": 1.5,
        "live": True,
    }


CHANGING = ["-n", "--map", "counts/0=1", "--claim", "--parallelism", "8", "--state-backend", "hashmap"]
CHANGES = RestoreRequest(
    "latest",
    maps=("counts/0=1",),
    allow_dropped=True,
    parallelism=8,
    backend="hashmap",
    offsets={"counts/rows": "latest"},
    claim=True,
)


def test_a_running_job_is_told_what_changes_on_the_way(weir: Weir, job: FakeJob) -> None:
    supervisor = Supervisor(job, done=True, **asdict(Restored(41, 2, "asked for", 1.5)))
    weir("restore", "wordcount", "latest", *CHANGING, "--set-offsets", "counts/rows=latest")
    ((_, asked),) = supervisor.heard
    assert RestoreRequest.from_wire(asked) == CHANGES


def test_a_stopped_job_keeps_what_changes_on_the_way(weir: Weir, job: FakeJob) -> None:
    stored(job, 41)
    job.state("CANCELED").end()
    answer = weir("restore", "wordcount", "latest", *CHANGING, "--set-offsets", "counts/rows=latest")
    run = "weir run /jobs/wordcount.py --parallelism 8 --state-backend hashmap"
    assert answer.out == f"the next '{run}' resumes from checkpoint 41\n"
    origin = read_origin(LocalStore(job.dir), job.name, Generation(2))
    assert origin is not None
    kept = (
        origin.options.maps,
        origin.options.allow_dropped,
        origin.parallelism,
        origin.backend,
        origin.options.claim,
    )
    assert kept == (("counts/0=1",), True, 8, "hashmap", True)
    assert origin.options.offsets == {"counts/rows": "latest"}
    bad = weir("restore", "wordcount", "41", "--state-backend", "tape")
    assert bad.code == 2 and "tape" in bad.err


@pytest.mark.parametrize("point", ["41", "chk-41", "copies/wordcount/checkpoints/chk-41.json"])
def test_only_a_savepoint_can_be_claimed(point: str, weir: Weir, job: FakeJob) -> None:
    answer = weir("restore", "wordcount", point, "--claim")
    assert answer.code == 2 and "--claim can't be" in answer.err
    assert "a checkpoint already belongs to the job" in answer.err
    assert job.requests.pending() == []


@pytest.mark.parametrize(
    ("given", "point"),
    [
        ("41", "chk-41"),
        ("latest", "latest"),
        ("/saved/wordcount-8", "/saved/wordcount-8"),
        ("file:/saved/wordcount-8", "/saved/wordcount-8"),
        ("file:///saved/wordcount-8", "/saved/wordcount-8"),
        ("s3://bucket/wordcount-8", "s3://bucket/wordcount-8"),
    ],
)
def test_a_point_is_named_as_the_job_understands_it(given: str, point: str) -> None:
    assert as_point(given) == point and as_point(point) == point


def test_a_savepoint_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wordcount-8").mkdir()
    for given in ("wordcount-8", "./wordcount-8", "file:wordcount-8"):
        assert as_point(given) == str(tmp_path / "wordcount-8")


def test_a_restore_of_a_stopped_job_can_be_withdrawn(weir: Weir, job: FakeJob) -> None:
    stored(job, 41)
    job.state("CANCELED").end()
    nothing = weir("restore", "wordcount", "--withdraw")
    assert nothing.code == 1 and "none is recorded" in nothing.err
    asked = weir("restore", "wordcount", "41")
    assert "to cancel it: weir restore wordcount --withdraw" in asked.err
    answer = weir("restore", "wordcount", "--withdraw")
    assert answer.out == "cancelled: the next 'weir run /jobs/wordcount.py' resumes where wordcount was\n"
    assert opening(LocalStore(job.dir), job.name) is None
    for wrong in (["41", "--withdraw"], []):
        assert weir("restore", "wordcount", *wrong).code == 2


@pytest.mark.parametrize("ended", [False, True])
def test_a_job_that_was_started_while_its_checkpoint_was_verified_is_left_alone(
    ended: bool, weir: Weir, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(job, 41)
    job.state("CANCELED").end()

    def starts(*_: object) -> list[str]:
        another = FakeJob(job.dir, session="second").state("RUNNING")
        if ended:
            another.state("CANCELED").end()
        return []

    monkeypatch.setattr("weir.restore.point.verify", starts)
    answer = weir("restore", "wordcount", "41")
    assert answer.code == (1 if ended else 5)
    words = "its newest attempt was 1 and is 2" if ended else "attempt 2 is held by process"
    assert words in answer.err
    assert opening(LocalStore(job.dir), job.name) is None


def test_a_restore_is_not_withdrawn_from_a_job_that_was_started_meanwhile(
    weir: Weir, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(job, 41)
    job.state("CANCELED").end()
    weir("restore", "wordcount", "41")

    def starts(*given: Any) -> Origin | None:
        FakeJob(job.dir, session="second").state("RUNNING")
        return read_origin(*given)

    monkeypatch.setattr("weir.client.restore.read_origin", starts)
    answer = weir("restore", "wordcount", "--withdraw")
    assert answer.code == 5 and "already running" in answer.err
    assert opening(LocalStore(job.dir), job.name) == 2


def test_a_restore_that_has_taken_sinks_back_only_goes_on(weir: Weir, job: FakeJob) -> None:
    stored(job, 41)
    job.state("CANCELED").end()
    weir("restore", "wordcount", "41")
    begin_rewind(LocalStore(job.dir), job.name, Generation(2), {})
    answer = weir("restore", "wordcount", "--withdraw")
    assert answer.code == 1 and "sinks are being rewound to chk-41" in answer.err
    assert opening(LocalStore(job.dir), job.name) == 2


def test_a_restore_that_failed_says_what_why_and_what_to_do(weir: Weir, job: FakeJob) -> None:
    Supervisor(job, done=False, what="a file is gone", why="somebody deleted it", hint="put it back")
    answer = weir("restore", "wordcount", "latest")
    assert answer.code == 1
    assert "error: a file is gone\n  why: somebody deleted it\n  what to do: put it back" in answer.err


def test_a_file_in_a_copy_dir_is_named_from_the_root(
    weir: Weir, job: FakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    supervisor = Supervisor(job, done=False, reason="no")
    weir("restore", "wordcount", "copies/wordcount/checkpoints/chk-4.json")
    (heard,) = supervisor.heard
    assert heard[1]["point"] == str(tmp_path / "copies/wordcount/checkpoints/chk-4.json")


def test_a_stopped_job_goes_back_at_its_next_start(weir: Weir, job: FakeJob) -> None:
    stored(job, 41)
    job.state("CANCELED").end()
    answer = weir("restore", "wordcount", "chk-41", "--accept-duplicates")
    assert answer.out == "the next 'weir run /jobs/wordcount.py' resumes from checkpoint 41\n"
    store = LocalStore(job.dir)
    generation = opening(store, job.name)
    assert generation == 2
    origin = read_origin(store, job.name, generation)
    assert origin is not None
    assert (origin.restored_from, origin.options.accept_duplicates) == ("chk-41", True)
    body = weir("restore", "wordcount", "latest", "--json").json
    assert (body["checkpoint"], body["live"], body["seconds"]) == (41, False, None)
    assert job.requests.pending() == []


def test_a_stopped_job_can_only_go_back_to_what_is_there(weir: Weir, job: FakeJob) -> None:
    job.state("CANCELED").end()
    for point in ("latest", "chk-7", "yesterday"):
        answer = weir("restore", "wordcount", point)
        assert answer.code == 2 and "can't go back to" in answer.err
    assert opening(LocalStore(job.dir), job.name) is None


def test_settings_of_a_running_job_are_changed(weir: Weir, job: FakeJob) -> None:
    supervisor = Supervisor(job, done=True)
    answer = weir("configure", "wordcount", "-D", f"{INTERVAL}=1500ms")
    assert answer.out == f"wordcount: {INTERVAL} = 1500 ms, until its supervisor ends\n"
    assert supervisor.heard == [("configure", {"settings": {INTERVAL: "1500ms"}})]
    Supervisor(job, done=True)
    body = weir("configure", "wordcount", "-D", f"{INTERVAL}=off", "--json").json
    assert body == {"job": "wordcount", "settings": {INTERVAL: "off"}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no setting is given; these can be changed: execution.checkpointing.interval, "),
        (["-D", "execution.checkpointing.mode=at_least_once"], "on a running job only"),
        (["-D", f"{INTERVAL}=soon"], "a whole number with a unit"),
        (["-D", f"{INTERVAL}l=1s"], f"did you mean '{INTERVAL}'"),
    ],
)
def test_what_cannot_be_changed_is_refused_before_the_job_is_asked(
    options: list[str], words: str, weir: Weir, job: FakeJob
) -> None:
    answer = weir("configure", "wordcount", *options)
    assert answer.code == 2 and words in answer.err
    assert job.requests.pending() == []


def test_status_shows_the_last_checkpoint_and_the_last_restore(weir: Weir, job: FakeJob) -> None:
    assert "checkpoint" not in weir("status", "wordcount").out
    completed(job, 40)
    completed(job, 41)
    job.event("restored", asdict(Restored(38, 2, "asked for with 'weir restore'", 3.25)))
    out = weir("status", "wordcount").out
    assert "last checkpoint 41, 0 s ago: 0.84 s, 2 MiB new of 34 MiB" in out
    assert "from checkpoint 38 in 3.2 s, as generation 2: asked for with 'weir restore'" in out
    body = weir("status", "wordcount", "--json").json
    assert (body["checkpoint"]["id"], body["checkpoint"]["full_bytes"]) == (41, 34 * 2**20)
    assert body["checkpoint"]["age_seconds"] < 60
    assert (body["restored"]["checkpoint"], body["restored"]["generation"]) == (38, 2)
