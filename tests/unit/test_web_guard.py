"""Who may ask: token, host, same origin; and that what is shown is never run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from tests.fake_job import FakeJob
from tests.web_site import ASKS, EVIL, HERE, checkpointed, client, described, failed, served, site
from weir.clock import Clock
from weir.config import Ports, resolve
from weir.errors import BadValueError, PortTakenError, TokenFileError
from weir.ids import job_name
from weir.storage.attempts import AttemptLock
from weir.storage.local import LocalStore
from weir.web.app import application, guarded
from weir.web.guard import SESSION_SECONDS, Sessions
from weir.web.server import Server, bind
from weir.web.token import RestToken, own_file, read_token, token_for

COOKIE = "weir-session-8081"
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
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


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
        {"Cookie": f"{COOKIE}={Sessions('another token').begin()}"},
        {"Cookie": f"{COOKIE}={9 * '9'}.x.{64 * '0'}"},
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
    app = guarded(application(site(tmp_path)), Sessions(TOKEN), "0.0.0.0")
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
        with pytest.raises(BadValueError, match=r"rest\.token-file"):
            resolve(file=None, overrides={"rest.address": address, "rest.token-file": "off"})
        resolve(file=None, overrides={"rest.address": address, "rest.token-file": "/secret"})
    for address in ("127.0.0.1", "localhost", "::1"):
        resolve(file=None, overrides={"rest.address": address})


def test_a_token_is_read_from_its_file_or_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(TokenFileError, match="No such file"):
        read_token(file)
    file.touch(0o600)
    for text in ("", "short", "\n" + TOKEN, "with\x00something" * 3):
        file.write_text(text)
        with pytest.raises(TokenFileError, match="16 or more plain"):
            read_token(file)
    file.write_text(f"  {TOKEN} \nmore\n")
    assert read_token(file) == TOKEN
    assert token_for(str(file)) == RestToken(TOKEN, chosen=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_token_that_others_could_read_is_refused_as_ssh_does(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(mode)
    with pytest.raises(TokenFileError, match=f"its mode is {mode:04o}") as refused:
        read_token(file)
    assert refused.value.hint == f"chmod 600 {file}"


def test_without_a_file_the_users_own_token_is_made_once_and_is_the_users_alone(home: Path) -> None:
    first = token_for(None)
    assert first is not None and len(first.text) >= 32 and not first.chosen
    assert own_file() == home / ".local/state/weir/token" and own_file().stat().st_mode & 0o777 == 0o600
    assert own_file().parent.stat().st_mode & 0o077 == 0
    with ThreadPoolExecutor(8) as pool:
        own_file().unlink()
        made = list(pool.map(lambda _: token_for(None), range(16)))
    assert len(set(made)) == 1 and made[0] != first
    assert [file.name for file in own_file().parent.iterdir()] == ["token"]


def test_a_home_that_takes_no_token_is_told_with_a_way_out(home: Path) -> None:
    (home / ".local").write_text("a file")
    with pytest.raises(TokenFileError) as refused:
        token_for(None)
    assert "rest.token-file" in refused.value.hint


def test_a_local_process_without_the_token_reads_and_changes_nothing(
    tmp_path: Path, job: FakeJob, home: Path
) -> None:
    """As another user of the machine would ask: with the header, from a loopback address."""
    with served(site(tmp_path), None) as url, httpx.Client(base_url=url, headers=ASKS) as stranger:
        described = stranger.get("/api/v1/openapi.json", headers=bearer(own_file().read_text().strip()))
        calls = [
            (method, path.replace("{job}", "wordcount").replace("{id}", "3"))
            for path, methods in described.json()["paths"].items()
            for method in methods
        ]
        assert len([one for one in calls if one[0] != "get"]) >= 10 and len(calls) >= 25
        for method, path in [*calls, ("get", "/"), ("get", "/jobs/wordcount"), ("post", "/logout")]:
            answer = stranger.request(method, path, json={} if method != "get" else None)
            assert answer.status_code == 401 and "wordcount" not in answer.text, path
        assert job.requests.pending() == []
        mine = stranger.get(JOBS, headers=bearer(own_file().read_text().strip()))
        assert mine.status_code == 200


def test_figures_can_be_scraped_on_this_machine_unless_a_token_was_chosen(
    tmp_path: Path, job: FakeJob, home: Path
) -> None:
    with served(site(tmp_path), None) as url:
        assert "weir_job_up" in httpx.get(f"{url}/metrics").text
        assert httpx.post(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/metrics", headers={"Host": "evil.example"}).status_code == 403
    chosen = tmp_path / "chosen"
    chosen.touch(0o600)
    chosen.write_text(TOKEN)
    with served(site(tmp_path), str(chosen)) as url:
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/metrics", headers=bearer(TOKEN)).status_code == 200


def test_a_link_logs_a_browser_in_once_and_leads_to_its_page(tmp_path: Path, job: FakeJob) -> None:
    sessions = Sessions(TOKEN)
    app = guarded(application(site(tmp_path)), sessions, "127.0.0.1")
    link = f"/login?code={sessions.link()}&page=/jobs/wordcount"
    with TestClient(app, base_url=HERE, follow_redirects=False) as browser:
        entered = browser.get(link)
        assert (entered.status_code, entered.headers["location"]) == (303, "/jobs/wordcount")
        assert TOKEN not in str(entered.headers)
        page = browser.get("/jobs/wordcount")
        assert page.status_code == 200 and 'action="/logout"' in page.text
        assert browser.get(link).headers["location"] == "/jobs/wordcount"  # by its cookie
        stolen = dict(browser.cookies)
        left = browser.post("/logout", headers={"Origin": HERE})
        assert (left.status_code, left.headers["location"]) == (303, "/login")
        assert browser.get(JOBS).status_code == 401
    with TestClient(app, base_url=HERE, follow_redirects=False, cookies=stolen) as thief:
        assert thief.get(JOBS).status_code == 401
        assert thief.get(link).status_code == 401
        for page in ("//evil.example", "http://evil.example", "/\\evil.example", "\\\\evil.example"):
            entered = thief.get("/login", params={"code": sessions.link(), "page": page})
            assert entered.headers["location"] == "/"


def test_sessions_and_links_expire() -> None:
    now = [1000.0]
    sessions = Sessions(TOKEN, lambda: now[0])
    cookie, code = sessions.begin(), sessions.link()
    assert sessions.knows(cookie) and Sessions(TOKEN, lambda: now[0]).knows(cookie)
    now[0] += 3601
    assert not sessions.redeem(code)
    now[0] += SESSION_SECONDS
    assert not sessions.knows(cookie)


def test_servers_on_one_host_have_cookies_of_their_own(closed_site: TestClient) -> None:
    names = []
    for port in (8081, 9000):
        here = {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}"}
        entered = closed_site.post("/login", data={"token": TOKEN}, headers=here)
        names.append(entered.headers["set-cookie"].partition("=")[0])
    assert names == ["weir-session-8081", "weir-session-9000"]


def test_without_a_token_a_page_offers_no_logout(open_site: TestClient) -> None:
    assert "/logout" not in open_site.get("/").text and open_site.get("/login").status_code == 404


def test_a_servers_address_has_no_code_and_its_link_has(tmp_path: Path, home: Path) -> None:
    server = Server(site(tmp_path), "127.0.0.1", Ports(0, 0), None)
    try:
        assert "code" not in server.url and "code=" in server.link("/jobs/x")
        assert own_file().read_text().strip() not in server.link("/jobs/x")
    finally:
        server._socket.close()


def test_of_a_range_the_first_free_port_is_taken() -> None:
    with bind("127.0.0.1", Ports(0, 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTakenError, match="in use"):
            bind("127.0.0.1", Ports(port, port))
        with bind("127.0.0.1", Ports(port, min(port + 50, 65535))) as second:
            assert port < second.getsockname()[1] <= port + 50
    with pytest.raises(PortTakenError):
        bind("no.such.host.invalid", Ports(0, 0))
