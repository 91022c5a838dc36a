"""What a job has left that nothing needs: show it, or delete it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from weir.client.ask import Caller
from weir.clock import Clock
from weir.config import Settings
from weir.ids import job_name
from weir.supervisor import leftovers
from weir.supervisor.leftovers import Leftover


@dataclass(frozen=True)
class Cleaned:
    """What was left; `deleted` when it no longer is."""

    job: str
    deleted: bool
    leftovers: tuple[Leftover, ...]

    def form(self) -> dict[str, Any]:
        return {"job": self.job, "deleted": self.deleted, "leftovers": list(map(asdict, self.leftovers))}


def clean(caller: Caller, settings: Settings, *, delete: bool) -> Cleaned:
    """What `settings` do not keep of a job; deleted only with `delete`. Raises `NoSuchJobError`."""
    caller.look()
    rest = leftovers.leftovers(caller.dir, job_name(caller.job), settings, Clock())
    if delete:
        leftovers.delete(caller.dir, rest)
    return Cleaned(caller.job, delete, tuple(rest))
