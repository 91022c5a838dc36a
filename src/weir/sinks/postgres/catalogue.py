"""The table that a sink writes to is checked against the catalogue, or created, before the first batch.

Whatever does not fit is refused here, with a reason, before a row is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from psycopg import sql

from weir.sinks.postgres.table import MARKER, Column, Name, TargetTable, Wanted, quoted, refuse
from weir.sinks.postgres.types import CopyForm, PgType, form, sql_type, words

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from weir.sinks.postgres.database import Connection

_NUMERIC_MOD = 2048
_HEADER = 4
"""What a type modifier adds to a length."""
_FULL_SECONDS = 6


@dataclass(frozen=True)
class _Attribute:
    number: int
    name: str
    sql: str
    type: PgType
    not_null: bool
    default: bool
    computed: bool
    """Its value is made of other columns."""
    given: bool
    """Its value is the database's own to give, computed or counted."""


def fit(connection: Connection, wanted: Wanted, schema: StructType, query: str) -> TargetTable:
    """The table for a frame of this schema, created when that is asked for; raises `SinkMismatchError`."""
    return _Fit(connection, wanted, schema, query).run()


def resolve(connection: Connection, name: Name) -> Name:
    """The name with its schema: that of the table it means, or of the one that would be created."""
    row = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        (str(name),),
    ).fetchone()
    if row is not None:
        return Name(*row)
    first = connection.execute("SELECT current_schema()").fetchone()
    return Name(name.schema or str(first[0] if first and first[0] else "public"), name.table)


def types(connection: Connection, name: Name) -> dict[str, str]:
    """The columns of a table with their types, as SQL, as they are now."""
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (str(name),),
    ).fetchall()
    return {str(column): str(kind) for column, kind in rows}


def check_unnumbered(connection: Connection, name: Name, column: str, query: str) -> None:
    """Raise when rows have the batch of a former owner: a rollback of the new one would take them too."""
    column_row = connection.execute(
        "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped",
        (str(name), column),
    ).fetchone()
    if column_row is None:
        return
    id = sql.Identifier(column)
    numbered = sql.SQL("SELECT 1 FROM {} WHERE {} IS NOT NULL LIMIT 1").format(name.identifier, id)
    if connection.execute(numbered).fetchone():
        release = sql.SQL("UPDATE {} SET {id} = NULL WHERE {id} IS NOT NULL").format(name.identifier, id=id)
        refuse(
            query,
            f"table {name}",
            f"its rows have batches in {column!r} of a query that weir's ledger does not know; "
            "a rollback of this one would delete them",
            f"to keep them for good: {release.as_string(connection)}",
        )


class _Fit:
    def __init__(self, connection: Connection, wanted: Wanted, schema: StructType, query: str) -> None:
        self._connection = connection
        self._wanted = wanted
        self._schema = schema
        self._query = query
        self._name = resolve(connection, wanted.table)
        self._pairs = self._chosen()

    def run(self) -> TargetTable:
        oid = self._oid()
        if oid is None:
            if not self._wanted.create:
                ddl = self._text(self._ddl())
                todo = f"create it, or let weir do that: weir.sinks.postgres(..., create=True); {ddl}"
                self._refuse("there is no such table", todo)
            self._connection.execute(self._ddl())
            oid = self._oid()
            assert oid is not None, "it was created in this transaction"
        attributes = {attribute.name: attribute for attribute in self._attributes(oid)}
        self._add_batch_column(attributes)
        self._check_names(attributes)
        columns = [self._column(frame, attributes[name]) for frame, name in self._pairs]
        if self._wanted.key:
            self._check_key(oid, attributes)
        self._check_rights(oid)
        return TargetTable(
            self._name,
            tuple(columns),
            self._marker(),
            tuple(
                (attribute.name, attribute.sql) for attribute in attributes.values() if not attribute.computed
            ),
            self._checks(oid, {attributes[name].number for _, name in self._pairs}),
        )

    def _chosen(self) -> list[tuple[str, str]]:
        names, wanted = self._schema.names, self._wanted
        pairs = list(wanted.columns or ((name, name) for name in names if name != wanted.delete))
        for what in [*(frame for frame, _ in pairs), *filter(None, [wanted.delete])]:
            if names.count(what) != 1:
                how = "has no column" if what not in names else "has more than one column"
                self._refuse(f"the query {how} {what!r}; it has {words(names)}", "fix the names")
        targets = [name for _, name in pairs]
        double = sorted({name for name in targets if targets.count(name) > 1})
        if double or not pairs:
            self._refuse(
                f"the columns {words(double)} are written twice, or no column is written", "fix columns="
            )
        if missing := [name for name in wanted.key if name not in targets]:
            self._refuse(
                f"the key column {words(missing)} is not among those written", "fix key= or columns="
            )
        if wanted.extra in targets and wanted.extra:
            todo = "rename it, or choose another name: batch_column=<name>"
            self._refuse(f"the query writes the column {wanted.extra!r}, which is weir's own", todo)
        return pairs

    def _ddl(self) -> sql.Composed:
        lines = []
        for frame, name in self._pairs:
            kind = sql_type(self._schema[frame].dataType)
            if kind is None:
                self._no_type(frame)
            lines.append(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)))
        if self._wanted.extra:
            lines.append(sql.SQL("{} bigint").format(sql.Identifier(self._wanted.extra)))
        if self._wanted.key:
            lines.append(sql.SQL("PRIMARY KEY ({})").format(quoted(self._wanted.key)))
        return sql.SQL("CREATE TABLE {} ({})").format(self._name.identifier, sql.SQL(", ").join(lines))

    def _oid(self) -> int | None:
        row = self._connection.execute(
            "SELECT c.oid, c.relkind FROM pg_class c WHERE c.oid = to_regclass(%s)", (str(self._name),)
        ).fetchone()
        if row is not None and row[1] not in ("r", "p"):
            self._refuse("it is not a table, but a view or something else", "name a table")
        return row[0] if row is not None else None

    def _attributes(self, oid: int) -> list[_Attribute]:
        rows = self._connection.execute(
            "SELECT attnum, attname, format_type(atttypid, atttypmod), atttypid, atttypmod, attnotnull, "
            "atthasdef OR attidentity <> '', attgenerated <> '', "
            "attgenerated <> '' OR attidentity = 'a' "
            "FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (oid,),
        ).fetchall()
        return [
            _Attribute(number, name, kind, self._type(type_oid, mod), not_null, default, computed, given)
            for number, name, kind, type_oid, mod, not_null, default, computed, given in rows
        ]

    def _type(self, oid: int, mod: int) -> PgType:
        row = self._connection.execute(
            "SELECT typname, typcategory, typtype, typbasetype, typtypmod, "
            "CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END FROM pg_type WHERE oid = %s",
            (oid,),
        ).fetchone()
        assert row is not None, "a column's type is in the catalogue"
        name, category, kind, below, below_mod, element = row
        if kind == "d":
            return self._type(below, below_mod)
        inner = self._type(element, mod) if element else None
        length = inner.length if inner else mod - _HEADER if name == "varchar" and mod >= 0 else None
        return PgType(name, category, _scale(name, mod), inner, length)

    def _add_batch_column(self, attributes: Mapping[str, _Attribute]) -> None:
        extra = self._wanted.extra
        if not extra:
            return
        if extra in attributes:
            if attributes[extra].type.name != "int8":
                todo = "choose another name: batch_column=<name>"
                self._refuse(f"its column {extra!r} is not a bigint; weir keeps the batch there", todo)
            return
        alter = sql.SQL("ALTER TABLE {} ADD COLUMN {} bigint").format(
            self._name.identifier, sql.Identifier(extra)
        )
        if not self._wanted.create:
            self._refuse(
                f"it has no column {extra!r}, by which a rollback finds the rows of a batch",
                f"add it: {self._text(alter)}; or let weir do that: create=True; "
                "or do without rollbacks: batch_column=None",
            )
        self._connection.execute(alter)

    def _check_names(self, attributes: Mapping[str, _Attribute]) -> None:
        written = [name for _, name in self._pairs]
        if unknown := [name for name in written if name not in attributes]:
            self._refuse(
                f"it has no column {words(unknown)}; it has {words(attributes)}",
                "fix the names in the query, give columns={<query's>: <table's>}, or add the columns",
            )
        if given := [name for name in written if attributes[name].given]:
            self._refuse(f"its column {words(given)} is generated", "leave it out: columns=[...]")
        needed = [
            attribute.name
            for attribute in attributes.values()
            if attribute.not_null and not (attribute.default or attribute.given)
            if attribute.name not in written
        ]
        if needed:
            self._refuse(
                f"its column {words(needed)} may not be null, has no default, and the query lacks it",
                "write it, or give it a default",
            )

    def _column(self, frame: str, attribute: _Attribute) -> Column:
        spark = self._schema[frame].dataType
        how = form(spark, attribute.type)
        if how is None:
            kind = sql_type(spark)
            if kind is None:
                self._no_type(frame)
            self._refuse(
                f"its column {attribute.name!r} is {attribute.sql}, "
                f"which does not take {spark.simpleString()}",
                f"cast it in the query, or make the column {kind}",
            )
        required = attribute.name in self._wanted.key or (attribute.not_null and not self._wanted.delete)
        limit = attribute.type.length if how in (CopyForm.PLAIN, CopyForm.ARRAY) else None
        return Column(frame, attribute.name, how, attribute.sql, required, limit)

    def _marker(self) -> Column | None:
        marker = self._wanted.delete
        if not marker:
            return None
        kind = self._schema[marker].dataType.simpleString()
        if kind != "boolean":
            self._refuse(f"the marker {marker!r} is {kind}, and must be boolean", "cast it in the query")
        return Column(marker, MARKER, CopyForm.PLAIN, "boolean")

    def _check_key(self, oid: int, attributes: Mapping[str, _Attribute]) -> None:
        indexes = self._connection.execute(
            "SELECT indkey::int2[], indnkeyatts FROM pg_index WHERE indrelid = %s AND indisunique "
            "AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL",
            (oid,),
        ).fetchall()
        key = sorted(attributes[name].number for name in self._wanted.key)
        if not any(sorted(list(numbers)[:count]) == key for numbers, count in indexes):
            columns = self._text(quoted(self._wanted.key))
            self._refuse(
                f"it has no unique index over exactly the key ({columns})",
                f"add one: CREATE UNIQUE INDEX ON {self._name} ({columns})",
            )

    def _check_rights(self, oid: int) -> None:
        needed = ["SELECT", "INSERT", "DELETE", "UPDATE"] if self._wanted.key else ["INSERT"]
        if self._wanted.extra:
            needed += ["SELECT", "DELETE"]
        for right in needed:
            row = self._connection.execute(
                "SELECT has_table_privilege(%s, %s), current_user", (oid, right)
            ).fetchone()
            assert row is not None
            if not row[0]:
                todo = f"GRANT {', '.join(needed)} ON {self._name} TO {self._text(quoted(row[1:]))}"
                self._refuse(f"the user {row[1]!r} has no right to {right} there", todo)

    def _checks(self, oid: int, written: set[int]) -> tuple[sql.Composed, ...]:
        """With deletions no constraint is checked in the staging: rows to be deleted need not keep any."""
        if self._wanted.delete:
            return ()
        constraints = self._connection.execute(
            "SELECT conname, conkey, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conrelid = %s AND contype = 'c' AND convalidated",
            (oid,),
        ).fetchall()
        return tuple(
            sql.SQL("CONSTRAINT {} {}").format(sql.Identifier(name), sql.SQL(definition))
            for name, numbers, definition in constraints
            if numbers and set(numbers) <= written
        )

    def _no_type(self, frame: str) -> NoReturn:
        kind = self._schema[frame].dataType.simpleString()
        self._refuse(f"PostgreSQL has no type for {frame!r}, which is {kind}", "cast it in the query")

    def _text(self, statement: sql.Composed) -> str:
        """For a message."""
        return statement.as_string(self._connection)

    def _refuse(self, reason: str, todo: str) -> NoReturn:
        refuse(self._query, f"table {self._name}", reason, todo)


def _scale(name: str, mod: int) -> int | None:
    """Digits after the decimal point, where a type modifier limits them."""
    if mod < 0:
        return None
    if name == "numeric":
        low = (mod - 4) & 0x7FF
        return low - _NUMERIC_MOD if low >= _NUMERIC_MOD // 2 else low
    if name in ("timestamp", "timestamptz"):
        return mod if mod < _FULL_SECONDS else None
    return None
