"""Events as they come, over a real port; and `weir dashboard` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.fake_job import FakeJob
from tests.web_site import described, served, site

STREAM = "/api/v1/jobs/wordcount/events/stream"


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return described(FakeJob(tmp_path).state("RUNNING").batch(41))


def events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Each event's kind and data."""
    kind = ""
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def test_events_and_batches_come_as_they_happen_and_none_is_missed(tmp_path: Path, job: FakeJob) -> None:
    with served(site(tmp_path)) as url, httpx.Client(base_url=url, timeout=20) as client:
        with client.stream("GET", STREAM) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            coming = events(answer)
            assert next(coming) == ("open", {"state": "RUNNING"})
            job.event("note", {"text": "something"})
            kind, body = next(coming)
            assert (kind, body["kind"], body["body"]) == ("journal", "note", {"text": "something"})
            job.batch(42)
            assert next(coming)[0] == "batch"
        newest = client.get("/api/v1/jobs/wordcount/events?kind=note").json()["data"][-1]["id"]
        job.event("note", {"text": "while nobody listened"})
        with client.stream("GET", STREAM, headers={"Last-Event-ID": str(newest)}) as answer:
            coming = events(answer)
            assert next(coming)[0] == "open"
            assert next(coming)[1]["body"] == {"text": "while nobody listened"}
            job.state("CANCELED").end()
            kinds = [next(coming)[0] for _ in range(2)]
            assert "state" in kinds
        assert client.get("/api/v1/jobs/nope/events/stream").status_code == 404


def test_weir_dashboard_serves_a_storage_until_it_is_told_to_end(tmp_path: Path, job: FakeJob) -> None:
    job.state("FINISHED").end()
    command = [sys.executable, "-m", "weir", "dashboard", "--dir", str(tmp_path), "--port", "0", "--json"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            assert said["dir"] == str(tmp_path)
            token = (tmp_path / ".local/state/weir/token").read_text().strip()
            assert token not in str(said) and "code" not in said["url"]
            carried = {"Authorization": f"Bearer {token}"}
            page = httpx.get(f"{said['url']}/jobs/wordcount", timeout=20, headers=carried)
            assert page.status_code == 200 and "FINISHED" in page.text
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def test_a_dashboard_that_has_nothing_to_serve_with_says_so(tmp_path: Path) -> None:
    for settings, word in (
        (["-D", "rest.port=off"], "the dashboard needs a port"),
        (["-D", f"rest.token-file={tmp_path}/none"], "No such file"),
        (["-D", "rest.address=0.0.0.0"], "set rest.token-file"),
    ):
        command = [sys.executable, "-m", "weir", "dashboard", "--dir", str(tmp_path), *settings]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and word in done.stderr
