"""What needs Spark is done by a process of its own, `python -m weir.state`; this one asks and shows.

The request goes through standard input, where no list of processes shows what is in it, and the answer
comes in a file, because what Spark and its JVM print must not come in between.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import say
from weir.cli.options import overrides, settings_file
from weir.preflight import require_java

Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's own, spark.*. Repeatable."),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; without it, this machine.")
]

_SHOWN = 8000
"""So many characters of what Spark printed are shown when it failed."""


def session(conf: Sequence[str] | None, master: str | None, config: Path | None) -> dict[str, Any]:
    """The part of a request that says which Spark it wants."""
    found = settings_file(config)
    given = overrides(None, conf=conf, master=master or "local[*]")
    return {"config": str(found) if found else None, "settings": given}


def ask(text: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the process answers to a request; a failure of it is said, and is this command's failure."""
    require_java()
    request = {key: value for part in parts for key, value in part.items()}
    with tempfile.TemporaryDirectory(prefix="weir-state-") as folder, say.waiting(text):
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", "weir.state", str(result)]
        environment = os.environ | {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        with log.open("wb") as output:
            done = subprocess.run(
                command,
                input=json.dumps(request).encode(),
                stdout=output,
                stderr=output,
                env=environment,
                check=False,
            )
        body: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        said = log.read_text(errors="replace")
    if not body:
        what = f"the process with Spark ended with exit code {done.returncode}"
        body = {
            "error": {"what": what, "why": "", "hint": "what it said is above", "exit_code": 4, "log": True}
        }
    if "error" in body:
        error = body["error"]
        if error.get("log"):
            sys.stderr.write(said[-_SHOWN:])
        say.say_error(error["what"], error["why"], error["hint"])
        raise typer.Exit(error["exit_code"])
    return body
