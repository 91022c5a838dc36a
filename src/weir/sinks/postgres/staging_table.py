"""The staging of one run of a batch: a table that tasks copy rows into, and the record of which tasks count.

s<id>_<batch>_<attempt>_<run>_<session>   the rows; of rows that go to the table at once, how many there
                                          were in each chunk
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import errors, sql

from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol.ledger import Staged
from weir.sinks.postgres.ledger import LedgerRow
from weir.sinks.postgres.table import Name, TargetTable, Wanted, quoted

if TYPE_CHECKING:
    from weir.sinks.postgres.database import Connection

TASK, ROW = sql.Identifier("weir:task"), sql.Identifier("weir:row")
"""Columns of a staging table beside the frame's."""
PLACE = sql.Identifier("weir:place")
"""The position of a task's partition among the others."""
NEWEST_FIRST = sql.SQL("{} DESC, {} DESC").format(PLACE, ROW)


@dataclass(frozen=True)
class Recorded:
    """A staging that is complete."""

    rows: int
    refused: int
    tasks: tuple[int, ...]
    """The tasks whose rows count, by their partitions."""


@dataclass(frozen=True)
class StagingTable:
    """One staging, recorded or not; the executors get it too."""

    schema: str
    target: int
    """The id of the ledger's row."""
    batch: BatchId
    token: Token

    @classmethod
    def of(cls, row: LedgerRow, batch: BatchId, token: Token) -> StagingTable:
        return cls(row.schema, row.id, batch, token)

    @property
    def name(self) -> Name:
        session = f"_{self.token.session}" if self.token.session else ""
        numbers = f"{self.target}_{self.batch}_{self.token.attempt}_{self.token.run}"
        return Name(self.schema, f"s{numbers}{session}")

    def create(self, connection: Connection, target: TargetTable | None) -> None:
        """Make it, empty; without a target, for the numbers of rows only."""
        columns: list[sql.Composable] = [
            sql.SQL("{} bigint NOT NULL").format(TASK),
            sql.SQL("{} bigint").format(ROW),
        ]
        if target is not None:
            for column in target.staged:
                rest = f"{column.type} NOT NULL" if column.required else column.type
                columns.append(sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(rest)))
            columns += target.checks
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.name.identifier))
        create = sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false)")
        connection.execute(create.format(self.name.identifier, sql.SQL(", ").join(columns)))

    def delete(self, connection: Connection) -> None:
        """Delete the record and the table.

        A task that nobody waits for may still be copying into the table: then it stays for the next start.
        """
        for table in ("staged", "refused"):
            delete = sql.SQL("DELETE FROM {} WHERE {}")
            connection.execute(delete.format(sql.Identifier(self.schema, table), self._record))
        before = connection.execute("SELECT current_setting('lock_timeout')").fetchone()
        assert before is not None
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '200ms'")
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.name.identifier))
        except errors.LockNotAvailable:
            return
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(before[0]))

    # what the tasks execute

    def copy(self, target: TargetTable, *, numbered: bool) -> sql.Composed:
        """The COPY of a task; `numbered` when each row has its number."""
        own = sql.SQL(", ").join([TASK, ROW] if numbered else [TASK])
        names = quoted(column.name for column in target.staged)
        copy = sql.SQL("COPY {} ({}, {}) FROM STDIN (FORMAT csv)")
        return copy.format(self.name.identifier, own, names)

    def mark(self, task: int, rows: int) -> sql.Composed:
        """The INSERT that counts a chunk of rows that went to the table at once."""
        insert = sql.SQL("INSERT INTO {} ({}, {}) VALUES ({}, {})")
        return insert.format(self.name.identifier, TASK, ROW, task, rows)

    def refuse(self, task: int, reason: str, column: str, value: str, row: str) -> sql.Composed:
        """The INSERT of a row that was refused in a task."""
        token = self.token
        values = [self.target, self.batch, token.attempt, token.run, token.session]
        insert = sql.SQL(
            "INSERT INTO {} (target, batch, attempt, run, session, task, reason, column_name, value, row) "
            "VALUES ({})"
        )
        literals: list[Any] = [*values, task, reason, column, value, row]
        joined = sql.SQL(", ").join(map(sql.Literal, literals))
        return insert.format(sql.Identifier(self.schema, "refused"), joined)

    # the record

    def record(self, connection: Connection, state_ids: Sequence[str], written: Recorded) -> None:
        """Enter which tasks count, and how many rows they have."""
        token = self.token
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (target, batch, attempt, run, session, state_ids, tasks, rows, refused) "
                "VALUES ({}, {}, {}, {}, {}, {}::text[], {}, {}, {}) ON CONFLICT DO NOTHING"
            ).format(
                sql.Identifier(self.schema, "staged"),
                *(self.target, self.batch, token.attempt, token.run, token.session, list(state_ids)),
                *(_numbers(written.tasks), written.rows, written.refused),
            )
        )

    def recorded(self, connection: Connection) -> Recorded | None:
        """What was recorded; None when nothing was."""
        select = sql.SQL("SELECT rows, refused, tasks FROM {} WHERE {}")
        table = sql.Identifier(self.schema, "staged")
        row = connection.execute(select.format(table, self._record)).fetchone()
        return Recorded(row[0], row[1], tuple(row[2])) if row else None

    def count(self, connection: Connection, tasks: Sequence[int], *, at_once: bool) -> int:
        """How many rows of these tasks the server has."""
        what = sql.SQL("coalesce(sum({}), 0)::bigint").format(ROW) if at_once else sql.SQL("count(*)")
        select = sql.SQL("SELECT {} FROM {}").format(what, self.rows_of(tasks))
        row = connection.execute(select).fetchone()
        assert row is not None
        return int(row[0])

    def count_refused(self, connection: Connection, tasks: Sequence[int]) -> int:
        """How many rows the server has that were refused in these tasks."""
        select = sql.SQL("SELECT count(*) FROM {}").format(self.refused_of(tasks))
        row = connection.execute(select).fetchone()
        assert row is not None
        return int(row[0])

    def columns(self, connection: Connection) -> dict[str, str] | None:
        """The columns that were staged with their types, weir's own left out but for the marker.

        None when there is no staging table; none where the rows went to the table at once.
        """
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_class c LEFT JOIN pg_attribute "
            "ON attrelid = c.oid AND attnum > 2 AND NOT attisdropped WHERE c.oid = to_regclass(%s) "
            "ORDER BY attnum",
            (str(self.name),),
        ).fetchall()
        return {str(name): str(kind) for name, kind in rows if name is not None} if rows else None

    # parts of statements

    def rows_of(self, tasks: Sequence[int]) -> sql.Composed:
        """The rows of these tasks, for FROM, as `staged`.

        A join, so that its cost is not rows times tasks.
        """
        return sql.SQL(
            "{} AS staged JOIN unnest({}) WITH ORDINALITY "
            'AS counted ("weir:counted", {}) ON "weir:counted" = {}'
        ).format(self.name.identifier, _numbers(tasks), PLACE, TASK)

    def refused_of(self, tasks: Sequence[int]) -> sql.Composed:
        """The rows that were refused in these tasks, for FROM."""
        refused = sql.SQL("{} WHERE {} AND task = ANY({})")
        return refused.format(sql.Identifier(self.schema, "refused"), self._record, _numbers(tasks))

    def places(self, wanted: Wanted, tasks: Sequence[int]) -> sql.Composed:
        """The places of the rows that are moved; of a table with a key, the last of each key."""
        rows = self.rows_of(tasks)
        if not wanted.key:
            return sql.SQL("SELECT staged.ctid::text FROM {}").format(rows)
        return sql.SQL(
            "SELECT DISTINCT ON ({keys}) staged.ctid::text FROM {rows} ORDER BY {keys}, {newest}"
        ).format(keys=quoted(wanted.key), rows=rows, newest=NEWEST_FIRST)

    @property
    def _record(self) -> sql.Composed:
        """The condition for what weir's tables have of it."""
        token = self.token
        return sql.SQL("target = {} AND batch = {} AND attempt = {} AND run = {} AND session = {}").format(
            self.target, self.batch, token.attempt, token.run, token.session
        )


def recorded_stagings(connection: Connection, row: LedgerRow) -> list[Staged]:
    """Every staging of a sink that is recorded, in order."""
    select = sql.SQL(
        "SELECT batch, attempt, run, session, state_ids FROM {} WHERE target = {} "
        "ORDER BY batch, attempt, run"
    )
    return [
        Staged(BatchId(batch), Token(Attempt(attempt), Run(run), session), tuple(ids))
        for batch, attempt, run, session, ids in connection.execute(
            select.format(row.table("staged"), row.id)
        ).fetchall()
    ]


def staging_tables(connection: Connection, row: LedgerRow) -> list[StagingTable]:
    """Every staging table of a sink, recorded or not."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname ~ %s",
        (row.schema, rf"^s{row.id}_\d+_\d+_\d+(_[^_]+)?$"),
    ).fetchall()
    tables = []
    for (name,) in rows:
        batch, attempt, run, *session = name.split("_")[1:]
        token = Token(Attempt(int(attempt)), Run(int(run)), *session)
        tables.append(StagingTable.of(row, BatchId(int(batch)), token))
    return tables


def of_places(places: Sequence[str]) -> sql.Composed:
    """The condition for rows by their places in a staging table, which is called `staged`."""
    return sql.SQL("staged.ctid = ANY({}::tid[])").format(
        "{" + ",".join(f'"{place}"' for place in places) + "}"
    )


def _numbers(numbers: Sequence[int]) -> sql.Composed:
    """An array of them."""
    return sql.SQL("{}::bigint[]").format("{" + ",".join(map(str, numbers)) + "}")
