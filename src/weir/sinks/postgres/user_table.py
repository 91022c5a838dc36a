"""The user's table as weir writes it: the rows of a batch move into it, and a rewind takes them out again.

With a key, the last row of each key counts; what it replaces is kept as an image in `before_<id>`, from
which a rewind restores it. Rows that the table does not take are found by halving, and kept in the
dead-letter table, where there is one. Every method works within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from weir.errors import RefusedRowError, SinkMismatchError
from weir.ids import BatchId
from weir.sinks.postgres import catalogue
from weir.sinks.postgres.database import Database, refuses_row
from weir.sinks.postgres.ledger import LedgerRow, TableMode
from weir.sinks.postgres.staging_table import NEWEST_FIRST, Recorded, StagingTable, of_places
from weir.sinks.postgres.table import MARKER, Name, TargetTable, Wanted, quoted
from weir.sinks.postgres.task import RefusedRow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from weir.sinks.postgres.database import Connection

_BATCH, _EXISTED = sql.Identifier("weir:batch"), sql.Identifier("weir:existed")
"""Columns of a table of images beside the user's."""
_DELETE = sql.Identifier(MARKER)
_DEAD_LETTERS = (
    "query text NOT NULL, batch bigint NOT NULL, refused_at timestamptz NOT NULL DEFAULT now(), "
    "reason text NOT NULL, column_name text NOT NULL, value text NOT NULL, row jsonb NOT NULL"
)
_ZONED = "with time zone"


class ConstraintCheck(Enum):
    """When the constraints that the user has deferred are checked."""

    NOW = "now"
    """With the rows that are moved: what violates them can be set apart."""
    AT_COMMIT = "at commit"


@dataclass(frozen=True)
class Moved:
    """What became of rows that were staged."""

    rows: int
    """Appended rows: as many as the server has inserted, without those that a trigger or a rule kept out."""
    refused: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.rows + other.rows, self.refused + other.refused)


class UserTable:
    """The table that one sink writes to; `target` is known once the frame's schema was compared with it."""

    def __init__(self, database: Database, row: LedgerRow, wanted: Wanted, dead_letter: Name | None) -> None:
        self._database = database
        self._row = row
        self._wanted = wanted
        self.dead_letter = dead_letter
        self.target: TargetTable | None = None

    def describe(self) -> str:
        return f"table {self._wanted.table} in {self._database.address.place}"

    def fit(self, connection: Connection, schema: StructType) -> TargetTable:
        """Compare it with the frame, or create it, with what weir needs beside it."""
        target = self.target = catalogue.fit(connection, self._wanted, schema, self._database.query)
        if self._wanted.key:
            self._create_images(connection, target)
        self._row.set_mode(connection, TableMode.of(self._wanted, target, self.dead_letter))
        if self.dead_letter is not None:
            self._create_dead_letter(connection, self.dead_letter)
        return target

    def _create_images(self, connection: Connection, target: TargetTable) -> None:
        """The table of replaced rows, with every column that the user's table has."""
        before = self._row.before
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in target.all]
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({} bigint NOT NULL, {} boolean NOT NULL{})")
        rest = sql.SQL("").join(sql.SQL(", ") + column for column in columns)
        connection.execute(create.format(before.identifier, _BATCH, _EXISTED, rest))
        index = sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING brin ({})")
        connection.execute(index.format(sql.Identifier(f"{before.table}_batch"), before.identifier, _BATCH))
        existing = catalogue.types(connection, before)
        for name, kind in target.all:  # the user's table may have changed since
            if existing.get(name) != kind:
                change = "ALTER COLUMN {} TYPE {}" if name in existing else "ADD COLUMN {} {}"
                alter = sql.SQL("ALTER TABLE {} ").format(before.identifier)
                connection.execute(alter + sql.SQL(change).format(sql.Identifier(name), sql.SQL(kind)))

    def _create_dead_letter(self, connection: Connection, name: Name) -> None:
        row = connection.execute(
            "SELECT (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = c.oid) "
            "FROM pg_class c WHERE c.oid = to_regclass(%s)",
            (str(name),),
        ).fetchone()
        if row is None:
            create = sql.SQL("CREATE TABLE {} ({})")
            connection.execute(create.format(name.identifier, sql.SQL(_DEAD_LETTERS)))
            return
        needed = {column.strip().split(" ")[0] for column in _DEAD_LETTERS.split(",")}
        if not needed <= set(row[0]):
            missing = ", ".join(sorted(needed - set(row[0])))
            raise SinkMismatchError(
                query=self._database.query,
                path=f"table {name}",
                reason=f"as a dead-letter table it lacks the columns {missing}",
                todo=f"let weir create one under another name; or: CREATE TABLE ... ({_DEAD_LETTERS})",
            )

    # moving a batch

    def move(
        self,
        connection: Connection,
        staging: StagingTable,
        recorded: Recorded,
        kinds: dict[str, str],
        check: ConstraintCheck,
    ) -> Moved:
        """Move the rows that count, with the columns that are staged (`kinds`).

        An earlier run may have staged other columns than this one would: the query was changed since.
        """
        self._check_types(connection, staging, recorded, kinds)
        assert self.target is not None
        target = self.target.only(list(kinds))
        if self._wanted.key and set(target.names) != set(self.target.names):
            # a rewind restores the columns that are written now: this batch has written others
            self._row.raise_floor(connection, staging.batch, images=False)

        def statement(rows: sql.Composable) -> sql.Composed:
            build = self._upsert if self._wanted.key else self._append
            return build(target, staging, recorded.tasks, rows)

        moved = _execute(connection, statement(sql.SQL("true")), check)
        if isinstance(moved, int):
            return Moved(recorded.rows if self._wanted.key else moved)
        find = staging.places(self._wanted, recorded.tasks)
        places = [str(place) for (place,) in connection.execute(find).fetchall()]
        halved = self._move_halves(connection, staging, statement, places, check)
        return Moved(recorded.rows - halved.refused, halved.refused) if self._wanted.key else halved

    def _move_halves(
        self,
        connection: Connection,
        staging: StagingTable,
        statement: Callable[[sql.Composable], sql.Composed],
        places: list[str],
        check: ConstraintCheck,
    ) -> Moved:
        """Move what the table takes; halve what it does not, until each refused row stands alone."""
        moved = _execute(connection, statement(of_places(places)), check)
        if isinstance(moved, int):
            return Moved(moved)
        if len(places) == 1:
            self._keep_refused(connection, staging, places[0], moved)
            return Moved(0, 1)
        middle = len(places) // 2
        first = self._move_halves(connection, staging, statement, places[:middle], check)
        return first + self._move_halves(connection, staging, statement, places[middle:], check)

    def _append(
        self, target: TargetTable, staging: StagingTable, tasks: Sequence[int], rows: sql.Composable
    ) -> sql.Composed:
        """The statement that moves rows of these tasks; `rows` is one more condition."""
        columns: list[sql.Composable] = [sql.Identifier(name) for name in target.names]
        values = [*columns]
        if self._wanted.extra:
            columns.append(sql.Identifier(self._wanted.extra))
            values.append(sql.Literal(int(staging.batch)))
        return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {}").format(
            target.name.identifier,
            *(sql.SQL(", ").join(columns), sql.SQL(", ").join(values), staging.rows_of(tasks), rows),
        )

    def _upsert(
        self, target: TargetTable, staging: StagingTable, tasks: Sequence[int], rows: sql.Composable
    ) -> sql.Composed:
        """The same for a table with a key: the last row of each key counts; what it replaces is kept."""
        key = self._wanted.key
        others = [name for name, _ in target.all if name not in key]
        marked = target.marker is not None
        gone = ", gone AS (DELETE FROM {table} t USING s WHERE {same} AND s.{delete})"
        return sql.SQL(
            "WITH s AS MATERIALIZED (SELECT DISTINCT ON ({keys}) {staged} FROM {source} WHERE {rows} "
            "ORDER BY {keys}, {newest_first}), "
            "images AS (INSERT INTO {before} ({batch_column}, {existed}, {image_columns}) "
            "SELECT {batch}, t.{first_key} IS NOT NULL, {image} FROM s LEFT JOIN {table} t ON {same})"
            + (gone if marked else "")
            + " INSERT INTO {table} AS t ({names}) SELECT {names} FROM s "
            + ("WHERE {delete} IS NOT TRUE " if marked else "")
            + "ON CONFLICT ({keys}) DO {update}"
        ).format(
            keys=quoted(key),
            staged=quoted([*target.names, *([MARKER] if marked else [])]),
            source=staging.rows_of(tasks),
            rows=rows,
            newest_first=NEWEST_FIRST,
            before=self._row.before.identifier,
            batch_column=_BATCH,
            existed=_EXISTED,
            image_columns=quoted([*key, *others]),
            batch=int(staging.batch),
            first_key=sql.Identifier(key[0]),
            image=sql.SQL(", ").join(
                [*(sql.Identifier("s", n) for n in key), *(sql.Identifier("t", n) for n in others)]
            ),
            table=target.name.identifier,
            same=_same(key, "t", "s"),
            delete=_DELETE,
            names=quoted(target.names),
            update=self._update(target),
        )

    def _update(self, target: TargetTable) -> sql.Composable:
        """What becomes of a row whose key exists already."""
        rest = [sql.Identifier(name) for name in target.names if name not in self._wanted.key]
        if not rest:
            return sql.SQL("NOTHING")
        changes = sql.SQL(", ").join(sql.SQL("{name} = EXCLUDED.{name}").format(name=name) for name in rest)
        return sql.SQL("UPDATE SET ") + changes

    def _check_types(
        self, connection: Connection, staging: StagingTable, recorded: Recorded, kinds: dict[str, str]
    ) -> None:
        """Raise where a column has another type by now, which PostgreSQL would silently convert values to."""
        assert self.target is not None
        name = self.target.name
        lock = sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE")  # as an INSERT does
        connection.execute(lock.format(name.identifier))
        now = catalogue.types(connection, name)
        changed = {
            column: (then, now[column]) for column, then in kinds.items() if now.get(column, then) != then
        }
        if not changed:
            return
        wrong = {column for column, pair in changed.items() if len({_ZONED in kind for kind in pair}) > 1}
        columns = [
            sql.SQL("coalesce(bool_or({id}::{now}::{then}::text IS DISTINCT FROM {id}::text), false)").format(
                id=sql.Identifier(column), now=sql.SQL(kind), then=sql.SQL(then)
            )
            for column, (then, kind) in changed.items()
        ]
        select = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(columns), staging.rows_of(recorded.tasks)
        )
        differs = connection.execute(select).fetchone()
        assert differs is not None
        wrong |= {column for column, differ in zip(changed, differs, strict=True) if differ}
        for column in sorted(wrong):
            then, kind = changed[column]
            reason = f"its column {column!r} is {kind} now, which would change rows staged as {then}"
            alter = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}").format(
                name.identifier, sql.Identifier(column), sql.SQL(then)
            )
            raise self.mismatch(reason, f"{alter.as_string(connection)}; then start again")

    # refused rows

    def _keep_refused(
        self, connection: Connection, staging: StagingTable, place: str, error: psycopg.Error
    ) -> None:
        names = list(staging.columns(connection) or ())
        select = sql.SQL("SELECT {} FROM {} AS staged WHERE {}")
        row = connection.execute(
            select.format(quoted(names), staging.name.identifier, of_places([place]))
        ).fetchone()
        values = dict(zip(names, row or (), strict=False))
        refusal = RefusedRow.of(error, values, self._database.address, connection)
        if self.dead_letter is None:
            raise self.refused(refusal.shown())
        insert = sql.SQL(
            "INSERT INTO {} (query, batch, reason, column_name, value, row) VALUES ({}, {}, {}, {}, {}, {})"
        )
        connection.execute(
            insert.format(
                *(self.dead_letter.identifier, self._owner(connection), int(staging.batch)),
                *(refusal.reason, refusal.column, refusal.value, refusal.row),
            )
        )

    def move_refused(self, connection: Connection, staging: StagingTable, tasks: Sequence[int]) -> None:
        """Move the rows that the tasks kept apart to the dead-letter table."""
        if self.dead_letter is None:
            reason = f"rows of batch {staging.batch} were refused and kept for a dead-letter table"
            raise self.mismatch(reason, "name that table again: dead_letter=<table>")
        insert = sql.SQL(
            "INSERT INTO {} (query, batch, reason, column_name, value, row) "
            "SELECT {}, {}, reason, column_name, value, row FROM {}"
        )
        owner = self._owner(connection)
        refused = staging.refused_of(tasks)
        connection.execute(insert.format(self.dead_letter.identifier, owner, int(staging.batch), refused))

    def _owner(self, connection: Connection) -> str:
        return self._row.read(connection, lock=False).owner

    def refused(self, refusal: dict[str, str]) -> RefusedRowError:
        """The error for a row that the table does not take."""
        return RefusedRowError(table=str(self._wanted.table), query=self._database.query, **refusal)

    def mismatch(self, reason: str, todo: str) -> SinkMismatchError:
        return SinkMismatchError(query=self._database.query, path=self.describe(), reason=reason, todo=todo)

    # a rewind

    def rewind(self, connection: Connection, to: BatchId, owner: str) -> None:
        """Delete or restore the rows of every batch above this one, and delete their dead letters."""
        assert self.target is not None, "a sink is rewound after `open`, which knows the table"
        target, key = self.target, self._wanted.key
        parts = {
            "table": target.name.identifier,
            "before": self._row.before.identifier,
            "batch": _BATCH,
            "existed": _EXISTED,
            "keys": quoted(key) if key else sql.SQL(""),
            "to": int(to),
        }
        if key:
            # rows that did not exist at some time since: inserted by weir, or to be restored completely
            remove = sql.SQL(
                "DELETE FROM {table} t USING (SELECT {keys} FROM {before} WHERE {batch} > {to} "
                "GROUP BY {keys} HAVING bool_or(NOT {existed})) b WHERE {same}"
            )
            connection.execute(remove.format(same=_same(key, "t", "b"), **parts))
            # the oldest image of a key is what was there; columns that weir does not write stay as they are
            restore = sql.SQL(
                "INSERT INTO {table} ({all}) OVERRIDING SYSTEM VALUE SELECT {all} FROM "
                "(SELECT DISTINCT ON ({keys}) {existed}, {all} FROM {before} "
                "WHERE {batch} > {to} ORDER BY {keys}, {batch}) b WHERE {existed} "
                "ON CONFLICT ({keys}) DO {update}"
            )
            everything = quoted(name for name, _ in target.all)
            connection.execute(restore.format(all=everything, update=self._update(target), **parts))
            connection.execute(sql.SQL("DELETE FROM {before} WHERE {batch} > {to}").format(**parts))
        elif self._wanted.extra:
            delete = sql.SQL("DELETE FROM {} WHERE {} > {}")
            extra = sql.Identifier(self._wanted.extra)
            connection.execute(delete.format(target.name.identifier, extra, int(to)))
        if self.dead_letter is not None:
            letters = sql.SQL("DELETE FROM {} WHERE query = {} AND batch > {}")
            connection.execute(letters.format(self.dead_letter.identifier, owner, int(to)))


def _execute(connection: Connection, statement: sql.Composed, check: ConstraintCheck) -> int | psycopg.Error:
    """Move rows, all of them or none; how many were inserted, or the error, when it is about a row."""
    try:
        with connection.transaction():
            inserted = connection.execute(statement).rowcount
            if check is ConstraintCheck.NOW:
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.Error as error:
        if not refuses_row(error):
            raise
        return error
    return inserted


def _same(key: Sequence[str], one: str, other: str) -> sql.Composed:
    """The condition that rows of two tables have the same key."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name)) for name in key
    )
