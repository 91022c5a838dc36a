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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.clock import Clock
from weir.errors import Domain
from weir.supervisor.history import (
    BATCHES,
    BOUNDS,
    CHECKPOINTS,
    COMPLETED,
    MACHINE_FAILURES,
    RECOVERIES,
    ROWS,
)
from weir.text import body_without_secrets, without_secrets

if TYPE_CHECKING:
    from weir.protocol.messages import BatchCommitted

_KEPT, _CHECKPOINTS_KEPT, _PRUNE_EVERY = 200_000, 30_000, 10_000
"""How many batches and events of checkpoints are kept, give or take."""
_CHECKED = 64 * 2**20
"""Up to this size a journal is checked when it is opened: a tenth of a second."""
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


class JobJournal:
    """The writer's end. A journal that can't be written (a full disk) never stops the job."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """A damaged one is moved aside, and a new one begun: it is history only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._reported = ""
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
        if kind == "failure" and body.get("domain") == Domain.MACHINE.value:
            self._count(MACHINE_FAILURES, query, 0.0)
        if kind in (RECOVERIES, COMPLETED):
            self._observe(kind, "", _number(body.get("seconds")))
        self._write(
            "insert into events (at, attempt, kind, query, body) values (?, ?, ?, ?, ?)",
            (
                self._clock.now().isoformat(),
                attempt,
                kind,
                query,
                json.dumps(body_without_secrets(body), default=lambda value: without_secrets(str(value))),
            ),
        )
        if alone:  # after the insert: the newest number is never free, so that none is given twice
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
            if str(error) != self._reported:
                self._reported = str(error)
                with suppress(OSError):  # standard error may be a file on the same disk
                    text = f"weir: the journal could not be written ({error}); the job continues"
                    print(text, file=sys.stderr)


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
            and (damage := db.execute("pragma quick_check(1)").fetchone())[0] != "ok"
        ):
            raise sqlite3.DatabaseError(damage[0])
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


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
