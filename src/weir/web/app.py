"""All of it as one application: REST under /api/v1, /metrics, and the pages."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import Response
from starlette.types import ASGIApp

from weir.errors import WeirError
from weir.ids import job_name
from weir.monitor.figures import BUILD, HISTOGRAMS, JOB, MEANINGS, Figure, figures
from weir.monitor.job import job_names
from weir.web import envelope, pages, stream
from weir.web import rest_read as reading
from weir.web import rest_write as acting
from weir.web.guard import FIGURES, Guard, Sessions
from weir.web.site import Site, versions

# The figures of jobs in the form of Prometheus; `monitor/figures.py` has them.


def exposed(site: Site) -> bytes:
    """All of it in Prometheus' form: of the job whose supervisor serves, or of every job."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(site))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, site: Site) -> None:
        self._site = site

    def collect(self) -> Iterable[Metric]:
        found: dict[str, list[Figure]] = {name: [] for name in MEANINGS}
        found[BUILD].append(Figure(BUILD, 1.0, versions()))
        for job in [job_name(self._site.job)] if self._site.job else job_names(self._site.dir):
            try:
                for one in figures(self._site.dir, job, self._site.clock):
                    labelled = Figure(one.name, one.value, {JOB: job, **one.labels})
                    found[_figure_of(one.name)].append(labelled)
            except WeirError:
                continue  # one that can't be read is left out, and not all of them
        return [_family(name, values) for name, values in found.items() if values]


def _figure_of(name: str) -> str:
    """The figure that a sample belongs to: that of a histogram has several."""
    figure, _, end = name.rpartition("_")
    return figure if figure in HISTOGRAMS and end in ("bucket", "sum", "count") else name


def _family(name: str, values: list[Figure]) -> Metric:
    if name in HISTOGRAMS:
        histogram = HistogramMetricFamily(name, MEANINGS[name])
        for one in values:
            histogram.add_sample(one.name, one.labels, one.value)
        return histogram
    labels = list(values[0].labels)
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, MEANINGS[name], labels=labels)
    for one in values:
        family.add_metric([one.labels[label] for label in labels], one.value)
    return family


API = "/api/v1"
_THREADS = 8
"""How many calls are worked on at once; each needs a stack, and a supervisor must stay small."""


def application(site: Site, over: Callable[[], bool] = lambda: False) -> FastAPI:
    """What is served, without the guard in front of it; `over` tells that the server is ending."""

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
    def version() -> envelope.Answer[dict[str, str]]:
        """The versions of weir, Spark and Python that serve."""
        return envelope.Answer(data=versions())

    @app.get(FIGURES, response_class=Response, include_in_schema=False)
    def prometheus() -> Response:
        return Response(exposed(site), media_type=CONTENT_TYPE_LATEST)

    pages.install(app, site)
    return app


def guarded(app: FastAPI, sessions: Sessions | None, address: str, open_figures: bool = False) -> ASGIApp:
    """The application with the guard in front of it; without sessions no token is asked for."""
    pages.install_login(app, sessions)
    return Guard(app, sessions, address, open_figures)
