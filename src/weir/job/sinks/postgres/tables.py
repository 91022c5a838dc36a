"""What a sink keeps in its own schema of the database (`weir`), and the statements that move a batch.

    ledger              one row a table: whose it is, the fence, the newest batch that counts
    delivered           one row a batch: by which run, how many rows, when
    staged              stagings that are recorded: whole and durable
    refused             rows that were refused while they were staged, until their batch counts
    s<id>_<batch>_<attempt>_<run>   the rows of one run of a batch
    before_<id>         of a table with a key: the rows that each batch has replaced

Nothing here commits: the caller's transaction makes a step happen as a whole or not at all. Numbers
and quoted names stand in the text of a statement; values are always passed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.job.sinks.postgres.catalogue import MARKER, Name, Target, Wanted, quoted
from weir.protocol.ledger import Ledger, Staged

if TYPE_CHECKING:
    from weir.job.sinks.postgres.database import Connection

_ONE_AT_A_TIME = 0x77656972
"""An advisory lock: who creates the schema."""
TASK, ROW, DELETE = '"weir:task"', '"weir:row"', f'"{MARKER}"'
"""Columns of a staging table beside the frame's."""
BATCH, EXISTED = '"weir:batch"', '"weir:existed"'
"""Columns of a table of images beside the user's."""
_OPTIONS = "WITH (autovacuum_enabled = false)"
DEAD_LETTERS = (
    "query text NOT NULL, batch bigint NOT NULL, refused_at timestamptz NOT NULL DEFAULT now(), "
    "reason text NOT NULL, column_name text NOT NULL, value text NOT NULL, row jsonb NOT NULL"
)


@dataclass(frozen=True)
class Recorded:
    """A staging that is whole."""

    rows: int
    refused: int
    tasks: tuple[int, ...]
    """The tasks whose rows count, by their partitions."""


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
            "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL, to_regclass(%s) IS NOT NULL",
            (self.schema, self.name("refused")),
        ).fetchone()
        assert found is not None
        if found[1]:
            return
        if not found[0]:
            connection.execute(f"CREATE SCHEMA {quoted([self.schema])}".encode())
        token = "attempt bigint NOT NULL, run bigint NOT NULL"
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
                "refused bigint NOT NULL, PRIMARY KEY (target, batch, attempt, run)",
            ),
            (
                "refused",
                f"{of}, {token}, task bigint NOT NULL, reason text NOT NULL, column_name text NOT NULL, "
                "value text NOT NULL, row jsonb NOT NULL",
            ),
        ):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({columns})".encode())

    # the ledger

    def enter(self, connection: Connection, target: Name, owner: str, lineage: str, mode: str) -> bool:
        """The row of this table: made now (then True), or there already, by whomever."""
        made = connection.execute(
            f"INSERT INTO {self._beside_values('ledger')} "
            "(target, owner, lineage, mode, attempt, run, last, floor) "
            f"VALUES (%s, %s, %s, %s, 0, 0, {NO_BATCH}, {NO_BATCH}) ON CONFLICT (target) DO NOTHING".encode(),
            (str(target), owner, lineage, mode),
        )
        found = connection.execute(
            f"SELECT id, mode FROM {self._beside_values('ledger')} WHERE target = %s FOR UPDATE".encode(),
            (str(target),),
        ).fetchone()
        assert found is not None
        self.id = found[0]
        if found[1] != mode:  # what was written in another way can't be taken back in this one
            connection.execute(
                f"UPDATE {self._beside_values('ledger')} SET mode = %s, floor = last WHERE id = %s".encode(),
                (mode, self.id),
            )
        return made.rowcount > 0

    def ledger(self, connection: Connection, *, lock: bool) -> Ledger:
        """The ledger as it stands; locked, nobody else changes it before this transaction ends."""
        found = connection.execute(
            f"SELECT owner, lineage, attempt, run, last, floor FROM {self.name('ledger')} "
            f"WHERE id = {self.id} {'FOR UPDATE' if lock else ''}".encode()
        ).fetchone()
        if found is None:
            return Ledger()
        owner, lineage, attempt, run, last, floor = found
        return Ledger(owner, lineage, Token(Attempt(attempt), Run(run)), BatchId(last), BatchId(floor))

    def announce(self, connection: Connection, token: Token) -> None:
        self._set(connection, f"attempt = {token.attempt}, run = {token.run}")

    def set_last(self, connection: Connection, last: BatchId) -> None:
        self._set(connection, f"last = {last}")

    def set_checkpoint(self, connection: Connection, checkpoint: CheckpointId) -> None:
        """The checkpoint up to which readers see the table, where they see whole checkpoints."""
        self._set(connection, f"checkpoint = {checkpoint}")

    def deliver(self, connection: Connection, batch: BatchId, token: Token, rows: int, refused: int) -> None:
        """Enter a batch that was moved."""
        connection.execute(
            f"INSERT INTO {self.name('delivered')} (target, batch, attempt, run, rows, refused) "
            f"VALUES ({self.id}, {batch}, {token.attempt}, {token.run}, {rows}, {refused})".encode()
        )
        self.set_last(connection, batch)

    def forget(self, connection: Connection, upto: BatchId, *, images: bool) -> None:
        """Remove what a rewind to this batch, or to a later one, has no use for."""
        self._delete(connection, "delivered", f"batch <= {upto}")
        if images:
            connection.execute(f"DELETE FROM {self.before} WHERE {BATCH} <= {upto}".encode())
            self._set(connection, f"floor = greatest(floor, {upto})")

    # stagings

    def staging(self, batch: BatchId, token: Token) -> str:
        return self.name(f"s{self.id}_{batch}_{token.attempt}_{token.run}")

    def create_staging(self, connection: Connection, target: Target, batch: BatchId, token: Token) -> None:
        """An empty table for the rows of one run of a batch."""
        table = self.staging(batch, token)
        columns = [f"{TASK} bigint NOT NULL", f"{ROW} bigint"]
        columns += [f"{quoted([c.name])} {c.type}{' NOT NULL' if c.required else ''}" for c in target.staged]
        connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
        inside = ", ".join([*columns, *target.checks])
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

    def refuse(self, batch: BatchId, token: Token) -> str:
        """The INSERT of a row that was refused in a task; its values: task, reason, column, value, row."""
        return (
            f"INSERT INTO {self._beside_values('refused')} "
            "(target, batch, attempt, run, task, reason, column_name, value, row) "
            f"VALUES ({self.id}, {batch}, {token.attempt}, {token.run}, %s, %s, %s, %s, %s)"
        )

    def record(self, connection: Connection, staged: Staged, written: Recorded) -> None:
        connection.execute(
            f"INSERT INTO {self._beside_values('staged')} "
            "(target, batch, attempt, run, state_ids, tasks, rows, refused) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING".encode(),
            (
                *(self.id, staged.batch, staged.token.attempt, staged.token.run, list(staged.state_ids)),
                *(list(written.tasks), written.rows, written.refused),
            ),
        )

    def recorded(self, connection: Connection) -> list[Staged]:
        found = connection.execute(
            f"SELECT batch, attempt, run, state_ids FROM {self.name('staged')} "
            f"WHERE target = {self.id} ORDER BY batch, attempt, run".encode()
        ).fetchall()
        return [
            Staged(BatchId(batch), Token(Attempt(attempt), Run(run)), tuple(ids))
            for batch, attempt, run, ids in found
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
            (self.schema, rf"^s{self.id}_\d+_\d+_\d+$"),
        ).fetchall()
        parsed = []
        for (name,) in found:
            batch, attempt, run = map(int, name.split("_")[1:])
            parsed.append((self.name(name), BatchId(batch), Token(Attempt(attempt), Run(run))))
        return parsed

    def columns_of_staging(self, connection: Connection, staged: Staged) -> list[str]:
        """The columns that were staged, weir's own left out but for the marker."""
        found = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 2 "
            "AND NOT attisdropped ORDER BY attnum",
            (self.staging(staged.batch, staged.token),),
        ).fetchall()
        return [str(name) for (name,) in found]

    def forget_staging(self, connection: Connection, staged: Staged) -> None:
        """Remove the record and the table of a staging.

        A task that nobody waits for may still be copying into the table: then it stays for the next start.
        """
        import psycopg  # noqa: PLC0415

        for table in ("staged", "refused"):
            connection.execute(f"DELETE FROM {self.name(table)} WHERE {self._of(staged)}".encode())
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '200ms'")
                connection.execute(
                    f"DROP TABLE IF EXISTS {self.staging(staged.batch, staged.token)}".encode()
                )
        except psycopg.errors.LockNotAvailable:
            return
        connection.execute("SET LOCAL lock_timeout = 0")

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
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self.before,),
        ).fetchall()
        there = {str(name): str(kind) for name, kind in found}
        for name, kind in target.all:  # the user's table may have changed since
            if there.get(name) != kind:
                change = (
                    f"ALTER COLUMN {quoted([name])} TYPE" if name in there else f"ADD COLUMN {quoted([name])}"
                )
                connection.execute(f"ALTER TABLE {self.before} {change} {kind}".encode())

    def append(self, wanted: Wanted, target: Target, staged: Staged, rows: str) -> bytes:
        """The statement that moves these rows of a staging; `rows` is a condition."""
        names = quoted(c.name for c in target.columns)
        extra, value = (f", {quoted([wanted.extra])}", f", {staged.batch}") if wanted.extra else ("", "")
        return (
            f"INSERT INTO {target.name} ({names}{extra}) SELECT {names}{value} "
            f"FROM {self.staging(staged.batch, staged.token)} WHERE {rows}"
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
            f"FROM {self.staging(staged.batch, staged.token)} WHERE {rows} "
            f"ORDER BY {keys}, array_position({_array(tasks)}, {TASK}) DESC, {ROW} DESC), "
            f"images AS (INSERT INTO {self.before} ({BATCH}, {EXISTED}, {quoted([*key, *others])}) "
            f"SELECT {staged.batch}, t.{quoted(key[:1])} IS NOT NULL, {quoted(key, 's.')}{image} "
            f"FROM s LEFT JOIN {target.name} t ON {same})"
            f"{gone if target.marker else ''} "
            f"INSERT INTO {target.name} AS t ({quoted(names)}) SELECT {quoted(names)} FROM s "
            f"{f'WHERE {DELETE} IS NOT TRUE' if target.marker else ''} "
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {update}' if rest else 'NOTHING'}"
        ).encode()

    def last_of_each_key(self, wanted: Wanted, staged: Staged, tasks: Sequence[int]) -> bytes:
        """The places of the rows that an upsert moves."""
        keys = quoted(wanted.key)
        return (
            f"SELECT DISTINCT ON ({keys}) ctid::text FROM {self.staging(staged.batch, staged.token)} "
            f"WHERE {of_tasks(tasks)} "
            f"ORDER BY {keys}, array_position({_array(tasks)}, {TASK}) DESC, {ROW} DESC"
        ).encode()

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
        attempt, run = staged.token
        return f"target = {self.id} AND batch = {staged.batch} AND attempt = {attempt} AND run = {run}"

    def _set(self, connection: Connection, what: str) -> None:
        connection.execute(f"UPDATE {self.name('ledger')} SET {what} WHERE id = {self.id}".encode())

    def _delete(self, connection: Connection, table: str, which: str) -> None:
        connection.execute(f"DELETE FROM {self.name(table)} WHERE target = {self.id} AND {which}".encode())


def beside_values(name: str) -> str:
    """A name in a statement with values beside it: a `%` in the name is no place for one."""
    return name.replace("%", "%%")


def of_tasks(tasks: Sequence[int]) -> str:
    """The condition for the rows that count."""
    return f"{TASK} = ANY({_array(tasks)})"


def of_places(places: Sequence[str]) -> str:
    """The condition for rows by their places in a staging table."""
    return f"ctid = ANY('{{{','.join(chr(34) + place + chr(34) for place in places)}}}'::tid[])"


def _array(numbers: Sequence[int]) -> str:
    return f"'{{{','.join(map(str, numbers))}}}'::bigint[]"
