"""weir's own schema in the database (`weir`): its tables, and the ledger of one table of the user's.

    ledger              one row a table: whose it is, the fence, the newest batch that counts
    delivered           one row a batch: by which run, how many rows, when
    staged              stagings that are recorded: complete and durable
    refused             rows that were refused while they were staged, until their batch counts
    s<id>_<batch>_<attempt>_<run>_<session>   a staging: `staging_table.py`
    before_<id>         of a table with a key: the rows that each batch has replaced; `user_table.py`

Nothing here commits: the caller's transaction makes a step happen completely or not at all. Names and
values are put into statements by `psycopg.sql`; a value passed beside a statement would make a `%` in a
name the mark of a value.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from psycopg import sql

from weir.ids import NO_BATCH, Attempt, BatchId, CheckpointId, Run, Token
from weir.protocol.ledger import Ledger
from weir.sinks.postgres.table import Name, TargetTable, Wanted

if TYPE_CHECKING:
    from weir.sinks.postgres.database import Connection

_ONE_AT_A_TIME = 0x77656972
"""An advisory lock: who creates the schema."""
_SESSION = "session text NOT NULL DEFAULT ''"
"""The session of a token, in `ledger` with its numbers (`_bound`); '' in what an earlier weir has written."""
_TOKEN = f"attempt bigint NOT NULL, run bigint NOT NULL, {_SESSION}"
_BATCH = f"target bigint NOT NULL REFERENCES {{ledger}} ON DELETE CASCADE, batch bigint NOT NULL, {_TOKEN}"
_STAGED_KEY = "PRIMARY KEY (target, batch, attempt, run, session)"
_TABLES = {
    "ledger": "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, target text NOT NULL UNIQUE, "
    f"owner text NOT NULL, lineage text NOT NULL, mode text NOT NULL, {_TOKEN}, "
    "last bigint NOT NULL, floor bigint NOT NULL, checkpoint bigint",
    "delivered": f"{_BATCH}, rows bigint NOT NULL, refused bigint NOT NULL, "
    "at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (target, batch)",
    "staged": f"{_BATCH}, state_ids text[] NOT NULL, tasks bigint[] NOT NULL, rows bigint NOT NULL, "
    f"refused bigint NOT NULL, {_STAGED_KEY}",
    "refused": f"{_BATCH}, task bigint NOT NULL, reason text NOT NULL, column_name text NOT NULL, "
    "value text NOT NULL, row jsonb NOT NULL",
}
_UPSERT, _APPEND = "upsert", "append"


@dataclass(frozen=True)
class TableMode:
    """How the rows of a table are written, as far as a rewind depends on it."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    """With a key: those that are written, and so restored."""
    batch_column: str
    dead_letter: str

    @classmethod
    def of(cls, wanted: Wanted, target: TargetTable, dead_letter: Name | None) -> TableMode:
        columns = tuple(sorted(target.names)) if wanted.key else ()
        return cls(tuple(sorted(wanted.key)), columns, wanted.extra, str(dead_letter or ""))

    def text(self) -> str:
        return json.dumps({"kind": self._kind, **asdict(self)})

    def rewinds(self, former: str) -> bool:
        """Whether what was written in a former mode can be rewound in this one.

        Earlier versions entered the kind alone. Refused rows are in a table of their own, if in any.
        """
        if former in (_UPSERT, _APPEND):
            return former == self._kind
        other = json.loads(former)
        letters = other.pop("dead_letter", "")
        own = json.loads(self.text())
        return letters in ("", own.pop("dead_letter")) and other == own

    @property
    def _kind(self) -> str:
        return _UPSERT if self.key else _APPEND


class LedgerRow:
    """The row of one table of the user's in weir's ledger, and what belongs to it in weir's other tables."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.id = 0
        """Known once the sink is open."""

    def table(self, name: str) -> sql.Identifier:
        """One of weir's tables."""
        return sql.Identifier(self.schema, name)

    @property
    def before(self) -> Name:
        """The table of the rows that each batch has replaced."""
        return Name(self.schema, f"before_{self.id}")

    def create(self, connection: Connection) -> None:
        """Make the schema and its tables where they are missing."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
        refused = str(Name(self.schema, "refused"))
        row = connection.execute(
            "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL, to_regclass(%s) IS NOT NULL, "
            "EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'session')",
            (self.schema, refused, refused),
        ).fetchone()
        assert row is not None
        has_schema, has_tables, has_sessions = row
        if not has_schema:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
        if not has_tables:
            for table, columns in _TABLES.items():
                inside = sql.SQL(columns).format(ledger=self.table("ledger"))
                create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
                connection.execute(create.format(self.table(table), inside))
        elif not has_sessions:  # of an earlier weir: what is in them is of a session that nobody knows
            for table in _TABLES:
                add = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}")
                connection.execute(add.format(self.table(table), sql.SQL(_SESSION)))
            key = sql.SQL("ALTER TABLE {} DROP CONSTRAINT staged_pkey, ADD {}")
            connection.execute(key.format(self.table("staged"), sql.SQL(_STAGED_KEY)))

    def enter(self, connection: Connection, target: Name, owner: str, lineage: str) -> bool:
        """The row of this table: made now (then True), or by anybody earlier."""
        ledger = self.table("ledger")
        inserted = connection.execute(
            sql.SQL(
                "INSERT INTO {} (target, owner, lineage, mode, attempt, run, last, floor) "
                "VALUES ({}, {}, {}, '', 0, 0, {no_batch}, {no_batch}) ON CONFLICT (target) DO NOTHING"
            ).format(ledger, str(target), owner, lineage, no_batch=NO_BATCH)
        )
        row = connection.execute(
            sql.SQL("SELECT id FROM {} WHERE target = {} FOR UPDATE").format(ledger, str(target))
        ).fetchone()
        assert row is not None
        self.id = row[0]
        return inserted.rowcount > 0

    def read(self, connection: Connection, *, lock: bool) -> Ledger:
        """The ledger as it is; locked, nobody else changes it before this transaction ends."""
        row = connection.execute(
            sql.SQL(
                "SELECT owner, lineage, attempt, run, session, last, floor FROM {} WHERE id = {} {}"
            ).format(self.table("ledger"), self.id, sql.SQL("FOR UPDATE" if lock else ""))
        ).fetchone()
        if row is None:
            return Ledger()
        owner, lineage, attempt, run, session, last, floor = row
        fence = Token(Attempt(attempt), Run(run), _unbound(session, attempt, run))
        return Ledger(owner, lineage, fence, BatchId(last), BatchId(floor))

    def announce(self, connection: Connection, token: Token) -> None:
        """From now on this run is the fence."""
        values = {"attempt": token.attempt, "run": token.run, "session": _bound(token)}
        self._set(connection, "attempt = {attempt}, run = {run}, session = {session}", **values)

    def set_checkpoint(self, connection: Connection, checkpoint: CheckpointId) -> None:
        """The checkpoint up to which readers see the table, where they see complete checkpoints."""
        self._set(connection, "checkpoint = {checkpoint}", checkpoint=checkpoint)

    def set_mode(self, connection: Connection, mode: TableMode) -> None:
        """Enter how rows are written from now on.

        What was written in another way can't be rewound in this one: the floor rises to the newest batch.
        """
        row = connection.execute(
            sql.SQL("SELECT mode FROM {} WHERE id = {} FOR UPDATE").format(self.table("ledger"), self.id)
        ).fetchone()
        if row is None or row[0] == mode.text():
            return
        self._set(connection, "mode = {mode}", mode=mode.text())
        if row[0] and not mode.rewinds(row[0]):
            self.raise_floor(connection, "last", images=bool(mode.key))

    def raise_floor(self, connection: Connection, batch: BatchId | Literal["last"], *, images: bool) -> None:
        """From now on nothing is rewound to below this batch; images for such a rewind are deleted."""
        floor = sql.Identifier("last") if batch == "last" else batch
        self._set(connection, "floor = greatest(floor, {floor})", floor=floor)
        if images:
            delete = sql.SQL('DELETE FROM {} WHERE "weir:batch" <= (SELECT floor FROM {} WHERE id = {})')
            connection.execute(delete.format(self.before.identifier, self.table("ledger"), self.id))

    def deliver(self, connection: Connection, batch: BatchId, token: Token, rows: int, refused: int) -> None:
        """Enter a batch whose rows were moved."""
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (target, batch, attempt, run, session, rows, refused) "
                "VALUES ({}, {}, {}, {}, {}, {}, {})"
            ).format(
                self.table("delivered"),
                self.id,
                batch,
                token.attempt,
                token.run,
                token.session,
                rows,
                refused,
            )
        )
        self._set(connection, "last = {last}", last=batch)

    def rewind(self, connection: Connection, to: BatchId) -> None:
        """Delete the entries of every batch above this one."""
        self._delete_delivered(connection, "batch > {}", to)
        self._set(connection, "last = {last}", last=to)

    def expire(self, connection: Connection, upto: BatchId, *, images: bool) -> None:
        """Delete what a rewind to this batch, or to a later one, has no use for."""
        self._delete_delivered(connection, "batch <= {}", upto)
        if images:
            self.raise_floor(connection, upto, images=True)

    def _delete_delivered(self, connection: Connection, which: str, batch: BatchId) -> None:
        delete = sql.SQL("DELETE FROM {} WHERE target = {} AND ").format(self.table("delivered"), self.id)
        connection.execute(delete + sql.SQL(which).format(batch))

    def _set(self, connection: Connection, what: str, **values: object) -> None:
        changes = sql.SQL(what).format(**values)
        update = sql.SQL("UPDATE {} SET {} WHERE id = {}")
        connection.execute(update.format(self.table("ledger"), changes, self.id))


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
