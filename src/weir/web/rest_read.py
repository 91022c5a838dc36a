"""REST, what can be seen. Everything is read from the journal and the storage when it is asked for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from weir.monitor import checkpoints, events, forms, logs, measures
from weir.monitor import failures as causes
from weir.monitor.figures import figures
from weir.monitor.report import checkpoint_settings, report
from weir.savepoint.place import SavepointPlace
from weir.web.envelope import FAILURES, DataAnswer, Page, Paged
from weir.web.site import Site

Job = Annotated[str, Path(description="the job's name")]
Id = Annotated[int, Path(ge=1, le=2**53, description="the checkpoint's number")]
Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]
Before = Annotated[int | None, Query(ge=1, le=2**53, description="only those with lower ids")]
After = Annotated[int, Query(ge=0, le=2**53, description="only those after this one")]
Kind = Annotated[str | None, Query(max_length=50, description="only of this kind, such as 'state' or 'note'")]
OfAttempt = Annotated[int | None, Query(ge=1, le=2**53, description="of this attempt instead of the newest")]
Lines = Annotated[int, Query(ge=1, le=5000, description="how many of the last lines")]
SavedAt = Annotated[str, Query(max_length=4096, description="its path, as the catalogue has it")]
Recent = Annotated[int, Query(ge=1, le=5000, description="how many of the newest batches of each query")]

Object = DataAnswer[dict[str, Any]]
Objects = DataAnswer[list[dict[str, Any]]]


def routes(site: Site) -> APIRouter:
    """The calls that change nothing."""
    api = APIRouter(responses=FAILURES)
    dir, clock = site.dir, site.clock

    @api.get("/jobs")
    def jobs() -> Objects:
        """Every job of the storage, running or not."""
        now = clock.now()
        return DataAnswer(data=[forms.job(one, now) for one in site.jobs()])

    @api.get("/jobs/{job}")
    def job(job: Job) -> Object:
        """A job with its queries, its last checkpoint, failure, restore and recoveries."""
        return DataAnswer(data=forms.report(dir, report(dir, job, clock), clock.now()))

    @api.get("/jobs/{job}/graph")
    def graph(job: Job) -> Object:
        """The graph: each query with what it reads, where it delivers, its rate, lag and state."""
        return DataAnswer(data=measures.graph(dir, job, clock))

    @api.get("/jobs/{job}/queries")
    def queries(job: Job) -> Objects:
        """Each query with its newest batch, rate, lag, state and the spread of its batch times."""
        return DataAnswer(data=[one.form() for one in measures.queries(dir, job, clock)])

    @api.get("/jobs/{job}/batches")
    def batches(job: Job, recent: Recent = 300) -> Object:
        """The newest batches of each query, oldest first."""
        found = measures.queries(dir, job, clock, recent)
        return DataAnswer(data={one.name: one.batches for one in found})

    @api.get("/jobs/{job}/checkpoints")
    def list_checkpoints(job: Job, limit: Limit = 50, before: Before = None) -> Paged:
        """The checkpoints, newest first, a page at a time."""
        found = checkpoints.newest(dir, job, clock, limit + 1, before)
        shown = found[-limit:]
        page = Page(
            limit=limit,
            next_before=shown[0].id if len(found) > limit else None,
            total=events.begun(dir, job),
        )
        return Paged(data=[forms.checkpoint(one) for one in reversed(shown)], page=page)

    @api.get("/jobs/{job}/checkpoints/summary")
    def summary(job: Job) -> Object:
        """Counts, the latest of each kind, percentiles, the spread of each phase, the course over time."""
        site.look(job)
        return DataAnswer(data=measures.checkpoints(dir, job))

    @api.get("/jobs/{job}/checkpoints/config")
    def config(job: Job) -> Object:
        """The settings for checkpoints: value, origin, meaning, and whether it can be changed now."""
        return DataAnswer(data={"settings": checkpoint_settings(dir, job, clock)})

    @api.get("/jobs/{job}/checkpoints/{id}")
    def checkpoint(job: Job, id: Id) -> Object:
        """One checkpoint with the phases of each query."""
        return DataAnswer(data=forms.checkpoint(checkpoints.one(dir, job, clock, id)))

    @api.get("/jobs/{job}/savepoints")
    def savepoints(job: Job) -> Objects:
        """The savepoints of the job that can be found, newest first."""
        return DataAnswer(data=[forms.savepoint(one) for one in reversed(site.savepoints(job))])

    @api.get("/jobs/{job}/savepoints/content")
    def savepoint(job: Job, path: SavedAt) -> Object:
        """What is in a savepoint: queries, sources with offsets, operators, sinks."""
        entry = site.savepoint(job, path)
        saved = entry.savepoint or SavepointPlace(entry.place).read()
        body = saved.model_dump(mode="json", exclude={"files"})
        return DataAnswer(data={**forms.savepoint(entry), **body, "file_count": len(saved.files)})

    @api.get("/jobs/{job}/restarts")
    def restarts(job: Job, limit: Limit = 100) -> Objects:
        """The restarts, newest first: of which query ("" for all), and the wait before."""
        return DataAnswer(data=events.listed(dir, job, clock, "restart", limit=limit))

    @api.get("/jobs/{job}/recoveries")
    def recoveries(job: Job, limit: Limit = 100) -> Objects:
        """The recoveries, newest first: cause, seconds, parts, what ran again, the first batch after it."""
        return DataAnswer(data=events.listed(dir, job, clock, "recovery", limit=limit))

    @api.get("/jobs/{job}/failures")
    def failures(job: Job, limit: Limit = 1000) -> Objects:
        """The failures by cause: first and last seen, batches, frames with the author's own first, advice."""
        return DataAnswer(data=causes.grouped(events.kept(dir, job, clock, "failure", limit=limit)))

    @api.get("/jobs/{job}/events")
    def list_events(job: Job, after: After = 0, limit: Limit = 100, kind: Kind = None) -> Objects:
        """Events of the journal, oldest first, those after `after`; with `kind`, the newest of that kind."""
        if kind is not None:
            found = [one for one in events.kept(dir, job, clock, kind, limit=limit) if one.id > after]
        else:
            found = events.since(dir, job, clock, after, limit)
        return DataAnswer(data=[vars(one) for one in found])

    @api.get("/jobs/{job}/log")
    def log(job: Job, attempt: OfAttempt = None, lines: Lines = 500) -> Object:
        """The last lines that the driver of an attempt printed, and the attempts that have output."""
        site.look(job)
        return DataAnswer(data=asdict(logs.tail(dir, job, attempt, lines)))

    @api.get("/jobs/{job}/metrics")
    def job_metrics(job: Job) -> Objects:
        """The figures of /metrics as JSON: name, labels, value."""
        site.look(job)
        return DataAnswer(data=[asdict(one) for one in figures(dir, job, clock)])

    return api
