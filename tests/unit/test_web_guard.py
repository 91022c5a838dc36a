"""Who may ask: token, host, same origin; and that what is shown is never run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from tests.fake_job import FakeJob
from tests.web_site import ASKS, EVIL, HERE, checkpointed, client, described, failed, site
from weir.clock import Clock
from weir.config import Ports, resolve
from weir.errors import BadValueError, PortTakenError, TokenFileError
from weir.ids import job_name
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.web.app import application, guarded
from weir.web.guard import COOKIE, read_token
from weir.web.serving import bind

TOKEN = "a-token-of-many-characters"
JOBS = "/api/v1/jobs"
CANCEL = "/api/v1/jobs/wordcount/cancel"
TABS = ("", "/checkpoints", "/checkpoints/3", "/savepoints", "/recoveries", "/failures", "/state", "/history")


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = described(FakeJob(tmp_path).state("STARTING").state("RUNNING").batch(41))
    job.state("CANCELED").end()
    return job


@pytest.fixture
def open_site(tmp_path: Path, job: FakeJob) -> Iterator[TestClient]:
    with client(site(tmp_path)) as found:
        yield found


@pytest.fixture
def closed_site(tmp_path: Path, job: FakeJob) -> Iterator[TestClient]:
    with client(site(tmp_path), TOKEN, "0.0.0.0") as found:
        yield found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", [JOBS, "/metrics", "/", "/jobs/wordcount", "/api/v1/openapi.json"])
def test_with_a_token_nothing_is_served_without_it(path: str, closed_site: TestClient) -> None:
    for headers in (
        {},
        bearer("wrong"),
        bearer(""),
        {"Authorization": TOKEN},
        {"Cookie": f"{COOKIE}={TOKEN}"},
    ):
        answer = closed_site.get(path, headers=headers)
        assert answer.status_code == 401 and set(answer.json()["error"]) == {"what", "why", "hint"}
        assert TOKEN not in answer.text and "wordcount" not in answer.text
    assert closed_site.get(path, headers=bearer(TOKEN)).status_code == 200


def test_a_call_with_the_token_may_change_something_and_needs_no_other_header(
    closed_site: TestClient,
) -> None:
    assert closed_site.post(CANCEL).status_code == 401
    assert closed_site.post(CANCEL, headers=bearer("wrong")).status_code == 401
    assert closed_site.post(f"{CANCEL}?wait=20", headers=bearer(TOKEN)).status_code == 409


def test_a_browser_is_asked_for_the_token_and_keeps_something_made_of_it(closed_site: TestClient) -> None:
    page = closed_site.get("/jobs/wordcount", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert closed_site.get("/login").status_code == 200
    wrong = closed_site.post("/login", data={"token": "wrong"}, headers={"Origin": HERE})
    assert wrong.status_code == 401 and "not the token" in wrong.text and COOKIE not in closed_site.cookies
    entered = closed_site.post("/login", data={"token": TOKEN}, headers={"Origin": HERE})
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert closed_site.get("/jobs/wordcount").status_code == 200
    assert closed_site.post(CANCEL).status_code == 403
    assert closed_site.post(f"{CANCEL}?wait=20", headers=ASKS).status_code == 409


def test_what_a_stranger_sends_is_read_up_to_a_limit(tmp_path: Path) -> None:
    app = guarded(application(site(tmp_path)), TOKEN, "0.0.0.0")
    said: list[Message] = []
    parts = iter(range(10))

    async def receive() -> Message:
        next(parts)  # StopIteration: it would read for ever
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message: Message) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/login", "headers": [], "query_string": b""}

    async def call() -> None:
        await app(scope, receive, send)

    asyncio.run(call())
    assert said[0]["status"] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {**ASKS, "Origin": "http://evil.example"},
        {**ASKS, "Origin": "null"},
        {**ASKS, "Origin": "http://["},
        {**ASKS, "Origin": "http://127.0.0.1:9999"},
        {**ASKS, "Sec-Fetch-Site": "cross-site"},
        {**ASKS, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_no_other_site_can_make_a_browser_change_something(
    headers: dict[str, str], open_site: TestClient, job: FakeJob
) -> None:
    answer = open_site.post(CANCEL, headers=headers)
    assert answer.status_code == 403 and set(answer.json()["error"]) == {"what", "why", "hint"}
    assert job.requests.pending() == []


def test_our_own_pages_may(open_site: TestClient) -> None:
    own = {**ASKS, "Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    assert open_site.post(f"{CANCEL}?wait=20", headers=own).status_code == 409


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "", "[", "127.0.0.1.evil.example"])
def test_a_foreign_name_that_points_here_is_refused(host: str, open_site: TestClient) -> None:
    answer = open_site.get(JOBS, headers={"Host": host})
    assert answer.status_code == 403 and "wordcount" not in answer.text


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1:1", "[::1]:8081", "127.8.8.8"])
def test_every_name_of_this_machine_is_good(host: str, open_site: TestClient) -> None:
    assert open_site.get(JOBS, headers={"Host": host}).status_code == 200


def test_every_answer_is_protected(open_site: TestClient) -> None:
    for path in ("/", JOBS, "/static/weir.js", "/nothing", "/jobs/nope"):
        headers = open_site.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_what_is_no_markup_is_shown_and_not_run(tmp_path: Path) -> None:
    job = described(FakeJob(tmp_path).state("RUNNING").batch(41, query=EVIL))
    graph = {"name": EVIL, "inputs": [EVIL], "sources": [EVIL], "channel": False, "output_mode": EVIL}
    sink = {"kind": EVIL, "description": EVIL, "rewindable": False}
    job.journal.event(1, "graph", {"queries": [{**graph, "sink": sink}]}, alone=True)
    job.journal.event(1, "settings", {"state.backend.type": {"value": EVIL, "origin": EVIL}}, alone=True)
    checkpointed(failed(job), 1, 9)
    body = {"id": 11, "alignment": EVIL, "trigger": EVIL, "seconds": 1.0, "reason": EVIL, "detail": EVIL}
    job.event("checkpoint aborted", body)
    job.event("savepoint failed", {"path": EVIL, "reason": EVIL})
    with client(site(tmp_path)) as pages:
        texts = [pages.get(f"/jobs/wordcount{tab}") for tab in TABS]
        texts += [pages.get("/"), pages.get("/jobs/wordcount/checkpoints/11"), pages.get(f"/jobs/{EVIL[:8]}")]
        for answer in texts:
            assert "<script>alert" not in answer.text and "<img" not in answer.text
            assert (
                re.findall(
                    r"\son\w+=", re.sub(r'"[^"]*"|\'[^\']*\'', "", answer.text.replace("onerror=alert", ""))
                )
                == []
            )
        shown = [answer for answer in texts if "&lt;script&gt;" in answer.text]
        assert len(shown) >= 7
        assert [answer.status_code for answer in texts] == [200] * (len(texts) - 1) + [400]


def test_passwords_never_come_into_the_journal_and_so_never_out_of_it(tmp_path: Path) -> None:
    job = described(FakeJob(tmp_path).state("RUNNING").batch(41))
    url = "postgresql://ada:hunter2@db:5432/shop?sslmode=on&password=hunter2"
    failed(job, f"could not connect to {url}")
    job.event(
        "savepoint failed", {"path": "s3://key:hunter2@bucket", "reason": "secret=hunter2, token=hunter2"}
    )
    job.journal.event(1, "graph", {"queries": [{"name": "q", "sink": {"description": url}}]}, alone=True)
    with client(site(tmp_path)) as pages:
        for path in (
            *(f"/jobs/wordcount{tab}" for tab in ("/failures", "/history", "/recoveries")),
            "/metrics",
        ):
            assert "hunter2" not in pages.get(path).text
        assert "postgresql://ada:***@db:5432/shop" in pages.get("/api/v1/jobs/wordcount/failures").text
    journal = (tmp_path / "wordcount/journal").iterdir()
    assert not any(b"hunter2" in file.read_bytes() for file in journal)


def test_a_job_in_a_notebook_which_keeps_no_journal_has_pages_too(tmp_path: Path) -> None:
    lock = AttemptLock(LocalStore(tmp_path), job_name("cells"), Clock())
    lock.acquire("session", 0.0, lambda *_: None)
    lock.beat()
    with client(site(tmp_path)) as pages:
        for tab in ("", "/checkpoints", "/savepoints", "/recoveries", "/failures", "/state", "/history"):
            assert pages.get(f"/jobs/cells{tab}").status_code == 200
        assert pages.get("/").status_code == pages.get("/metrics").status_code == 200
        refused = pages.post("/api/v1/jobs/cells/savepoints?wait=20", json={"path": "/s"}, headers=ASKS)
        assert refused.status_code == 409 and "job.start()" in refused.json()["error"]["why"]


def test_an_address_that_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    for address in ("0.0.0.0", "10.0.0.7", "::", "example.com"):
        with pytest.raises(BadValueError, match=r"rest\.token-file"):
            resolve(file=None, overrides={"rest.address": address})
        resolve(file=None, overrides={"rest.address": address, "rest.token-file": "/secret"})
    for address in ("127.0.0.1", "localhost", "::1"):
        resolve(file=None, overrides={"rest.address": address})


def test_a_token_is_read_from_its_file_or_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert read_token(None) is None
    with pytest.raises(TokenFileError, match="No such file"):
        read_token(str(file))
    for text in ("", "short", "\n" + TOKEN, "with\x00something" * 3):
        file.write_text(text)
        with pytest.raises(TokenFileError, match="16 plain characters"):
            read_token(str(file))
    file.write_text(f"  {TOKEN} \nmore\n")
    assert read_token(str(file)) == TOKEN


def test_of_a_range_the_first_free_port_is_taken() -> None:
    with bind("127.0.0.1", Ports(0, 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTakenError, match="in use"):
            bind("127.0.0.1", Ports(port, port))
        with bind("127.0.0.1", Ports(port, min(port + 50, 65535))) as second:
            assert port < second.getsockname()[1] <= port + 50
    with pytest.raises(PortTakenError):
        bind("no.such.host.invalid", Ports(0, 0))
