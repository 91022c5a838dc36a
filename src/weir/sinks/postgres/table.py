"""The table that a sink writes to: its name, what the author asked for, and its columns where it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from psycopg import sql

from weir.errors import SinkMismatchError
from weir.sinks.postgres.types import CopyForm

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

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*filter(None, (self.schema, self.table)))

    def __str__(self) -> str:
        return self.identifier.as_string(None)


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
    form: CopyForm
    type: str
    """Its type there, as SQL."""
    required: bool = False
    limit: int | None = None
    """How many characters it takes, where that is limited."""


@dataclass(frozen=True)
class TargetTable:
    """A table that fits."""

    name: Name
    columns: tuple[Column, ...]
    marker: Column | None
    """The column of the frame that marks deletions."""
    all: tuple[tuple[str, str], ...]
    """Every column of the table that can be written, with its type as SQL."""
    checks: tuple[sql.Composed, ...]
    """The CHECK constraints that read written columns only."""

    def only(self, staged: Sequence[str]) -> TargetTable:
        """The same for rows with these columns."""
        kinds = {column.name: column for column in self.columns}
        written = [kinds.get(n) or Column(n, n, CopyForm.PLAIN, kind) for n, kind in self.all if n in staged]
        marker = Column(MARKER, MARKER, CopyForm.PLAIN, "boolean") if MARKER in staged else None
        return replace(self, columns=tuple(written), marker=marker)

    @property
    def names(self) -> list[str]:
        """The names of the columns that are written."""
        return [column.name for column in self.columns]

    @property
    def staged(self) -> tuple[Column, ...]:
        """What is copied to the staging table."""
        return (*self.columns, self.marker) if self.marker else self.columns


def quoted(names: Iterable[str], of: str = "") -> sql.Composed:
    """Names of columns as SQL, separated by commas; `of` is what the table is called."""
    return sql.SQL(", ").join(sql.Identifier(*filter(None, (of, name))) for name in names)


def written_columns(columns: Mapping[str, str] | Sequence[str] | None) -> tuple[tuple[str, str], ...] | None:
    """The pairs that `columns=` means."""
    if columns is None:
        return None
    pairs: Iterable[Any] = (
        columns.items() if isinstance(columns, Mapping) else ((name, name) for name in columns)
    )
    return tuple((str(frame), str(name)) for frame, name in pairs)


def refuse(query: str, path: str, reason: str, todo: str) -> NoReturn:
    raise SinkMismatchError(query=query, path=path, reason=reason, todo=todo)
