"""REST, what can be asked for: each call begins an operation, which shows what became of it.

The answer is the operation: 202 while it is under way, 200 when it has ended, and when it failed the
error in the one form with a status of its own. `wait` is how long the call waits for that.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from weir.client import restore as restores
from weir.client import running_job, savepoints
from weir.client.ask import Caller
from weir.config import Settings, StateBackend, changed
from weir.errors import BadRequestError, NoSupervisorError
from weir.ids import query_name
from weir.protocol.offsets import check_form
from weir.restore.request import RestoreRequest, may_be_claimed
from weir.web.envelope import FAILURES, DataAnswer, failed
from weir.web.operations import FAILED, RUNNING, Operation, Work
from weir.web.rest_read import Job, Object, Objects
from weir.web.sample import sample_of
from weir.web.site import Site

Wait = Annotated[float, Query(ge=0, le=600, description="seconds to wait for the end of the operation")]
OperationId = Annotated[str, Path(max_length=64, description="the operation's id")]
_LOOK = 0.05
_POINT = re.compile(r"latest|(?:chk-)?\d{1,18}|/.*|[a-z][a-z0-9+.-]*://.*", re.DOTALL)


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WantCheckpoint(_Wish):
    full: bool = Field(False, description="copy all files that a restore needs, not only the new ones")


class WantSavepoint(_Wish):
    path: str = Field(
        "",
        max_length=4096,
        description="an absolute directory or a URL; by default execution.checkpointing.savepoint-dir",
    )


class WantStop(WantSavepoint):
    savepoint: bool = Field(True, description="take a savepoint of exactly what is committed")
    drain: bool = Field(False, description="first process all input that the sources hold")


Maps = Annotated[
    list[Annotated[str, Field(max_length=200)]],
    Field(max_length=100, description="which operator becomes which, each as QUERY/OLD=NEW"),
]
Dropped = Annotated[bool, Field(description="allow state that no operator takes to be lost")]


class WantRestore(_Wish):
    point: str = Field(description="latest, 41, chk-41, or the path or URL of a savepoint", max_length=4096)
    accept_duplicates: bool = Field(
        False, description="allow output that can't be rewound to be delivered again"
    )
    allow_dropped: Dropped = False
    maps: Maps = []
    offsets: dict[str, str] = Field(
        default={},
        max_length=100,
        description="where sources resume, by QUERY/SOURCE: earliest, latest, timestamp:TIME, initial, JSON",
    )
    parallelism: int | None = Field(
        None, ge=1, le=32768, description="partitions of keyed state, which is rescaled"
    )
    state_backend: StateBackend | None = Field(
        None, description="the backend to which the state is converted"
    )
    claim: bool = Field(False, description="delete the savepoint when a later checkpoint subsumes it")


class WantPlan(_Wish):
    point: str = Field(
        "latest", description="latest, 41, chk-41, or the path or URL of a savepoint", max_length=4096
    )
    allow_dropped: Dropped = False
    maps: Maps = []


class WantSample(_Wish):
    query: str = Field(max_length=100, description="the query whose state is read")
    operator: int = Field(
        0, ge=0, le=1000, description="which of its operators; 0 is the one nearest the sink"
    )
    limit: int = Field(20, ge=1, le=200, description="how many rows at most")


class WantSettings(_Wish):
    settings: dict[str, str] = Field(
        min_length=1, description="new values by key, in the same form as in weir.yaml"
    )


class OneSavepoint(_Wish):
    path: str = Field(max_length=4096, description="its path, as the catalogue has it")


class Shown(Protocol):
    """A result of a verb."""

    def form(self) -> dict[str, Any]: ...


_ANSWERS: dict[int | str, dict[str, Any]] = {
    **FAILURES,
    202: {"model": Object, "description": "under way"},
}


def routes(site: Site) -> APIRouter:
    """The calls that change something, and the operations that they begin."""
    api = APIRouter(responses=_ANSWERS)

    async def begin(
        job: str,
        verb: str,
        arguments: Mapping[str, Any],
        work: Work,
        wait: float,
        check: Callable[[], object] = lambda: None,
    ) -> Response:
        def started() -> Operation:
            site.look(job)
            check()
            return site.operations.begin(job, verb, arguments, work)

        operation = await run_in_threadpool(started)
        await _waited(operation, wait)
        return _answer(operation)

    async def ask(
        job: str, verb: str, arguments: Mapping[str, Any], asked: Callable[[Caller], Shown], wait: float
    ) -> Response:
        """Begin one that asks the job."""
        return await begin(job, verb, arguments, lambda one: asked(caller(site, one)).form(), wait)

    @api.post("/jobs/{job}/checkpoints", response_model=Object)
    async def checkpoint(job: Job, want: WantCheckpoint, wait: Wait = 0) -> Response:
        """Take a checkpoint now; the job keeps running. An abort is a failure, with its reason."""
        return await ask(
            job,
            "checkpoint",
            want.model_dump(),
            lambda asked: running_job.checkpoint(asked, full=want.full),
            wait,
        )

    @api.patch("/jobs/{job}/checkpoints/config", response_model=Object)
    async def configure(job: Job, want: WantSettings, wait: Wait = 30) -> Response:
        """Change settings of the running job; they hold until its supervisor ends."""
        changed(Settings(), want.settings)
        return await ask(
            job,
            "configure",
            want.model_dump(),
            lambda asked: running_job.configure(asked, want.settings),
            wait,
        )

    @api.post("/jobs/{job}/savepoints", response_model=Object)
    async def savepoint(job: Job, want: WantSavepoint, wait: Wait = 0) -> Response:
        """Take a savepoint; the job keeps running."""
        path = _place(want.path)
        return await ask(
            job, "savepoint", {"path": path}, lambda asked: running_job.savepoint(asked, path=path), wait
        )

    @api.post("/jobs/{job}/savepoints/verify", response_model=Object)
    async def verify(job: Job, which: OneSavepoint, wait: Wait = 0) -> Response:
        """Check every file of a savepoint against its manifest; the result is in `whole` and `damage`."""

        def work(operation: Operation) -> Mapping[str, Any]:
            def progress(done: int, total: int) -> None:
                operation.progress = {"phase": "verify", "done_bytes": done, "full_bytes": total}

            return savepoints.verify(site.savepoint(job, which.path).place, progress).form()

        return await begin(
            job, "verify", which.model_dump(), work, wait, lambda: site.savepoint(job, which.path)
        )

    @api.post("/jobs/{job}/savepoints/dispose", response_model=Object)
    async def dispose(job: Job, which: OneSavepoint, wait: Wait = 30) -> Response:
        """Delete a savepoint, intact or damaged."""
        return await begin(
            job,
            "dispose",
            which.model_dump(),
            lambda _: savepoints.dispose(site.savepoint(job, which.path).place).form(),
            wait,
            lambda: site.savepoint(job, which.path),
        )

    @api.post("/jobs/{job}/restore", response_model=Object)
    async def restore(job: Job, want: WantRestore, wait: Wait = 0) -> Response:
        """Restore the job to a checkpoint or savepoint; if it is not running, at its next start."""
        check_form(want.offsets)
        point = _point(want.point)
        if want.claim and not may_be_claimed(point):
            raise BadRequestError(reason="claim: a checkpoint is the job's own already; name a savepoint")
        wanted = RestoreRequest(
            point,
            want.accept_duplicates,
            maps=tuple(want.maps),
            allow_dropped=want.allow_dropped,
            parallelism=want.parallelism,
            backend=want.state_backend.value if want.state_backend else None,
            offsets=want.offsets,
            claim=want.claim,
        )
        return await ask(
            job,
            "restore",
            wanted.to_wire(),
            lambda asked: restores.restore(asked, wanted, savepoint_dir=site.savepoint_dir(job) or ""),
            wait,
        )

    @api.post("/jobs/{job}/plan", response_model=Object)
    async def plan(job: Job, want: WantPlan, wait: Wait = 0) -> Response:
        """What would become of each source, operator and sink; changes nothing. `code` 0: it fits."""
        point = _point(want.point)

        def work(asked: Caller) -> Shown:
            standing = site.look(job)
            if standing.over:  # nobody is there to make it
                todo = f"'weir plan {standing.file or 'FILE'} -s {point}' makes it"
                raise NoSupervisorError(job=job, verb="plan", reason="it is not running", todo=todo)
            return running_job.plan(asked, point=point, maps=want.maps, allow_dropped=want.allow_dropped)

        return await ask(job, "plan", {**want.model_dump(), "point": point}, work, wait)

    @api.post("/jobs/{job}/state/sample", response_model=Object)
    async def sample(job: Job, want: WantSample, wait: Wait = 0) -> Response:
        """Some rows of an operator's state, as `weir state show` prints them; starts Spark to read them."""
        query_name(want.query)
        return await begin(
            job,
            "sample",
            want.model_dump(),
            lambda _: sample_of(site.dir, job, want.query, want.operator, want.limit),
            wait,
        )

    @api.post("/jobs/{job}/stop", response_model=Object)
    async def stop(job: Job, want: WantStop, wait: Wait = 0) -> Response:
        """End the job for good, with a savepoint; when that fails, the job continues."""
        path = _place(want.path)
        return await ask(
            job,
            "stop",
            {**want.model_dump(), "path": path},
            lambda asked: running_job.stop(asked, savepoint=want.savepoint, path=path, drain=want.drain),
            wait,
        )

    @api.post("/jobs/{job}/cancel", response_model=Object)
    async def cancel(job: Job, wait: Wait = 0) -> Response:
        """End the job: the running batches finish and commit, and no new batch starts."""
        return await ask(job, "cancel", {}, running_job.cancel, wait)

    @api.get("/operations/{id}", response_model=Object)
    async def operation(id: OperationId, wait: Wait = 0) -> Response:
        """An operation: `status` is running, done or failed; then with `result` or `error`."""
        found = site.operations.get(id)
        await _waited(found, wait)
        return JSONResponse(DataAnswer(data=found.form()).model_dump())

    @api.get("/jobs/{job}/operations")
    def operations(job: Job) -> Objects:
        """The operations of this server, newest first."""
        site.look(job)
        return DataAnswer(data=[one.form() for one in reversed(site.operations.of(job))])

    return api


def caller(site: Site, operation: Operation) -> Caller:
    """The job of an operation, which shows how far it is."""

    def progress(reached: Mapping[str, Any]) -> None:
        operation.progress = reached

    return Caller(site.dir, operation.job, waiting=lambda: nullcontext(progress))


async def _waited(operation: Operation, seconds: float) -> None:
    """Wait for its end, for at most this long; other calls are answered meanwhile."""
    until = time.monotonic() + seconds
    while not operation.over.is_set() and time.monotonic() < until:
        await asyncio.sleep(_LOOK)


def _answer(operation: Operation) -> Response:
    if operation.status == FAILED and operation.error is not None:
        return failed(operation.error)
    return JSONResponse(
        DataAnswer(data=operation.form()).model_dump(), 202 if operation.status == RUNNING else 200
    )


def _point(text: str) -> str:
    """Where to resume from, as a job understands it."""
    if not _POINT.fullmatch(text):
        raise BadRequestError(reason="point: it should be latest, 41, chk-41, an absolute path or a URL")
    return f"chk-{int(text)}" if text.isdecimal() else text


def _place(path: str) -> str:
    """Where a savepoint goes; a relative path would be relative to whoever serves."""
    if path and not (path.startswith("/") or "://" in path):
        raise BadRequestError(reason="path: it should be an absolute directory or a URL")
    return path
