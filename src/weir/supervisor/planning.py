"""Asking a process that has Spark, and the restore plan of a running job, which only such a process can make.

A JSON object goes in, one comes out through a file. The process holds no attempt and writes nothing else;
what it and its JVM print is kept apart, and is of use only when it broke down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.supervisor.requests import Request

if TYPE_CHECKING:
    from weir.supervisor.loop import Inputs

PLANNING = "weir.driver.planning"


@dataclass(frozen=True)
class Made:
    """A plan was made, or could not be: what to answer."""

    request: str
    done: bool
    body: dict[str, Any]


def child(module: str, request: Mapping[str, Any], *arguments: str) -> tuple[dict[str, Any], str]:
    """What `python -m MODULE REQUEST RESULT ARGUMENTS` answers, `error` when it failed; and what it said."""
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", module, json.dumps(request), str(result), *arguments]
        environment = os.environ | {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, check=False
            )
        body: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        said = log.read_text(errors="replace")
    if not body:
        what = f"the process that was asked ended with exit code {done.returncode}"
        body = {"error": {"what": what, "why": "", "hint": "", "exit_code": 1, "log": True}}
    return body, said


def make_plan(request: Request, inputs: Inputs, done: Callable[[Made], None]) -> None:
    """The plan for going on from a point with the job's own file and settings.

    Returns at once, and calls `done` once, from another thread.
    """
    wanted = {
        "point": str(request.arguments.get("point", "latest")),
        "maps": list(request.arguments.get("maps", ())),
        "allow_dropped": bool(request.arguments.get("allow_dropped", False)),
        "offsets": {},
        "name": inputs.name,
        "settings": dict(inputs.overrides),
        "config": str(inputs.settings_file) if inputs.settings_file else "",
    }

    def work() -> None:
        body, _ = child(PLANNING, wanted, str(inputs.file), *inputs.arguments)
        error = body.get("error")
        words = {key: error[key] for key in ("what", "why", "hint")} if error else body
        done(Made(request.id, error is None, words))

    threading.Thread(target=work, name="weir-plan", daemon=True).start()
