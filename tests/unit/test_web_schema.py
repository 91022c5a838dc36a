"""The whole of REST against its own description: whatever is sent, no answer is a 500 or of another form."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fake_job import FakeJob
from tests.web_site import ASKS, HERE, Answering, checkpointed, described, failed, site
from weir.web import sample as sampling
from weir.web.app import application, guarded

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
RUNNING = "running"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The application over a job that has ended, and one that runs and does whatever it is asked."""
    dir: Path = tmp_path_factory.mktemp("store")
    job = described(FakeJob(dir, "j").state("RUNNING").batch(41))
    checkpointed(failed(job), 1, 20).state("CANCELED").end()
    running = described(FakeJob(dir, RUNNING).state("RUNNING").batch(41))
    supervisor = Answering(running, lambda request: {"done": True, "id": 7, "seconds": 0.5})
    app = application(site(dir))
    loaded = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    loaded.app = guarded(app, None, "127.0.0.1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "WEIR", ("false",))  # no process with Spark for each call
        yield loaded
    supervisor.end()


def operations() -> list[str]:
    app = application(site(Path("/nowhere")))
    return [
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    ]


@pytest.mark.parametrize("operation", [one for one in operations() if not one.endswith("/stream")])
def test_no_call_breaks_it(operation: str, schema: Any) -> None:
    method, path = operation.split(" ")
    case_of = schema[path][method].as_strategy()
    jobs = cycle((RUNNING, "j"))

    @given(case=case_of)
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def check(case: Any) -> None:
        if "job" in case.path_parameters and len(case.path_parameters["job"]) % 2:
            case.path_parameters["job"] = next(jobs)
        if case.query and "wait" in case.query:
            case.query["wait"] = 20 if case.path_parameters.get("job") == RUNNING else 0
        answer = case.call(base_url=HERE, headers={**(case.headers or {}), **ASKS, "Host": "127.0.0.1"})
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error"}

    check()
