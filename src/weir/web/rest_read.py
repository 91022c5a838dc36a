"""REST, what can be seen. Everything is read from the journal and the storage when it is asked for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from weir.config import RUNTIME_KEYS, describe
from weir.ids import job_name
from weir.savepoint.place import Place
from weir.supervisor import causes, checkpoints, forms, measures
from weir.supervisor.journal import Event
from weir.supervisor.view import history_of, report, settings_of
from weir.web.envelope import FAILURES, Answer, Page, Paged
from weir.web.metrics import figures
from weir.web.site import Site

Job = Annotated[str, Path(description="the job's name")]
Id = Annotated[int, Path(ge=1, le=2**53, description="the checkpoint's number")]
Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many")]
Before = Annotated[int | None, Query(ge=1, le=2**53, description="only those with lower ids")]
After = Annotated[int, Query(ge=0, le=2**53, description="only those behind this one")]
Kind = Annotated[str | None, Query(max_length=50, description="only of this kind, such as 'state' or 'note'")]
SavedAt = Annotated[str, Query(max_length=4096, description="its path, as the catalogue has it")]
Recent = Annotated[int, Query(ge=1, le=5000, description="so many of the newest batches of each query")]

Object = Answer[dict[str, Any]]
Objects = Answer[list[dict[str, Any]]]
CHECKPOINTING = ("execution.checkpointing.", "savepoint.", "state.")
"""The settings that are about checkpoints."""


def routes(site: Site) -> APIRouter:
    """The calls that change nothing."""
    api = APIRouter(responses=FAILURES)
    dir, clock = site.dir, site.clock

    @api.get("/jobs")
    def jobs() -> Objects:
        """Every job of the storage, running or not."""
        now = clock.now()
        return Answer(data=[forms.job(one, now) for one in site.jobs()])

    @api.get("/jobs/{job}")
    def job(job: Job) -> Object:
        """A job with its queries, its last checkpoint, failure, restore and recoveries."""
        return Answer(data=forms.report(dir, report(dir, job, clock), clock.now()))

    @api.get("/jobs/{job}/graph")
    def graph(job: Job) -> Object:
        """The graph: each query with what it reads, where it delivers, its rate, lag and state."""
        return Answer(data=measures.graph(dir, job, clock))

    @api.get("/jobs/{job}/queries")
    def queries(job: Job) -> Objects:
        """Each query with its newest batch, rate, lag, state and the spread of its batch times."""
        return Answer(data=[one.form() for one in measures.queries(dir, job, clock)])

    @api.get("/jobs/{job}/batches")
    def batches(job: Job, recent: Recent = 300) -> Object:
        """The newest batches of each query, oldest first."""
        found = measures.queries(dir, job, clock, recent)
        return Answer(data={one.name: one.batches for one in found})

    @api.get("/jobs/{job}/checkpoints")
    def list_checkpoints(job: Job, limit: Limit = 50, before: Before = None) -> Paged:
        """The checkpoints, newest first, a page at a time."""
        found = checkpoints.newest(dir, job, clock, limit + 1, before)
        shown = found[-limit:]
        page = Page(
            limit=limit,
            next_before=shown[0].id if len(found) > limit else None,
            total=total(site, job),
        )
        return Paged(data=[vars(one) for one in reversed(shown)], page=page)

    @api.get("/jobs/{job}/checkpoints/summary")
    def summary(job: Job) -> Object:
        """Counts, percentiles of time and sizes, the spread of each phase, and the course over time."""
        site.look(job)
        return Answer(data=measures.checkpoints(dir, job))

    @api.get("/jobs/{job}/checkpoints/config")
    def config(job: Job) -> Object:
        """The settings about checkpoints: value, who gave it, meaning, and whether it can be changed now."""
        return Answer(data={"settings": settings(site, job)})

    @api.get("/jobs/{job}/checkpoints/{id}")
    def checkpoint(job: Job, id: Id) -> Object:
        """One checkpoint with the phases of each query."""
        return Answer(data=vars(checkpoints.one(dir, job, clock, id)))

    @api.get("/jobs/{job}/savepoints")
    def savepoints(job: Job) -> Objects:
        """The savepoints of the job that can be found, newest first."""
        return Answer(data=[forms.savepoint(one) for one in reversed(site.savepoints(job))])

    @api.get("/jobs/{job}/savepoints/content")
    def savepoint(job: Job, path: SavedAt) -> Object:
        """What is in a savepoint: queries, sources with offsets, operators, sinks."""
        entry = site.savepoint(job, path)
        saved = entry.savepoint or Place(entry.place).read()
        body = saved.model_dump(mode="json", exclude={"files"})
        return Answer(data={**forms.savepoint(entry), **body, "file_count": len(saved.files)})

    @api.get("/jobs/{job}/restarts")
    def restarts(job: Job, limit: Limit = 100) -> Objects:
        """The restarts, newest first: of which query ("" for all), and how long was waited before."""
        return Answer(data=events(site, job, "restart", limit=limit))

    @api.get("/jobs/{job}/recoveries")
    def recoveries(job: Job, limit: Limit = 100) -> Objects:
        """The recoveries, newest first: cause, seconds, parts, what ran again, the first batch behind it."""
        return Answer(data=events(site, job, "recovery", limit=limit))

    @api.get("/jobs/{job}/failures")
    def failures(job: Job, limit: Limit = 1000) -> Objects:
        """The failures by cause: first and last seen, batches, frames with the author's own first, advice."""
        return Answer(data=causes.grouped(kept(site, job, "failure", limit=limit)))

    @api.get("/jobs/{job}/events")
    def list_events(job: Job, after: After = 0, limit: Limit = 100, kind: Kind = None) -> Objects:
        """What the journal keeps, oldest first, from behind `after`; of one `kind`, the newest of that."""
        site.look(job)
        if kind is not None:
            return Answer(data=[vars(one) for one in kept(site, job, kind, limit=limit) if one.id > after])
        with history_of(dir, job_name(job)) as history:
            return Answer(data=[vars(one) for one in history.since(after, limit)] if history else [])

    @api.get("/jobs/{job}/metrics")
    def job_metrics(job: Job) -> Objects:
        """The figures of /metrics as JSON: name, labels, value."""
        site.look(job)
        return Answer(data=[asdict(one) for one in figures(site, job)])

    return api


def total(site: Site, job: str) -> int:
    """How many checkpoints the job has begun, as far as its journal has counted."""
    with history_of(site.dir, job_name(job)) as history:
        counted = history.totals() if history else []
    return next((int(one["count"]) for one in counted if one["kind"] == "checkpoint begun"), 0)


def settings(site: Site, job: str) -> list[dict[str, Any]]:
    """The settings about checkpoints, as the job has them."""
    standing = site.look(job)
    told = settings_of(site.dir, job)
    live = standing.supervised and not standing.over
    return [
        {
            "key": one.key,
            "value": told[one.key]["value"],
            "origin": told[one.key]["origin"],
            "meaning": one.meaning,
            "type": one.type,
            "changeable": live and one.key in RUNTIME_KEYS,
        }
        for one in describe()
        if one.key in told and one.key.startswith(CHECKPOINTING)
    ]


def kept(site: Site, job: str, *kinds: str, limit: int, before: int | None = None) -> list[Event]:
    """The newest events of these kinds (with ids below `before`), oldest first; raises `NoSuchJobError`."""
    site.look(job)
    with history_of(site.dir, job_name(job)) as history:
        return history.events(*kinds, limit=limit, before=before) if history else []


def events(site: Site, job: str, *kinds: str, limit: int) -> list[dict[str, Any]]:
    """The same as plain values, newest first."""
    return [forms.happened(one) for one in reversed(kept(site, job, *kinds, limit=limit))]
