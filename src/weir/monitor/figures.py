"""The figures of a job for whoever watches it over time, read from the journal when they are asked for.

Counters and histograms only grow, also over restarts of whoever serves them: the journal counts for itself
and keeps every count. What is not known is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weir.clock import Clock
from weir.ids import job_name
from weir.monitor.job import LOST, look
from weir.monitor.measures import Query
from weir.protocol.states import JobState, QueryState
from weir.supervisor.history import (
    BATCHES,
    BOUNDS,
    COMPLETED,
    MACHINE_FAILURES,
    RECOVERIES,
    ROWS,
    Histogram,
    History,
    history_of,
)
from weir.text import moment_of

__all__ = ["BOUNDS", "BUILD", "HISTOGRAMS", "JOB", "MEANINGS", "Figure", "figures"]

MEANINGS = {
    "weir_build_info": "1, with the versions of weir, Spark and Python that serve these figures",
    "weir_job_up": "1 while a process works on the job, 0 after it has ended or was lost",
    "weir_job_state": "1 for the state that the job is in",
    "weir_job_attempt": "the newest attempt of the job",
    "weir_query_up": "1 while a query runs, has ended or waits for its streams to end",
    "weir_restarts_total": "restarts of the driver or of a query",
    "weir_failures_total": "failures of the driver or of a query",
    "weir_machine_failures_total": "those of them that were the machine's: no process or answer in time",
    "weir_recoveries_total": "recoveries that came to an end",
    "weir_recovery_seconds_total": "seconds that all recoveries took together",
    "weir_recovery_duration_seconds": "histogram of recoveries, from the last sign of life to a commit",
    "weir_recovery_last_seconds": "what the last recovery took",
    "weir_recovery_part_seconds": "the parts of the last recovery",
    "weir_checkpoints_begun_total": "checkpoints that were triggered",
    "weir_checkpoints_total": "checkpoints that ended, by outcome: completed, aborted",
    "weir_checkpoint_seconds_total": "seconds that all completed checkpoints took, from trigger to last ack",
    "weir_checkpoint_duration_seconds": "histogram of completed checkpoints, from trigger to last ack",
    "weir_checkpoint_last_seconds": "what the last completed checkpoint took, from trigger to last ack",
    "weir_checkpoint_last_timestamp_seconds": "when the last checkpoint completed",
    "weir_checkpoint_new_bytes": "new bytes of the last checkpoint, which no earlier one had",
    "weir_checkpoint_full_bytes": "bytes that a restore of the last checkpoint needs",
    "weir_checkpoint_phase_seconds": "the phases of the last checkpoint; query is empty for the checkpoint",
    "weir_savepoints_total": "savepoints by outcome: taken, failed",
    "weir_batches_total": "committed batches",
    "weir_batch_seconds_total": "seconds that all batches took together",
    "weir_batch_duration_seconds": "histogram of batches, from start to commit",
    "weir_batch_last_seconds": "what the last batch took",
    "weir_rows_total": "rows that were read",
    "weir_source_behind": "what the sources held after the last batch, by unit",
    "weir_watermark_lag_seconds": "from the watermark to now",
    "weir_state_rows": "rows of state after the last batch",
    "weir_state_bytes": "bytes of memory that the state stores use",
}
"""Every figure with its meaning."""
JOB = "weir_job"
"""The label with the job's name; `job` is Prometheus' own, for the scrape job."""
HISTOGRAMS = {
    "weir_checkpoint_duration_seconds": COMPLETED,
    "weir_batch_duration_seconds": BATCHES,
    "weir_recovery_duration_seconds": RECOVERIES,
}
"""The figures that are histograms, each with the kind that the journal counts them under."""
BUILD = "weir_build_info"
"""The one figure that is of the server, not of a job."""


_COUNTERS = {
    "restart": "restarts",
    "failure": "failures",
    MACHINE_FAILURES: "machine_failures",
    "recovery": "recoveries",
}
"""Kinds of events, and what their figures are called."""
_UP = (QueryState.RUNNING.value, QueryState.ENDED.value, QueryState.WAITING.value)


@dataclass(frozen=True)
class Figure:
    """One value of one figure."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def figures(dir: str, job: str, clock: Clock) -> Iterator[Figure]:
    """Every figure of a job, as it stands."""
    standing = look(dir, job, clock)
    yield Figure("weir_job_up", float(not standing.over))
    for state in [*(one.value for one in JobState), LOST]:
        yield Figure("weir_job_state", float(standing.state == state), {"state": state})
    yield Figure("weir_job_attempt", standing.attempt)
    for query, one in standing.queries.items():
        yield Figure("weir_query_up", float(one.state in _UP), {"query": query})
    with history_of(dir, job_name(job)) as history:
        if history is not None:
            yield from _counted(history)
            yield from _recovery(history)
            yield from _checkpoint(history)
            yield from _queries(history, clock.now())
            for name, kind in HISTOGRAMS.items():
                for query, durations in history.histograms(kind).items():
                    labels = {"query": query} if kind == BATCHES else {}
                    yield from _flat(name, labels, durations)


def _flat(name: str, labels: Mapping[str, str], one: Histogram) -> Iterator[Figure]:
    """A histogram as Prometheus has it: cumulative buckets, their count and the sum of the seconds."""
    for bound, count in one.buckets:
        yield Figure(f"{name}_bucket", count, {**labels, "le": "+Inf" if bound == math.inf else str(bound)})
    yield Figure(f"{name}_count", one.buckets[-1][1], dict(labels))
    yield Figure(f"{name}_sum", one.total, dict(labels))


def _counted(history: History) -> Iterator[Figure]:
    counts: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for one in history.totals():
        counts[one["kind"]] = counts.get(one["kind"], 0) + one["count"]
        seconds[one["kind"]] = seconds.get(one["kind"], 0.0) + one["total"]
        if one["kind"] == BATCHES:
            yield Figure("weir_batches_total", one["count"], {"query": one["query"]})
            yield Figure("weir_batch_seconds_total", one["total"], {"query": one["query"]})
        elif one["kind"] == ROWS:
            yield Figure("weir_rows_total", one["total"], {"query": one["query"]})
    for kind, name in _COUNTERS.items():
        yield Figure(f"weir_{name}_total", counts.get(kind, 0))
    yield Figure("weir_recovery_seconds_total", seconds.get("recovery", 0.0))
    yield Figure("weir_checkpoints_begun_total", counts.get("checkpoint begun", 0))
    for outcome in ("completed", "aborted"):
        yield Figure("weir_checkpoints_total", counts.get(f"checkpoint {outcome}", 0), {"outcome": outcome})
    yield Figure("weir_checkpoint_seconds_total", seconds.get("checkpoint completed", 0.0))
    for outcome in ("taken", "failed"):
        yield Figure("weir_savepoints_total", counts.get(f"savepoint {outcome}", 0), {"outcome": outcome})


def _recovery(history: History) -> Iterator[Figure]:
    last = history.last("recovery")
    if last is not None:
        yield Figure("weir_recovery_last_seconds", last.body["seconds"])
        for part, seconds in last.body["parts"].items():
            yield Figure("weir_recovery_part_seconds", seconds, {"part": part})


def _checkpoint(history: History) -> Iterator[Figure]:
    last = history.last("checkpoint completed")
    if last is None:
        return
    body = last.body
    yield Figure("weir_checkpoint_last_seconds", body["seconds"])
    yield Figure("weir_checkpoint_last_timestamp_seconds", moment_of(last.at).timestamp())
    yield Figure("weir_checkpoint_new_bytes", body["new_bytes"])
    yield Figure("weir_checkpoint_full_bytes", body["full_bytes"])
    for query, phases in [("", body["phases"]), *((q, b["phases"]) for q, b in body["queries"].items())]:
        for phase, seconds in phases.items():
            yield Figure("weir_checkpoint_phase_seconds", seconds, {"query": query, "phase": phase})


def _queries(history: History, now: datetime) -> Iterator[Figure]:
    for last in history.queries():
        query = Query(last["query"], [last], now)
        labels = {"query": query.name}
        yield Figure("weir_batch_last_seconds", last["seconds"], labels)
        yield Figure("weir_state_rows", last["state_rows"], labels)
        yield Figure("weir_state_bytes", last["state_bytes"], labels)
        if query.behind is not None:
            unit = {"unit": query.behind["unit"]}
            yield Figure("weir_source_behind", query.behind["count"], labels | unit)
        if query.watermark_lag is not None:
            yield Figure("weir_watermark_lag_seconds", query.watermark_lag, labels)
