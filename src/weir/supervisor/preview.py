"""The restore plan of a running job: a process with Spark makes it, which holds no attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.supervisor.child import ask_child
from weir.supervisor.inbox import Request

if TYPE_CHECKING:
    from weir.supervisor.inputs import Inputs

PLANNING = "weir.driver.preview"


@dataclass(frozen=True)
class Made:
    """A plan was made, or could not be: what to answer."""

    request: str
    done: bool
    body: dict[str, Any]


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
        try:
            body, _ = ask_child(PLANNING, wanted, str(inputs.file), *inputs.arguments)
        except Exception as refused:  # whatever it is, who asked gets an answer
            what = f"no plan could be made: {getattr(refused, 'strerror', None) or refused}"
            body = {"error": {"what": what, "why": "", "hint": "it is safe to try again"}}
        error = body.get("error")
        words = {key: error[key] for key in ("what", "why", "hint")} if error else body
        done(Made(request.id, error is None, words))

    threading.Thread(target=work, name="weir-plan", daemon=True).start()
