"""A verb is written once: the command line and REST show the same object of it, and the same error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fake_job import FakeJob, Weir
from tests.web_site import ASKS, Answering, site
from weir.client import running_job
from weir.client.ask import Caller
from weir.errors import NoSupervisorError, NotDoneError
from weir.web.app import application, guarded

INTERVAL = "execution.checkpointing.interval"
SAVED = {"id": 7, "path": "/saved/wordcount-7", "seconds": 1.5, "bytes": 4096}
PLANNED = {"job": "wordcount", "point": "chk-7", "checkpoint": 7, "plan": {}, "text": "fits", "code": 0}
ANSWERS: dict[str, dict[str, Any]] = {
    "checkpoint": {"id": 7, "seconds": 0.5, "new_bytes": 10, "full_bytes": 100},
    "savepoint": SAVED,
    "stop": {"state": "FINISHED", **SAVED},
    "cancel": {"state": "CANCELED"},
    "configure": {"settings": {INTERVAL: "5 s"}},
    "restore": {"checkpoint": 7, "generation": 2, "seconds": 0.2},
    "plan": PLANNED,
}
VERBS: list[tuple[list[str], str, str, dict[str, Any]]] = [
    (["checkpoint", "wordcount", "--full"], "POST", "checkpoints", {"full": True}),
    (["savepoint", "wordcount", "/saved"], "POST", "savepoints", {"path": "/saved"}),
    (["stop", "wordcount"], "POST", "stop", {}),
    (["cancel", "wordcount"], "POST", "cancel", {}),
    (
        ["configure", "wordcount", "-D", f"{INTERVAL}=5 s"],
        "PATCH",
        "checkpoints/config",
        {"settings": {INTERVAL: "5 s"}},
    ),
    (["restore", "wordcount", "7"], "POST", "restore", {"point": "7"}),
]


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return FakeJob(tmp_path).state("RUNNING").batch(41)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[TestClient]:
    app = guarded(application(site(tmp_path)), None, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as found:
        yield found


def asked(api: TestClient, method: str, path: str, body: dict[str, Any]) -> Any:
    url = f"/api/v1/jobs/wordcount/{path}?wait=20"
    given = body or None
    return api.request(method, url, json=given if path == "cancel" else body, headers=ASKS).json()


@pytest.mark.parametrize(("words", "method", "path", "body"), VERBS, ids=lambda one: str(one)[:24])
def test_the_command_line_and_rest_show_the_same_object(
    words: list[str],
    method: str,
    path: str,
    body: dict[str, Any],
    weir: Weir,
    api: TestClient,
    job: FakeJob,
    tmp_path: Path,
) -> None:
    supervisor = Answering(job, lambda request: {"done": True, **ANSWERS[request.verb]})
    shown = weir(*words, "--dir", str(tmp_path), "--json").json
    result = asked(api, method, path, body)["data"]["result"]
    supervisor.end()
    assert shown == result
    assert shown["job"] == "wordcount"
    (first, second) = supervisor.heard
    assert first == second, "both ask the job for the same"


@pytest.mark.parametrize(("words", "method", "path", "body"), VERBS, ids=lambda one: str(one)[:24])
def test_they_show_the_same_error(
    words: list[str],
    method: str,
    path: str,
    body: dict[str, Any],
    weir: Weir,
    api: TestClient,
    job: FakeJob,
    tmp_path: Path,
) -> None:
    refusal = {"what": "it can't", "why": "the disk is full", "hint": "make room"}
    supervisor = Answering(job, lambda _: {"done": False, **refusal})
    shown = weir(*words, "--dir", str(tmp_path), "--json")
    answer = asked(api, method, path, body)
    supervisor.end()
    assert shown.code == 1 and shown.json["error"] == refusal
    assert answer == {"error": refusal}


def test_a_plan_has_what_the_planner_answered(job: FakeJob, tmp_path: Path) -> None:
    supervisor = Answering(job, lambda request: {"done": True, **ANSWERS[request.verb]})
    made = running_job.plan(Caller(str(tmp_path), "wordcount"), point="chk-7", maps=["counts/0=1"])
    supervisor.end()
    assert made.form() == {**PLANNED, "path": ""}
    assert supervisor.heard == [("plan", {"point": "chk-7", "maps": ["counts/0=1"], "allow_dropped": False})]


def test_an_aborted_checkpoint_is_known_by_its_number(job: FakeJob, tmp_path: Path) -> None:
    supervisor = Answering(job, lambda _: {"done": False, "id": 8, "reason": "disk full"})
    with pytest.raises(NotDoneError, match="checkpoint 8 of wordcount was aborted") as raised:
        running_job.checkpoint(Caller(str(tmp_path), "wordcount"), full=False)
    supervisor.end()
    assert raised.value.fields["id"] == 8 and raised.value.why == "disk full"


def test_nobody_waits_for_a_job_that_nobody_runs(job: FakeJob, tmp_path: Path) -> None:
    job.state("FINISHED").end()
    with pytest.raises(NoSupervisorError, match="it is FINISHED since"):
        running_job.checkpoint(Caller(str(tmp_path), "wordcount"), full=False)
