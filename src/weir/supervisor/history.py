"""What is kept of a job, and reading it: events, batches, and how often and how long things took.

Any number of processes read while the supervisor writes (`journal.py`); nothing here writes.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weir.errors import StorageError
from weir.ids import JobName
from weir.storage import paths
from weir.storage.open import beside

CHECKPOINTS = ("checkpoint begun", "checkpoint completed", "checkpoint aborted")
"""The kinds of events that are many: one pair for each checkpoint."""
BATCHES, ROWS = "batch", "rows"
"""The totals of batches: how many and how many seconds; how many rows they have read."""
MACHINE_FAILURES = "machine failure"
"""The total of those failures that were the machine's; each is counted as a failure too."""
RECOVERIES, COMPLETED = "recovery", "checkpoint completed"
BOUNDS = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
)
"""Upper bounds in seconds of the buckets in which durations are counted; one more has no bound."""


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    id: int
    at: str
    attempt: int
    kind: str
    query: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Histogram:
    """How long things of one kind took, counted since the journal began."""

    buckets: list[tuple[float, int]]
    """For each upper bound, ascending and infinity last, how many took at most that many seconds."""
    total: float
    """The sum of all of them, in seconds."""


class History:
    """The history of one job. Sees what has been flushed."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)
        self._db.row_factory = sqlite3.Row

    def events(self, *kinds: str, limit: int = 1000, before: int | None = None) -> list[Event]:
        """The newest events of these kinds (of any, when none is named; below `before`), oldest first."""
        asked = [f"kind in ({','.join('?' * len(kinds))})"] if kinds else []
        asked += ["id < ?"] if before is not None else []
        where = f"where {' and '.join(asked)}" if asked else ""
        values = (*kinds, *([] if before is None else [before]), limit)
        rows = self._select(f"select * from events {where} order by id desc limit ?", *values)
        return [_event(row) for row in reversed(rows)]

    def since(self, id: int, limit: int = 500) -> list[Event]:
        """The events after this one, oldest first."""
        rows = self._select("select * from events where id > ? order by id limit ?", id, limit)
        return [_event(row) for row in rows]

    def newest(self) -> tuple[int, int]:
        """The numbers of the newest event and the newest batch; 0 when there is none."""
        rows = self._select("select (select max(id) from events) e, (select max(id) from batches) b")
        return (rows[0]["e"] or 0, rows[0]["b"] or 0) if rows else (0, 0)

    def last(self, kind: str) -> Event | None:
        newest = self.events(kind, limit=1)
        return newest[0] if newest else None

    def batches(self, query: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest batches, oldest first."""
        where, values = ("where query = ?", (query, limit)) if query else ("", (limit,))
        rows = self._select(f"select * from batches {where} order by id desc limit ?", *values)
        return [_batch(row) for row in reversed(rows)]

    def queries(self) -> list[dict[str, Any]]:
        """For each query its newest batch, and the rows of all its batches, while any is kept."""
        totals = {(one["kind"], one["query"]): one for one in self.totals()}
        names = [query for kind, query in totals if kind == BATCHES]
        if not names:  # a journal that an earlier weir has written
            rows = self._select("select distinct query from batches order by query")
            names = [row["query"] for row in rows]
        newest = []
        for name in names:
            kept = self._select("select * from batches where query = ? order by id desc limit 1", name)
            if not kept:  # long ago: its batches have made room for those of others
                continue
            read, batches = totals.get((ROWS, name)), totals.get((BATCHES, name))
            total = {
                "total_rows": int(read["total"]) if read else 0,
                "batches": batches["count"] if batches else 0,
                "total_seconds": batches["total"] if batches else 0.0,
            }
            newest.append(_batch(kept[0]) | total)
        return newest

    def totals(self) -> list[dict[str, Any]]:
        """How often each kind of event was kept since the journal began, and the sum of its seconds."""
        return self._select("select * from totals order by kind, query")

    def histograms(self, kind: str) -> dict[str, Histogram]:
        """The durations of a kind by query; a checkpoint or a recovery is counted under ""."""
        by_query: dict[str, dict[float, tuple[int, float]]] = {}
        for row in self._select("select * from histograms where kind = ?", kind):
            by_query.setdefault(row["query"], {})[row["bound"]] = (row["count"], row["total"])
        return {query: _histogram(buckets) for query, buckets in sorted(by_query.items())}

    def figures(self, kind: str, *fields: str, limit: int = 1000) -> list[dict[str, Any]]:
        """These fields of the bodies of the newest events of a kind, with `at`, oldest first."""
        asked = "".join(f", json_extract(body, '$.{field}') as {field}" for field in fields)
        rows = self._select(
            f"select at{asked} from events where kind = ? order by id desc limit ?", kind, limit
        )
        return rows[::-1]

    def checkpoints(self, limit: int, before: int | None = None) -> list[Event]:
        """The events of the newest N checkpoints with ids below `before`, oldest first; N is the limit."""
        kinds = ",".join(f"'{kind}'" for kind in CHECKPOINTS)
        wanted = "" if before is None else f"and json_extract(body, '$.id') < {int(before)}"
        # two events for each checkpoint, and those of several may be mixed
        rows = self._select(
            f"select * from events where kind in ({kinds}) {wanted} order by id desc limit ?", 2 * limit + 100
        )
        return [_event(row) for row in reversed(rows)]

    def lags(self) -> dict[str, dict[str, int]]:
        """For each query that reads Kafka the lag of each partition at its newest batch."""
        return {row["query"]: _parsed(row["lag"]) for row in self._select("select * from lags")}

    def close(self) -> None:
        self._db.close()

    def _select(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        try:
            return [dict(row) for row in self._db.execute(statement, values)]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # its writer has made the file, but not yet what is in it
                return []
            raise


@contextmanager
def history_of(dir: str, job: JobName) -> Iterator[History | None]:
    """The job's history, or None when there is none (yet)."""
    path = beside(dir, paths.journal(job))
    if not path.is_file():
        yield None
        return
    try:
        history = History(path)
        try:
            yield history
        finally:
            history.close()
    except sqlite3.Error as error:
        raise StorageError(verb="read", path=path, reason=str(error), root=dir) from error


def _event(row: Mapping[str, Any]) -> Event:
    return Event(**{**row, "body": _parsed(row["body"])})


def _parsed(text: str) -> dict[str, Any]:
    """What a column of JSON holds; nothing when the disk has changed it."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}


def _batch(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in row.items() if key != "detail"}
    return {**rest, "sources": [], "operators": []} | {
        "durations": _parsed(row["durations"]),
        **_parsed(row.get("detail", "{}")),
    }


def _histogram(counted: Mapping[float, tuple[int, float]]) -> Histogram:
    bounds = sorted({*BOUNDS, *counted, math.inf})
    counts = accumulate(counted.get(bound, (0, 0.0))[0] for bound in bounds)
    return Histogram(
        list(zip(bounds, counts, strict=True)), math.fsum(total for _, total in counted.values())
    )
