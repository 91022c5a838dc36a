"""The savepoints of a running job: one thread takes them, one after the other, beside the queries.

A savepoint is a checkpoint that is held until its files are copied. It is asked for by a user, by the
application, or by the schedule (`savepoint_schedule.py`). Whatever goes wrong ends the savepoint, with a
reason, and never the job. While the queries have work, the copying leaves them most of the cores and of the
disk; without, it goes as fast as it can.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from weir.checkpoint.actions import Held
from weir.checkpoint.manifest import Manifest, QueryCut
from weir.clock import Clock
from weir.config import Settings
from weir.driver.progress import ProgressReports
from weir.driver.runs import RunFactory
from weir.driver.savepoint_schedule import SavepointSchedule
from weir.errors import NoSavepointDirError, NoSavepointError, WeirError, error_form
from weir.ids import CheckpointId, JobName, QueryName
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason, TriggerRefusal
from weir.savepoint.about import JobSource, saved_sink
from weir.savepoint.catalogue import SCHEDULE, record
from weir.savepoint.take import HaltedError, QueryFacts, SavepointFacts, TakenSavepoint, check_target, take
from weir.storage import Store
from weir.storage.process import whoami
from weir.text import without_secrets

_REPORT_EVERY = 0.5
"""Seconds between two reports of how far a copy is."""
_ENDED = AbortReason.STOPPING.value
_SHARE = 0.1
"""The share of a core that a copying thread may use while the queries have work."""
_STILL = 2
"""After a batch a query counts as busy for this many times as long as the batch took."""


@dataclass(frozen=True)
class WantedSavepoint:
    """A savepoint that is asked for."""

    request: str
    path: str
    """The folder or URL to write it to; "" for execution.checkpointing.savepoint-dir."""
    trigger: str
    by: str
    since: float

    @classmethod
    def of(cls, ask: m.Ask, trigger: str, clock: Clock) -> WantedSavepoint:
        arguments = ask.arguments
        by = str(arguments.get("by") or whoami())
        return cls(ask.request, str(arguments.get("path") or ""), trigger, by, clock.monotonic())


class Delivery(Protocol):
    """Returns when the sinks have all that a checkpoint counts as committed: `Delivered.wait`."""

    def __call__(self, manifest: Manifest, *, final: bool, halted: Callable[[], bool]) -> None: ...


class CutFacts:
    """What the files of a checkpoint do not have, for a savepoint of it."""

    def __init__(self, factory: RunFactory, progress: ProgressReports, source: JobSource) -> None:
        self._factory = factory
        self._progress = progress
        self._source = source

    def of(self, manifest: Manifest, wanted: WantedSavepoint) -> SavepointFacts:
        return SavepointFacts(
            trigger=wanted.trigger,
            by=wanted.by,
            since=wanted.since,
            job_file=self._source.name,
            job_version=self._source.version,
            queries={name: self._of_query(QueryName(name), cut) for name, cut in manifest.queries.items()},
        )

    def _of_query(self, name: QueryName, cut: QueryCut) -> QueryFacts:
        spec = self._factory.specs[name]
        seen = self._progress.seen(name, cut.batch, seconds=1.0)
        return QueryFacts(
            sink=saved_sink(spec),
            output_mode=spec.output_mode if spec.writer is None else "",
            sources=seen.sources,
            rows=seen.state_rows,
        )


@dataclass(frozen=True)
class SavepointHost:
    """The job around its savepoints: what they ask of it, and where they report."""

    report: Callable[[m.Message], None]
    hold: Callable[[Held], None]
    """Take a checkpoint and hold it."""
    final_cut: Callable[[Held], None]
    release: Callable[[CheckpointId], None]
    delivered: Delivery
    facts: Callable[[Manifest, WantedSavepoint], SavepointFacts]


class Savepoints:
    """The savepoints of one attempt. For use from any thread."""

    def __init__(
        self, store: Store, job: JobName, lineage: str, settings: Settings, host: SavepointHost, clock: Clock
    ) -> None:
        self._store = store
        self._job = job
        self._dir = settings.execution_checkpointing_savepoint_dir or ""
        self._host = host
        self._clock = clock
        self._schedule = SavepointSchedule(store, job, lineage, settings, host.report, clock)
        self._changed = threading.Condition()
        self._wanted: deque[WantedSavepoint] = deque()
        self._over = False
        self._busy_until = 0.0
        self._alone = False
        self._halted = threading.Event()
        self._thread = threading.Thread(target=self._work, name="weir-savepoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def halted(self) -> bool:
        """Whether what is under way was halted."""
        return self._halted.is_set()

    def ask(self, wanted: WantedSavepoint) -> None:
        """Take one when those before it are done; the answer goes to the request."""
        with self._changed:
            self._wanted.append(wanted)
            self._changed.notify_all()

    def batch(self, committed: m.BatchCommitted) -> None:
        """A batch was committed: while there are some with records, a savepoint takes its time."""
        if committed.rows:
            with self._changed:
                until = self._clock.monotonic() + _STILL * committed.seconds
                self._busy_until = max(self._busy_until, until)

    def check(self, wanted: WantedSavepoint) -> None:
        """Raise when it could not be written where it should be."""
        check_target(self._target(wanted), self._store, self._job)

    def take_final(self, wanted: WantedSavepoint) -> dict[str, Any]:
        """Take one of the ended queries, in this thread; what to answer. Raises when it fails."""
        self._alone = True
        return self._attempted(wanted, self._host.final_cut)

    def halt(self) -> None:
        """Halt what is under way; `settle` waits for it. Safe to repeat."""
        self._halted.set()

    def settle(self) -> None:
        """Begin nothing else, refuse what waits, and wait for what is under way. Safe to repeat."""
        with self._changed:
            self._over = True
            waiting, self._wanted = list(self._wanted), deque()
            self._changed.notify_all()
        for wanted in waiting:
            self._host.report(m.SavepointFailed(wanted.path, wanted.trigger, wanted.by, 0.0, _ENDED))
            self._answer(wanted, False, {"reason": _ENDED})
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def progress(self, request: str, phase: str, done: int = 0, full: int = 0) -> None:
        self._host.report(m.SavepointProgress(request, phase, done, full))

    # the thread

    def _work(self) -> None:
        due = self._schedule.first_due()
        while (wanted := self._next(due)) is not None:
            try:
                body = self._attempted(wanted, self._host.hold)
            except Exception as error:
                self._answer(wanted, False, failed_answer(error))
                failed = True
            else:
                self._answer(wanted, True, body)
                failed = False
            if wanted.trigger == SCHEDULE:
                due = self._schedule.next_due(failed=failed)
                if due is not None:
                    self._schedule.make_room()

    def _next(self, due: float | None) -> WantedSavepoint | None:
        """What to take next, as soon as there is something; None when it is over."""
        with self._changed:
            while not self._over:
                if self._wanted:
                    return self._wanted.popleft()
                left = None if due is None else due - self._clock.monotonic()
                if left is not None and left <= 0:
                    return WantedSavepoint("", "", SCHEDULE, whoami(), self._clock.monotonic())
                self._changed.wait(left)
            return None

    # one savepoint

    def _attempted(self, wanted: WantedSavepoint, cut: Callable[[Held], None]) -> dict[str, Any]:
        """Take it, and report what became of it."""
        try:
            taken = self._take(wanted, cut)
        except Exception as error:
            seconds = self._clock.monotonic() - wanted.since
            reason = error.text if isinstance(error, WeirError) else failed_answer(error)["reason"]
            path = wanted.path or self._dir
            self._host.report(m.SavepointFailed(path, wanted.trigger, wanted.by, seconds, reason))
            raise
        saved = taken.savepoint
        self._record(taken)
        body = {"id": saved.id, "path": taken.place, "seconds": saved.seconds, "bytes": saved.bytes}
        self._host.report(
            m.SavepointTaken(
                id=saved.id,
                path=taken.place,
                trigger=saved.trigger,
                by=saved.taken_by,
                seconds=saved.seconds,
                bytes=saved.bytes,
                job_version=saved.job_version,
            )
        )
        return body

    def _record(self, taken: TakenSavepoint) -> None:
        try:
            record(self._store, taken)
        except WeirError as error:
            note = f"'latest' may not find the savepoint {taken.place}, which is complete: {error.text}"
            self._host.report(m.Noted(note))

    def _take(self, wanted: WantedSavepoint, cut: Callable[[Held], None]) -> TakenSavepoint:
        self.check(wanted)
        self.progress(wanted.request, "checkpoint")
        manifest = self._checkpoint(cut)
        try:
            self.progress(wanted.request, "deliver")
            self._host.delivered(manifest, final=self._alone, halted=self._halted.is_set)
            facts = self._host.facts(manifest, wanted)
            copied = _CopyProgress(self, wanted.request, self._clock)
            target = self._target(wanted)
            halted = self._halted.is_set
            return take(self._store, manifest, target, facts, self._clock, copied, halted, self._rest)
        except HaltedError:
            raise self._none(_ENDED, ended=True) from None
        finally:
            self._host.release(CheckpointId(manifest.id))

    def _rest(self, took: float, used: float) -> None:
        if not self._alone and self._clock.monotonic() < self._busy_until:
            self._clock.wait(self._halted, used / _SHARE - took)

    def _checkpoint(self, cut: Callable[[Held], None]) -> Manifest:
        asked: Future[tuple[Manifest | None, str]] = Future()
        cut(lambda manifest, reason: asked.set_result((manifest, reason)))
        manifest, reason = asked.result()
        if manifest is None:
            ended = reason in (_ENDED, TriggerRefusal.STOPPING.value)
            raise self._none(f"its checkpoint was not taken: {reason}", ended=ended)
        return manifest

    def _target(self, wanted: WantedSavepoint) -> str:
        target = wanted.path or self._dir
        if not target:
            raise NoSavepointDirError(job=self._job)
        return target

    def _none(self, reason: str, *, ended: bool) -> NoSavepointError:
        todo = "take it again when the job runs" if ended else "the job continues; take it again"
        return NoSavepointError(job=self._job, reason=reason, todo=todo)

    def _answer(self, wanted: WantedSavepoint, done: bool, body: dict[str, Any]) -> None:
        if wanted.request:
            self._host.report(m.Answered(wanted.request, done, body))


class _CopyProgress:
    """Progress of a copy, reported now and then. Called from several threads."""

    def __init__(self, savepoints: Savepoints, request: str, clock: Clock) -> None:
        self._savepoints = savepoints
        self._request = request
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0.0

    def __call__(self, done: int, full: int) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if now < self._next:
                return
            self._next = now + _REPORT_EVERY
        self._savepoints.progress(self._request, "copy", done, full)


def failed_answer(error: Exception) -> dict[str, Any]:
    """The answer to a request that failed; its `reason` is one sentence."""
    if not isinstance(error, WeirError):
        return {"reason": without_secrets(f"{type(error).__name__}: {error}")}
    if isinstance(error, NoSavepointError):
        reason = error.why
    else:  # the message names the place, the cause alone does not
        reason = f"{error.what}: {error.why}" if error.why else error.what
    return {"reason": reason, **error_form(error)}
