"""One form of an error as JSON, wherever it comes out: `what`, `why` and `hint`, without secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import weir.errors
from tests.fake_job import Weir
from weir.errors import NoSuchJobError, NotDoneError, WeirError, error_form
from weir.protocol.messages import Failure
from weir.web import envelope

SOURCE = Path(weir.errors.__file__).parents[1]
ERROR = NotDoneError(what="it failed", why="password=hunter2 is wrong", hint="try again")
FORM = {"what": "it failed", "why": "password=*** is wrong", "hint": "try again"}


def test_an_error_has_what_why_and_hint_without_secrets() -> None:
    assert error_form(ERROR) == FORM


def test_a_failure_that_was_reported_has_the_same_form() -> None:
    failure = Failure("it failed", "password=hunter2 is wrong", "try again")
    assert error_form(failure) == FORM


def test_anything_else_is_a_breakdown_of_weir() -> None:
    assert error_form(KeyError("token='x1y2'")) == {
        "what": "internal error in weir: KeyError: \"token='***'\"",
        "why": "",
        "hint": "",
    }


def test_rest_answers_in_this_form_and_nothing_beside_it() -> None:
    app = FastAPI()
    envelope.install(app)

    @app.get("/")
    def fails() -> None:
        raise ERROR

    assert TestClient(app).get("/").json() == {"error": FORM}


def test_the_command_line_answers_in_this_form(weir: Weir, tmp_path: Path) -> None:
    body = weir("status", "nope", "--dir", str(tmp_path), "--json").json
    assert body == {"error": error_form(NoSuchJobError(job="nope", dir=tmp_path))}


@pytest.mark.parametrize("error", [ERROR, WeirError(what="x")])
def test_it_survives_json(error: WeirError) -> None:
    assert json.loads(json.dumps(error_form(error))) == error_form(error)


def test_no_other_place_takes_an_error_apart() -> None:
    taken = re.compile(r'"hint": (?:\w+\.)+hint\b')
    found = [str(file) for file in SOURCE.rglob("*.py") if taken.search(file.read_text("utf-8"))]
    assert found == []
