"""The table that a sink writes to: looked at, or created, before the first batch.

Whatever does not fit is refused here, with words, before a row is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from weir.errors import SinkMismatchError
from weir.sinks.postgres.types import Form, PgType, form, sql_type, words

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from weir.sinks.postgres.database import Connection

_NUMERIC_MOD = 2048
_HEADER = 4
"""What a type modifier adds to a length."""
_FULL_SECONDS = 6
MARKER = "weir:delete"
"""The column of a staging table that marks deletions."""


@dataclass(frozen=True)
class Name:
    """The name of a table, exactly as it is; `schema` is "" for the first one of the search path.

    As a string it is SQL, with every part quoted.
    """

    schema: str
    table: str

    @classmethod
    def parse(cls, name: str | Sequence[str]) -> Name:
        """From "table", "schema.table", or ("schema", "a table with a .")."""
        parts = tuple(name.split(".")) if isinstance(name, str) else tuple(name)
        if len(parts) not in (1, 2) or not all(isinstance(part, str) and part for part in parts):
            refuse("?", repr(name), "this can't be the name of a table", 'write "table" or "schema.table"')
        return cls(parts[0] if len(parts) == 2 else "", parts[-1])

    def __str__(self) -> str:
        return ".".join(_quoted(part) for part in (self.schema, self.table) if part)


@dataclass(frozen=True)
class Wanted:
    """What the author asked for."""

    table: Name
    key: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] | None = None
    """Pairs of the frame's column and the table's; None: all, by their names."""
    delete: str = ""
    """The frame's column that marks a row to be deleted; it is not in the table."""
    create: bool = False
    batch_column: str = "weir_batch"
    """The table's column for the batch of an appended row; "" for none."""
    at_once: bool = False
    """At least once: the executors append to the table itself, inside the batch."""

    @property
    def extra(self) -> str:
        """The column that weir fills by itself, if any."""
        return "" if self.key else self.batch_column


@dataclass(frozen=True)
class Column:
    """One column of the frame, and where it goes."""

    frame: str
    name: str
    """Its name in the table."""
    form: Form
    type: str
    """Its type there, as SQL."""
    required: bool = False
    limit: int | None = None
    """How many characters it takes, where that is limited."""


@dataclass(frozen=True)
class Target:
    """A table that fits."""

    name: Name
    columns: tuple[Column, ...]
    marker: Column | None
    """The column of the frame that marks deletions."""
    all: tuple[tuple[str, str], ...]
    """Every column of the table that can be written, with its type as SQL."""
    checks: tuple[str, ...]
    """The CHECK constraints that look at written columns only, as SQL."""

    def only(self, staged: Sequence[str]) -> Target:
        """The same for rows with these columns."""
        kinds = {column.name: column for column in self.columns}
        written = [kinds.get(n) or Column(n, n, Form.PLAIN, kind) for n, kind in self.all if n in staged]
        marker = Column(MARKER, MARKER, Form.PLAIN, "boolean") if MARKER in staged else None
        return replace(self, columns=tuple(written), marker=marker)

    @property
    def staged(self) -> tuple[Column, ...]:
        """What is copied to the staging table."""
        return (*self.columns, self.marker) if self.marker else self.columns


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


def fit(connection: Connection, wanted: Wanted, schema: StructType, query: str) -> Target:
    """The table for a frame of this schema, created when that is asked for; raises `SinkMismatchError`."""
    return _Fit(connection, wanted, schema, query).run()


def resolve(connection: Connection, name: Name) -> Name:
    """The name with its schema: that of the table it means, or of the one that would be created."""
    found = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        (str(name),),
    ).fetchone()
    if found is not None:
        return Name(*found)
    first = connection.execute("SELECT current_schema()").fetchone()
    return Name(name.schema or str(first[0] if first and first[0] else "public"), name.table)


def types(connection: Connection, name: Name) -> dict[str, str]:
    """The columns of a table with their types, as SQL, as they are now."""
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (str(name),),
    ).fetchall()
    return {str(column): str(kind) for column, kind in found}


def check_unnumbered(connection: Connection, name: Name, column: str, query: str) -> None:
    """Raise when rows have the batch of a former owner: a rollback of the new one would take them too."""
    found = connection.execute(
        "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped",
        (str(name), column),
    ).fetchone()
    numbered = f"{_quoted(column)} IS NOT NULL"
    if found and connection.execute(f"SELECT 1 FROM {name} WHERE {numbered} LIMIT 1".encode()).fetchone():
        refuse(
            query,
            f"table {name}",
            f"its rows have batches in {column!r} of a query that weir's ledger does not know; "
            "a rollback of this one would delete them",
            f"to keep them for good: UPDATE {name} SET {_quoted(column)} = NULL WHERE {numbered}",
        )


def refuse(query: str, path: str, reason: str, todo: str) -> NoReturn:
    raise SinkMismatchError(query=query, path=path, reason=reason, todo=todo)


class _Fit:
    def __init__(self, connection: Connection, wanted: Wanted, schema: StructType, query: str) -> None:
        self._connection = connection
        self._wanted = wanted
        self._schema = schema
        self._query = query
        self._name = resolve(connection, wanted.table)
        self._pairs = self._chosen()

    def run(self) -> Target:
        oid = self._oid()
        if oid is None:
            if not self._wanted.create:
                todo = f"create it, or let weir do that: weir.sinks.postgres(..., create=True); {self._ddl()}"
                self._refuse("there is no such table", todo)
            self._connection.execute(self._ddl().encode())
            oid = self._oid()
            assert oid is not None, "it was created in this transaction"
        there = {one.name: one for one in self._attributes(oid)}
        self._add_batch_column(there)
        self._check_names(there)
        columns = [self._column(frame, there[name]) for frame, name in self._pairs]
        if self._wanted.key:
            self._check_key(oid, there)
        self._check_rights(oid)
        return Target(
            self._name,
            tuple(columns),
            self._marker(),
            tuple((one.name, one.sql) for one in there.values() if not one.computed),
            self._checks(oid, {there[name].number for _, name in self._pairs}),
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
            todo = "rename it, or give weir another one: batch_column=<name>"
            self._refuse(f"the query writes the column {wanted.extra!r}, which is weir's own", todo)
        return pairs

    def _ddl(self) -> str:
        lines = []
        for frame, name in self._pairs:
            kind = sql_type(self._schema[frame].dataType)
            if kind is None:
                self._no_type(frame)
            lines.append(f"{_quoted(name)} {kind}")
        if self._wanted.extra:
            lines.append(f"{_quoted(self._wanted.extra)} bigint")
        if self._wanted.key:
            lines.append(f"PRIMARY KEY ({', '.join(map(_quoted, self._wanted.key))})")
        return f"CREATE TABLE {self._name} ({', '.join(lines)})"

    def _oid(self) -> int | None:
        found = self._connection.execute(
            "SELECT c.oid, c.relkind FROM pg_class c WHERE c.oid = to_regclass(%s)", (str(self._name),)
        ).fetchone()
        if found is not None and found[1] not in ("r", "p"):
            self._refuse("it is not a table, but a view or something else", "name a table")
        return found[0] if found is not None else None

    def _attributes(self, oid: int) -> list[_Attribute]:
        found = self._connection.execute(
            "SELECT attnum, attname, format_type(atttypid, atttypmod), atttypid, atttypmod, attnotnull, "
            "atthasdef OR attidentity <> '', attgenerated <> '', "
            "attgenerated <> '' OR attidentity = 'a' "
            "FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (oid,),
        ).fetchall()
        return [
            _Attribute(number, name, kind, self._type(type_oid, mod), not_null, default, computed, given)
            for number, name, kind, type_oid, mod, not_null, default, computed, given in found
        ]

    def _type(self, oid: int, mod: int) -> PgType:
        found = self._connection.execute(
            "SELECT typname, typcategory, typtype, typbasetype, typtypmod, "
            "CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END FROM pg_type WHERE oid = %s",
            (oid,),
        ).fetchone()
        assert found is not None, "a column's type is in the catalogue"
        name, category, kind, below, below_mod, element = found
        if kind == "d":
            return self._type(below, below_mod)
        inner = self._type(element, mod) if element else None
        length = inner.length if inner else mod - _HEADER if name == "varchar" and mod >= 0 else None
        return PgType(name, category, _scale(name, mod), inner, length)

    def _add_batch_column(self, there: dict[str, _Attribute]) -> None:
        extra = self._wanted.extra
        if not extra:
            return
        if extra in there:
            if there[extra].type.name != "int8":
                todo = "give weir another one: batch_column=<name>"
                self._refuse(f"its column {extra!r} is not a bigint; weir keeps the batch there", todo)
            return
        alter = f"ALTER TABLE {self._name} ADD COLUMN {_quoted(extra)} bigint"
        if not self._wanted.create:
            self._refuse(
                f"it has no column {extra!r}, by which a rollback finds the rows of a batch",
                f"add it: {alter}; or let weir do that: create=True; "
                "or do without rollbacks: batch_column=None",
            )
        self._connection.execute(alter.encode())

    def _check_names(self, there: Mapping[str, _Attribute]) -> None:
        written = [name for _, name in self._pairs]
        if unknown := [name for name in written if name not in there]:
            self._refuse(
                f"it has no column {words(unknown)}; it has {words(there)}",
                "fix the names in the query, give columns={<query's>: <table's>}, or add the columns",
            )
        if given := [name for name in written if there[name].given]:
            self._refuse(f"its column {words(given)} is generated", "leave it out: columns=[...]")
        needed = [
            one.name
            for one in there.values()
            if one.not_null and not one.default and not one.given and one.name not in written
        ]
        if needed:
            self._refuse(
                f"its column {words(needed)} may not be null, has no default, and the query lacks it",
                "write it, or give it a default",
            )

    def _column(self, frame: str, there: _Attribute) -> Column:
        spark = self._schema[frame].dataType
        how = form(spark, there.type)
        if how is None:
            kind = sql_type(spark)
            if kind is None:
                self._no_type(frame)
            self._refuse(
                f"its column {there.name!r} is {there.sql}, which does not take {spark.simpleString()}",
                f"cast it in the query, or make the column {kind}",
            )
        required = there.name in self._wanted.key or (there.not_null and not self._wanted.delete)
        limit = there.type.length if how in (Form.PLAIN, Form.ARRAY) else None
        return Column(frame, there.name, how, there.sql, required, limit)

    def _marker(self) -> Column | None:
        marker = self._wanted.delete
        if not marker:
            return None
        kind = self._schema[marker].dataType.simpleString()
        if kind != "boolean":
            self._refuse(f"the marker {marker!r} is {kind}, and must be boolean", "cast it in the query")
        return Column(marker, MARKER, Form.PLAIN, "boolean")

    def _check_key(self, oid: int, there: Mapping[str, _Attribute]) -> None:
        found = self._connection.execute(
            "SELECT indkey::int2[], indnkeyatts FROM pg_index WHERE indrelid = %s AND indisunique "
            "AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL",
            (oid,),
        ).fetchall()
        key = sorted(there[name].number for name in self._wanted.key)
        if not any(sorted(list(numbers)[:count]) == key for numbers, count in found):
            columns = ", ".join(map(_quoted, self._wanted.key))
            self._refuse(
                f"it has no unique index over exactly the key ({columns})",
                f"add one: CREATE UNIQUE INDEX ON {self._name} ({columns})",
            )

    def _check_rights(self, oid: int) -> None:
        needed = ["SELECT", "INSERT", "DELETE", "UPDATE"] if self._wanted.key else ["INSERT"]
        if self._wanted.extra:
            needed += ["SELECT", "DELETE"]
        for right in needed:
            found = self._connection.execute(
                "SELECT has_table_privilege(%s, %s), current_user", (oid, right)
            ).fetchone()
            assert found is not None
            if not found[0]:
                todo = f"GRANT {', '.join(needed)} ON {self._name} TO {_quoted(found[1])}"
                self._refuse(f"the user {found[1]!r} has no right to {right} there", todo)

    def _checks(self, oid: int, written: set[int]) -> tuple[str, ...]:
        """With deletions no constraint is looked at in the staging: their rows need not keep any."""
        if self._wanted.delete:
            return ()
        found = self._connection.execute(
            "SELECT conname, conkey, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conrelid = %s AND contype = 'c' AND convalidated",
            (oid,),
        ).fetchall()
        return tuple(
            f"CONSTRAINT {_quoted(name)} {definition}"
            for name, numbers, definition in found
            if numbers and set(numbers) <= written
        )

    def _no_type(self, frame: str) -> NoReturn:
        kind = self._schema[frame].dataType.simpleString()
        self._refuse(f"PostgreSQL has no type for {frame!r}, which is {kind}", "cast it in the query")

    def _refuse(self, reason: str, todo: str) -> NoReturn:
        refuse(self._query, f"table {self._name}", reason, todo)


def _scale(name: str, mod: int) -> int | None:
    """Digits behind the point, where a type modifier limits them."""
    if mod < 0:
        return None
    if name == "numeric":
        low = (mod - 4) & 0x7FF
        return low - _NUMERIC_MOD if low >= _NUMERIC_MOD // 2 else low
    if name in ("timestamp", "timestamptz"):
        return mod if mod < _FULL_SECONDS else None
    return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted(names: Iterable[str], prefix: str = "") -> str:
    """Names of columns as SQL, one behind the other."""
    return ", ".join(prefix + _quoted(name) for name in names)


def written_columns(columns: Mapping[str, str] | Sequence[str] | None) -> tuple[tuple[str, str], ...] | None:
    """The pairs that `columns=` means."""
    if columns is None:
        return None
    pairs: Iterable[Any] = (
        columns.items() if isinstance(columns, Mapping) else ((name, name) for name in columns)
    )
    return tuple((str(frame), str(name)) for frame, name in pairs)
