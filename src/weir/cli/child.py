"""Asking a process that has Spark: a JSON object goes in, one comes out through a file.

What the process and its JVM print is kept apart, and shown only when it broke down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from weir.cli import say
from weir.preflight import require_java

_SHOWN = 8000


def ask_child(module: str, request: Mapping[str, Any], waiting: str, *arguments: str) -> dict[str, Any]:
    """What `python -m MODULE REQUEST RESULT ARGUMENTS` answers; its failure is this command's failure."""
    require_java()
    with tempfile.TemporaryDirectory(prefix="weir-") as folder, say.waiting(waiting):
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
    if "error" in body:
        error = body["error"]
        if error.get("log"):
            sys.stderr.write(said[-_SHOWN:])
        say.say_error(error["what"], error["why"], error["hint"])
        raise typer.Exit(error["exit_code"])
    return body
