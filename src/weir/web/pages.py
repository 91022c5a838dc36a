"""The pages, made here on each call from the same readings as REST; a script keeps what is shown up to date.

Without the script every page is complete; with it, its parts marked `data-live` are fetched again when
something has happened.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2s
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from weir.errors import WeirError
from weir.monitor import checkpoints, events, forms, logs, measures
from weir.monitor import failures as causes
from weir.monitor.checkpoints import PHASES
from weir.monitor.events import PARTS, Event
from weir.monitor.health import health
from weir.monitor.job import LOST
from weir.monitor.report import JobReport, checkpoint_settings, report, spark_ui
from weir.protocol.states import CheckpointState
from weir.savepoint.catalogue import CatalogueEntry
from weir.text import counted, lasting, number, seconds_since, size, took, when
from weir.web import svg as drawing
from weir.web.envelope import status_of, words
from weir.web.site import Site, versions

TABS = ("overview", "checkpoints", "savepoints", "recoveries", "failures", "state", "log", "history")
HISTORY = (
    *("state", "attempt", "note", "restart", "gave up", "cancel", "stop", "configured", "restore"),
    *("restored", "savepoint taken", "savepoint failed", "savepoints deleted", "cut off"),
)
"""The kinds of events on the page of history; batches and checkpoints have their own."""
_UNKNOWN = "-"
_PAGE = 25
_IN_PLACE = ("plan", "sample")
"""What these come to is shown where they were asked for."""
_LATELY = 600.0
"""For how many seconds the header shows what became of an operation."""
_LINES = 100
"""How many events are on a page of history."""
_LOG_LINES, _LOGS = 1000, 20
"""How many lines of a log are on its page, and how many of the newest attempts can be chosen."""
_POINTS = 200
_NOTHING = 0.05
"""A phase that never took this many seconds is left out."""
_SPARK = 60
"""How many batches of its slowest query are the sparkline of a job."""
Before = Annotated[int | None, Query(ge=1, le=2**53)]


def install(app: FastAPI, site: Site) -> None:
    """Add the pages to an application."""
    pages = Pages(site, lambda: bool(getattr(app.state, "guarded", False)))
    app.mount("/static", StaticFiles(directory=str(files("weir.web") / "static")), name="static")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def jobs() -> Response:
        return pages.jobs()

    @app.get("/jobs/{job}", response_class=HTMLResponse, include_in_schema=False)
    def overview(job: str) -> Response:
        return pages.of(job, "overview", pages.overview)

    @app.get("/jobs/{job}/checkpoints", response_class=HTMLResponse, include_in_schema=False)
    def all_checkpoints(job: str, before: Before = None) -> Response:
        return pages.of(job, "checkpoints", lambda seen: pages.checkpoints(seen, before))

    @app.get("/jobs/{job}/checkpoints/settings", response_class=HTMLResponse, include_in_schema=False)
    def checkpoint_settings(job: str) -> Response:
        return pages.of(job, "checkpoints", pages.checkpoint_settings, "checkpoint_settings")

    @app.get("/jobs/{job}/checkpoints/{id}", response_class=HTMLResponse, include_in_schema=False)
    def one_checkpoint(job: str, id: int) -> Response:
        return pages.of(job, "checkpoints", lambda seen: pages.checkpoint(seen, id), "checkpoint")

    @app.get("/jobs/{job}/savepoints", response_class=HTMLResponse, include_in_schema=False)
    def savepoints(job: str) -> Response:
        return pages.of(job, "savepoints", pages.savepoints)

    @app.get("/jobs/{job}/recoveries", response_class=HTMLResponse, include_in_schema=False)
    def recoveries(job: str, before: Before = None) -> Response:
        return pages.of(job, "recoveries", lambda seen: pages.recoveries(seen, before))

    @app.get("/jobs/{job}/failures", response_class=HTMLResponse, include_in_schema=False)
    def failures(job: str) -> Response:
        return pages.of(job, "failures", pages.failures)

    @app.get("/jobs/{job}/state", response_class=HTMLResponse, include_in_schema=False)
    def state(job: str) -> Response:
        return pages.of(job, "state", pages.state)

    @app.get("/jobs/{job}/log", response_class=HTMLResponse, include_in_schema=False)
    def log(job: str, attempt: Before = None) -> Response:
        return pages.of(job, "log", lambda seen: pages.log(seen, attempt))

    @app.get("/jobs/{job}/history", response_class=HTMLResponse, include_in_schema=False)
    def history(job: str, before: Before = None) -> Response:
        return pages.of(job, "history", lambda seen: pages.history(seen, before))


class Pages:
    """The pages of a site. Its methods are called from any thread."""

    def __init__(self, site: Site, guarded: Callable[[], bool] = lambda: False) -> None:
        """`guarded`: whether there is a session that one could log out of."""
        self._site = site
        self._guarded = guarded
        self._environment = templates()

    def jobs(self) -> Response:
        """Every job of the storage: those that somebody works on first."""
        rows = [self._row(report(self._site.dir, one.name, self._site.clock)) for one in self._site.jobs()]
        rows.sort(key=lambda row: (row["job"]["alive"] is False, row["job"]["name"]))
        return self._page("jobs.html", rows=rows, dir=self._site.dir)

    def of(self, job: str, tab: str, content: Any, template: str = "") -> Response:
        """A page about one job, or the page with the reason why there is none."""
        try:
            seen = report(self._site.dir, job, self._site.clock, recoveries=1)
            name = seen.job.name
            about = {
                **self._row(seen),
                "savepoint_dir": self._site.savepoint_dir(name) or "",
                "operations": self._operations(name),
            }
            return self._page(f"{template or tab}.html", tab=tab, tabs=TABS, **about, **content(seen))
        except WeirError as error:
            return self._page("error.html", status_of(error), error=words(error))

    def overview(self, seen: JobReport) -> dict[str, Any]:
        dir, name, clock = self._site.dir, seen.job.name, self._site.clock
        found = measures.graph(dir, name, clock)["queries"]
        queries = measures.queries(dir, name, clock, _POINTS)
        newest = checkpoints.newest(dir, name, clock, 3)
        down = seen.job.state == LOST or measures.down(seen.job)
        author = {one["query"]: one["reads"][0] for one in found if len(one["reads"]) == 1}
        unread = measures.unread(queries, author)
        return {
            "drawing": drawing.graph(found, down=down),
            "down": down,
            "queries": found,
            "rate": sum(one["rate"] or 0 for one in found),
            "state_rows": sum(one["state_rows"] or 0 for one in found),
            "state_bytes": sum(one["state_bytes"] or 0 for one in found),
            "batch_chart": _batch_chart(queries, "seconds", "s") | self._events(seen),
            "rows_chart": _batch_chart(queries, "rows", "rows") | self._events(seen),
            "lag_charts": [
                (unit, _chart(lines, "rows") | self._events(seen)) for unit, lines in unread.items()
            ],
            "pending": [one for one in newest if one.status is CheckpointState.PENDING],
            "notes": self._kept(name, "note", "state", limit=12)[::-1],
        }

    def checkpoints(self, seen: JobReport, before: int | None) -> dict[str, Any]:
        name = seen.job.name
        found = checkpoints.newest(self._site.dir, name, self._site.clock, _PAGE + 1, before)
        shown = found[-_PAGE:]
        longest = max((one.seconds or 0 for one in shown), default=0) or 1.0
        summary = measures.checkpoints(self._site.dir, name)
        return {
            "rows": [
                {**vars(one), "status": one.status.value, "acks": one.acks, "lanes": _lanes(one, longest)}
                for one in reversed(shown)
            ],
            "before": before,
            "older": shown[0].id if len(found) > _PAGE else None,
            "total": events.begun(self._site.dir, name),
            "summary": summary,
            "phases": PHASES,
            "time_chart": _course(summary["course"], {"seconds": "trigger to last ack"}, "s")
            | self._events(seen),
            "size_chart": _course(summary["course"], {"new_bytes": "new", "full_bytes": "full"}, "bytes")
            | self._events(seen),
        }

    def checkpoint_settings(self, seen: JobReport) -> dict[str, Any]:
        name = seen.job.name
        summary = measures.checkpoints(self._site.dir, name)
        return {
            "summary": summary,
            "spreads": _spreads(summary),
            "phased": min(len(summary["course"]), measures.PHASED),
            "settings": checkpoint_settings(self._site.dir, name, self._site.clock),
        }

    def checkpoint(self, seen: JobReport, id: int) -> dict[str, Any]:
        name = seen.job.name
        one = checkpoints.one(self._site.dir, name, self._site.clock, id)
        queries = measures.graph(self._site.dir, name, self._site.clock)["queries"]
        delivering = [query["sink"] for query in queries if query["sink"] and not query["channel"]]
        return {
            "one": forms.checkpoint(one),
            "status": one.status.value,
            "acks": one.acks if one.status in (CheckpointState.PENDING, CheckpointState.ABORTED) else "",
            "whole": checkpoints.lengths(one.phases),
            "whole_bar": drawing.bars(checkpoints.lengths(one.phases), kind="whole"),
            "lanes": _lanes(one, max((_length(body) for body in one.queries.values()), default=0)),
            "phases": PHASES,
            "now_at": _now_at(seen),
            "rewindable": all(sink.get("rewindable") for sink in delivering),
        }

    def savepoints(self, seen: JobReport) -> dict[str, Any]:
        name = seen.job.name
        found = [_savepoint(one) for one in reversed(self._site.savepoints(name))]
        return {"rows": found, "now_at": _now_at(seen)}

    def recoveries(self, seen: JobReport, before: int | None) -> dict[str, Any]:
        found, older = self._paged(seen, before, _PAGE, "recovery")
        longest = max((one.body["seconds"] for one in found), default=1.0) or 1.0
        spread = measures.spread(one.body["seconds"] for one in found)
        return {
            "spread": spread,
            "rows": [
                {
                    **forms.happened(one),
                    "steps": drawing.steps([(p, one.body["parts"].get(p, 0.0)) for p in PARTS]),
                    "bar": drawing.bars(
                        [(p, one.body["parts"].get(p, 0.0)) for p in PARTS], longest, kind="part"
                    ),
                }
                for one in found
            ],
            "before": before,
            "older": older,
        }

    def failures(self, seen: JobReport) -> dict[str, Any]:
        return {"groups": causes.grouped(self._kept(seen.job.name, "failure", limit=1000))}

    def state(self, seen: JobReport) -> dict[str, Any]:
        queries = measures.queries(self._site.dir, seen.job.name, self._site.clock, _POINTS)
        return {
            "queries": [one.form() for one in queries],
            "rows_chart": _batch_chart(queries, "state_rows", "rows") | self._events(seen),
            "bytes_chart": _batch_chart(queries, "state_bytes", "bytes") | self._events(seen),
        }

    def log(self, seen: JobReport, attempt: int | None) -> dict[str, Any]:
        job = seen.job
        shown = logs.tail(self._site.dir, job.name, attempt, _LOG_LINES)
        return {
            "log": shown,
            "attempts": shown.attempts[:_LOGS],
            "growing": not job.over and shown.attempt in (None, job.attempt),
            "spark_ui": spark_ui(self._site.dir, job),
        }

    def history(self, seen: JobReport, before: int | None) -> dict[str, Any]:
        found, older = self._paged(seen, before, _LINES, *HISTORY)
        return {"events": found, "before": before, "older": older}

    def _kept(self, job: str, *kinds: str, limit: int, before: int | None = None) -> list[Event]:
        return events.kept(self._site.dir, job, self._site.clock, *kinds, limit=limit, before=before)

    def _paged(
        self, seen: JobReport, before: int | None, limit: int, *kinds: str
    ) -> tuple[list[Event], int | None]:
        """A page of events, newest first, and the number before which the next page begins."""
        found = self._kept(seen.job.name, *kinds, limit=limit + 1, before=before)[::-1]
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    def _row(self, seen: JobReport) -> dict[str, Any]:
        """What every page shows of a job."""
        dir, clock, name = self._site.dir, self._site.clock, seen.job.name
        queries = [one for one in measures.queries(dir, name, clock, _SPARK) if one.last]
        slowest = max(queries, key=lambda one: float(one.batches[-1]["seconds"]), default=None)
        course = [float(batch["seconds"]) for batch in slowest.batches] if slowest else []
        return {
            "job": forms.report(dir, seen, clock.now()),
            "health": health(dir, seen, clock),
            "spark": drawing.sparkline(course, _seconds),
            "lag": _lag(queries),
        }

    def _events(self, seen: JobReport) -> dict[str, Any]:
        """What a chart shows beside its lines: when the job was down, and checkpoints that were aborted."""
        name = seen.job.name
        outages = measures.outages(self._site.dir, name, self._site.clock)
        aborted = self._kept(name, "checkpoint aborted", limit=_POINTS)
        return {
            "outages": outages,
            "marks": [[one.at, f"checkpoint {one.body['id']} was aborted"] for one in aborted],
        }

    def _operations(self, job: str) -> list[dict[str, Any]]:
        """What was asked for: under way, or ended lately."""
        now = self._site.clock.now()
        asked = [one for one in self._site.operations.of(job) if one.verb not in _IN_PLACE]
        shown = [
            one.form()
            for one in reversed(asked[-5:])
            if one.ended_at is None or seconds_since(one.ended_at, now) < _LATELY
        ]
        return [{**one, "outcome": _outcome(one["verb"], one["result"] or {})} for one in shown]

    def _page(self, template: str, code: int = 200, /, **values: Any) -> Response:
        now = self._site.clock.now()
        served_by = self._site.job
        text = self._environment.get_template(template).render(
            now=now, served_by=served_by, guarded=self._guarded(), **values
        )
        return HTMLResponse(text, code)


def _outcome(verb: str, result: Mapping[str, Any]) -> str:
    """What came of an operation, in a few words."""
    if verb == "verify":
        return "every file is intact" if result.get("whole") else ", ".join(result.get("damage", ()))
    if verb == "restore" and result:
        when_ = "resumes" if result.get("live") else "the next start resumes"
        return f"{when_} from checkpoint {result.get('checkpoint')}"
    if verb == "checkpoint" and result:
        return f"checkpoint {result.get('id')}, {_seconds(result.get('seconds'))}"
    if verb == "configure":
        return ", ".join(f"{key} = {value}" for key, value in result.get("settings", {}).items())
    return str(result.get("path") or result.get("state") or "")


def _lag(queries: Sequence[measures.Query]) -> str:
    """The worst of all queries, in words; nothing when none reports it."""
    behind = [one.behind for one in queries if one.behind is not None and one.behind["count"]]
    marks = [one.watermark_lag for one in queries if one.watermark_lag is not None]
    if behind:
        worst = max(behind, key=lambda one: int(one["count"]))
        return f"{number(worst['count'])} {worst['unit']}"
    return f"watermark {lasting(max(marks))}" if marks else ""


def _spreads(summary: Mapping[str, Any]) -> list[tuple[str, str, dict[str, float]]]:
    """The phases that are worth a line: query, phase and its spread."""
    return [
        (query, phase, all[phase])
        for query, all in summary["phases"].items()
        for phase in PHASES
        if all.get(phase) and all[phase]["max"] >= _NOTHING
    ]


def _lanes(one: checkpoints.Checkpoint, total: float) -> list[dict[str, Any]]:
    """For each query of a checkpoint its phases as one bar."""
    return [
        {
            "query": name,
            **{key: body.get(key) for key in ("batch", "unaligned", "new_bytes", "full_bytes")},
            "phases": body.get("phases", {}),
            "seconds": _length(body),
            "bar": drawing.bars([(p, body.get("phases", {}).get(p, 0.0)) for p in PHASES], total or None),
        }
        for name, body in one.queries.items()
    ]


def _length(body: Mapping[str, Any]) -> float:
    return float(sum(body.get("phases", {}).values()))


def _savepoint(entry: CatalogueEntry) -> dict[str, Any]:
    queries = entry.savepoint.queries if entry.savepoint else {}
    sinks = [query.sink for query in queries.values() if query.sink is not None]
    return {
        **forms.savepoint(entry),
        "key": blake2s(entry.place.encode(), digest_size=8).hexdigest(),
        "at_batch": {name: query.batch for name, query in queries.items()},
        "rewindable": all(sink.rewindable for sink in sinks),
    }


def _now_at(seen: JobReport) -> dict[str, Any]:
    """Which batch each query has committed last: what a restore would rewind."""
    return {one["query"]: one["batch"] for one in seen.queries}


def _batch_chart(queries: Sequence[measures.Query], field: str, unit: str) -> dict[str, Any]:
    """The course of a figure of each query, for the script to draw."""
    lines = {one.name: [[b["at"], b[field]] for b in one.batches] for one in queries if one.last}
    return _chart(lines, unit)


def _course(course: Sequence[Mapping[str, Any]], fields: Mapping[str, str], unit: str) -> dict[str, Any]:
    shown = course[:: -max(1, len(course) // _POINTS)][::-1]
    lines = {label: [[one["at"], one[field]] for one in shown] for field, label in fields.items()}
    return _chart(lines, unit)


def _chart(lines: Mapping[str, list[list[Any]]], unit: str) -> dict[str, Any]:
    return {"unit": unit, "series": [{"name": name, "points": points} for name, points in lines.items()]}


def _seconds(value: float | None) -> str:
    return _UNKNOWN if value is None else took(value)


def templates() -> Environment:
    """The templates of all pages, with the forms that numbers and times have in them."""
    environment = Environment(
        loader=PackageLoader("weir.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": lambda value: _UNKNOWN if value is None else size(value),
        "number": lambda value: _UNKNOWN if value is None else number(value),
        "lasting": lambda value: _UNKNOWN if value is None else lasting(value),
        "seconds": _seconds,
        "counted": counted,
        "growth": lambda value: (
            _UNKNOWN if value is None else f"{'-' if value < 0 else '+'}{size(abs(value))}"
        ),
        "when": when,
        "ago": lambda moment, now: f"{lasting(seconds_since(moment, now))} ago",
        "segment": lambda text: quote(str(text), safe=""),
        "slug": lambda text: re.sub(r"[^a-z0-9]+", "-", str(text).lower()),
    }
    environment.globals |= {
        "tab_of": lambda tab: "" if tab == "overview" else f"/{tab}",
        "meaning": lambda word: checkpoints.MEANINGS.get(str(word), ""),
        "versions": versions(),
        "zone": time.strftime("%Z"),
    }
    return environment
