"""No request, however malformed or new, ends a supervisor, its driver, or the requests behind it."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.played_driver import JOB, Client, Driver, Run, answers
from weir.errors import StorageError
from weir.protocol import messages as m
from weir.protocol.states import JobState
from weir.restore.request import RestoreRequest
from weir.storage import paths
from weir.storage.local import LocalStore
from weir.supervisor import inbox as requests
from weir.supervisor import restore as restoring
from weir.supervisor.inbox import VERSION, Requests, read

MINE = "the session of the supervisor that runs"
DEEP = b'{"verb": "cancel", "session": "x", "arguments": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
MALFORMED: dict[str, Any] = {
    "nothing": b"",
    "garbage": b"\xff\x00\xfe garbage",
    "half a request": b'{"verb": "sto',
    "a list": [1],
    "a number": 7,
    "nested without end": DEEP,
    "without a session": {"verb": "cancel"},
    "a verb that is none": {"verb": ["cancel"], "session": MINE},
    "arguments that are none": {"verb": "checkpoint", "session": MINE, "arguments": [1]},
    "configure without settings": {"verb": "configure", "session": MINE, "arguments": {}},
    "settings that are none": {"verb": "configure", "session": MINE, "arguments": {"settings": "x"}},
    "a restore to nowhere": {"verb": "restore", "session": MINE, "arguments": {}},
    "a restore to a number": {"verb": "restore", "session": MINE, "arguments": {"point": 41}},
    "changes that are none": {"verb": "restore", "session": MINE, "arguments": {"point": "1", "changes": 3}},
    "maps that are none": {
        "verb": "restore",
        "session": MINE,
        "arguments": {"point": "1", "changes": {"maps": 3}},
    },
    "a plan for nothing": {"verb": "plan", "session": MINE, "arguments": {"maps": 3}},
    "a stop into a list": {"verb": "stop", "session": MINE, "arguments": {"path": []}},
    "a version to come": {"version": VERSION + 1, "verb": "cancel", "session": MINE},
}


def leave(dir: Path, identity: str, content: Any, session: str) -> None:
    """Write a request as somebody else's program might."""
    data = content if isinstance(content, bytes) else json.dumps(content).replace(MINE, session).encode()
    file = dir / paths.requests(JOB) / f"{identity}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{identity}")
    beside.write_bytes(data)
    os.rename(beside, file)


def test_every_malformed_request_is_answered_and_the_job_runs_on(run: Run, drivers: list[Driver]) -> None:
    Driver.scripts = [answers(True, id=7)]

    def steps(client: Client) -> None:
        session = json.loads(next((run.dir / paths.attempts(JOB)).glob("*.json")).read_text())["session"]
        for number, content in enumerate(MALFORMED.values()):
            leave(run.dir, f"request-{number}", content, session)
        for number, name in enumerate(MALFORMED):
            answer = client.answer(f"request-{number}")
            assert answer["done"] is False and answer["reason"], name
            assert "internal error in weir" not in answer["reason"]
        assert client.call("checkpoint") == {"done": True, "id": 7}  # and nothing is in its way

    assert run(steps) is JobState.CANCELED
    assert len(drivers) == 1 and [ask.verb for ask in drivers[0].heard_of(m.Ask)] == ["checkpoint"]
    assert list((run.dir / paths.requests(JOB)).glob("*.json")) == []


def test_a_request_that_may_not_be_read_holds_up_no_other(tmp_path: Path) -> None:
    class Refusing(LocalStore):
        def get(self, key: str) -> bytes | None:
            if key.endswith("/0000.json"):
                raise StorageError(verb="read", path=key, reason="permission is missing", root=self.url)
            return super().get(key)

    leave(tmp_path, "0000", {"verb": "cancel", "session": "x"}, "x")
    leave(tmp_path, "0001", {"verb": "cancel", "session": "x"}, "x")
    assert [one.id for one in Requests(Refusing(tmp_path), JOB).pending()] == ["0001"]


def test_what_a_newer_command_line_adds_is_ignored() -> None:
    sent = {
        "version": VERSION,
        "verb": "restore",
        "session": "s",
        "priority": "high",
        "arguments": {"point": "chk-41", "colour": "blue", "changes": {"maps": ["a/b=c"], "shape": "round"}},
    }
    request = read("id", json.dumps(sent).encode())
    assert (request.unreadable, request.verb, request.session) == ("", "restore", "s")
    assert RestoreRequest.from_wire(request.arguments) == RestoreRequest("chk-41", maps=("a/b=c",))


def test_a_request_of_an_earlier_weir_has_no_version_and_is_taken() -> None:
    request = read("id", b'{"verb": "checkpoint", "session": "s", "arguments": {"full": true}}')
    assert request.arguments == {"full": True} and request.unreadable == ""


def test_a_newer_version_says_what_to_do() -> None:
    sent = {"version": 9, "verb": "cancel", "session": "s"}
    reason = read("id", json.dumps(sent).encode()).unreadable
    assert "version 9" in reason and "start the job again with the newer weir" in reason


def test_every_change_of_a_restore_passes_the_supervisor() -> None:
    changes = set(requests._Changes.model_fields)
    assert changes | {"point", "accept_duplicates"} == {one.name for one in fields(RestoreRequest)}
    wanted = RestoreRequest(
        "chk-41",
        True,
        maps=("a/b=c",),
        allow_dropped=True,
        parallelism=8,
        backend="hashmap",
        offsets={"q/s": "latest"},
        claim=True,
        forked_from="other",
    )
    body = {"verb": "restore", "session": "s", "arguments": wanted.to_wire()}
    assert RestoreRequest.from_wire(read("id", json.dumps(body).encode()).arguments) == wanted


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(3), KeyError("x")])
def test_a_restore_that_breaks_down_is_answered_and_ends(
    error: BaseException, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(restoring, "intend", broken)
    Driver.scripts = [answers(True, id=7)]

    def steps(client: Client) -> None:
        answer = client.call("restore", point="chk-41")
        assert answer["done"] is False and type(error).__name__ in answer["what"]
        assert client.call("checkpoint") == {"done": True, "id": 7}

    assert run(steps) is JobState.CANCELED
