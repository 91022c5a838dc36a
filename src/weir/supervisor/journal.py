"""The history of a job, in SQLite beside it: outlives every process.

One writer, the supervisor (or a notebook's driver); any number of readers. Events are kept as they
were reported; batches in columns, because they are many. Writes are gathered and committed by
`flush`, at least once a second, and at once for everything but batches.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weir.clock import Clock
from weir.protocol.messages import BatchCommitted

CHECKPOINTS = ("checkpoint begun", "checkpoint completed", "checkpoint aborted")
"""The kinds of events that are many: one pair for each checkpoint."""
_KEPT, _CHECKPOINTS_KEPT, _PRUNE_EVERY = 200_000, 30_000, 10_000
"""So many batches and events of checkpoints are kept, give or take."""
_SCHEMA = """
create table if not exists events (
    id integer primary key, at text not null, attempt integer not null,
    kind text not null, query text not null, body text not null);
create index if not exists events_by_kind on events (kind, id);
create table if not exists batches (
    id integer primary key, at text not null, attempt integer not null, run integer not null,
    query text not null, batch integer not null, rows integer not null, seconds real not null,
    state_rows integer not null, state_bytes integer not null, watermark text not null,
    durations text not null);
create index if not exists batches_by_query on batches (query, id);
create table if not exists lags (query text primary key, lag text not null);
"""


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    id: int
    at: str
    attempt: int
    kind: str
    query: str
    body: dict[str, Any]


class Journal:
    """The writer's end. A journal that can't be written (a full disk) never stops the job."""

    def __init__(self, path: Path, clock: Clock) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._said = ""
        self._inserted = 0
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=normal")
        self._db.executescript(_SCHEMA)

    def event(
        self, attempt: int, kind: str, body: Mapping[str, Any], query: str = "", *, alone: bool = False
    ) -> None:
        """Keep an event, durably for everybody who reads after this returns.

        `alone`: it takes the place of all earlier ones of its kind.
        """
        self._inserted += kind in CHECKPOINTS
        if alone:
            self._write("delete from events where kind = ?", (kind,))
        self._write(
            "insert into events (at, attempt, kind, query, body) values (?, ?, ?, ?, ?)",
            (self._clock.now().isoformat(), attempt, kind, query, json.dumps(body, default=str)),
        )
        self.flush()

    def batch(self, attempt: int, b: BatchCommitted) -> None:
        """Keep a batch; it is there after the next `flush` or event. The oldest make room."""
        self._inserted += 1
        self._write(
            "insert into batches (at, attempt, run, query, batch, rows, seconds, state_rows, state_bytes,"
            " watermark, durations) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            ),
        )
        if b.lag:
            lag = json.dumps(dict(b.lag))
            self._write("insert or replace into lags (query, lag) values (?, ?)", (b.query, lag))

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
        self._db.close()

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
                print(f"weir: the journal could not be written ({error}); the job goes on", file=sys.stderr)


class History:
    """The reader's end; never writes, and sees what has been flushed."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)
        self._db.row_factory = sqlite3.Row

    def events(self, *kinds: str, limit: int = 1000) -> list[Event]:
        """The newest events of these kinds (all when none is named), oldest first."""
        marks = ",".join("?" * len(kinds))
        where = f"where kind in ({marks})" if kinds else ""
        rows = self._select(f"select * from events {where} order by id desc limit ?", *kinds, limit)
        return [Event(**{**row, "body": json.loads(row["body"])}) for row in reversed(rows)]

    def last(self, kind: str) -> Event | None:
        found = self.events(kind, limit=1)
        return found[0] if found else None

    def batches(self, query: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest batches, oldest first."""
        where, values = ("where query = ?", (query, limit)) if query else ("", (limit,))
        rows = self._select(f"select * from batches {where} order by id desc limit ?", *values)
        return [{**row, "durations": json.loads(row["durations"])} for row in reversed(rows)]

    def queries(self) -> list[dict[str, Any]]:
        """For each query its newest batch, and the rows of all batches that are kept."""
        rows = self._select(
            "select b.*, t.total_rows, t.batches from batches b join (select query, max(id) id, sum(rows)"
            " total_rows, count(*) batches from batches group by query) t on b.id = t.id order by b.query"
        )
        return [{**row, "durations": json.loads(row["durations"])} for row in rows]

    def lags(self) -> dict[str, dict[str, int]]:
        """For each query that reads Kafka how far each partition was behind at its newest batch."""
        return {row["query"]: json.loads(row["lag"]) for row in self._select("select * from lags")}

    def close(self) -> None:
        self._db.close()

    def _select(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        try:
            return [dict(row) for row in self._db.execute(statement, values)]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # its writer has made the file, but not yet what is in it
                return []
            raise
