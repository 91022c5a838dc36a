"""`python -m weir.driver.preview RESULT FILE ARGS...`: the restore plan of a job file, alone.

The request is a JSON object on standard input; so is the result, in a file. Holds no attempt, and
writes nothing else, but for one that asks where `to`: then the savepoint is made there that the job
file needs, when the plan fits.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from weir.config import resolve
from weir.driver import jobfile
from weir.errors import error_form
from weir.ids import job_name
from weir.protocol import restore_plan
from weir.restore.preview import preview
from weir.restore.request import RestoreRequest
from weir.spark import session
from weir.spark.failure import from_exception, shows_output
from weir.storage import open_store


def main() -> None:
    """Answer one request."""
    request, result, file = json.load(sys.stdin), Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv = sys.argv[2:]
    try:
        answer = _answer(request, file)
    except Exception as error:
        found = from_exception(error, file.stem)
        body = {**error_form(found), "exit_code": found.exit_code, "log": shows_output(error)}
        answer = {"error": body}
    result.write_text(json.dumps(answer))


def _answer(request: dict[str, Any], file: Path) -> dict[str, Any]:
    job = jobfile.load(file)
    called = job.name
    job.name = job_name(request["name"] or called)
    settings_file = Path(request["config"]) if request["config"] else None
    config = resolve(
        file=settings_file, job_options=job.options, environ=os.environ, overrides=request["settings"]
    )
    wanted = RestoreRequest(
        point=request["point"],
        accept_duplicates=bool(request.get("accept_duplicates")),
        maps=tuple(request["maps"]),
        allow_dropped=request["allow_dropped"],
        offsets=request["offsets"],
        forked_from=called if called != job.name else "",
    ).shaped(session.asked_parallelism(config), config.settings.state_backend_type.value)
    store = open_store(config.settings.execution_checkpointing_dir)
    found = preview(job, config, store, wanted, request.get("to", ""))
    return {
        "job": job.name,
        "point": found.point.name,
        "checkpoint": found.point.manifest.id,
        "plan": found.plan.model_dump(mode="json"),
        "text": restore_plan.text(found.plan),
        "code": found.plan.exit_code,
        "path": found.path,
    }


if __name__ == "__main__":
    main()
