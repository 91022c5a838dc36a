"""A job in a live session, without a supervisor: `with job.start(spark) as run: ...`.

It works in a session of its own beside the live one and takes an attempt like any driver, so it
can't run beside a supervised one. Nothing restarts it: a failed query is found in `run.failures`. When
its attempt is lost to a newer one, every query is stopped and fails with that.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Sequence
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weir.clock import Clock, Deadline
from weir.config import Config, DirAccess, resolve
from weir.driver.context import JobContext, JobEnd
from weir.driver.own_attempt import OwnAttempt, attempt_before
from weir.driver.queries import Queries
from weir.driver.start import start as start_engine
from weir.errors import (
    NoCheckpointError,
    NoSavepointError,
    RunFailedError,
    WeirError,
)
from weir.protocol import messages as m
from weir.restore.request import RestoreRequest
from weir.spark import session
from weir.spark.failure import whole_stack
from weir.storage import open_store
from weir.storage.open import close_to_others
from weir.text import number, size, took, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.job.job import Job


_WHOLE_STACK = "the full stack is in run.failures[0].failure.stack"
"""A notebook keeps no logs."""


class Run:
    """A running job. Leaving the `with` block stops it as `weir cancel` would."""

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        config: Config,
        wanted: RestoreRequest | None = None,
        above: int = 0,
    ) -> None:
        self.job = job.name
        self.batches: list[m.BatchCommitted] = []
        """The committed batches, in the order in which Spark reported them."""
        self.failures: list[m.QueryFailed] = []
        self.checkpoints: list[m.CheckpointCompleted] = []
        """The completed checkpoints, in order."""
        self.aborted: list[m.CheckpointAborted] = []
        self.savepoints: list[m.SavepointTaken] = []
        """The savepoints that were taken, by whoever asked for them, in order."""
        self.restored: m.Restored | None = None
        """Set when this start restored a checkpoint."""
        self.planned: m.RestorePlanned | None = None
        """What became of the state, when this start resumed from a point with a job that had changed."""
        self.notes: list[str] = []
        self._answers: dict[str, m.Answered] = {}
        self._changed = threading.Condition()
        settings, clock, queries = config.settings, Clock(), Queries()
        store = open_store(settings.execution_checkpointing_dir)
        if settings.execution_checkpointing_dir_access is DirAccess.OWNER:
            closed = close_to_others(settings.execution_checkpointing_dir, job.name)
            self.notes += filter(None, [closed])
        above = max(above, attempt_before(wanted, store, job.name, settings))
        self._attempt = OwnAttempt(store, job.name, settings, above, clock, queries.fail)
        own = spark.newSession()
        self.notes += [
            f"{key} is {config.spark[key]} in the settings of the job, and can't be changed in this session: "
            "set it where the session is built"
            for key in session.apply(own, config)
        ]
        lease, end = self._attempt.lease, JobEnd(self._gave_up)
        self._context = JobContext(job, own, config, store, lease, clock, self._hear, queries, end)
        self._attempt.keep()
        try:
            self._engine = start_engine(self._context, wanted)
        except BaseException:
            self._attempt.release(failed=True)
            raise

    def __enter__(self) -> Run:
        return self

    def _repr_html_(self) -> str:
        """What a notebook shows when the run is the last thing in a cell."""
        with self._changed:
            return run_table(self.job, self.active, self.batches, self.checkpoints, self.failures)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def active(self) -> bool:
        """Whether any query still runs or waits."""
        return not self._context.end.over.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until every query has ended; raises as `check` does.

        True when all have ended, False when the time was over before.
        """
        with self._changed:
            ended = self._changed.wait_for(lambda: not self.active or self._failed, seconds)
        self.check()
        return bool(ended)

    def wait_for_batch(self, query: str, batch: int, seconds: float = 60.0) -> None:
        """Wait until a batch of a query is committed; raises when it failed or took longer."""

        def there() -> bool:
            return any(b.query == query and b.batch >= batch for b in self.batches)

        with self._changed:
            self._changed.wait_for(lambda: there() or self._failed or not self.active, seconds)
            found = there()
        self.check()
        if not found:
            raise TimeoutError(f"batch {batch} of query {query!r} was not committed in {seconds:g} s")

    def process_all(self, seconds: float = 60.0) -> None:
        """Wait until all that the sources hold now is delivered; raises when it failed or took longer."""
        done = self._engine.work_off(Deadline(self._context.clock, self._context.clock.monotonic() + seconds))
        self.check()
        if not done:
            raise TimeoutError(f"the input was not processed in {seconds:g} s")

    def checkpoint(self, *, full: bool = False, seconds: float = 60.0) -> int:
        """Take a checkpoint now and return its id; raises when it was refused, aborted or took longer."""
        answer = self._ask("checkpoint", {"full": full}, seconds)
        self.check()
        if answer is None:
            raise TimeoutError(f"the checkpoint was not completed in {seconds:g} s")
        if not answer.done:
            raise NoCheckpointError(job=self.job, reason=str(answer.body.get("reason", "")))
        return int(answer.body["id"])

    def savepoint(self, path: str | None = None, *, seconds: float = 600.0) -> str:
        """Take a savepoint now, beside the running queries, and return its place.

        It is written to a new folder below `path`, by default execution.checkpointing.savepoint-dir.
        Raises `NoSavepointError` when it could not be taken, and `TimeoutError` when it takes longer:
        then it continues.
        """
        arguments = {"path": path, "trigger": "application"}
        return self._saved(self._ask("savepoint", arguments, seconds), seconds)

    def stop_with_savepoint(
        self, path: str | None = None, *, drain: bool = False, seconds: float = 600.0
    ) -> str:
        """End the job with a savepoint of exactly what it has committed, and return its place.

        With `drain` all that the sources hold is processed first. When the savepoint fails, the job
        continues if its queries have not ended yet.
        """
        limit = self._context.settings.task_cancellation_timeout.total_seconds()
        arguments = {"savepoint": True, "path": path, "drain": drain, "seconds": limit}
        place = self._saved(self._ask("stop", arguments, seconds), seconds)
        self._end(cancelled=False)
        return place

    def _ask(self, verb: str, arguments: dict[str, Any], seconds: float) -> m.Answered | None:
        request = uuid.uuid4().hex
        self._engine.ask(m.Ask(request, verb, arguments))
        with self._changed:
            self._changed.wait_for(lambda: request in self._answers, seconds)
            return self._answers.pop(request, None)

    def _saved(self, answer: m.Answered | None, seconds: float) -> str:
        self.check()
        if answer is None:
            raise TimeoutError(f"the savepoint was not taken in {seconds:g} s")
        if not answer.done:
            body = answer.body
            raise NoSavepointError(job=self.job, reason=body.get("reason", ""), todo=body.get("hint", ""))
        return str(answer.body["path"])

    @property
    def _failed(self) -> bool:
        return bool(self.failures) or self._context.end.failed is not None

    def check(self) -> None:
        """Raise `RunFailedError` when a query has failed, or what the job itself has failed with."""
        if self.failures:
            first = self.failures[0]
            f = first.failure
            hint = f.hint.replace(whole_stack(self.job), _WHOLE_STACK)
            raise RunFailedError(query=first.query, batch=first.batch, what=f.what, why=f.why, hint=hint)
        if self._context.end.failed is not None:
            raise self._context.end.failed

    def stop(self) -> None:
        """Let the running batches finish and commit, start no other, end. Safe to repeat.

        That cancels a job that still runs: execution.checkpointing.externalized-checkpoint-retention
        decides what becomes of its checkpoints. One that has ended by itself, has failed or was taken over
        keeps them.
        """
        self._end(cancelled=self.active and not self._failed and self._attempt.lease.left > 0)

    def _end(self, *, cancelled: bool) -> None:
        if self._attempt.released:
            return
        self._engine.stop(
            self._context.settings.task_cancellation_timeout.total_seconds(), cancelled=cancelled
        )
        self._context.end.over.wait(self._context.settings.task_cancellation_timeout.total_seconds())
        self._engine.settle_groups()
        self._attempt.release(failed=self._failed)

    def _hear(self, message: m.Message) -> None:
        with self._changed:
            if isinstance(message, m.BatchCommitted):
                self.batches.append(message)
            elif isinstance(message, m.QueryFailed):
                self.failures.append(message)
            elif isinstance(message, m.CheckpointCompleted):
                self.checkpoints.append(message)
            elif isinstance(message, m.CheckpointAborted):
                self.aborted.append(message)
            elif isinstance(message, m.SavepointTaken):
                self.savepoints.append(message)
            elif isinstance(message, m.Answered):
                self._answers[message.request] = message
            elif isinstance(message, m.Restored):
                self.restored = message
            elif isinstance(message, m.RestorePlanned):
                self.planned = message
            elif isinstance(message, (m.Noted, m.CutOff)):
                self.notes.append(without_secrets(message.text))
            self._changed.notify_all()

    def _gave_up(self, error: WeirError) -> None:
        """The job itself can't continue, so no query of it does."""
        self._context.queries.fail(error)
        with self._changed:
            self._changed.notify_all()


def start(job: Job, spark: SparkSession, wanted: RestoreRequest | None = None, above: int = 0) -> Run:
    """Start the job beside a live session; see `Job.start`."""
    file = Path("weir.yaml")
    config = resolve(file=file if file.is_file() else None, job_options=job.options, environ=os.environ)
    return Run(job, spark, config, wanted, above)


def run_table(
    job: str,
    active: bool,
    batches: Sequence[m.BatchCommitted],
    checkpoints: Sequence[m.CheckpointCompleted],
    failures: Sequence[m.QueryFailed],
) -> str:
    """The queries with their newest batches, the last checkpoint, and what failed, in escaped HTML."""
    newest = {batch.query: batch for batch in batches}
    state = "failed" if failures else "running" if active else "ended"
    head = f"<p><b>{escape(job)}</b> is {state}{_last_checkpoint(checkpoints)}</p>"
    names = ("query", "batch", "rows", "all rows", "seconds", "state rows", "state", "watermark")
    rows = [_row(batch, [one for one in batches if one.query == batch.query]) for batch in newest.values()]
    titles = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    wrong = "".join(
        f"<p>query <b>{escape(one.query)}</b> failed at batch {one.batch}: {escape(one.failure.what)}"
        f"{': ' + escape(one.failure.why) if one.failure.why else ''}</p>"
        for one in failures
    )
    return head + (table if rows else "<p>no batch yet</p>") + wrong


def _last_checkpoint(checkpoints: Sequence[m.CheckpointCompleted]) -> str:
    if not checkpoints:
        return ""
    last = checkpoints[-1]
    sizes = f"{size(last.new_bytes)} new of {size(last.full_bytes)}"
    return f"; checkpoint {last.id} took {took(last.seconds)}, {sizes}"


def _row(last: m.BatchCommitted, all: Sequence[m.BatchCommitted]) -> str:
    cells = (
        last.query,
        str(last.batch),
        number(last.rows),
        number(sum(batch.rows for batch in all)),
        f"{last.seconds:.2f}",
        number(last.state_rows),
        size(last.state_bytes),
        last.watermark or "-",
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
