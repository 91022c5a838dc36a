"""Spark's progress events as reports: one message for each committed batch.

A listener of PySpark's own would turn every field into a Python object by a call each; this one
asks the event for its JSON, one call, and reads that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.protocol.messages import BatchCommitted, QueryIdle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_KAFKA = "Kafka"
"""How Spark's description of a Kafka source begins."""
_NAMED = 200
"""How much of a source's description is kept."""
_REMEMBERED = 100
"""Rows of state are remembered for this many batches of a query."""


@dataclass(frozen=True)
class Seen:
    """What Spark reported of a query at one batch."""

    sources: tuple[str, ...] = ()
    """What each source is."""
    state_rows: Mapping[int, int] = field(default_factory=dict)
    """By the number of the operator."""


class ProgressReports:
    """Listens to the session's queries. Reports come from a thread of Spark's, in order.

    `beyond` gives how many entries a channel has after a reader's position; `complete` gets every event
    of Spark's as it is.
    """

    def __init__(
        self,
        spark: SparkSession,
        report: Callable[[BatchCommitted | QueryIdle], None],
        complete: Callable[[str, Mapping[str, Any]], None],
        beyond: Callable[[str, int], int] = lambda _channel, _entry: 0,
    ) -> None:
        self._report = report
        self._followers: list[Callable[[BatchCommitted], None]] = []
        self._complete = complete
        self._beyond = beyond
        self._runs: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._last: dict[str, int] = {}
        self._seen: dict[str, dict[int, Seen]] = {}
        self._changed = threading.Condition()
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415  loads Spark

        listener = _Listener(self._progress, self._idle)
        jvm: Any = spark.sparkContext._jvm
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
        spark.streams._jsqm.addListener(wrapper)

    def follow(self, *followers: Callable[[BatchCommitted], None]) -> None:
        """Before any query runs: who hears of each committed batch, before it is reported."""
        self._followers += followers

    def watch(self, query: str, run: int) -> None:
        """From now on, progress of this query belongs to this run."""
        self._runs[query] = run

    def started(self, query: str, run_id: str) -> None:
        """Spark's own id of the run, by which it reports that a query is idle."""
        self._ids[run_id] = query

    def wait_for(self, query: str, batch: int, seconds: float) -> None:
        """Wait until the progress of this batch was reported, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: self._last.get(query, -1) >= batch, seconds)

    def seen(self, query: str, batch: int, seconds: float) -> Seen:
        """What Spark reported of a committed batch, which comes a little later; nothing if it does not."""
        self.wait_for(query, batch, seconds)
        with self._changed:
            return self._seen.get(query, {}).get(batch, Seen())

    def _progress(self, text: str) -> None:
        progress = json.loads(text)
        query, batch = progress.get("name") or "", progress["batchId"]
        if query not in self._runs or self._last.get(query, -1) >= batch:
            return  # an idle trigger repeats the last batch's progress
        committed = from_progress(progress, self._runs[query], self._beyond)
        for follower in self._followers:
            follower(committed)
        self._report(committed)
        self._complete(query, progress)
        with self._changed:
            self._last[query] = batch
            remembered = self._seen.setdefault(query, {})
            remembered[batch] = _seen(progress)
            remembered.pop(batch - _REMEMBERED, None)
            self._changed.notify_all()

    def _idle(self, run_id: str) -> None:
        if run_id in self._ids:
            self._report(QueryIdle(self._ids[run_id]))


def _seen(progress: dict[str, Any]) -> Seen:
    operators = progress.get("stateOperators", [])
    return Seen(
        tuple(str(source.get("description", "")) for source in progress.get("sources", [])),
        {number: int(one["numRowsTotal"]) for number, one in enumerate(operators)},
    )


def from_progress(
    progress: dict[str, Any], run: int, beyond: Callable[[str, int], int] = lambda _channel, _entry: 0
) -> BatchCommitted:
    """The message for one progress of Spark's."""
    operators = progress.get("stateOperators", [])
    return BatchCommitted(
        query=progress["name"],
        run=run,
        batch=progress["batchId"],
        rows=progress["numInputRows"],
        seconds=progress["batchDuration"] / 1000,
        durations=progress.get("durationMs", {}),
        state_rows=sum(o["numRowsTotal"] for o in operators),
        state_bytes=sum(o["memoryUsedBytes"] for o in operators),
        state_load_ms=sum(o.get("customMetrics", {}).get("rocksdbLoadLatencyMs", 0) for o in operators),
        watermark=progress.get("eventTime", {}).get("watermark", ""),
        at=progress["timestamp"],
        lag=lag(progress),
        sources=[_source(source, beyond) for source in progress.get("sources", [])],
        operators=[
            {"name": o.get("operatorName", ""), "rows": o["numRowsTotal"], "bytes": o["memoryUsedBytes"]}
            for o in operators
        ],
    )


def _source(source: dict[str, Any], beyond: Callable[[str, int], int]) -> dict[str, Any]:
    """One source of a batch: what it is, what was read, and what it holds beyond that, if known."""
    rows, end = int(source.get("numInputRows", 0)), source.get("endOffset")
    if isinstance(end, dict) and end.keys() == {"entry", "barrier", "channel"}:
        unread = beyond(end["channel"], end["entry"])
        return {"name": f"channel {end['channel']}", "rows": rows, "behind": unread, "unit": "entries"}
    name = str(source.get("description", ""))[:_NAMED]
    if name.startswith(_KAFKA) and source.get("latestOffset"):
        unread = sum(lag({"sources": [source]}).values())
        return {"name": name, "rows": rows, "behind": unread, "unit": "records"}
    return {"name": name, "rows": rows, "behind": None, "unit": ""}


def lag(progress: dict[str, Any]) -> dict[str, int]:
    """The unread records of each partition of Kafka's, as `topic-partition`; nothing for other sources."""
    lags: dict[str, int] = {}
    for source in progress.get("sources", []):
        ends, latest = source.get("endOffset"), source.get("latestOffset")
        if not str(source.get("description", "")).startswith(_KAFKA) or not ends or not latest:
            continue
        for topic, partitions in latest.items():
            for partition, offset in partitions.items():
                read = ends.get(topic, {}).get(partition, 0)
                key = f"{topic}-{partition}"
                lags[key] = max(lags.get(key, 0), int(offset) - int(read))
    return lags


class _Listener:
    """What the JVM calls."""

    def __init__(self, progress: Callable[[str], None], idle: Callable[[str], None]) -> None:
        self._on_progress = progress
        self._on_idle = idle

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do: the driver started it."""

    def onQueryProgress(self, event: Any) -> None:
        self._on_progress(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:
        self._on_idle(event.runId().toString())

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do: the driver waits for each query."""

    class Java:
        implements = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
