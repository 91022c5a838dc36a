"""What needs Spark: a process of its own does it, and this one asks (`supervisor/process.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from weir.client.running_job import PlanMade
from weir.errors import JobFileError, SparkToolError
from weir.preflight import require_spark
from weir.supervisor.process import ask_child

STATE = "weir.state"
PREVIEW = "weir.driver.preview"

Waiting = Callable[[], AbstractContextManager[object]]
"""Entered while the process works."""


def ask_state(request: Mapping[str, Any], waiting: Waiting = nullcontext) -> dict[str, Any]:
    """What `python -m weir.state` answers to a request; raises `SparkToolError` when it failed."""
    return _ask(STATE, request, (), waiting)


def plan_of(
    file: Path,
    arguments: Sequence[str],
    *,
    settings: Mapping[str, str],
    settings_file: Path | None,
    point: str,
    maps: Sequence[str] = (),
    allow_dropped: bool = False,
    accept_duplicates: bool = False,
    offsets: Mapping[str, str] | None = None,
    name: str = "",
    to: str = "",
    waiting: Waiting = nullcontext,
) -> PlanMade:
    """What becomes of the state at a point in the job of a file; no job is started, nothing is changed.

    With `to` a savepoint with the state in its new form is written there, where the plan fits. Raises
    `JobFileError` without such a file, and `SparkToolError` when no plan could be made.
    """
    if not file.is_file():
        raise JobFileError(file=file, reason="there is no such file", todo="check the path")
    request = {
        "settings": dict(settings),
        "config": str(settings_file) if settings_file else "",
        "point": point,
        "maps": list(maps),
        "allow_dropped": allow_dropped,
        "accept_duplicates": accept_duplicates,
        "offsets": dict(offsets or {}),
        "name": name,
        "to": to,
    }
    return PlanMade.of(_ask(PREVIEW, request, (str(file.absolute()), *arguments), waiting))


def _ask(
    module: str, request: Mapping[str, Any], arguments: Sequence[str], waiting: Waiting
) -> dict[str, Any]:
    require_spark()
    with waiting():
        body, printed = ask_child(module, request, *arguments)
    if "error" in body:
        error = body["error"]
        shown = printed if error.pop("log", False) else ""
        raise SparkToolError(**error, printed=shown)
    return body
