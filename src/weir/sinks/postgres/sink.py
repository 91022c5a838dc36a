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
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir import faults
from weir.errors import DatabaseError, FencedError, LostStagingError, OutcomeUnknownError, SinkMismatchError
from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks.contract import Outcome, SinkPart
from weir.sinks.fence import Knows, SinkFence, anyone, check_owner
from weir.sinks.postgres import catalogue
from weir.sinks.postgres.database import Address, Database
from weir.sinks.postgres.ledger import LedgerRow
from weir.sinks.postgres.staging_table import Recorded, StagingTable, recorded_stagings, staging_tables
from weir.sinks.postgres.table import Name, TargetTable, Wanted
from weir.sinks.postgres.task import DONE, CopyTask
from weir.sinks.postgres.types import CopyForm
from weir.sinks.postgres.user_table import ConstraintCheck, Moved, UserTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from weir.sinks.postgres.database import Connection


class PostgresSink:
    """See the module's docstring; keeps the contract of `StagingSink`."""

    def __init__(
        self,
        address: Address,
        wanted: Wanted,
        dead_letter: Name | None,
        schema: str,
    ) -> None:
        self._address = address
        self._wanted = wanted
        self._database = Database(address, schema)
        self._row = LedgerRow(schema)
        self._table = UserTable(self._database, self._row, wanted, dead_letter)
        self._expected: StructType | None = None
        self._written: dict[tuple[BatchId, Token], Recorded] = {}
        self._ledger = Ledger()
        self._fence = SinkFence(self.describe)
        self._unknown = False
        """Whether `look` found no ledger: then nothing is staged either."""

    @property
    def rewindable(self) -> bool:
        """Whether what was delivered can be rewound."""
        return bool(self._wanted.key or self._wanted.extra)

    @property
    def at_once(self) -> bool:
        """Executors append to the table inside the batch: at least once."""
        return self._wanted.at_once

    def describe(self) -> str:
        return self._table.describe()

    def __repr__(self) -> str:
        return f"PostgresSink({self.describe()})"

    def check(self, query: QueryName, frame: DataFrame, output_mode: str) -> None:
        """Raise `SinkMismatchError` where rows come again in this output mode and have no key."""
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
            ledger = self._row.read(connection, lock=False)
            connection.rollback()
        return ledger

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        with self._database.transaction("open the sink") as connection:
            self._enter(connection, owner, lineage, token, knows)
            self._row.announce(connection, token)
            self._ledger = self._row.read(connection, lock=True)
        self._fence.announced(self._ledger.last)
        self._unknown = False
        return self._ledger

    def _enter(self, connection: Connection, owner: str, lineage: str, token: Token, knows: Knows) -> bool:
        """Make sure that table and ledger exist, of this owner and free; whether the ledger is new."""
        self._fence.begin(owner, token, knows)
        self._database.query = owner.split("/", 1)[-1]
        self._row.create(connection)
        name = catalogue.resolve(connection, self._wanted.table)
        new = self._row.enter(connection, name, owner, lineage)
        self._ledger = self._row.read(connection, lock=True)
        check_owner(self._ledger, owner, lineage, path=self.describe(), place="table")
        self._fence.check(self._ledger)
        if self._expected is not None:
            self._table.fit(connection, self._expected)
        if new and self._wanted.extra:
            catalogue.check_unnumbered(connection, name, self._wanted.extra, self._database.query)
        return new

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        staging = self._staging(batch, token)
        with self._database.transaction("make a staging table") as connection:
            target = self._table.target
            if target is None or self._wanted.at_once:  # nobody reads its columns later on
                target = self._table.fit(connection, frame.schema)
            staging.create(connection, None if self._wanted.at_once else target)
        task = CopyTask.into(
            staging, target, self._wanted, self._database, keep_refused=self._table.dead_letter is not None
        )
        over = threading.Event()
        faults.watch("batch.writing", lambda: self._has_rows(target, staging), over)
        try:
            tasks = _projected(frame, target).mapInArrow(task, DONE).collect()
        finally:
            over.set()
        for done in tasks:
            if done["refusal"]:
                raise self._table.refused(json.loads(done["refusal"]))
        self._written[batch, token] = Recorded(
            sum(done["rows"] for done in tasks),
            sum(done["refused"] for done in tasks),
            tuple(task for _, task in sorted((done["partition"], done["task"]) for done in tasks)),
        )

    def record(self, staged: Staged) -> None:
        written = self._written.get((staged.batch, staged.token))
        staging = self._staging(staged.batch, staged.token)
        with self._database.transaction("record a staging") as connection:
            self._ledger = self._row.read(connection, lock=False)
            self._fence.check(self._ledger)
            if written is None:
                raise self._lost(staged)
            self._check_written(connection, staging, written)
            staging.record(connection, staged.state_ids, written)
        self._written.pop((staged.batch, staged.token), None)

    def staged(self) -> Sequence[Staged]:
        if self._unknown:
            return []
        with self._database.transaction("list stagings") as connection:
            return recorded_stagings(connection, self._row)

    def commit(self, staged: Staged) -> Outcome:
        try:
            with self._database.transaction("commit a batch") as connection:
                done = self._deliver(connection, staged, ConstraintCheck.NOW)
                self._staging(staged.batch, staged.token).delete(connection)
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

    def commit_together(self, parts: Sequence[SinkPart], checkpoint: CheckpointId) -> Outcome:
        own = [(part.sink, part.staged) for part in parts if isinstance(part.sink, PostgresSink)]
        # in one order, so that two who lock ledgers do not wait for each other
        own.sort(key=lambda part: (part[0]._row.schema, part[0]._row.id))
        try:
            with self._database.transaction("commit a checkpoint") as connection:
                for sink, stagings in own:
                    for staged in stagings:
                        # a row may refer to one of another table
                        sink._deliver(connection, staged, ConstraintCheck.AT_COMMIT)
                        sink._staging(staged.batch, staged.token).delete(connection)
                    sink._row.set_checkpoint(connection, checkpoint)
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        for sink, stagings in own:
            if stagings:
                sink._fence.entered(max(sink._ledger.last, stagings[-1].batch))
        faults.point("sink.committed")
        return Outcome.DONE_NOW

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        kept = {(staged.batch, staged.token) for staged in keep}
        with self._database.transaction("discard stagings") as connection:
            stagings = {
                *((staged.batch, staged.token) for staged in recorded_stagings(connection, self._row)),
                *((table.batch, table.token) for table in staging_tables(connection, self._row)),
            }
        for batch, token in sorted(stagings):
            if batch <= upto and token <= self._fence.token and (batch, token) not in kept:
                with self._database.transaction("discard a staging") as connection:
                    self._staging(batch, token).delete(connection)

    def rewind(self, to: BatchId) -> Outcome:
        try:
            with self._database.transaction("rewind batches") as connection:
                self._ledger = self._row.read(connection, lock=True)
                self._fence.check(self._ledger)
                if self._ledger.last <= to:
                    return Outcome.ALREADY_DONE
                self._fence.rewinds(to)
                self._table.rewind(connection, to, self._ledger.owner)
                self._row.rewind(connection, to)
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def forget(self, upto: BatchId) -> None:
        """No checkpoint leads back to a batch below this one: what only such a rewind needs is deleted."""
        with self._database.transaction("delete images of old batches") as connection:
            self._ledger = self._row.read(connection, lock=True)
            self._fence.check(self._ledger)
            self._row.expire(connection, upto, images=bool(self._wanted.key))

    def _staging(self, batch: BatchId, token: Token) -> StagingTable:
        return StagingTable.of(self._row, batch, token)

    def _deliver(self, connection: Connection, staged: Staged, check: ConstraintCheck) -> Outcome:
        self._ledger = self._row.read(connection, lock=True)
        self._fence.check(self._ledger)
        if self._ledger.last >= staged.batch:
            return Outcome.ALREADY_DONE
        staging = self._staging(staged.batch, staged.token)
        recorded = staging.recorded(connection)
        if recorded is None:
            raise self._lost(staged)
        if NO_BATCH < self._ledger.last < staged.batch - 1:  # the next start finds its staging
            missing = f"another run (it decided batch {self._ledger.last + 1} after this run began)"
            raise FencedError(who=f"run {self._fence.token}", by=missing)
        moved = self._move(connection, staged, recorded, check) if recorded.rows else Moved(0)
        if recorded.refused:
            self._table.move_refused(connection, staging, recorded.tasks)
        refused = recorded.refused + moved.refused
        self._row.deliver(connection, staged.batch, self._fence.token, moved.rows, refused)
        return Outcome.DONE_NOW

    def _move(
        self, connection: Connection, staged: Staged, recorded: Recorded, check: ConstraintCheck
    ) -> Moved:
        """Move the rows that count; what an earlier run staged, in the way of that run."""
        staging = self._staging(staged.batch, staged.token)
        kinds = staging.columns(connection)
        if kinds is None and self._wanted.at_once:  # recorded by an earlier version
            return Moved(recorded.rows)
        if kinds is None or staging.count(connection, recorded.tasks, at_once=not kinds) != recorded.rows:
            raise self._lost(staged)
        if not kinds:  # they are in the table already
            return Moved(recorded.rows)
        return self._table.move(connection, staging, recorded, kinds, check)

    # what is known and checked

    def _has_rows(self, target: TargetTable, staging: StagingTable) -> bool:
        """Whether rows are arriving; for a fault that waits for that."""
        table = str(target.name if self._wanted.at_once else staging.name)
        with self._database.transaction("check a staging") as connection:
            size = connection.execute("SELECT pg_relation_size(to_regclass(%s))", (table,)).fetchone()
        return bool(size and size[0])

    def _lost(self, staged: Staged) -> LostStagingError:
        return LostStagingError(batch=staged.batch, query=self._ledger.owner, path=self.describe())

    def _check_written(self, connection: Connection, staging: StagingTable, written: Recorded) -> None:
        """Raise unless the server has all rows that the tasks have reported.

        In the transaction that records them: whoever takes over later with the record has the rows too.
        """
        tasks, at_once = written.tasks, self._wanted.at_once
        for what, reported, stored in (
            ("rows", written.rows, staging.count(connection, tasks, at_once=at_once)),
            ("refused rows", written.refused, staging.count_refused(connection, tasks)),
        ):
            if stored != reported:
                reason = (
                    f"it has {stored} of the {reported} {what} of batch {staging.batch} that it had "
                    "confirmed: it crashed without them, or a standby without them took over; "
                    "the batch runs again"
                )
                raise DatabaseError(verb="record a staging", place=self._address.place, reason=reason)


def _projected(frame: DataFrame, target: TargetTable) -> DataFrame:
    """The columns that are written, in order; what becomes JSON as the text that Spark makes of it."""
    expressions = {
        CopyForm.JSON: "to_json({}, map('ignoreNullFields', 'false'))",
        CopyForm.NOTHING: "CAST({} AS STRING)",
    }
    names = ["`" + column.frame.replace("`", "``") + "`" for column in target.staged]
    forms = [expressions.get(column.form, "{}") for column in target.staged]
    if set(forms) == {"{}"} and [column.frame for column in target.staged] == frame.schema.names:
        return frame
    return frame.selectExpr(
        *(f"{form.format(name)} AS {name}" for form, name in zip(forms, names, strict=True))
    )
