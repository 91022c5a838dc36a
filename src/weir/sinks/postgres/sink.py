"""The sink itself: the contract of `StagingSink` over one table of a PostgreSQL database.

    stage    the executors copy the batch into a staging table of its own
    record   one row says which tasks of it count
    commit   one transaction: the fence is checked, the rows are moved, the ledger is written
    rewind   one transaction: appended rows are found by their batch, replaced rows by their images

The row of the ledger is locked wherever something becomes visible, so an announced token and an older
commit can't pass each other.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from weir import faults
from weir.errors import (
    DatabaseError,
    FencedError,
    LostStagingError,
    OutcomeUnknownError,
    RefusedRowError,
    SinkMismatchError,
    WeirError,
)
from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.contract import Outcome, Part
from weir.sinks.fence import Knows, SinkFence, anyone
from weir.sinks.postgres import catalogue
from weir.sinks.postgres.catalogue import Name, Target, Wanted
from weir.sinks.postgres.copying import DONE, Refusal, Staging
from weir.sinks.postgres.database import Address, Database, refuses_row
from weir.sinks.postgres.tables import DEAD_LETTERS, Mode, Recorded, Tables, beside_values, of_places
from weir.sinks.postgres.types import Form

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from weir.sinks.postgres.database import Connection


_ZONED = "with time zone"


class Check(Enum):
    """When the constraints that the user has deferred are looked at."""

    NOW = "now"
    """With the rows that are moved: what does not keep them can be set apart."""
    AT_COMMIT = "at commit"


@dataclass(frozen=True)
class Moved:
    """What became of rows that were staged."""

    rows: int
    """Appended rows: as many as the server has inserted, without those that a trigger or a rule kept out."""
    refused: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.rows + other.rows, self.refused + other.refused)


class PostgresSink:
    """See the module's docstring; keeps the contract of `StagingSink`."""

    def __init__(
        self,
        address: Address,
        wanted: Wanted,
        dead_letter: Name | None,
        schema: str,
        database: Database | None = None,
    ) -> None:
        self._address = address
        self._wanted = wanted
        self._dead_letter = dead_letter
        self._database = database or Database(address)
        self._database.schema = schema
        self._tables = Tables(schema)
        self._expected: StructType | None = None
        self._target: Target | None = None
        self._written: dict[tuple[BatchId, Token], Recorded] = {}
        self._ledger = Ledger()
        self._fence = SinkFence(self.describe)
        self._unknown = False
        """Whether a look has found no ledger: then nothing is staged either."""

    @property
    def rewindable(self) -> bool:
        """Whether what was delivered can be taken back."""
        return bool(self._wanted.key or self._wanted.extra)

    @property
    def at_once(self) -> bool:
        """Executors append to the table inside the batch: at least once."""
        return self._wanted.at_once

    def describe(self) -> str:
        return f"table {self._wanted.table} in {self._address.place}"

    def __repr__(self) -> str:
        return f"PostgresSink({self.describe()})"

    def check(self, query: QueryName, frame: DataFrame, output_mode: str) -> None:
        """Raise `SinkMismatchError` where rows come again in this output mode and no key tells them."""
        if output_mode == "append" or self._wanted.key:
            return
        again = "the complete result" if output_mode == "complete" else "the rows that changed"
        raise SinkMismatchError(
            query=query,
            path=self.describe(),
            reason=f"in output mode {output_mode} each batch has {again}; rows without a key are appended",
            todo="give the table's key: weir.sinks.postgres(url, table, key=...), or use output mode append",
        )

    def expect(self, schema: StructType) -> None:
        """What the batches will look like: `open` then refuses a table that does not fit."""
        self._expected = schema

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        with self._database.transaction("read the ledger") as connection:
            self._unknown = self._enter(connection, owner, lineage, token, knows)
            found = self._tables.ledger(connection, lock=False)
            connection.rollback()
        return found

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        with self._database.transaction("open the sink") as connection:
            self._enter(connection, owner, lineage, token, knows)
            self._tables.announce(connection, token)
            self._ledger = self._tables.ledger(connection, lock=True)
        self._fence.announced(self._ledger.last)
        self._unknown = False
        return self._ledger

    def _enter(self, connection: Connection, owner: str, lineage: str, token: Token, knows: Knows) -> bool:
        """Make sure that the table and its ledger are there, of this owner and free; whether it is new."""
        self._fence.begin(owner, token, knows)
        self._database.query = owner.split("/", 1)[-1]
        self._tables.create(connection)
        name = catalogue.resolve(connection, self._wanted.table)
        new = self._tables.enter(connection, name, owner, lineage)
        self._ledger = self._tables.ledger(connection, lock=True)
        self._check_owner(owner, lineage)
        self._fence.check(self._ledger)
        if self._expected is not None:
            self._target = self._fit(connection, self._expected)
        if new and self._wanted.extra:
            catalogue.check_unnumbered(connection, name, self._wanted.extra, self._query)
        return new

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        with self._database.transaction("make a staging table") as connection:
            if self._target is None or self._wanted.at_once:  # nobody looks at its columns later on
                self._target = self._fit(connection, frame.schema)
            target = self._target
            counted = None if self._wanted.at_once else target
            self._tables.create_staging(connection, counted, batch, token)
        staging = self._staging(target, batch, token)
        over = threading.Event()
        faults.watch("batch.writing", lambda: self._writing(target, batch, token), over)
        try:
            tasks = _projected(frame, target).mapInArrow(staging, DONE).collect()
        finally:
            over.set()
        for task in tasks:
            if task["refusal"]:
                raise self._refused(json.loads(task["refusal"]))
        self._written[batch, token] = Recorded(
            sum(task["rows"] for task in tasks),
            sum(task["refused"] for task in tasks),
            tuple(task for _, task in sorted((task["partition"], task["task"]) for task in tasks)),
        )

    def record(self, staged: Staged) -> None:
        written = self._written.get((staged.batch, staged.token))
        with self._database.transaction("record a staging") as connection:
            self._ledger = self._tables.ledger(connection, lock=False)
            self._fence.check(self._ledger)
            if written is None:
                raise self._lost(staged)
            self._check_written(connection, staged, written)
            self._tables.record(connection, staged, written)
        self._written.pop((staged.batch, staged.token), None)

    def staged(self) -> Sequence[Staged]:
        if self._unknown:
            return []
        with self._database.transaction("list stagings") as connection:
            return self._tables.recorded(connection)

    def commit(self, staged: Staged) -> Outcome:
        try:
            with self._database.transaction("commit a batch") as connection:
                done = self._deliver(connection, staged, Check.NOW)
                self._tables.forget_staging(connection, staged)
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        self._fence.entered(max(self._ledger.last, staged.batch))
        if done is Outcome.DONE_NOW:
            faults.point("sink.committed")
        return done

    @property
    def group(self) -> str:
        """Tables of one database."""
        return self._address.url

    def commit_together(self, parts: Sequence[Part], checkpoint: CheckpointId) -> Outcome:
        own = [(part.sink, part.staged) for part in parts if isinstance(part.sink, PostgresSink)]
        own.sort(key=lambda one: one[0]._place)  # two who lock ledgers do not wait for each other
        try:
            with self._database.transaction("commit a checkpoint") as connection:
                for sink, staged in own:
                    sink._deliver_all(connection, staged, checkpoint)
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        for sink, staged in own:
            if staged:
                sink._fence.entered(max(sink._ledger.last, staged[-1].batch))
        faults.point("sink.committed")
        return Outcome.DONE_NOW

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        kept = {(one.batch, one.token) for one in keep}
        with self._database.transaction("discard stagings") as connection:
            recorded = {(one.batch, one.token) for one in self._tables.recorded(connection)}
            there = {(batch, token) for _, batch, token in self._tables.stagings(connection)}
        for batch, token in sorted(there | recorded):
            if batch <= upto and token <= self._fence.token and (batch, token) not in kept:
                with self._database.transaction("discard a staging") as connection:
                    self._tables.forget_staging(connection, Staged(batch, token))

    def rewind(self, to: BatchId) -> Outcome:
        try:
            with self._database.transaction("rewind batches") as connection:
                self._ledger = self._tables.ledger(connection, lock=True)
                self._fence.check(self._ledger)
                if self._ledger.last <= to:
                    return Outcome.ALREADY_DONE
                assert self._target is not None, "a sink is rewound after `open`, which knows the table"
                self._fence.rewinds(to)
                self._tables.take_back(connection, self._wanted, self._target, to)
                if self._dead_letter is not None:
                    connection.execute(
                        f"DELETE FROM {beside_values(str(self._dead_letter))} "
                        "WHERE query = %s AND batch > %s".encode(),
                        (self._ledger.owner, to),
                    )
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def forget(self, upto: BatchId) -> None:
        """No checkpoint leads back to a batch below this one: what only such a rewind would need may go."""
        with self._database.transaction("delete images of old batches") as connection:
            self._ledger = self._tables.ledger(connection, lock=True)
            self._fence.check(self._ledger)
            self._tables.forget(connection, upto, images=bool(self._wanted.key))

    # a batch

    def _deliver_all(
        self, connection: Connection, staged: Sequence[Staged], checkpoint: CheckpointId
    ) -> None:
        for one in staged:
            self._deliver(connection, one, Check.AT_COMMIT)  # other tables may have what it refers to
            self._tables.forget_staging(connection, one)
        self._tables.set_checkpoint(connection, checkpoint)

    def _deliver(self, connection: Connection, staged: Staged, check: Check) -> Outcome:
        self._ledger = self._tables.ledger(connection, lock=True)
        self._fence.check(self._ledger)
        if self._ledger.last >= staged.batch:
            return Outcome.ALREADY_DONE
        recorded = self._tables.find(connection, staged)
        if recorded is None:
            raise self._lost(staged)
        if NO_BATCH < self._ledger.last < staged.batch - 1:  # the next start finds its staging
            missing = f"another run (it decided batch {self._ledger.last + 1} after this run began)"
            raise FencedError(who=f"run {self._fence.token}", by=missing)
        assert self._target is not None or not recorded.rows, "a staging has rows of a table that is known"
        moved = self._move(connection, staged, recorded, check) if recorded.rows else Moved(0)
        if recorded.refused:
            if self._dead_letter is None:
                reason = f"rows of batch {staged.batch} were refused and kept for a dead-letter table"
                raise self._unfit(reason, "name that table again: dead_letter=<table>")
            letters = self._tables.refusals(self._dead_letter, staged, recorded.tasks)
            connection.execute(letters, (self._ledger.owner,))
        refused = recorded.refused + moved.refused
        self._tables.deliver(connection, staged.batch, self._fence.token, moved.rows, refused)
        return Outcome.DONE_NOW

    def _move(self, connection: Connection, staged: Staged, recorded: Recorded, check: Check) -> Moved:
        """Move the rows that count; what an earlier run staged, as that run was told to."""
        kinds = self._tables.columns_of_staging(connection, staged)
        if kinds is None and self._wanted.at_once:  # recorded by an earlier version
            return Moved(recorded.rows)
        there = 0
        if kinds is not None:
            there = self._tables.count(connection, staged, recorded.tasks, at_once=not kinds)
        if there != recorded.rows:
            raise self._lost(staged)
        if not kinds:  # they are in the table already
            return Moved(recorded.rows)
        moving = self._moving(connection, staged, recorded, kinds)
        moved = _moved(connection, moving("true"), check)
        if isinstance(moved, int):
            return Moved(recorded.rows if self._wanted.key else moved)
        find = self._tables.places(self._wanted, staged, recorded.tasks)
        places = [str(place) for (place,) in connection.execute(find).fetchall()]
        apart = self._move_apart(connection, staged, lambda some: moving(of_places(some)), places, check)
        return Moved(recorded.rows - apart.refused, apart.refused) if self._wanted.key else apart

    def _move_apart(
        self,
        connection: Connection,
        staged: Staged,
        moving: Callable[[list[str]], bytes],
        places: list[str],
        check: Check,
    ) -> Moved:
        """Move what the table takes; halve what it does not, until each refused row stands alone."""
        moved = _moved(connection, moving(places), check)
        if isinstance(moved, int):
            return Moved(moved)
        if len(places) == 1:
            self._keep_refused(connection, staged, places[0], moved)
            return Moved(0, 1)
        half = len(places) // 2
        return self._move_apart(connection, staged, moving, places[:half], check) + self._move_apart(
            connection, staged, moving, places[half:], check
        )

    def _moving(
        self, connection: Connection, staged: Staged, recorded: Recorded, kinds: dict[str, str]
    ) -> Callable[[str], bytes]:
        """The statement that moves the rows for which a condition holds, with the columns that are staged.

        An earlier run may have staged other columns: the query was changed since.
        """
        assert self._target is not None
        self._check_types(connection, staged, recorded, kinds)
        target = self._target.only(list(kinds))
        tasks = recorded.tasks
        if not self._wanted.key:
            return lambda rows: self._tables.append(self._wanted, target, staged, rows, tasks)
        if {c.name for c in target.columns} != {c.name for c in self._target.columns}:
            # a rewind restores the columns that are written now: this batch has written others
            self._tables.raise_floor(connection, staged.batch, images=False)
        return lambda rows: self._tables.upsert(self._wanted, target, staged, rows, tasks)

    def _check_types(
        self, connection: Connection, staged: Staged, recorded: Recorded, kinds: dict[str, str]
    ) -> None:
        """Raise where a column has another type by now, to which PostgreSQL would fit a value unasked."""
        assert self._target is not None
        name = self._target.name
        connection.execute(f"LOCK TABLE ONLY {name} IN ROW EXCLUSIVE MODE".encode())  # as an INSERT does
        now = catalogue.types(connection, name)
        other = {
            column: (kind, now[column]) for column, kind in kinds.items() if now.get(column, kind) != kind
        }
        if not other:
            return
        wrong = {column for column, pair in other.items() if len({_ZONED in kind for kind in pair}) > 1}
        wrong |= set(self._tables.changing(connection, staged, recorded.tasks, other))
        for column in sorted(wrong):
            then, kind = other[column]
            reason = f"its column {column!r} is {kind} now, which would change rows staged as {then}"
            todo = (
                f"ALTER TABLE {name} ALTER COLUMN {catalogue.quoted([column])} TYPE {then}; then start again"
            )
            raise self._unfit(reason, todo)

    def _keep_refused(self, connection: Connection, staged: Staged, place: str, error: psycopg.Error) -> None:
        names = list(self._tables.columns_of_staging(connection, staged) or ())
        table = self._tables.staging(staged.batch, staged.token)
        found = connection.execute(
            f"SELECT {catalogue.quoted(names)} FROM {table} AS staged WHERE {of_places([place])}".encode()
        ).fetchone()
        refusal = Refusal.of(error, dict(zip(names, found or (), strict=False)), self._address, connection)
        if self._dead_letter is None:
            raise self._refused(refusal.shown())
        connection.execute(
            f"INSERT INTO {beside_values(str(self._dead_letter))} "
            "(query, batch, reason, column_name, value, row) VALUES (%s, %s, %s, %s, %s, %s)".encode(),
            (
                *(self._ledger.owner, staged.batch, refusal.reason, refusal.column),
                *(refusal.value, refusal.row),
            ),
        )

    # what is known and checked

    def _fit(self, connection: Connection, schema: StructType) -> Target:
        target = catalogue.fit(connection, self._wanted, schema, self._query)
        if self._wanted.key:
            self._tables.create_images(connection, target)
        self._tables.set_mode(connection, Mode.of(self._wanted, target, self._dead_letter))
        if self._dead_letter is not None:
            self._create_dead_letter(connection, self._dead_letter)
        return target

    def _create_dead_letter(self, connection: Connection, name: Name) -> None:
        found = connection.execute(
            "SELECT (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = c.oid) "
            "FROM pg_class c WHERE c.oid = to_regclass(%s)",
            (str(name),),
        ).fetchone()
        if found is None:
            connection.execute(f"CREATE TABLE {name} ({DEAD_LETTERS})".encode())
            return
        needed = {column.strip().split(" ")[0] for column in DEAD_LETTERS.split(",")}
        if not needed <= set(found[0]):
            catalogue.refuse(
                self._query,
                f"table {name}",
                f"as a dead-letter table it lacks the columns {', '.join(sorted(needed - set(found[0])))}",
                f"let weir create one under another name; or: CREATE TABLE ... ({DEAD_LETTERS})",
            )

    def _staging(self, target: Target, batch: BatchId, token: Token) -> Staging:
        numbered, leads, mark = bool(self._wanted.key), None, ""
        copy = self._tables.copy(target, batch, token, numbered=numbered)
        if self._wanted.at_once:
            copy = self._tables.copy_at_once(self._wanted, target)
            leads = (batch,) if self._wanted.extra else ()
            mark = self._tables.mark(batch, token)
        return Staging(
            self._address,
            copy,
            self._tables.refuse(batch, token),
            tuple(column.name for column in target.staged),
            tuple(column.form for column in target.staged),
            leads,
            numbered,
            tuple(column.limit for column in target.staged),
            mark,
            self._query,
            self._tables.schema,
            keep_refused=self._dead_letter is not None,
        )

    def _writing(self, target: Target, batch: BatchId, token: Token) -> bool:
        """Whether rows are arriving; for a fault that waits for that."""
        with self._database.transaction("check a staging") as connection:
            table = str(target.name) if self._wanted.at_once else self._tables.staging(batch, token)
            found = connection.execute("SELECT pg_relation_size(to_regclass(%s))", (table,)).fetchone()
        return bool(found and found[0])

    @property
    def _place(self) -> tuple[str, int]:
        return self._tables.schema, self._tables.id

    @property
    def _query(self) -> str:
        return self._database.query

    def _refused(self, refusal: dict[str, str]) -> WeirError:
        return RefusedRowError(table=str(self._wanted.table), query=self._query, **refusal)

    def _unfit(self, reason: str, todo: str) -> SinkMismatchError:
        return SinkMismatchError(query=self._query, path=self.describe(), reason=reason, todo=todo)

    def _lost(self, staged: Staged) -> LostStagingError:
        return LostStagingError(batch=staged.batch, query=self._ledger.owner, path=self.describe())

    def _check_written(self, connection: Connection, staged: Staged, written: Recorded) -> None:
        """Raise unless the server has all rows that the tasks have reported.

        In the transaction that records them: whoever takes over later with the record has the rows too.
        """
        tasks, at_once = written.tasks, self._wanted.at_once
        for what, wanted, there in (
            ("rows", written.rows, self._tables.count(connection, staged, tasks, at_once=at_once)),
            ("refused rows", written.refused, self._tables.count_refused(connection, staged, tasks)),
        ):
            if there != wanted:
                reason = (
                    f"it has {there} of the {wanted} {what} of batch {staged.batch} that it had confirmed: "
                    "it crashed without them, or a standby without them took over; the batch runs again"
                )
                raise DatabaseError(verb="record a staging", place=self._address.place, reason=reason)

    def _check_owner(self, owner: str, lineage: str) -> None:
        if self._ledger.owner != owner:
            reason = f"it holds the output of {self._ledger.owner!r}"
            todo = "give this query a table of its own"
        elif self._ledger.lineage != lineage:
            reason = "it was written by live files that are gone; a fresh start would skip or double batches"
            todo = "restore the job's directory, or give this query a new table"
        else:
            return
        query = owner.split("/", 1)[1]
        raise SinkMismatchError(query=query, path=self.describe(), reason=reason, todo=todo)


def _moved(connection: Connection, moving: bytes, check: Check) -> int | psycopg.Error:
    """Move rows, all of them or none; how many were inserted, or the error, when it speaks of a row."""
    import psycopg  # noqa: PLC0415

    try:
        with connection.transaction():
            inserted = connection.execute(moving).rowcount
            if check is Check.NOW:
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.Error as error:
        if not refuses_row(error):
            raise
        return error
    return inserted


def _projected(frame: DataFrame, target: Target) -> DataFrame:
    """The columns that are written, in order; what becomes JSON as the text that Spark makes of it."""
    made = {
        Form.JSON: "to_json({}, map('ignoreNullFields', 'false'))",
        Form.NOTHING: "CAST({} AS STRING)",
    }
    names = ["`" + column.frame.replace("`", "``") + "`" for column in target.staged]
    forms = [made.get(column.form, "{}") for column in target.staged]
    if [column.frame for column in target.staged] == frame.schema.names and not set(forms) & set(
        made.values()
    ):
        return frame
    return frame.selectExpr(
        *(f"{form.format(name)} AS {name}" for form, name in zip(forms, names, strict=True))
    )
