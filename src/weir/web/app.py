"""All of it as one application: REST under /api/v1, /metrics, and the pages."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response
from starlette.types import ASGIApp

from weir.web import envelope, login, pages, stream
from weir.web import rest_read as reading
from weir.web import rest_write as acting
from weir.web.guard import FIGURES, Guard, Sessions
from weir.web.metrics import exposed
from weir.web.site import Site, versions

API = "/api/v1"
_THREADS = 8
"""How many calls are worked on at once; each needs a stack, and a supervisor must stay small."""


def application(site: Site, over: Callable[[], bool] = lambda: False) -> FastAPI:
    """What is served, without the guard in front of it; `over`: whether the server is ending."""

    @asynccontextmanager
    async def bounded(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        yield

    app = FastAPI(
        title="weir",
        version=sys.modules["weir"].__version__,
        description="Jobs of a storage: what they do, have done, and can be asked for.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=bounded,
    )
    envelope.install(app)
    for routes in (reading.routes(site), acting.routes(site), stream.routes(site, over)):
        app.include_router(routes, prefix=API)

    @app.get(f"{API}/version", responses=envelope.FAILURES)
    def version() -> envelope.DataAnswer[dict[str, str]]:
        """The versions of weir, Spark and Python that serve."""
        return envelope.DataAnswer(data=versions())

    @app.get(FIGURES, response_class=Response, include_in_schema=False)
    def prometheus() -> Response:
        return Response(exposed(site), media_type=CONTENT_TYPE_LATEST)

    pages.install(app, site)
    return app


def guarded(app: FastAPI, sessions: Sessions | None, address: str, open_figures: bool = False) -> ASGIApp:
    """The application with the guard in front of it; without sessions no token is asked for."""
    login.install(app, sessions)
    return Guard(app, sessions, address, open_figures)
