"""What the executors do: Arrow becomes CSV becomes rows of a staging table.

Each task copies its rows under its own task id, in transactions of some ten thousand rows. The driver decides
which tasks count: a task that ran twice, or died half-way, leaves rows that nobody moves. A chunk with a row
that the database does not take is halved until that row stands alone.

What a task reports is checked by the driver against what the server has when the staging is recorded:
a server that crashed or was replaced in between may lack rows that it had confirmed to the task.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import compute, csv
from pyspark import TaskContext

from weir.sinks.postgres.database import Address, Database, begin, connect, refuses_row, scrubbed, translate
from weir.sinks.postgres.staging_table import StagingTable
from weir.sinks.postgres.table import Column, TargetTable, Wanted, quoted
from weir.sinks.postgres.types import CopyForm

if TYPE_CHECKING:
    from weir.sinks.postgres.database import Connection

CHUNK_ROWS = 50_000
DONE = "partition int, task long, rows long, refused long, refusal string"
"""What a task reports, as Spark's DDL."""
_KEPT_VALUE, _SHOWN_VALUE, _SHOWN_REASON = 200, 60, 200
_CONTEXT = re.compile(r'column (\S+|"[^"]*"): "(.*)"$')


@dataclass(frozen=True)
class RefusedRow:
    """A row that the database does not take, and why."""

    message: str
    detail: str
    """What PostgreSQL says beside its message; it may repeat the row."""
    column: str
    value: str
    row: str
    """All of it, as JSON."""

    @classmethod
    def of(
        cls, error: psycopg.Error, row: dict[str, Any], address: Address, connection: Connection
    ) -> RefusedRow:
        """From the error that came for this row alone; the connection is in no failed transaction."""
        diag = error.diag
        columns = [diag.column_name] if diag.column_name else _columns_of_constraint(error, connection)
        if not columns and (found := _CONTEXT.search((diag.context or "").partition("\n")[0])):
            columns = [found[1].strip('"')]
        if not columns:  # of a byte that no text may have, PostgreSQL does not say the column
            columns = [name for name, value in row.items() if isinstance(value, str) and "\0" in value]
        value = ", ".join(_json(row[column]) for column in columns if column in row)
        message = scrubbed(diag.message_primary or str(error), address)
        detail = scrubbed(" ".join(diag.message_detail.split()), address) if diag.message_detail else ""
        names = ", ".join(columns) or "unknown"
        return cls(message, detail, names, value[:_KEPT_VALUE] or "unknown", _json(row))

    @property
    def reason(self) -> str:
        """All that PostgreSQL says, for the dead letters."""
        return f"{self.message}; {self.detail}" if self.detail else self.message

    def shown(self) -> dict[str, str]:
        """For an error's fields, which reach logs and pages: of the row only what helps to find it."""
        return {
            "reason": _short(self.message, _SHOWN_REASON),
            "column": self.column,
            "value": _short(self.value, _SHOWN_VALUE),
        }


@dataclass(frozen=True)
class CopyTask:
    """Everything that a task needs to copy its rows."""

    address: Address
    staging: StagingTable
    copy: sql.Composed
    """The COPY statement; its columns: those of `leads`, the row's number if wanted, then the frame's."""
    columns: tuple[Column, ...]
    """The frame's columns, in order."""
    leads: tuple[int, ...] | None
    """What each row begins with; None: the task's id."""
    numbered: bool
    marks: bool
    """The rows of a chunk are counted in the staging table, because they go to the table at once."""
    query: str
    keep_refused: bool
    """Refused rows are kept apart; otherwise the first one is reported, and ends the task."""

    @classmethod
    def into(
        cls,
        staging: StagingTable,
        target: TargetTable,
        wanted: Wanted,
        database: Database,
        *,
        keep_refused: bool,
    ) -> CopyTask:
        """The task that fills a staging table, or with `at_once` the user's own."""
        numbered, leads = bool(wanted.key), None
        copy = staging.copy(target, numbered=numbered)
        if wanted.at_once:
            extra = [wanted.extra] if wanted.extra else []
            leads = (int(staging.batch),) if extra else ()
            copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
                target.name.identifier, quoted([*extra, *target.names])
            )
        return cls(
            *(database.address, staging, copy, target.staged, leads, numbered),
            marks=wanted.at_once,
            query=database.query,
            keep_refused=keep_refused,
        )

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: copy a partition, give one row of `DONE`."""
        context = TaskContext.get()
        assert context is not None, "this runs in a task of Spark's"
        done = Task(self, context.taskAttemptId()).copy(batches)
        refusal = json.dumps(done.refusal.shown()) if done.refusal else None
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([context.partitionId()], pa.int32()),
                "task": pa.array([done.task], pa.int64()),
                "rows": pa.array([done.rows], pa.int64()),
                "refused": pa.array([done.refused], pa.int64()),
                "refusal": pa.array([refusal], pa.string()),
            }
        )


class Task:
    """One run of such a task."""

    def __init__(self, plan: CopyTask, task: int) -> None:
        self._plan = plan
        self.task = task
        self.rows = 0
        self.refused = 0
        self.refusal: RefusedRow | None = None
        """The row that ended it."""
        self._connection: Connection | None = None

    def copy(self, batches: Iterable[pa.RecordBatch]) -> Task:
        """Copy them all; the last transaction makes all before it durable."""
        rows = (batch for batch in batches if batch.num_rows)
        try:
            for first in rows:
                self._copy_chunk(chain([first], rows))
                if self.refusal is not None:
                    break
            self._flush()
        except psycopg.Error as error:
            plan = self._plan
            raise translate(
                error, plan.address, "copy rows", query=plan.query, schema=plan.staging.schema
            ) from error
        finally:
            if self._connection is not None:
                self._connection.close()
        return self

    def _copy_chunk(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Copy some of them in one transaction, each as it comes: the server works while Spark does."""
        if self._connection is None:
            self._connection = connect(self._plan.address, "copy rows", query=self._plan.query)
        connection, seen, rows = self._connection, [], 0
        try:
            begin(connection)
            connection.execute("SET LOCAL synchronous_commit = off")
            with connection.cursor().copy(self._plan.copy) as copy:
                for batch in batches:
                    seen.append(batch)  # first: the error for a row may come with this very write
                    copy.write(self._csv(batch, self.rows + self.refused + rows))
                    rows += batch.num_rows
                    if rows >= CHUNK_ROWS:
                        break
            if self._plan.marks:
                connection.execute(self._plan.staging.mark(self.task, rows))
            connection.commit()
            self.rows += rows
        except psycopg.Error as error:
            connection.rollback()
            if not refuses_row(error):
                raise
            self._copy_apart(connection, seen, error)

    def _copy_apart(
        self, connection: Connection, seen: Sequence[pa.RecordBatch], error: psycopg.Error
    ) -> None:
        """Copy what the database takes of rows of which it has refused some."""
        if sum(batch.num_rows for batch in seen) == 1:
            names = [column.name for column in self._plan.columns]
            row = dict(zip(names, seen[0].to_pylist()[0].values(), strict=True))
            self._refuse(connection, RefusedRow.of(error, row, self._plan.address, connection))
            return
        halves: list[Sequence[pa.RecordBatch]] = [seen[: len(seen) // 2], seen[len(seen) // 2 :]]
        if len(seen) == 1:
            middle = seen[0].num_rows // 2
            halves = [[seen[0].slice(0, middle)], [seen[0].slice(middle)]]
        for half in halves:
            if self.refusal is None:
                self._copy_chunk(half)

    def _flush(self) -> None:
        """Make all that was committed durable.

        A crash before this breaks the connection, and so the task; or not, where a pooler keeps it. Then
        the rows that the server lost are missed when the staging is recorded.
        """
        if self._connection is not None:
            begin(self._connection)
            # a commit is waited for only after something was written; this is, and nobody reads it
            self._connection.execute("SELECT pg_logical_emit_message(true, 'weir', '')")
            self._connection.commit()

    def _refuse(self, connection: Connection, refusal: RefusedRow) -> None:
        if not self._plan.keep_refused:
            self.refusal = refusal
            return
        values = (refusal.reason, refusal.column, refusal.value, refusal.row)
        connection.execute(self._plan.staging.refuse(self.task, *values))
        connection.commit()
        self.refused += 1

    def _csv(self, batch: pa.RecordBatch, first: int) -> memoryview:
        leads = (self.task,) if self._plan.leads is None else self._plan.leads
        columns = [pa.repeat(pa.scalar(lead, pa.int64()), batch.num_rows) for lead in leads]
        if self._plan.numbered:
            columns.append(pa.array(range(first, first + batch.num_rows), pa.int64()))
        columns += [
            _written(values, column.form, column.limit)
            for values, column in zip(batch.columns, self._plan.columns, strict=True)
        ]
        written = pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
        out = pa.BufferOutputStream()
        # texts are always quoted and null never is, so an empty text is no null; a backslash is itself
        csv.write_csv(written, out, csv.WriteOptions(include_header=False, quoting_style="needed"))
        return memoryview(out.getvalue())


def _written(column: pa.Array, form: CopyForm, limit: int | None) -> pa.Array:
    """The column as COPY reads it."""
    if limit is not None:
        column = _refusable(column, form, limit)
    if form is CopyForm.UTC:
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    if form is CopyForm.NOTHING:
        return pa.nulls(len(column), pa.string())
    if form is CopyForm.HEX:
        return pa.array((None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()), pa.string())
    if form in (CopyForm.ARRAY, CopyForm.BYTES_ARRAY):
        arrays = column.to_pylist()
        written = (None if v is None else "{" + ",".join(map(_element, v)) + "}" for v in arrays)
        return pa.array(written, pa.string())
    return column


def _refusable(column: pa.Array, form: CopyForm, limit: int) -> pa.Array:
    """The texts, those that are too long with a character at the end that is no blank.

    Otherwise varchar(n) would silently cut off blanks beyond its length.
    """
    if form is CopyForm.ARRAY:
        texts = (
            values and [v + "." if v is not None and len(v) > limit else v for v in values]
            for values in column.to_pylist()
        )
        return pa.array(texts, column.type)
    long = compute.greater(compute.utf8_length(column), limit)
    if not compute.any(long).as_py():
        return column
    return compute.if_else(long, compute.binary_join_element_wise(column, ".", ""), column)


def _element(value: Any) -> str:
    """An element of an array as PostgreSQL writes it: {"a",NULL}."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        value = f"\\x{value.hex()}"
    elif isinstance(value, bool):
        value = "true" if value else "false"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _columns_of_constraint(error: psycopg.Error, connection: Connection) -> list[str]:
    """Of a constraint, or of an index, which PostgreSQL names in the same place."""
    rows = connection.execute(
        "SELECT a.attname FROM (SELECT conname, conrelid, conkey FROM pg_constraint "
        "UNION SELECT relname, indrelid, indkey::int2[] FROM pg_index JOIN pg_class ON oid = indexrelid) c "
        "(name, of, key) JOIN pg_attribute a ON a.attrelid = c.of AND a.attnum = ANY (c.key) "
        "WHERE c.name = %s AND c.of = to_regclass(format('%%I.%%I', %s::text, %s::text)) "
        "GROUP BY a.attname ORDER BY min(array_position(c.key, a.attnum))",
        (error.diag.constraint_name, error.diag.schema_name, error.diag.table_name),
    ).fetchall()
    return [str(name) for (name,) in rows]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=True)


def _plain(value: Any) -> Any:
    """A value that JSON has; numbers that are not finite, times and decimals as texts."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.replace("\0", "\\u0000")  # a text that PostgreSQL takes
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
