"""REST: what can be seen, what can be asked for, and in which form it fails. No port, no Spark."""

from __future__ import annotations

import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests.fake_job import FakeJob, Weir
from tests.kept_job import write
from tests.unit.test_cli_savepoints import saved
from tests.web_site import ASKS, Answering, checkpointed, client, described, failed, site
from weir.ids import CheckpointId
from weir.monitor import logs
from weir.monitor.checkpoints import lengths
from weir.monitor.figures import HISTOGRAMS, MEANINGS
from weir.protocol.messages import (
    BatchCommitted,
    CheckpointAborted,
    CheckpointBegun,
    CheckpointCompleted,
    CheckpointsAcked,
    Restored,
    SavepointTaken,
)
from weir.restore.request import RestoreRequest
from weir.storage import paths
from weir.supervisor.journal import JobJournal
from weir.web import sample as sampling

API = "/api/v1"
INTERVAL = "execution.checkpointing.interval"
DONE: dict[str, Any] = {"done": True, "id": 7, "seconds": 0.5, "new_bytes": 100, "full_bytes": 900}


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return described(FakeJob(tmp_path).state("STARTING").state("RUNNING").batch(41))


@pytest.fixture
def api(tmp_path: Path, job: FakeJob) -> Iterator[TestClient]:
    with client(site(tmp_path)) as found:
        yield found


@pytest.fixture
def weir(weir: Weir, tmp_path: Path) -> Weir:
    return lambda *words: weir(*words, "--dir", str(tmp_path), "--json")


def data(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def without_age(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in ("uptime_seconds", "state_seconds")}


def test_a_job_has_the_form_that_it_has_on_the_command_line(api: TestClient, weir: Any) -> None:
    (listed,) = data(api.get(f"{API}/jobs"))
    assert without_age(listed) == without_age(weir("list").json["jobs"][0])
    one = data(api.get(f"{API}/jobs/wordcount"))
    assert without_age(one) == without_age(weir("status", "wordcount").json)
    assert (one["state"], one["queries"][0]["batch"]) == ("RUNNING", 41)


def test_checkpoints_come_page_by_page_newest_first(api: TestClient, job: FakeJob, weir: Any) -> None:
    checkpointed(job, 1, 120)
    seen, before = [], ""
    while True:
        body = api.get(f"{API}/jobs/wordcount/checkpoints?limit=50{before}").json()
        seen += [one["id"] for one in body["data"]]
        assert body["page"]["total"] == 120
        if body["page"]["next_before"] is None:
            break
        before = f"&before={body['page']['next_before']}"
    assert seen == list(range(120, 0, -1))
    first = api.get(f"{API}/jobs/wordcount/checkpoints?limit=20").json()["data"]
    assert first == weir("checkpoints", "wordcount").json["checkpoints"][::-1]
    one = data(api.get(f"{API}/jobs/wordcount/checkpoints/77"))
    assert (one["id"], one["seconds"], one["queries"]["counts"]["batch"]) == (77, 0.77, 77)


def test_the_summary_has_counts_percentiles_and_phases(api: TestClient, job: FakeJob) -> None:
    checkpointed(job, 1, 120)
    body = data(api.get(f"{API}/jobs/wordcount/checkpoints/summary"))
    counts = {"begun": 120, "completed": 108, "aborted": 12}
    assert body["counts"] == {**counts, "savepoints": 0, "restored": 0}
    assert body["summary"]["seconds"]["max"] == 1.19 and body["summary"]["seconds"]["p50"] == 0.61
    assert body["phases"]["counts"]["alignment"]["p99"] == 0.25
    assert len(body["course"]) == 108


def test_the_summary_has_the_latest_of_each_kind(api: TestClient, job: FakeJob) -> None:
    address = f"{API}/jobs/wordcount/checkpoints/summary"
    latest = data(api.get(address))["latest"]
    assert latest == {"completed": None, "aborted": None, "savepoint": None, "restored": None}
    checkpointed(job, 1, 19)
    job.event("checkpoint aborted", asdict(CheckpointAborted(20, "aligned", "interval", 2.0, "late", "a, b")))
    job.event("savepoint taken", asdict(SavepointTaken(19, "/sp/wordcount-19", "request", "me", 1.5, 100)))
    job.event("restored", asdict(Restored(12, 2, "asked by me", 3.0)))
    body = data(api.get(address))
    latest = body["latest"]
    assert (latest["completed"]["id"], latest["completed"]["full_bytes"]) == (19, 9019)
    assert (latest["aborted"]["id"], latest["aborted"]["reason"]) == (20, "late: a, b")
    assert (latest["savepoint"]["path"], latest["savepoint"]["bytes"]) == ("/sp/wordcount-19", 100)
    assert (latest["restored"]["checkpoint"], latest["restored"]["why"]) == (12, "asked by me")
    assert all(one["at"] and one["attempt"] == 1 for one in latest.values())
    assert (body["counts"]["savepoints"], body["counts"]["restored"]) == (1, 1)
    page = api.get("/jobs/wordcount/checkpoints").text
    assert "late: a, b" in page and "/sp/wordcount-19" in page and "asked by me" in page


def test_a_pending_checkpoint_and_its_acks_are_on_the_pages(api: TestClient, job: FakeJob) -> None:
    job.event("checkpoint begun", asdict(CheckpointBegun(1, "aligned", "interval", queries=["a", "b"])))
    job.journal.event(1, "checkpoints acked", asdict(CheckpointsAcked({1: {"b": 0.5}})), alone=True)
    one = data(api.get(f"{API}/jobs/wordcount/checkpoints/1"))
    assert (one["status"], one["acked"], one["missing"]) == ("pending", ["b"], ["a"])
    for page in ("", "/checkpoints", "/checkpoints/1"):
        assert "1 of 2 queries have acknowledged; missing: a" in api.get(f"/jobs/wordcount{page}").text


def test_a_page_says_where_a_checkpoint_lies(api: TestClient, job: FakeJob, tmp_path: Path) -> None:
    held = {"rows": 7, "bytes": 2048}
    done = CheckpointCompleted(1, "unaligned", "interval", False, 1.0, 10, 90, {}, {}, [], "s3://b/c", held)
    job.event("checkpoint completed", asdict(done))
    write(tmp_path / paths.completed(job.name, CheckpointId(1)), "{}")
    page = api.get("/jobs/wordcount/checkpoints/1").text
    assert f"{tmp_path}/wordcount/checkpoints/chk-1.json" in page
    assert "s3://b/c/wordcount/checkpoints/chk-1.json" in page
    assert "7 rows in channels" in page and "2 KiB" in page


def test_a_job_has_the_time_in_each_state_and_when_it_ended(
    api: TestClient, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = job.clock.now()

    def moved(state: str, after: float) -> None:
        monkeypatch.setattr(job.clock, "now", lambda: began + timedelta(seconds=after))
        job.state(state)

    for state, after in (("RESTARTING", 10), ("STARTING", 14), ("RUNNING", 20), ("FINISHED", 80)):
        moved(state, after)
    body = data(api.get(f"{API}/jobs/wordcount"))
    assert body["ended_at"] == (began + timedelta(seconds=80)).isoformat()
    seconds = body["state_seconds"]
    assert seconds["RUNNING"] == pytest.approx(70, abs=2) and seconds["RESTARTING"] == 4
    assert seconds["STARTING"] == pytest.approx(6, abs=2) and "FINISHED" not in seconds
    assert "in each state" in api.get("/jobs/wordcount").text


def test_a_job_that_runs_has_no_end(api: TestClient, job: FakeJob) -> None:
    body = data(api.get(f"{API}/jobs/wordcount"))
    assert body["ended_at"] is None and body["state_seconds"].keys() == {"STARTING", "RUNNING"}


def test_the_graph_has_what_is_read_and_where_it_goes(api: TestClient) -> None:
    (query,) = data(api.get(f"{API}/jobs/wordcount/graph"))["queries"]
    assert (query["query"], query["reads"], query["sink"]["kind"]) == ("counts", ["lines"], "files")
    assert (query["state_rows"], query["rate"]) == (300_000, 25.0)


def test_failures_are_grouped_with_the_authors_frames_first_and_advice(api: TestClient, job: FakeJob) -> None:
    failed(failed(failed(job, "one"), "two"), "three", batch=42)
    (group,) = data(api.get(f"{API}/jobs/wordcount/failures"))
    assert (group["count"], group["batches"], group["last"]["what"]) == (3, [41, 42], "three")
    assert [frame["own"] for frame in group["frames"]] == [True, False]
    assert group["kind"] == "user code"
    failed(job, "again", batch=42)
    (group,) = data(api.get(f"{API}/jobs/wordcount/failures"))
    assert group["kind"] == "poison record"
    assert len(data(api.get(f"{API}/jobs/wordcount/recoveries"))) == 4
    assert data(api.get(f"{API}/jobs/wordcount/restarts"))[0]["query"] == "counts"


def test_one_cause_in_several_queries_is_one_group(api: TestClient, job: FakeJob) -> None:
    for query in ("bronze", "silver"):
        what = f"Query [id = 6f-{query}, runId = 1a-{query}] Python worker failed to connect back."
        job.event("failure", {"what": what, "why": "", "hint": "", "domain": "internal", "error": "X"}, query)
    (group,) = data(api.get(f"{API}/jobs/wordcount/failures"))
    assert (group["count"], group["queries"], group["kind"]) == (2, ["bronze", "silver"], "overload")


def test_a_failure_of_the_machine_is_shown_as_such_and_what_waits_for_it(
    api: TestClient, job: FakeJob
) -> None:
    what = "a Python process that Spark started did not answer within 10 s"
    body = {"what": what, "why": "", "hint": "", "domain": "machine", "error": "LateProcessError"}
    job.event("failure", body, "counts")
    job.event("restart", {"delay": 5.0, "query": "counts", "same_cause": False, "machine": True}, "counts")
    job.state("RESTARTING").queries(what=what, waits_for="machine", counts="RESTARTING")
    found = data(api.get(f"{API}/jobs/wordcount"))
    assert (found["restarts"], found["machine_restarts"]) == (1, 1)
    assert found["queries"][0]["waits_for"] == "machine"
    assert data(api.get(f"{API}/jobs/wordcount/restarts"))[0]["machine"] is True
    (group,) = data(api.get(f"{API}/jobs/wordcount/failures"))
    assert group["last"]["domain"] == "machine" and "counted apart" in group["advice"]
    assert "weir_machine_failures_total" in api.get("/metrics").text
    overview = api.get("/jobs/wordcount").text
    assert "RESTARTING, waits for the machine" in overview and "1 because of the machine" in overview
    assert "waits for the machine" in overview.partition("<svg")[2], "in the graph too"
    assert "<dd>machine</dd>" in api.get("/jobs/wordcount/failures").text


def test_the_phases_of_a_whole_checkpoint_are_counted_once() -> None:
    phases = {"trigger": 0.001, "barrier": 0.003, "ack": 0.006, "complete": 0.002, "notify": 0.001}
    found = dict(lengths(phases))
    assert found == pytest.approx(
        {"trigger": 0.001, "barrier": 0.002, "ack": 0.003, "complete": 0.002, "notify": 0.001}
    )
    assert dict(lengths({"trigger": 0.1})) == {"trigger": 0.1}  # one that was aborted has reached only this


def test_a_source_has_the_name_that_its_author_gave_when_there_is_only_one(
    api: TestClient, job: FakeJob
) -> None:
    batch = BatchCommitted("counts", 1, 42, 10, 0.5, {}, 3, 100, at=job.clock.now().isoformat())
    sources: list[dict[str, Any]] = [{"name": "RateStreamV2[...]", "rows": 1, "behind": None, "unit": ""}]
    job.journal.batch(job.lock.held, replace(batch, sources=sources))
    for named, shown in ((["orders"], "orders"), (["orders", "rates"], "RateStreamV2[...]")):
        query = {
            "name": "counts",
            "inputs": [],
            "sources": [],
            "named": named,
            "channel": False,
            "sink": None,
        }
        job.journal.event(1, "graph", {"queries": [{**query, "output_mode": "update"}]}, alone=True)
        (vertex,) = data(api.get(f"{API}/jobs/wordcount/graph"))["queries"]
        assert vertex["reads"] == [shown]


def test_a_job_has_no_growth_before_ten_minutes_and_no_watermark_before_an_event(
    api: TestClient, job: FakeJob
) -> None:
    now = job.clock.now()
    for ago, size in ((9, 2**20), (0, 2**30)):
        batch = BatchCommitted("counts", 1, 50 - ago, 10, 0.5, {}, 3, size, watermark="1970-01-01T00:00:00Z")
        job.journal.batch(1, replace(batch, at=(now - timedelta(minutes=ago)).isoformat()))
    job.journal.flush()
    (query,) = data(api.get(f"{API}/jobs/wordcount/queries"))
    assert query["state_growth_bytes_per_hour"] is None and query["watermark"] is None


def test_two_mistakes_that_raise_the_same_type_are_two_causes(api: TestClient, job: FakeJob) -> None:
    def fails(line: int, why: str) -> None:
        frame = f'  File "/jobs/wordcount.py", line {line}, in parse\n    return int(row)\n' if line else ""
        body = {"what": "code of the job raised PythonException", "why": why, "stack": frame}
        job.event("failure", {**body, "domain": "user", "error": "PythonException", "batch": 41}, "counts")

    for line, why in ((7, "ValueError: 'x'"), (9, "KeyError: 'a'"), (7, "ValueError: 'y'")):
        fails(line, why)
    for why in ("row 17 of /in/a.txt is torn", "row 18 of /in/b.txt is torn", "there is no such column"):
        fails(0, why)
    found = [(one["count"], one["last"]["why"]) for one in data(api.get(f"{API}/jobs/wordcount/failures"))]
    assert sorted(found) == [
        (1, "KeyError: 'a'"),
        (1, "there is no such column"),
        (2, "ValueError: 'y'"),
        (2, "row 18 of /in/b.txt is torn"),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("java.lang.OutOfMemoryError: heap", "memory"),
        ("the driver of attempt 1 was killed by SIGKILL", "killed"),
        ("OSError: [Errno 28] No space left on device", "disk full"),
        ("java.net.ConnectException: Connection refused", "network"),
        ("AnalysisException: cannot resolve column", "schema"),
        ("something else", ""),
    ],
)
def test_a_known_kind_of_failure_has_advice(text: str, kind: str, api: TestClient, job: FakeJob) -> None:
    job.event(
        "failure", {"what": text, "why": "", "hint": "", "domain": "external", "error": "X", "stack": ""}
    )
    (group,) = data(api.get(f"{API}/jobs/wordcount/failures"))
    assert (group["kind"], bool(group["advice"])) == (kind, bool(kind))


def test_events_come_from_behind_the_last_that_was_seen(api: TestClient, job: FakeJob) -> None:
    first = data(api.get(f"{API}/jobs/wordcount/events"))
    job.event("note", {"text": "fresh"})
    (one,) = data(api.get(f"{API}/jobs/wordcount/events?after={first[-1]['id']}"))
    assert (one["kind"], one["body"]) == ("note", {"text": "fresh"})
    assert [e["body"]["state"] for e in data(api.get(f"{API}/jobs/wordcount/events?kind=state"))] == [
        *("STARTING", "RUNNING")
    ]


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/jobs/nope", 404, "there is no job 'nope'"),
        ("/jobs/nope/checkpoints", 404, "there is no job 'nope'"),
        ("/jobs/-x", 400, "can't be the name of a job"),
        ("/jobs/wordcount/checkpoints/99", 404, "has no checkpoint 99"),
        ("/jobs/wordcount/checkpoints/x", 422, "can't be understood"),
        ("/jobs/wordcount/checkpoints?limit=0", 422, "can't be understood"),
        ("/jobs/wordcount/savepoints/content?path=/etc", 404, "/etc can't be used"),
        ("/operations/nope", 404, "there is no operation 'nope'"),
        ("/nothing", 404, "can't be understood"),
    ],
)
def test_every_failure_has_the_one_form(path: str, status: int, word: str, api: TestClient) -> None:
    answer = api.get(API + path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"} and set(answer.json()["error"]) == {"what", "why", "hint"}
    assert word in answer.json()["error"]["what"]


def test_a_wrong_method_has_the_one_form_too(api: TestClient) -> None:
    answer = api.delete(f"{API}/jobs", headers=ASKS)
    assert answer.status_code == 405 and "method" in answer.json()["error"]["why"]


def test_a_checkpoint_is_asked_for_and_the_operation_tells_its_end(api: TestClient, job: FakeJob) -> None:
    supervisor = Answering(job, lambda request: DONE)
    supervisor.gate.clear()
    answer = api.post(f"{API}/jobs/wordcount/checkpoints", json={"full": True}, headers=ASKS)
    assert answer.status_code == 202
    operation = answer.json()["data"]
    assert (operation["verb"], operation["status"], operation["error"]) == ("checkpoint", "running", None)
    supervisor.gate.set()
    ended = data(api.get(f"{API}/operations/{operation['id']}?wait=20"))
    supervisor.end()
    assert (ended["status"], ended["result"]["id"]) == ("done", 7)
    assert supervisor.heard[0] == ("checkpoint", {"full": True})
    assert [one["id"] for one in data(api.get(f"{API}/jobs/wordcount/operations"))] == [operation["id"]]


def test_an_operation_that_failed_is_a_failure(api: TestClient, job: FakeJob) -> None:
    supervisor = Answering(
        job, lambda request: {"done": False, "id": 8, "reason": "its files could not be kept"}
    )
    answer = api.post(f"{API}/jobs/wordcount/checkpoints?wait=20", json={}, headers=ASKS)
    supervisor.end()
    assert answer.status_code == 409
    assert answer.json()["error"]["why"] == "its files could not be kept"
    (kept,) = data(api.get(f"{API}/jobs/wordcount/operations"))
    assert (kept["status"], kept["result"]) == ("failed", None)
    assert kept["error"]["what"] == "checkpoint 8 of wordcount was aborted"


def test_two_browsers_that_press_savepoint_at_once_get_one(api: TestClient, job: FakeJob) -> None:
    supervisor = Answering(
        job, lambda request: {"done": True, "id": 7, "path": "/s", "seconds": 1, "bytes": 2}
    )
    supervisor.gate.clear()
    answers: list[Any] = []

    def press() -> None:
        answers.append(
            api.post(f"{API}/jobs/wordcount/savepoints?wait=20", json={"path": "/s"}, headers=ASKS)
        )

    browsers = [threading.Thread(target=press) for _ in range(2)]
    for one in browsers:
        one.start()
    until = time.monotonic() + 20
    while not supervisor.heard and time.monotonic() < until:
        threading.Event().wait(0.01)
    threading.Event().wait(0.2)  # the other one is under way, or joins later: either way there is one
    supervisor.gate.set()
    for one in browsers:
        one.join(20)
    supervisor.end()
    first, second = (data(answer) for answer in answers)
    assert first["status"] == second["status"] == "done"
    assert first["id"] == second["id"]
    assert [verb for verb, _ in supervisor.heard] == ["savepoint"]


def test_nobody_is_asked_who_can_not_answer(api: TestClient, job: FakeJob) -> None:
    job.state("CANCELED").end()
    for path, body in (("checkpoints", {}), ("savepoints", {}), ("stop", {}), ("cancel", None)):
        answer = api.post(f"{API}/jobs/wordcount/{path}?wait=20", json=body, headers=ASKS)
        assert answer.status_code == 409 and "no supervisor" in answer.json()["error"]["what"]
    assert job.requests.pending() == []


def test_the_interval_is_changed_and_what_can_not_be_is_refused(api: TestClient, job: FakeJob) -> None:
    rows = {one["key"]: one for one in data(api.get(f"{API}/jobs/wordcount/checkpoints/config"))["settings"]}
    assert (rows[INTERVAL]["value"], rows[INTERVAL]["changeable"]) == ("10 s", True)
    assert rows["execution.checkpointing.mode"]["changeable"] is False
    supervisor = Answering(job, lambda request: {"done": True, **request.arguments})
    config = f"{API}/jobs/wordcount/checkpoints/config"
    changed = data(api.patch(config, json={"settings": {INTERVAL: "5 s"}}, headers=ASKS))
    supervisor.end()
    assert changed["result"]["settings"] == {INTERVAL: "5 s"}
    for settings, word in (
        ({INTERVAL: "soon"}, "a duration is"),
        ({"execution.checkpointing.mode": "at_least_once"}, "on a running job only"),
        ({"nonsense": "1"}, ""),
    ):
        answer = api.patch(config, json={"settings": settings}, headers=ASKS)
        assert answer.status_code == 400 and word in answer.json()["error"]["why"]


def test_savepoints_are_listed_looked_into_verified_and_disposed_of(
    api: TestClient, job: FakeJob, tmp_path: Path, weir: Any
) -> None:
    taken = saved(tmp_path / "elsewhere", tmp_path / "backup")
    described(job, **{"execution.checkpointing.savepoint-dir": str(tmp_path / "backup")})
    (listed,) = data(api.get(f"{API}/jobs/wordcount/savepoints"))
    assert (listed["path"], listed["verified"]) == (taken.place, None)
    assert listed["restorable"] == {
        "answer": "unknown",
        "why": "no start has recorded yet what its queries are",
    }
    page = api.get("/jobs/wordcount/savepoints").text
    assert f"weir plan FILE -s {taken.place}" in page
    shown = data(api.get(f"{API}/jobs/wordcount/savepoints/content", params={"path": taken.place}))
    assert shown["queries"]["counts"]["sink"]["kind"] == "files" and "files" not in shown
    verify = f"{API}/jobs/wordcount/savepoints/verify?wait=20"
    assert data(api.post(verify, json={"path": taken.place}, headers=ASKS))["result"]["whole"] is True
    assert data(api.get(f"{API}/jobs/wordcount/savepoints"))[0]["verified"]["damage"] == []
    victim = next(
        file for file in sorted(Path(taken.place).rglob("*")) if file.is_file() and "offsets" in str(file)
    )
    victim.write_text("torn")
    damaged = data(api.post(verify, json={"path": taken.place}, headers=ASKS))["result"]
    assert damaged["whole"] is False and victim.name in damaged["damage"][0]
    dispose = f"{API}/jobs/wordcount/savepoints/dispose"
    assert api.post(dispose, json={"path": str(tmp_path)}, headers=ASKS).status_code == 404
    assert tmp_path.exists()
    assert data(api.post(dispose, json={"path": taken.place}, headers=ASKS))["status"] == "done"
    assert not Path(taken.place).exists()


def test_a_restore_goes_to_the_supervisor_or_is_written_down(api: TestClient, job: FakeJob) -> None:
    answer = {"done": True, "checkpoint": 41, "generation": 2, "seconds": 1.5}
    supervisor = Answering(job, lambda request: answer)
    said = {
        "point": "/saved/wordcount-41",
        "allow_dropped": True,
        "maps": ["counts/0=1"],
        "offsets": {"counts/@0": "earliest"},
        "parallelism": 5,
        "state_backend": "hashmap",
        "claim": True,
    }
    done = data(api.post(f"{API}/jobs/wordcount/restore?wait=20", json=said, headers=ASKS))
    supervisor.end()
    verb, heard = supervisor.heard[0]
    given: Any = {"maps": ("counts/0=1",), "allow_dropped": True, "parallelism": 5, "backend": "hashmap"}
    wanted = RestoreRequest("/saved/wordcount-41", **given, offsets={"counts/@0": "earliest"}, claim=True)
    assert (verb, RestoreRequest.from_wire(heard)) == ("restore", wanted)
    assert (done["result"]["checkpoint"], done["result"]["live"]) == (41, True)
    no_place = {"point": "41", "offsets": {"counts/@0": "somewhere"}}
    refused = api.post(f"{API}/jobs/wordcount/restore", json=no_place, headers=ASKS)
    assert refused.status_code == 400 and "somewhere" in refused.text
    claimed = {"point": "41", "claim": True}
    own = api.post(f"{API}/jobs/wordcount/restore", json=claimed, headers=ASKS)
    assert own.status_code == 422 and "a checkpoint is the job's own already" in own.text
    bad = api.post(f"{API}/jobs/wordcount/restore", json={"point": "relative/path"}, headers=ASKS)
    assert bad.status_code == 422
    job.state("CANCELED").end()
    gone = api.post(f"{API}/jobs/wordcount/restore?wait=20", json={"point": "chk-99"}, headers=ASKS)
    assert gone.status_code == 404 and "chk-99" in gone.json()["error"]["what"]


def test_history_and_recoveries_come_page_by_page(api: TestClient, job: FakeJob) -> None:
    for number in range(130):
        failed(job, f"trouble {number}.")
    for tab, pages in (("history", 3), ("recoveries", 6)):
        path, seen, count = f"/jobs/wordcount/{tab}", [], 0
        while path:
            page = api.get(path).text
            page = page[page.index("<main>") :]
            seen += re.findall(r"trouble (\d+)\.", page)
            older = re.search(r'id="older" href="(\?before=\d+)"', page)
            path, count = f"/jobs/wordcount/{tab}{older[1]}" if older else "", count + 1
        assert seen == [str(number) for number in range(129, -1, -1)]
        assert count == pages


def test_the_page_of_state_shows_how_each_operator_grows(api: TestClient, job: FakeJob) -> None:
    for number, size in ((42, 2**20), (43, 2**21)):
        at = (job.clock.now() + timedelta(minutes=30 * (number - 42))).isoformat()
        operators: list[dict[str, str | int]] = [
            {"name": "stateStoreSave", "rows": 3, "bytes": size},
            {"name": "dedupe", "rows": 3, "bytes": 100},
        ]
        batch = BatchCommitted("counts", 1, number, 10, 0.5, {}, 6, size + 100, at=at, operators=operators)
        job.journal.batch(job.lock.held, batch)
    job.journal.flush()
    (query,) = data(api.get(f"{API}/jobs/wordcount/queries"))
    growth = [one["growth_bytes_per_hour"] for one in query["operators"]]
    assert growth == [pytest.approx(2**21, rel=0.01), 0]
    page = api.get("/jobs/wordcount/state").text
    assert "+2 MiB" in page and "+0 B" in page


def test_passwords_that_somebody_sent_are_not_told_to_whoever_looks(api: TestClient, job: FakeJob) -> None:
    place, shown = "s3://key:hunter2@bucket", "s3://key:***@bucket"
    refused = {"done": False, "what": f"{place} can't be written", "why": "password=hunter2"}
    supervisor = Answering(job, lambda request: refused)
    answer = api.post(f"{API}/jobs/wordcount/savepoints?wait=20", json={"path": place}, headers=ASKS)
    supervisor.end()
    assert supervisor.heard[0][1]["path"] == place
    assert "hunter2" not in answer.text and shown in answer.text
    operations = api.get(f"{API}/jobs/wordcount/operations")
    assert "hunter2" not in operations.text and data(operations)[0]["arguments"] == {"path": shown}
    assert "hunter2" not in api.get("/jobs/wordcount/savepoints").text


def test_a_sample_of_state_is_read_by_one_process_at_a_time_with_a_limit(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask = f"{API}/jobs/wordcount/state/sample?wait=20"
    began = tmp_path / "began"
    # Its child, as Spark has a JVM, would keep the pipe open and outlive it.
    script = f"import os, time; os.fork(); open({str(began)!r}, 'a').write('.'); time.sleep(600)"
    monkeypatch.setattr(sampling, "WEIR", (sys.executable, "-c", script))
    monkeypatch.setattr(sampling, "LIMIT", 5.0)
    first = api.post(f"{API}/jobs/wordcount/state/sample", json={"query": "counts"}, headers=ASKS)
    assert first.status_code == 202
    until = time.monotonic() + 20
    while not began.exists() and time.monotonic() < until:
        threading.Event().wait(0.01)
    other = api.post(ask, json={"query": "counts", "operator": 1}, headers=ASKS)
    assert other.status_code == 409 and "another sample" in other.json()["error"]["what"]
    ended = data(api.get(f"{API}/operations/{first.json()['data']['id']}?wait=30"))
    assert ended["error"]["what"] == "the state was not read within 5 s"
    secret = "import sys; sys.exit('could not connect to postgresql://ada:hunter2@db')"
    monkeypatch.setattr(sampling, "WEIR", (sys.executable, "-c", secret))
    broken = api.post(ask, json={"query": "counts"}, headers=ASKS)
    assert broken.status_code == 409 and "ada:***@db" in broken.json()["error"]["why"]


def test_metrics_are_prometheus_and_their_counters_only_grow(
    api: TestClient, job: FakeJob, tmp_path: Path
) -> None:
    checkpointed(failed(job), 1, 20)
    text = api.get("/metrics").text
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    label = ("weir_job", "wordcount")
    assert found["weir_job_up", (label,)] == 1
    assert found["weir_job_state", (("state", "RUNNING"), label)] == 1
    ended = {labels: value for (name, labels), value in found.items() if name == "weir_checkpoints_total"}
    assert ended == {(("outcome", "completed"), label): 18, (("outcome", "aborted"), label): 2}
    assert found["weir_checkpoints_begun_total", (label,)] == 20
    assert (
        found["weir_checkpoint_phase_seconds", (("phase", "alignment"), ("query", "counts"), label)] == 0.25
    )
    assert found["weir_recovery_part_seconds", (("part", "wait"), label)] == 1.0
    assert found["weir_rows_total", (("query", "counts"), label)] == 1500
    assert {_figure_of(name) for name, _ in found} <= set(MEANINGS)
    as_json = {one["name"] for one in data(api.get(f"{API}/jobs/wordcount/metrics"))}
    assert as_json == {name for name, _ in found} - {"weir_build_info"}
    assert not [labels for _, labels in found if "job" in dict(labels)]  # Prometheus' own label
    job.journal._db.execute("delete from events where kind like 'checkpoint %'")  # as pruning does
    job.journal.flush()
    again = api.get("/metrics").text
    assert 'weir_checkpoints_total{outcome="completed",weir_job="wordcount"} 18.0' in again


def test_the_end_of_a_log_is_read_over_files_that_were_turned(
    api: TestClient, job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{API}/jobs/wordcount/log"
    nothing: dict[str, Any] = {"attempt": None, "attempts": [], "lines": [], "cut": False}
    assert data(api.get(path)) == nothing
    job.log(1, "first\n\x1b[1msecond\x1b[0m\n", turned=1)
    job.log(1, "third\n")
    whole = {"attempt": 1, "attempts": [1], "lines": ["first", "second", "third"], "cut": False}
    assert data(api.get(path)) == whole
    assert data(api.get(f"{path}?lines=2")) == whole | {"lines": ["second", "third"], "cut": True}
    monkeypatch.setattr(logs, "_MOST", 8)  # "ond" of the second line, and the third
    assert data(api.get(path)) == whole | {"lines": ["third"], "cut": True}
    job.restart().log(2, "fourth\n")
    assert data(api.get(path)) == {"attempt": 2, "attempts": [2, 1], "lines": ["fourth"], "cut": False}
    assert data(api.get(f"{path}?attempt=7"))["lines"] == []
    assert api.get(f"{API}/jobs/nobody/log").status_code == 404


def _figure_of(name: str) -> str:
    figure = re.sub("_(bucket|count|sum)$", "", name)
    return figure if figure in HISTOGRAMS else name


def _histogram(api: TestClient, name: str) -> tuple[dict[str, float], float, float]:
    """Of the histogram of this name its cumulative buckets, its count and its sum."""
    (family,) = [one for one in text_string_to_metric_families(api.get("/metrics").text) if one.name == name]
    assert family.type == "histogram"
    buckets = {one.labels["le"]: one.value for one in family.samples if one.name == f"{name}_bucket"}
    ends = {one.name: one.value for one in family.samples}
    return buckets, ends[f"{name}_count"], ends[f"{name}_sum"]


def test_durations_are_histograms_that_only_grow(api: TestClient, job: FakeJob, tmp_path: Path) -> None:
    checkpointed(failed(job), 1, 20)  # 0.01 s to 0.19 s; 10 and 20 were aborted
    buckets, count, total = _histogram(api, "weir_checkpoint_duration_seconds")
    assert (buckets["0.01"], buckets["0.025"], buckets["0.1"], buckets["0.25"]) == (1, 2, 9, 18)
    assert (buckets["+Inf"], count, round(total, 6)) == (18, 18, 1.8)
    assert list(buckets.values()) == sorted(buckets.values())
    assert _histogram(api, "weir_recovery_duration_seconds")[0]["1.0"] == 0
    assert _histogram(api, "weir_recovery_duration_seconds")[1:] == (1, 1.5)
    assert _histogram(api, "weir_batch_duration_seconds")[1:] == (1, 0.5)
    job.journal._db.execute("delete from events where kind like 'checkpoint %'")  # as pruning does
    job.journal._db.execute("delete from batches")
    job.journal.close()  # the supervisor restarts
    job.journal = JobJournal(tmp_path / paths.journal(job.name), job.clock)
    checkpointed(job, 21, 21)
    job.batch(42)
    assert _histogram(api, "weir_checkpoint_duration_seconds")[1] == 19
    assert _histogram(api, "weir_batch_duration_seconds")[1:] == (2, 1.0)


def test_a_journal_of_an_earlier_weir_gets_histograms_of_what_it_keeps(
    api: TestClient, job: FakeJob, tmp_path: Path
) -> None:
    checkpointed(failed(job), 1, 9)
    job.batch(42)
    before = [_histogram(api, name) for name in HISTOGRAMS]
    job.journal._db.execute("drop table histograms")
    job.journal.close()
    assert "_duration_seconds" not in api.get("/metrics").text
    for _ in range(2):  # the second start adds nothing
        JobJournal(tmp_path / paths.journal(job.name), job.clock).close()
        assert [_histogram(api, name) for name in HISTOGRAMS] == before


def test_versions_are_in_metrics_and_rest(api: TestClient) -> None:
    spark = metadata.version("pyspark")
    assert data(api.get(f"{API}/version"))["spark"] == spark
    assert (
        f'weir_build_info{{python="{platform.python_version()}",spark="{spark}",' in api.get("/metrics").text
    )


def test_unread_input_is_told_by_its_unit(api: TestClient, job: FakeJob) -> None:
    batch = BatchCommitted("counts", 1, 42, 10, 0.5, {}, 3, 100, at=job.clock.now().isoformat())
    sources: list[dict[str, Any]] = [{"name": "lines", "rows": 10, "behind": 7, "unit": "files"}]
    job.journal.batch(job.lock.held, replace(batch, sources=sources))
    job.journal.flush()
    text = 'weir_source_behind{query="counts",unit="files",weir_job="wordcount"} 7.0'
    assert text in api.get("/metrics").text


def test_a_supervisor_tells_the_figures_of_its_own_job_alone(tmp_path: Path, job: FakeJob) -> None:
    FakeJob(tmp_path, "other", "second").state("RUNNING")
    with client(site(tmp_path)) as all_of_them, client(site(tmp_path, "other")) as own:
        assert 'weir_job="wordcount"' in all_of_them.get("/metrics").text
        assert 'weir_job="wordcount"' not in own.get("/metrics").text
        assert len(data(own.get(f"{API}/jobs"))) == 2


def test_history_is_served_while_the_supervisor_is_down(api: TestClient, job: FakeJob) -> None:
    checkpointed(job, 1, 9)
    job.killed()
    assert data(api.get(f"{API}/jobs/wordcount"))["state"] == "LOST"
    assert len(data(api.get(f"{API}/jobs/wordcount/checkpoints"))) == 9
    for tab in (
        "",
        "/checkpoints",
        "/checkpoints/3",
        "/savepoints",
        "/recoveries",
        "/failures",
        "/state",
        "/history",
    ):
        page = api.get(f"/jobs/wordcount{tab}")
        assert page.status_code == 200 and "LOST" in page.text
