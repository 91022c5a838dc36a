"""The verbs that a running job carries out itself. Each asks its supervisor and waits for the answer.

Each raises `NoSuchJobError`, `NoSupervisorError`, `NoAnswerError` or `NotDoneError`. What was asked for
continues when the waiting ends before it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weir.client.ask import Caller, JobVerb, ask
from weir.config import Settings, changed, text
from weir.restore.request import RestoreRequest
from weir.storage.process import whoami

CANCEL = JobVerb("cancel", "ended", "its running batches take longer; it is still ending")
STOP = JobVerb("stop", "ended", "its running batches or the savepoint take longer; it is still ending")
CHECKPOINT = JobVerb("checkpoint", "completed a checkpoint", "the checkpoint takes longer; it continues")
SAVEPOINT = JobVerb("savepoint", "taken a savepoint", "the savepoint takes longer; it continues")
RESTORE = JobVerb("restore", "been restored", "its running batches or the restore take longer; it continues")
PLAN = JobVerb("plan", "made a plan", "Spark's planner takes longer; it continues")
CONFIGURE = JobVerb("configure", "changed its settings", "it applies the change when its driver is ready")


@dataclass(frozen=True)
class CheckpointTaken:
    """A checkpoint that was asked for, and completed."""

    job: str
    id: int | None
    seconds: float
    new_bytes: int
    full_bytes: int

    def form(self) -> dict[str, Any]:
        return {"job": self.job, "id": self.id, "status": "completed"} | {
            name: getattr(self, name) for name in ("seconds", "new_bytes", "full_bytes")
        }


@dataclass(frozen=True)
class Saved:
    """A savepoint that was asked for; nothing of it is known yet when it was asked for `detached`."""

    job: str
    detached: bool
    id: int | None = None
    path: str | None = None
    seconds: float | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, job: str, answer: Mapping[str, Any], *, detached: bool) -> Saved:
        known = {name: answer.get(name) for name in ("id", "path", "seconds", "bytes")}
        return cls(job, detached, **known)

    def form(self) -> dict[str, Any]:
        known = asdict(self)
        del known["detached"]
        return {"job": known.pop("job"), "status": "asked" if self.detached else "taken", **known}


@dataclass(frozen=True)
class JobEnded:
    """A job that was asked to end."""

    job: str
    state: str
    """The state in which it has ended; "" when it was asked `detached`."""
    attempt: int
    saved: Saved | None = None
    """The savepoint of exactly what it had committed, where one was asked for."""

    def form(self) -> dict[str, Any]:
        if not self.state:
            return {"job": self.job, "status": "asked"}
        body: dict[str, Any] = {"job": self.job, "state": self.state, "attempt": self.attempt}
        if self.saved is not None:
            body |= {name: getattr(self.saved, name) for name in ("id", "path", "seconds", "bytes")}
        return body


@dataclass(frozen=True)
class Configured:
    """Settings that a running job has taken, by key, as `weir config` writes them."""

    job: str
    settings: dict[str, str]

    def form(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PlanMade:
    """What becomes of every source, operator and sink of a job that resumes from a point."""

    job: str
    point: str
    checkpoint: int | None
    plan: dict[str, Any]
    text: str
    """The plan for a person."""
    code: int
    """0 it fits, 10 something would be lost, 11 something must be mapped, 12 it does not fit."""
    path: str = ""
    """The savepoint that was converted by it, where one was asked for."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> PlanMade:
        return cls(
            job=body.get("job") or "",
            point=body.get("point") or "",
            checkpoint=body.get("checkpoint"),
            plan=body.get("plan") or {},
            text=body.get("text") or "",
            code=body.get("code") or 0,
            path=body.get("path") or "",
        )

    def form(self) -> dict[str, Any]:
        return asdict(self)


def checkpoint(caller: Caller, *, full: bool) -> CheckpointTaken:
    """Take a checkpoint now. The job does not stop for it; one that is under way completes first."""
    answer = ask(caller, CHECKPOINT, {"full": full})
    sizes = (answer.get(name, 0) for name in ("seconds", "new_bytes", "full_bytes"))
    return CheckpointTaken(caller.job, answer.get("id"), *sizes)


def savepoint(caller: Caller, *, path: str, detached: bool = False) -> Saved:
    """Take a savepoint into a folder of its own below `path` ("": where the job's settings put it).

    With `detached` it returns as soon as the job has heard of it.
    """
    answer = ask(caller, SAVEPOINT, {"path": path, "by": whoami(), "detached": detached})
    return Saved.of(caller.job, answer, detached=detached)


def stop(
    caller: Caller, *, savepoint: bool = True, path: str = "", drain: bool = False, detached: bool = False
) -> JobEnded:
    """End the job for good, with a savepoint; with `drain` after all that the sources hold.

    When the savepoint can't be taken, the job continues and this raises.
    """
    arguments = {"savepoint": savepoint, "path": path, "drain": drain, "by": whoami(), "detached": detached}
    answer = ask(caller, STOP, arguments)
    if detached:
        return JobEnded(caller.job, "", caller.look().attempt)
    saved = Saved.of(caller.job, answer, detached=False) if "path" in answer else None
    return JobEnded(caller.job, str(answer.get("state", "")), caller.look().attempt, saved)


def cancel(caller: Caller) -> JobEnded:
    """End the job: the running batches finish and commit, and no other is started."""
    answer = ask(caller, CANCEL, {})
    return JobEnded(caller.job, str(answer.get("state", "")), caller.look().attempt)


def configure(caller: Caller, given: Mapping[str, str]) -> Configured:
    """Change settings until the supervisor ends; raises what `weir.config.changed` raises for a bad one."""
    settings = changed(Settings(), given)
    ask(caller, CONFIGURE, {"settings": dict(given)})
    return Configured(caller.job, {key: text(settings, key) for key in given})


def plan(caller: Caller, *, point: str, maps: Sequence[str] = (), allow_dropped: bool = False) -> PlanMade:
    """What would become of the job's state at `point`; made by a process that its supervisor starts."""
    asked = {"point": point, "maps": list(maps), "allow_dropped": allow_dropped}
    return PlanMade.of(ask(caller, PLAN, asked))


def rewind(caller: Caller, wanted: RestoreRequest) -> dict[str, Any]:
    """Take the running job back to a point, at once; `client/restore.py` has the verb for any job."""
    return ask(caller, RESTORE, wanted.to_wire())
