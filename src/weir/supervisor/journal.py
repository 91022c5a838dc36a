"""The history of a job, in SQLite beside it: outlives every process.

One writer, the supervisor; any number of readers. A run in a notebook has no supervisor and keeps no
history here: what happened is in the run itself. Events are kept as they were reported; batches in
columns, because they are many. Writes are gathered and committed by `flush`, at least once a second,
and at once for everything but batches.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from weir.clock import Clock
from weir.text import body_without_secrets, without_secrets

if TYPE_CHECKING:
    from weir.protocol.messages import BatchCommitted

CHECKPOINTS = ("checkpoint begun", "checkpoint completed", "checkpoint aborted")
"""The kinds of events that are many: one pair for each checkpoint."""
BATCHES, ROWS = "batch", "rows"
"""The totals of batches: how many and how many seconds; how many rows they have read."""
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
_KEPT, _CHECKPOINTS_KEPT, _PRUNE_EVERY = 200_000, 30_000, 10_000
"""So many batches and events of checkpoints are kept, give or take."""
_CHECKED = 64 * 2**20
"""Up to this size a journal is looked through when it is opened: a tenth of a second."""
_SCHEMA = """
create table if not exists events (
    id integer primary key, at text not null, attempt integer not null,
    kind text not null, query text not null, body text not null);
create index if not exists events_by_kind on events (kind, id);
create table if not exists batches (
    id integer primary key, at text not null, attempt integer not null, run integer not null,
    query text not null, batch integer not null, rows integer not null, seconds real not null,
    state_rows integer not null, state_bytes integer not null, watermark text not null,
    durations text not null, detail text not null default '{}');
create index if not exists batches_by_query on batches (query, id);
create table if not exists lags (query text primary key, lag text not null);
create table if not exists totals (
    kind text not null, query text not null, count integer not null, total real not null,
    primary key (kind, query)) without rowid;
"""
_HISTOGRAMS = """
create table histograms (
    kind text not null, query text not null, bound real not null, count integer not null,
    total real not null, primary key (kind, query, bound)) without rowid
"""
"""For each bucket how many durations are in it alone, and their sum; its bound is part of the key, so that
buckets of other bounds, which another version of weir has counted, stay right."""
_ADDED = "alter table batches add column detail text not null default '{}'"
"""What a journal of an earlier weir lacks."""


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


class Journal:
    """The writer's end. A journal that can't be written (a full disk) never stops the job."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """A damaged one is moved aside, and a new one begun: it is history only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._said = ""
        self._inserted = 0
        self.moved_to: Path | None = None
        """Where a damaged one was moved to; None when there was none."""
        try:
            self._db = _opened(path)
        except sqlite3.OperationalError:  # no room, no permission: what is there may be intact
            raise
        except sqlite3.DatabaseError:
            self.moved_to = _move_aside(path, clock)
            self._db = _opened(path)

    def event(
        self, attempt: int, kind: str, body: Mapping[str, Any], query: str = "", *, alone: bool = False
    ) -> None:
        """Keep an event, durably for everybody who reads after this returns.

        `alone`: it takes the place of all earlier ones of its kind.
        """
        self._inserted += kind in CHECKPOINTS
        if not alone:
            self._count(kind, query, _number(body.get("seconds")))
        if kind in (RECOVERIES, COMPLETED):
            self._observe(kind, "", _number(body.get("seconds")))
        self._write(
            "insert into events (at, attempt, kind, query, body) values (?, ?, ?, ?, ?)",
            (
                self._clock.now().isoformat(),
                attempt,
                kind,
                query,
                json.dumps(body_without_secrets(body), default=_text),
            ),
        )
        if alone:  # behind the insert: the newest number is never free, so that none is given twice
            newest = "select max(id) from events where kind = ?"
            self._write(f"delete from events where kind = ? and id < ({newest})", (kind, kind))
        self.flush()

    def batch(self, attempt: int, b: BatchCommitted) -> None:
        """Keep a batch; it is there after the next `flush` or event. The oldest make room."""
        self._inserted += 1
        self._count(BATCHES, b.query, b.seconds)
        self._count(ROWS, b.query, b.rows)
        self._observe(BATCHES, b.query, b.seconds)
        self._write(
            "insert into batches (at, attempt, run, query, batch, rows, seconds, state_rows, state_bytes,"
            " watermark, durations, detail) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                b.at,
                attempt,
                b.run,
                b.query,
                b.batch,
                b.rows,
                b.seconds,
                b.state_rows,
                b.state_bytes,
                b.watermark,
                json.dumps(dict(b.durations)),
                json.dumps({"sources": b.sources, "operators": b.operators}),
            ),
        )
        if b.lag:
            lag = json.dumps(dict(b.lag))
            self._write("insert or replace into lags (query, lag) values (?, ?)", (b.query, lag))

    def has_batches(self) -> bool:
        """Whether any batch of the job is kept; True when that can't be read."""
        with self._tolerant():
            return self._db.execute("select 1 from batches limit 1").fetchone() is not None
        return True

    def flush(self) -> None:
        with self._tolerant():
            if self._inserted >= _PRUNE_EVERY:
                self._inserted = 0
                self._prune()
            self._db.commit()

    def _prune(self) -> None:
        self._db.execute("delete from batches where id <= (select max(id) from batches) - ?", (_KEPT,))
        kinds = f"kind in ({','.join('?' * len(CHECKPOINTS))})"
        self._db.execute(
            f"delete from events where {kinds} and id <="
            f" (select id from events where {kinds} order by id desc limit 1 offset ?)",
            (*CHECKPOINTS, *CHECKPOINTS, _CHECKPOINTS_KEPT),
        )

    def close(self) -> None:
        self.flush()
        with self._tolerant():
            self._db.close()

    def _count(self, kind: str, query: str, amount: float) -> None:
        self._write(
            "insert into totals values (?, ?, 1, ?) on conflict do update"
            " set count = count + 1, total = total + excluded.total",
            (kind, query, amount),
        )

    def _observe(self, kind: str, query: str, seconds: float) -> None:
        self._write(
            "insert into histograms values (?, ?, ?, 1, ?) on conflict do update"
            " set count = count + 1, total = total + excluded.total",
            (kind, query, bound_of(seconds), seconds),
        )

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._tolerant():
            self._db.execute(statement, values)

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if str(error) != self._said:
                self._said = str(error)
                with suppress(OSError):  # standard error may be a file on the same disk
                    said = f"weir: the journal could not be written ({error}); the job continues"
                    print(said, file=sys.stderr)


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, timeout=30)
    try:
        db.execute("pragma journal_mode=wal")
        db.execute("pragma synchronous=normal")
        db.executescript(_SCHEMA)
        with suppress(sqlite3.OperationalError):  # it has the column
            db.execute(_ADDED)
        _add_histograms(db)
        if (
            path.stat().st_size < _CHECKED
            and (found := db.execute("pragma quick_check(1)").fetchone())[0] != "ok"
        ):
            raise sqlite3.DatabaseError(found[0])
    except BaseException:
        db.close()
        raise
    return db


def bound_of(seconds: float) -> float:
    """The upper bound of the bucket that a duration is counted in."""
    return BOUNDS[at] if (at := bisect_left(BOUNDS, seconds)) < len(BOUNDS) else math.inf


def _add_histograms(db: sqlite3.Connection) -> None:
    """Add the table of durations to a journal of an earlier weir, filled from all that it still keeps."""
    db.create_function("bound_of", 1, bound_of, deterministic=True)
    seconds = "coalesce(json_extract(body, '$.seconds'), 0.0)"
    with db:  # the table and what is in it, or neither
        db.execute("begin immediate")
        if db.execute("select 1 from sqlite_master where name = 'histograms'").fetchone():
            return
        db.execute(_HISTOGRAMS)
        db.execute(
            "insert into histograms select ?, query, bound_of(seconds), count(*), sum(seconds)"
            " from batches group by 2, 3",
            (BATCHES,),
        )
        db.execute(
            f"insert into histograms select kind, '', bound_of({seconds}), count(*), sum({seconds})"
            " from events where kind in (?, ?) and json_valid(body) group by 1, 3",
            (RECOVERIES, COMPLETED),
        )


def _move_aside(path: Path, clock: Clock) -> Path:
    """Rename a damaged journal, with what SQLite keeps beside it; its new name."""
    target = path.with_name(f"{path.name}.damaged-{clock.now():%Y%m%dT%H%M%S}")
    for end in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(target.with_name(target.name + end))
    return target


def _event(row: Mapping[str, Any]) -> Event:
    return Event(**{**row, "body": _parsed(row["body"])})


def _parsed(text: str) -> dict[str, Any]:
    """What a column of JSON says; nothing when the disk has changed it."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


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


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


class History:
    """The reader's end; never writes, and sees what has been flushed."""

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
        """The events behind this one, oldest first."""
        rows = self._select("select * from events where id > ? order by id limit ?", id, limit)
        return [_event(row) for row in rows]

    def newest(self) -> tuple[int, int]:
        """The numbers of the newest event and the newest batch; 0 when there is none."""
        rows = self._select("select (select max(id) from events) e, (select max(id) from batches) b")
        return (rows[0]["e"] or 0, rows[0]["b"] or 0) if rows else (0, 0)

    def last(self, kind: str) -> Event | None:
        found = self.events(kind, limit=1)
        return found[0] if found else None

    def batches(self, query: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest batches, oldest first."""
        where, values = ("where query = ?", (query, limit)) if query else ("", (limit,))
        rows = self._select(f"select * from batches {where} order by id desc limit ?", *values)
        return [_batch(row) for row in reversed(rows)]

    def queries(self) -> list[dict[str, Any]]:
        """For each query its newest batch, and the rows of all its batches, while any is kept."""
        totals = {(one["kind"], one["query"]): one for one in self.totals()}
        names = [query for kind, query in totals if kind == BATCHES]
        found = []
        for name in names or self._names():
            kept = self._select("select * from batches where query = ? order by id desc limit 1", name)
            if not kept:  # long ago: its batches have made room for those of others
                continue
            rows, batches = totals.get((ROWS, name)), totals.get((BATCHES, name))
            total = {
                "total_rows": int(rows["total"]) if rows else 0,
                "batches": batches["count"] if batches else 0,
                "total_seconds": batches["total"] if batches else 0.0,
            }
            found.append(_batch(kept[0]) | total)
        return found

    def _names(self) -> list[str]:
        """The queries of a journal that an earlier weir has written."""
        return [row["query"] for row in self._select("select distinct query from batches order by query")]

    def totals(self) -> list[dict[str, Any]]:
        """How often each kind of event was kept since the journal began, and the sum of its seconds."""
        return self._select("select * from totals order by kind, query")

    def histograms(self, kind: str) -> dict[str, Histogram]:
        """The durations of a kind by query; a checkpoint or a recovery is counted under ""."""
        found: dict[str, dict[float, tuple[int, float]]] = {}
        for row in self._select("select * from histograms where kind = ?", kind):
            found.setdefault(row["query"], {})[row["bound"]] = (row["count"], row["total"])
        return {query: _histogram(buckets) for query, buckets in sorted(found.items())}

    def figures(self, kind: str, *fields: str, limit: int = 1000) -> list[dict[str, Any]]:
        """These fields of the bodies of the newest events of a kind, with `at`, oldest first."""
        asked = "".join(f", json_extract(body, '$.{field}') as {field}" for field in fields)
        rows = self._select(
            f"select at{asked} from events where kind = ? order by id desc limit ?", kind, limit
        )
        return rows[::-1]

    def checkpoints(self, limit: int, before: int | None = None) -> list[Event]:
        """The events of so many of the newest checkpoints with ids below `before`, oldest first."""
        kinds = ",".join(f"'{kind}'" for kind in CHECKPOINTS)
        wanted = "" if before is None else f"and json_extract(body, '$.id') < {int(before)}"
        # two events for each checkpoint, and those of several may be mixed
        rows = self._select(
            f"select * from events where kind in ({kinds}) {wanted} order by id desc limit ?", 2 * limit + 100
        )
        return [_event(row) for row in reversed(rows)]

    def lags(self) -> dict[str, dict[str, int]]:
        """For each query that reads Kafka how far each partition was behind at its newest batch."""
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


def _text(value: object) -> str:
    return without_secrets(str(value))
