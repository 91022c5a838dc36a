"""PostgreSQL: each batch once, in one table; appended, or merged by a key.

sink.py            the contract, over the rest
table.py           what the author asked for, and the table that fits
catalogue.py       the user's table is checked, or created
ledger.py          weir's own tables beside it
staging_table.py   where the executors copy a batch to, and the record that it is complete
task.py            what the executors do
user_table.py      rows move into the user's table, and out of it
types.py           Spark's types and PostgreSQL's
database.py        connections, transactions, and what errors mean
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from weir.errors import PreflightError

if TYPE_CHECKING:
    from weir.sinks.postgres.sink import PostgresSink


def postgres(
    url: str,
    table: str | Sequence[str],
    key: str | Sequence[str] | None = None,
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    delete: str | None = None,
    create: bool = False,
    dead_letter: str | Sequence[str] | None = None,
    batch_column: str | None = "weir_batch",
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once",
    schema: str = "weir",
) -> PostgresSink:
    """Write each batch to a table of PostgreSQL, by default exactly once.

    Without `key` rows are appended, and `batch_column` of the table holds their batch, by which a
    rollback finds them; with None there is no such column and no rollback. With `key` (the table's
    columns, which a unique index must cover) a row replaces the one with its key, and of several in one
    batch the last counts; where the boolean column `delete` of the frame is true, it is deleted.
    `columns` names the frame's columns to write, or maps them to the table's. `create` creates the table
    if it is missing, and adds the batch column. A row that the database does not take fails the
    batch; with `dead_letter` it goes to that table, and the others are written.

    With `delivery="at_least_once"` the executors append to the table itself, inside the batch: sooner and
    cheaper, but readers see half a batch, and a batch that runs again is written twice.

    weir's own tables are in `schema` of the same database. `table` is "table", "schema.table" or
    ("schema", "table"), taken exactly as written.
    """
    try:
        import psycopg  # noqa: F401, PLC0415  an extra
    except ImportError as error:
        raise PreflightError(
            what="weir.sinks.postgres can't be used",
            why=f"psycopg is missing: {error}",
            todo="pip install 'weir[postgres]'",
        ) from error
    # psycopg is an extra, and pyspark is not for a process that only displays a job: these load both.
    from weir.sinks.postgres.database import Address  # noqa: PLC0415
    from weir.sinks.postgres.sink import PostgresSink  # noqa: PLC0415
    from weir.sinks.postgres.table import Name, Wanted, refuse, written_columns  # noqa: PLC0415

    keys = (key,) if isinstance(key, str) else tuple(key or ())
    if delete and not keys:
        refuse("?", repr(table), "delete= needs a key", "give the table's key: key=[...]")
    if delivery not in ("exactly_once", "at_least_once"):
        refuse("?", repr(table), f"there is no delivery {delivery!r}", 'use "exactly_once"')
    if delivery == "at_least_once" and keys:
        todo = "leave delivery= out: merging by a key is exactly once"
        refuse("?", repr(table), "rows with a key are not merged inside the batch", todo)
    wanted = Wanted(
        table=Name.parse(table),
        key=keys,
        columns=written_columns(columns),
        delete=delete or "",
        create=create,
        batch_column=batch_column or "",
        at_once=delivery == "at_least_once",
    )
    letters = Name.parse(dead_letter) if dead_letter else None
    return PostgresSink(Address.parse(url), wanted, letters, schema)
