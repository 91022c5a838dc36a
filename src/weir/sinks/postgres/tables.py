"""What a sink keeps in its own schema of the database (`weir`), and the statements that move a batch.

    ledger              one row a table: whose it is, the fence, the newest batch that counts
    delivered           one row a batch: by which run, how many rows, when
    staged              stagings that are recorded: whole and durable
    refused             rows that were refused while they were staged, until their batch counts
    s<id>_<batch>_<attempt>_<run>_<session>   the rows of one run of a batch; of rows that go to the table at
                        once, how many there were in each chunk
    before_<id>         of a table with a key: the rows that each batch has replaced

Nothing here commits: the caller's transaction makes a step happen as a whole or not at all. Numbers
and quoted names stand in the text of a statement; values are always passed beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.postgres.catalogue import MARKER, Name, Target, Wanted, quoted, types

if TYPE_CHECKING:
    from weir.sinks.postgres.database import Connection

_ONE_AT_A_TIME = 0x77656972
"""An advisory lock: who creates the schema."""
TASK, ROW, DELETE = '"weir:task"', '"weir:row"', f'"{MARKER}"'
"""Columns of a staging table beside the frame's."""
_PLACE = '"weir:place"'
"""Where a task's partition stands among the others."""
_NEWEST_FIRST = f"{_PLACE} DESC, {ROW} DESC"
BATCH, EXISTED = '"weir:batch"', '"weir:existed"'
"""Columns of a table of images beside the user's."""
_SESSION = "session text NOT NULL DEFAULT ''"
"""The session of a token, in `ledger` with its numbers (`_bound`); '' in what an earlier weir has written."""
_STAGED_KEY = "target, batch, attempt, run, session"
_OPTIONS = "WITH (autovacuum_enabled = false)"
DEAD_LETTERS = (
    "query text NOT NULL, batch bigint NOT NULL, refused_at timestamptz NOT NULL DEFAULT now(), "
    "reason text NOT NULL, column_name text NOT NULL, value text NOT NULL, row jsonb NOT NULL"
)


_UPSERT, _APPEND = "upsert", "append"


@dataclass(frozen=True)
class Recorded:
    """A staging that is whole."""

    rows: int
    refused: int
    tasks: tuple[int, ...]
    """The tasks whose rows count, by their partitions."""


@dataclass(frozen=True)
class Mode:
    """How the rows of a table are written, as far as a rewind depends on it."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    """With a key: those that are written, and so restored."""
    batch_column: str
    dead_letter: str

    @classmethod
    def of(cls, wanted: Wanted, target: Target, dead_letter: Name | None) -> Mode:
        columns = tuple(sorted(c.name for c in target.columns)) if wanted.key else ()
        return cls(tuple(sorted(wanted.key)), columns, wanted.extra, str(dead_letter or ""))

    def text(self) -> str:
        return json.dumps({"kind": self._kind, **asdict(self)})

    def rewinds(self, former: str) -> bool:
        """Whether what was written in a former mode can be rewound in this one.

        Earlier versions entered the kind alone. Refused rows lie in a table of their own, if in any.
        """
        if former in (_UPSERT, _APPEND):
            return former == self._kind
        there = json.loads(former)
        letters = there.pop("dead_letter", "")
        mine = json.loads(self.text())
        return letters in ("", mine.pop("dead_letter")) and there == mine

    @property
    def _kind(self) -> str:
        return _UPSERT if self.key else _APPEND


class Tables:
    """The tables of weir's schema, for one table of the user's."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.id = 0
        """The row of the ledger; known once the sink is open."""

    def name(self, table: str) -> str:
        return str(Name(self.schema, table))

    def create(self, connection: Connection) -> None:
        """Make the schema and its tables where they are missing."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
        found = connection.execute(
            "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL, to_regclass(%s) IS NOT NULL, "
            "EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'session')",
            (self.schema, self.name("refused"), self.name("refused")),
        ).fetchone()
        assert found is not None
        if found[1]:
            if not found[2]:
                self._add_sessions(connection)
            return
        if not found[0]:
            connection.execute(f"CREATE SCHEMA {quoted([self.schema])}".encode())
        token = f"attempt bigint NOT NULL, run bigint NOT NULL, {_SESSION}"
        target = f"target bigint NOT NULL REFERENCES {self.name('ledger')} ON DELETE CASCADE"
        of = f"{target}, batch bigint NOT NULL"
        for table, columns in (
            (
                "ledger",
                "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, target text NOT NULL UNIQUE, "
                f"owner text NOT NULL, lineage text NOT NULL, mode text NOT NULL, {token}, "
                "last bigint NOT NULL, floor bigint NOT NULL, checkpoint bigint",
            ),
            (
                "delivered",
                f"{of}, {token}, rows bigint NOT NULL, refused bigint NOT NULL, "
                "at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (target, batch)",
            ),
            (
                "staged",
                f"{of}, {token}, state_ids text[] NOT NULL, tasks bigint[] NOT NULL, rows bigint NOT NULL, "
                f"refused bigint NOT NULL, PRIMARY KEY ({_STAGED_KEY})",
            ),
            (
                "refused",
                f"{of}, {token}, task bigint NOT NULL, reason text NOT NULL, column_name text NOT NULL, "
                "value text NOT NULL, row jsonb NOT NULL",
            ),
        ):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({columns})".encode())

    def _add_sessions(self, connection: Connection) -> None:
        """Tables of an earlier weir: what is in them is of a session that nobody knows."""
        for table in ("ledger", "delivered", "staged", "refused"):
            connection.execute(f"ALTER TABLE {self.name(table)} ADD COLUMN IF NOT EXISTS {_SESSION}".encode())
        connection.execute(
            f"ALTER TABLE {self.name('staged')} DROP CONSTRAINT staged_pkey, "
            f"ADD PRIMARY KEY ({_STAGED_KEY})".encode()
        )

    # the ledger

    def enter(self, connection: Connection, target: Name, owner: str, lineage: str) -> bool:
        """The row of this table: made now (then True), or there already, by whomever."""
        made = connection.execute(
            f"INSERT INTO {self._beside_values('ledger')} "
            "(target, owner, lineage, mode, attempt, run, last, floor) "
            f"VALUES (%s, %s, %s, %s, 0, 0, {NO_BATCH}, {NO_BATCH}) ON CONFLICT (target) DO NOTHING".encode(),
            (str(target), owner, lineage, ""),
        )
        found = connection.execute(
            f"SELECT id FROM {self._beside_values('ledger')} WHERE target = %s FOR UPDATE".encode(),
            (str(target),),
        ).fetchone()
        assert found is not None
        self.id = found[0]
        return made.rowcount > 0

    def set_mode(self, connection: Connection, mode: Mode) -> None:
        """Enter how rows are written from now on.

        What was written in another way can't be rewound in this one: the floor rises to the newest batch.
        """
        found = connection.execute(
            f"SELECT mode FROM {self.name('ledger')} WHERE id = {self.id} FOR UPDATE".encode()
        ).fetchone()
        text = mode.text()
        if found is None or found[0] == text:
            return
        connection.execute(
            f"UPDATE {self._beside_values('ledger')} SET mode = %s WHERE id = {self.id}".encode(), (text,)
        )
        if found[0] and not mode.rewinds(found[0]):
            self.raise_floor(connection, "last", images=bool(mode.key))

    def raise_floor(self, connection: Connection, batch: BatchId | Literal["last"], *, images: bool) -> None:
        """From now on nothing is rewound to below this batch; images that only such a rewind needs go."""
        self._set(connection, f"floor = greatest(floor, {batch})")
        if images:
            which = f"(SELECT floor FROM {self.name('ledger')} WHERE id = {self.id})"
            connection.execute(f"DELETE FROM {self.before} WHERE {BATCH} <= {which}".encode())

    def ledger(self, connection: Connection, *, lock: bool) -> Ledger:
        """The ledger as it stands; locked, nobody else changes it before this transaction ends."""
        found = connection.execute(
            f"SELECT owner, lineage, attempt, run, session, last, floor FROM {self.name('ledger')} "
            f"WHERE id = {self.id} {'FOR UPDATE' if lock else ''}".encode()
        ).fetchone()
        if found is None:
            return Ledger()
        owner, lineage, attempt, run, session, last, floor = found
        fence = Token(Attempt(attempt), Run(run), _unbound(session, attempt, run))
        return Ledger(owner, lineage, fence, BatchId(last), BatchId(floor))

    def announce(self, connection: Connection, token: Token) -> None:
        self._set(connection, f"attempt = {token.attempt}, run = {token.run}, session = '{_bound(token)}'")

    def set_last(self, connection: Connection, last: BatchId) -> None:
        self._set(connection, f"last = {last}")

    def set_checkpoint(self, connection: Connection, checkpoint: CheckpointId) -> None:
        """The checkpoint up to which readers see the table, where they see whole checkpoints."""
        self._set(connection, f"checkpoint = {checkpoint}")

    def deliver(self, connection: Connection, batch: BatchId, token: Token, rows: int, refused: int) -> None:
        """Enter a batch that was moved."""
        connection.execute(
            f"INSERT INTO {self.name('delivered')} (target, batch, attempt, run, session, rows, refused) "
            f"VALUES ({self.id}, {batch}, {token.attempt}, {token.run}, '{token.session}', "
            f"{rows}, {refused})".encode()
        )
        self.set_last(connection, batch)

    def forget(self, connection: Connection, upto: BatchId, *, images: bool) -> None:
        """Remove what a rewind to this batch, or to a later one, has no use for."""
        self._delete(connection, "delivered", f"batch <= {upto}")
        if images:
            self.raise_floor(connection, upto, images=True)

    # stagings

    def staging(self, batch: BatchId, token: Token) -> str:
        session = f"_{token.session}" if token.session else ""
        return self.name(f"s{self.id}_{batch}_{token.attempt}_{token.run}{session}")

    def create_staging(
        self, connection: Connection, target: Target | None, batch: BatchId, token: Token
    ) -> None:
        """An empty table for the rows of one run of a batch; without a target, for their numbers only."""
        table = self.staging(batch, token)
        columns = [f"{TASK} bigint NOT NULL", f"{ROW} bigint"]
        if target is not None:
            columns += [
                f"{quoted([c.name])} {c.type}{' NOT NULL' if c.required else ''}" for c in target.staged
            ]
            columns += target.checks
        connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
        inside = ", ".join(columns)
        connection.execute(f"CREATE TABLE {table} ({inside}) {_OPTIONS}".encode())

    def copy(self, target: Target, batch: BatchId, token: Token, *, numbered: bool) -> str:
        """The COPY of a task."""
        own = f"{TASK}, {ROW}" if numbered else TASK
        names = quoted(c.name for c in target.staged)
        return f"COPY {self.staging(batch, token)} ({own}, {names}) FROM STDIN (FORMAT csv)"

    def copy_at_once(self, wanted: Wanted, target: Target) -> str:
        """The COPY of a task whose rows are seen at once."""
        names = [*filter(None, [wanted.extra]), *(c.name for c in target.columns)]
        return f"COPY {target.name} ({quoted(names)}) FROM STDIN (FORMAT csv)"

    def mark(self, batch: BatchId, token: Token) -> str:
        """The INSERT that counts a chunk that went to the table at once; its values: task, rows."""
        return f"INSERT INTO {beside_values(self.staging(batch, token))} ({TASK}, {ROW}) VALUES (%s, %s)"

    def refuse(self, batch: BatchId, token: Token) -> str:
        """The INSERT of a row that was refused in a task; its values: task, reason, column, value, row."""
        return (
            f"INSERT INTO {self._beside_values('refused')} "
            "(target, batch, attempt, run, session, task, reason, column_name, value, row) "
            f"VALUES ({self.id}, {batch}, {token.attempt}, {token.run}, '{token.session}', "
            "%s, %s, %s, %s, %s)"
        )

    def record(self, connection: Connection, staged: Staged, written: Recorded) -> None:
        connection.execute(
            f"INSERT INTO {self._beside_values('staged')} "
            "(target, batch, attempt, run, session, state_ids, tasks, rows, refused) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING".encode(),
            (
                *(self.id, staged.batch, *staged.token, staged.token.session, list(staged.state_ids)),
                *(list(written.tasks), written.rows, written.refused),
            ),
        )

    def count(self, connection: Connection, staged: Staged, tasks: Sequence[int], *, at_once: bool) -> int:
        """How many rows of these tasks the server has."""
        what = f"coalesce(sum({ROW}), 0)::bigint" if at_once else "count(*)"
        found = connection.execute(f"SELECT {what} FROM {self._rows_of(staged, tasks)}".encode()).fetchone()
        assert found is not None
        return int(found[0])

    def count_refused(self, connection: Connection, staged: Staged, tasks: Sequence[int]) -> int:
        """How many rows the server has that were refused in these tasks."""
        found = connection.execute(
            f"SELECT count(*) FROM {self.name('refused')} "
            f"WHERE {self._of(staged)} AND task = ANY({_array(tasks)})".encode()
        ).fetchone()
        assert found is not None
        return int(found[0])

    def recorded(self, connection: Connection) -> list[Staged]:
        found = connection.execute(
            f"SELECT batch, attempt, run, session, state_ids FROM {self.name('staged')} "
            f"WHERE target = {self.id} ORDER BY batch, attempt, run".encode()
        ).fetchall()
        return [
            Staged(BatchId(batch), Token(Attempt(attempt), Run(run), session), tuple(ids))
            for batch, attempt, run, session, ids in found
        ]

    def find(self, connection: Connection, staged: Staged) -> Recorded | None:
        """What was recorded of a staging; None when it is not there."""
        found = connection.execute(
            f"SELECT rows, refused, tasks FROM {self.name('staged')} WHERE {self._of(staged)}".encode()
        ).fetchone()
        return Recorded(found[0], found[1], tuple(found[2])) if found else None

    def stagings(self, connection: Connection) -> list[tuple[str, BatchId, Token]]:
        """Every staging table of this sink, recorded or not."""
        found = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname ~ %s",
            (self.schema, rf"^s{self.id}_\d+_\d+_\d+(_[^_]+)?$"),
        ).fetchall()
        parsed = []
        for (name,) in found:
            batch, attempt, run, *session = name.split("_")[1:]
            token = Token(Attempt(int(attempt)), Run(int(run)), *session)
            parsed.append((self.name(name), BatchId(int(batch)), token))
        return parsed

    def columns_of_staging(self, connection: Connection, staged: Staged) -> dict[str, str] | None:
        """The columns that were staged with their types, weir's own left out but for the marker.

        None when there is no staging table; none where the rows went to the table at once.
        """
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_class c LEFT JOIN pg_attribute "
            "ON attrelid = c.oid AND attnum > 2 AND NOT attisdropped WHERE c.oid = to_regclass(%s) "
            "ORDER BY attnum",
            (self.staging(staged.batch, staged.token),),
        ).fetchall()
        return {str(name): str(kind) for name, kind in found if name is not None} if found else None

    def forget_staging(self, connection: Connection, staged: Staged) -> None:
        """Remove the record and the table of a staging.

        A task that nobody waits for may still be copying into the table: then it stays for the next start.
        """
        import psycopg  # noqa: PLC0415

        for table in ("staged", "refused"):
            connection.execute(f"DELETE FROM {self.name(table)} WHERE {self._of(staged)}".encode())
        before = connection.execute("SELECT current_setting('lock_timeout')").fetchone()
        assert before is not None
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '200ms'")
                connection.execute(
                    f"DROP TABLE IF EXISTS {self.staging(staged.batch, staged.token)}".encode()
                )
        except psycopg.errors.LockNotAvailable:
            return
        connection.execute(f"SET LOCAL lock_timeout = '{before[0]}'".encode())

    # moving a batch

    @property
    def before(self) -> str:
        return self.name(f"before_{self.id}")

    def create_images(self, connection: Connection, target: Target) -> None:
        """The table of replaced rows, with every column that the user's table has."""
        columns = "".join(f", {quoted([name])} {kind}" for name, kind in target.all)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.before} "
            f"({BATCH} bigint NOT NULL, {EXISTED} boolean NOT NULL{columns})".encode()
        )
        index = f"before_{self.id}_batch ON {self.before} USING brin ({BATCH})"
        connection.execute(f"CREATE INDEX IF NOT EXISTS {index}".encode())
        there = types(connection, Name(self.schema, f"before_{self.id}"))
        for name, kind in target.all:  # the user's table may have changed since
            if there.get(name) != kind:
                change = (
                    f"ALTER COLUMN {quoted([name])} TYPE" if name in there else f"ADD COLUMN {quoted([name])}"
                )
                connection.execute(f"ALTER TABLE {self.before} {change} {kind}".encode())

    def append(
        self, wanted: Wanted, target: Target, staged: Staged, rows: str, tasks: Sequence[int]
    ) -> bytes:
        """The statement that moves rows of these tasks; `rows` is one more condition."""
        names = quoted(c.name for c in target.columns)
        extra, value = (f", {quoted([wanted.extra])}", f", {staged.batch}") if wanted.extra else ("", "")
        return (
            f"INSERT INTO {target.name} ({names}{extra}) SELECT {names}{value} "
            f"FROM {self._rows_of(staged, tasks)} WHERE {rows}"
        ).encode()

    def upsert(
        self, wanted: Wanted, target: Target, staged: Staged, rows: str, tasks: Sequence[int]
    ) -> bytes:
        """The same for a table with a key: the last row of each key counts; what it replaces is kept."""
        key = wanted.key
        names, keys = [c.name for c in target.columns], quoted(key)
        same = " AND ".join(f"t.{quoted([name])} = s.{quoted([name])}" for name in key)
        rest = [name for name in names if name not in key]
        update = ", ".join(f"{quoted([name])} = EXCLUDED.{quoted([name])}" for name in rest)
        others = [name for name, _ in target.all if name not in key]
        image = "".join(f", t.{quoted([name])}" for name in others)
        marker = f", {DELETE}" if target.marker else ""
        gone = f", gone AS (DELETE FROM {target.name} t USING s WHERE {same} AND s.{DELETE})"
        return (
            f"WITH s AS MATERIALIZED (SELECT DISTINCT ON ({keys}) {quoted(names)}{marker} "
            f"FROM {self._rows_of(staged, tasks)} WHERE {rows} ORDER BY {keys}, {_NEWEST_FIRST}), "
            f"images AS (INSERT INTO {self.before} ({BATCH}, {EXISTED}, {quoted([*key, *others])}) "
            f"SELECT {staged.batch}, t.{quoted(key[:1])} IS NOT NULL, {quoted(key, 's.')}{image} "
            f"FROM s LEFT JOIN {target.name} t ON {same})"
            f"{gone if target.marker else ''} "
            f"INSERT INTO {target.name} AS t ({quoted(names)}) SELECT {quoted(names)} FROM s "
            f"{f'WHERE {DELETE} IS NOT TRUE' if target.marker else ''} "
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {update}' if rest else 'NOTHING'}"
        ).encode()

    def changing(
        self, connection: Connection, staged: Staged, tasks: Sequence[int], kinds: dict[str, tuple[str, str]]
    ) -> list[str]:
        """The columns with a value that another type would change; of each, the staged type and the other."""
        changes = [
            f"coalesce(bool_or({column}::{now}::{then}::text IS DISTINCT FROM {column}::text), false)"
            for column, then, now in ((quoted([name]), *pair) for name, pair in kinds.items())
        ]
        found = connection.execute(
            f"SELECT {', '.join(changes)} FROM {self._rows_of(staged, tasks)}".encode()
        ).fetchone()
        assert found is not None
        return [name for name, changed in zip(kinds, found, strict=True) if changed]

    def places(self, wanted: Wanted, staged: Staged, tasks: Sequence[int]) -> bytes:
        """The places of the rows that are moved; of a table with a key, the last of each key."""
        rows = self._rows_of(staged, tasks)
        if not wanted.key:
            return f"SELECT staged.ctid::text FROM {rows}".encode()
        keys = quoted(wanted.key)
        last = f"SELECT DISTINCT ON ({keys}) staged.ctid::text FROM {rows}"
        return f"{last} ORDER BY {keys}, {_NEWEST_FIRST}".encode()

    def _rows_of(self, staged: Staged, tasks: Sequence[int]) -> str:
        """The rows of these tasks, as SQL for FROM; a join, so that its cost is not rows times tasks."""
        table = self.staging(staged.batch, staged.token)
        return (
            f"{table} AS staged JOIN unnest({_array(tasks)}) WITH ORDINALITY "
            f'AS counted ("weir:counted", {_PLACE}) ON "weir:counted" = {TASK}'
        )

    def take_back(self, connection: Connection, wanted: Wanted, target: Target, to: BatchId) -> None:
        """Remove or restore the rows of every batch above this one."""
        if wanted.key:
            connection.execute(self._remove(wanted, target, to))
            connection.execute(self._restore(wanted, target, to))
            connection.execute(f"DELETE FROM {self.before} WHERE {BATCH} > {to}".encode())
        elif wanted.extra:
            connection.execute(f"DELETE FROM {target.name} WHERE {quoted([wanted.extra])} > {to}".encode())
        self._delete(connection, "delivered", f"batch > {to}")
        self.set_last(connection, to)

    def _remove(self, wanted: Wanted, target: Target, to: BatchId) -> bytes:
        """Rows that were not there at some time since: made by weir, or to be made again as a whole."""
        keys = quoted(wanted.key)
        same = " AND ".join(f"t.{quoted([name])} = b.{quoted([name])}" for name in wanted.key)
        return (
            f"DELETE FROM {target.name} t USING (SELECT {keys} FROM {self.before} WHERE {BATCH} > {to} "
            f"GROUP BY {keys} HAVING bool_or(NOT {EXISTED})) b WHERE {same}"
        ).encode()

    def _restore(self, wanted: Wanted, target: Target, to: BatchId) -> bytes:
        """The oldest image of a key is what was there; what weir does not write stays as it is."""
        keys, everything = quoted(wanted.key), quoted(name for name, _ in target.all)
        rest = [c.name for c in target.columns if c.name not in wanted.key]
        update = ", ".join(f"{quoted([name])} = EXCLUDED.{quoted([name])}" for name in rest)
        return (
            f"INSERT INTO {target.name} ({everything}) OVERRIDING SYSTEM VALUE SELECT {everything} FROM "
            f"(SELECT DISTINCT ON ({keys}) {EXISTED}, {everything} FROM {self.before} "
            f"WHERE {BATCH} > {to} ORDER BY {keys}, {BATCH}) b WHERE {EXISTED} "
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {update}' if rest else 'NOTHING'}"
        ).encode()

    def refusals(self, dead_letter: Name, staged: Staged, tasks: Sequence[int]) -> bytes:
        """The statement that brings refused rows to where they are found; its value: the query."""
        return (
            f"INSERT INTO {beside_values(str(dead_letter))} (query, batch, reason, column_name, value, row) "
            f"SELECT %s, {staged.batch}, reason, column_name, value, row "
            f"FROM {self._beside_values('refused')} WHERE {self._of(staged)} AND task = ANY({_array(tasks)})"
        ).encode()

    def _beside_values(self, table: str) -> str:
        return beside_values(self.name(table))

    def _of(self, staged: Staged) -> str:
        token = staged.token
        return (
            f"target = {self.id} AND batch = {staged.batch} AND attempt = {token.attempt} "
            f"AND run = {token.run} AND session = '{token.session}'"
        )

    def _set(self, connection: Connection, what: str) -> None:
        connection.execute(f"UPDATE {self.name('ledger')} SET {what} WHERE id = {self.id}".encode())

    def _delete(self, connection: Connection, table: str, which: str) -> None:
        connection.execute(f"DELETE FROM {self.name(table)} WHERE target = {self.id} AND {which}".encode())


def _bound(token: Token) -> str:
    """The session of a fence, with the numbers that it belongs to.

    A version without sessions announces itself by the numbers alone, and the session of the fence before
    stays in the row.
    """
    return f"{token.session}@{token}" if token.session else ""


def _unbound(stored: str, attempt: int, run: int) -> str:
    """The session of the fence with these numbers; "" when the stored one belongs to another fence.

    One without numbers is taken as it is: that is how it was stored at first.
    """
    session, at, numbers = stored.partition("@")
    return session if not at or numbers == f"{attempt}.{run}" else ""


def beside_values(name: str) -> str:
    """A name in a statement with values beside it: a `%` in the name is no place for one."""
    return name.replace("%", "%%")


def of_places(places: Sequence[str]) -> str:
    """The condition for rows by their places in a staging table, which is called `staged`."""
    return f"staged.ctid = ANY('{{{','.join(chr(34) + place + chr(34) for place in places)}}}'::tid[])"


def _array(numbers: Sequence[int]) -> str:
    return f"'{{{','.join(map(str, numbers))}}}'::bigint[]"
