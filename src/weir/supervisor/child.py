"""Asks a process that has Spark one question: a JSON object goes in, one comes out.

The request goes through standard input, where no list of processes shows what is in it, and the answer
comes in a file, because what Spark and its JVM print must not come in between.
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

from weir.storage.scratch import Scratch


def ask_child(module: str, request: Mapping[str, Any], *arguments: str) -> tuple[dict[str, Any], str]:
    """What `python -m MODULE RESULT ARGUMENTS` answers, `error` when it failed; and what it printed.

    An error has `what`, `why`, `hint`, `exit_code`, and `log` when what was printed should be shown.
    """
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", module, str(result), *arguments]
        environment = os.environ | {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        scratch = Scratch.make()
        given = json.dumps(request).encode()
        try:
            with log.open("wb") as output:
                done = subprocess.run(
                    command,
                    input=given,
                    stdout=output,
                    stderr=output,
                    env=environment | scratch.environment(),
                    pass_fds=(scratch.handle,),
                    check=False,
                )
        finally:
            scratch.delete()
        body: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        printed = log.read_text(errors="replace")
    if not body:
        what = f"the process with Spark ended with exit code {done.returncode}"
        body = {
            "error": {"what": what, "why": "", "hint": "its output is above", "exit_code": 4, "log": True}
        }
    return body, printed
