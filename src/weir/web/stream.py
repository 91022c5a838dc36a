"""Events as they come, as a server-sent stream: the journal is looked at twice a second.

Each event has the number of the journal's, so that a browser that comes back misses none. Batches are
many: of those only the news that there are new ones is sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from weir.errors import ExternalError
from weir.monitor.events import news
from weir.web.envelope import FAILURES
from weir.web.rest_read import Job
from weir.web.site import Site

_LOOK = 0.5
_ALIVE = 15.0
"""Something is sent at least this often, so that both ends know of each other."""

Last = Annotated[
    str,
    Header(alias="Last-Event-ID", max_length=20, description="the last event that the reader has received"),
]


def routes(site: Site, over: Callable[[], bool]) -> APIRouter:
    api = APIRouter(responses=FAILURES)

    @api.get(
        "/jobs/{job}/events/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def stream(job: Job, last: Last = "") -> StreamingResponse:
        """The journal's events as server-sent events, as they happen; `batch` when there are new batches."""
        await run_in_threadpool(site.look, job)
        after = int(last) if last.isascii() and last.isdigit() else None
        return StreamingResponse(_sent(site, job, after, over), media_type="text/event-stream")

    return api


async def _sent(site: Site, job: str, after: int | None, over: Callable[[], bool]) -> AsyncIterator[str]:
    first = await run_in_threadpool(news, site.dir, job, site.clock, None)
    event, batch, state = first.event if after is None else after, first.batch, first.state
    yield f"retry: 2000\nevent: open\ndata: {json.dumps({'state': state})}\n\n"
    quiet = 0.0
    while not over():
        await asyncio.sleep(_LOOK)
        quiet += _LOOK
        try:
            found = await run_in_threadpool(news, site.dir, job, site.clock, event)
        except ExternalError:
            continue  # a storage that fails for a while; the reader is not sent away
        for one in found.events:
            body = json.dumps({"kind": one.kind, "at": one.at, "query": one.query, "body": one.body})
            yield f"id: {one.id}\nevent: journal\ndata: {body}\n\n"
        if found.batch != batch:
            yield f"event: batch\ndata: {json.dumps({'newest': found.batch})}\n\n"
        if found.state != state:
            yield f"event: state\ndata: {json.dumps({'state': found.state})}\n\n"
        elif quiet >= _ALIVE:
            quiet = 0.0
            yield ": alive\n\n"
        event, batch, state = max(event, found.event), found.batch, found.state
