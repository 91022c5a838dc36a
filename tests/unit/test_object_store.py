"""Object stores whose server is no good one: it ignores conditions, or answers with an error and did it."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from weir.errors import ExternalError, OutcomeUnknownError, StorageError
from weir.storage import Created, Store, open_store
from weir.storage.object_store import ObjectStore

SECRETS = ("weirs-key-id", "weirs-very-own-secret", "weirs-session-token")


class StandIn(ThreadingHTTPServer):
    """As much of S3 as a store needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.conditions = "kept"
        self.errors: list[int] = []
        """What it answers to the next writes, which it does all the same."""
        self.writes = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        server, self.server.writes = self.server, self.server.writes + 1
        condition = self.headers["If-None-Match"] == "*"
        if condition and server.conditions == "refused":
            return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        if condition and server.conditions == "kept" and self.path in server.objects:
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        server.objects[self.path] = (data, self.headers["x-amz-meta-weirwriter"] or "")
        return self._answer(server.errors.pop(0) if server.errors else 200)

    def do_GET(self) -> None:
        if self.path not in self.server.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, writer = self.server.objects[self.path]
        return self._answer(200, data, writer)

    def _answer(self, status: int, body: bytes = b"", writer: str = "") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        if writer:
            self.send_header("x-amz-meta-weirwriter", writer)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    server = StandIn()
    key, secret, token = SECRETS
    for name, value in {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SESSION_TOKEN": token,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ObjectStore, "_tried", set())
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(stand_in: StandIn) -> Store:
    return open_store("s3://bucket/root")


def test_the_server_is_tried_once_in_a_process_and_not_listed(store: Store, stand_in: StandIn) -> None:
    assert store.create("a", b"1") is Created.NOW
    assert store.create("a", b"2") is Created.EXISTS
    assert stand_in.writes == 4  # two of them to try
    assert open_store("s3://bucket/other").create("a", b"1") is Created.NOW
    assert stand_in.writes == 5


@pytest.mark.parametrize(("conditions", "why"), [("ignored", "both would win"), ("refused", "If-None-Match")])
def test_a_server_without_conditional_put_is_refused(
    store: Store, stand_in: StandIn, conditions: str, why: str
) -> None:
    stand_in.conditions = conditions
    for _ in range(2):
        with pytest.raises(StorageError, match=why) as caught:
            store.create("a", b"1")
        assert "s3://bucket/root/a" in str(caught.value)
    assert "/bucket/root/a" not in stand_in.objects


def test_a_create_that_was_done_and_answered_with_an_error_is_ones_own(
    store: Store, stand_in: StandIn
) -> None:
    """obstore asks again after a 503, and is answered that the key is there."""
    store.create("warm", b"")
    stand_in.errors = [503]
    assert store.create("a", b"one") is Created.NOW
    stand_in.errors = [503]
    assert store.create("a", b"one") is Created.EXISTS, "the same value of somebody else"
    assert store.get("a") == b"one"


def test_no_secret_is_in_an_error_or_a_log(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    def fails(url: str) -> None:
        for act in (
            lambda: open_store(url).create("a", b""),
            lambda: open_store(url).put("a", b""),
            lambda: open_store(url).get("a"),
            lambda: open_store(url).exists("a"),
            lambda: list(open_store(url).list("")),
            lambda: open_store(url).delete("a"),
        ):
            with pytest.raises(ExternalError) as caught:
                act()
            shown.append("".join(traceback.format_exception(caught.value)))

    key, secret, token = SECRETS
    fails(f"s3://{key}:{secret}@bucket/root")
    fails(f"s3://bucket/root?token={token}")
    monkeypatch.setattr("weir.storage.object_store._RETRIES", 0)
    stand_in.server_close()
    stand_in.shutdown()
    fails("s3://bucket/root")
    assert len(shown) == 18
    for text in [*shown, caplog.text]:
        assert not any(one in text for one in SECRETS), text


def test_a_server_that_is_away_leaves_the_outcome_of_a_write_open(
    store: Store, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", b"")
    stand_in.shutdown()
    stand_in.server_close()
    with pytest.raises(OutcomeUnknownError, match="can't be reached"):
        store.create("b", b"")
    with pytest.raises(StorageError, match="can't be reached"):
        store.get("a")


def test_a_missing_credential_is_named(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StorageError, match="taken from the environment"):
        open_store("s3://bucket/root")


def test_a_proxy_is_taken_from_the_environment(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://nowhere.invalid:1")
    monkeypatch.setenv("AWS_PROXY_URL", f"http://127.0.0.1:{stand_in.server_port}")
    monkeypatch.setattr("weir.storage.object_store._RETRIES", 0)
    assert open_store("s3://bucket/root").get("a") is None


def test_an_azure_at_http_is_allowed_where_the_environment_allows_it(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for name, value in {
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0",
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{stand_in.server_port}",
        "AZURE_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("weir.storage.object_store._RETRIES", 0)
    assert open_store("az://container/root").get("a") is None


@pytest.mark.parametrize("url", ["s3://key:weirs/very-own-secret@bucket/root", "s3://[bucket/root"])
def test_a_url_that_can_not_be_read_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StorageError, match="can't be read") as caught:
        open_store(url)
    assert "bucket" not in str(caught.value) and "weirs" not in str(caught.value)
