"""The coordinator: job-wide checkpoints, the seven steps of design section 5, in one thread.

trigger -> barrier -> align -> snapshot -> ack -> complete -> notify. What may be decided without
I/O is decided in `protocol/checkpoints.py`. Snapshots are taken in a small pool beside it; nothing
here is on the path of a record, and no query waits for it, except one whose next batch could make
Spark purge what a cut still needs. Whatever goes wrong aborts the checkpoint, durably, with a
reason, and never the job, unless `tolerable-failed-checkpoints` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weir import faults
from weir.channel.position import Position
from weir.checkpoint import manifest as mf
from weir.checkpoint.flight import Flight, Held, Outside, Wish, words_of
from weir.checkpoint.manifest import Manifest
from weir.checkpoint.outlived import Outlived
from weir.checkpoint.records import Records
from weir.checkpoint.retained import Retained
from weir.checkpoint.snapshots import Snapshots
from weir.checkpoint.triggers import Triggers, alignment_of, trigger_facts, turns_after
from weir.checkpoint.vertex import Found, NoPositionError, Vertex
from weir.checkpoint.workers import Workers
from weir.clock import Clock
from weir.config import Settings, changed
from weir.errors import CheckpointsFailedError, ExternalError, FencedError, LostSegmentError
from weir.ids import NO_BATCH, BatchId, CheckpointId, QueryName
from weir.job.live import Live
from weir.lease import Lease
from weir.protocol import messages as m
from weir.protocol.checkpoints import (
    COUNTED,
    AbortReason,
    AckOutcome,
    Alignment,
    Cut,
    Pending,
    Refusal,
    TriggerFacts,
    may_trigger,
    take_ack,
)
from weir.spark.closure import GoneError
from weir.storage.generations import Origin

_LOOK = 0.2
"""How often a pending checkpoint is looked after, besides when a batch or a snapshot of it is there."""
_HOLD = 0.02
"""How often a batch that waits for a snapshot looks."""
_PATIENCE = 5.0
"""So long a barrier may wait for the segment of a root's running batch. Beside a batch that takes longer,
the one that each reader then runs for the barrier alone costs little. A quarter of the timeout is the most:
the readers need the rest."""
_REST = 0.5
"""How long to rest when nothing is pending and nothing is due."""
_SWEEP_EVERY = 600.0
_SMALL_PURGE = 10
"""With fewer batches than this kept by Spark, a query's next batch waits for its snapshot."""
_DECLINED = (GoneError, NoPositionError)
"""What a query can't be cut with."""
_LEFT_BEHIND = "files of old checkpoints are left behind"


class Coordinator:
    """The checkpoints of one attempt. Its public methods may be called from any thread."""

    def __init__(
        self,
        live: Live,
        vertices: Sequence[Vertex],
        origin: Origin,
        spark: str,
        settings: Settings,
        purge: int,
        lease: Lease,
        outside: Outside,
        clock: Clock,
    ) -> None:
        self._live = live
        self._order = [vertex.name for vertex in vertices]
        """A stream before its readers."""
        self._vertices = {vertex.name: vertex for vertex in vertices}
        self._origin = origin
        self._settings = settings
        self._purge = purge
        self._lease = lease
        self._outside = outside
        self._clock = clock
        self._records = Records(live.store, live.job, lease.attempt, clock)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._flights: dict[CheckpointId, Flight] = {}
        self._wishes: list[Wish] = []
        self._triggers = Triggers(clock.monotonic())
        self._ended_at: float | None = None
        self._swept_at: float | None = None
        self._failures = 0
        self._outlived = Outlived()
        self._nudged = False
        self._waits_noted = False
        self._stopping = False
        self._resting = False
        self._workers = Workers(len(vertices), self._wake)
        self._thread = threading.Thread(target=self._work, name="weir-coordinator", daemon=True)
        self._snapshots = Snapshots(live, settings, clock, lease)
        self._retained = Retained(live, self._snapshots)
        self._about = mf.about(
            live.job, live.generation, lease.attempt, origin, spark, self._snapshots.copied_to
        )
        self._readers = {
            vertex.name: [one.name for one in vertices if vertex.name in one.inputs]
            for vertex in vertices
            if vertex.writer is not None
        }

    # what others call

    def prepare(self) -> None:
        """Before any query runs: abort what was begun and not finished, learn the last id.

        The channels are open by then: a number that one of their barriers has is never given out again.
        """
        barriers = [barrier for vertex in self._vertices.values() for barrier in vertex.barriers()]
        for id in self._records.learn(self._origin.checkpoint, barriers):
            self._records.abort(id, AbortReason.RESTARTED, "")
            self._outside.report(m.CheckpointAborted(id, "", "", 0.0, AbortReason.RESTARTED.value))
        self._retained.learn()

    def start(self) -> None:
        self._thread.start()

    def wish(self, request: str, full: bool) -> None:
        """Take a checkpoint as soon as one may begin; the answer goes to the request."""
        self._add(Wish(request, full))

    def hold(self, held: Held, trigger: str = "savepoint") -> None:
        """Take a checkpoint as soon as one may begin, and keep it until it is released."""
        self._add(Wish("", full=False, trigger=trigger, held=held))

    def release(self, id: CheckpointId) -> None:
        """A held checkpoint is needed no more; it is dropped like any other. Safe to repeat."""
        with self._lock:
            self._retained.release(id)

    def rest(self) -> None:
        """From now on nothing is triggered; what is pending is aborted. Only `final_cut` comes behind it."""
        with self._changed:
            self._resting = True
            self._end_all()

    def final_cut(self, held: Held) -> None:
        """Behind `rest`, when every query has ended: a checkpoint of exactly what is committed, held."""
        self._add(Wish("", full=False, trigger="stop", held=held, final=True))

    def configure(self, values: Mapping[str, str]) -> Settings:
        """Change settings of the running job; raises for those that can't be changed so."""
        with self._changed:
            self._settings = changed(self._settings, values)
            self._changed.notify_all()
            return self._settings

    def nudge(self) -> None:
        """Something was committed: look now, or once more behind the look under way. Returns at once."""
        self._nudged = True
        if self._lock.acquire(blocking=False):
            try:
                self._changed.notify_all()
            finally:
                self._lock.release()

    def batch(self, committed: m.BatchCommitted) -> None:
        """A batch was committed; records that came from outside are counted."""
        vertex = self._vertices.get(QueryName(committed.query))
        if vertex is not None and not vertex.inputs:
            with self._changed:
                self._triggers.records += committed.rows
        self.nudge()  # sinks without a committer say nothing themselves

    def offsets(self, name: QueryName) -> list[str] | None:
        """The offsets of a query in every retained checkpoint; None: all that its sources hold is needed.

        So it is while one is pending that has no retained one before it, and while one is retained in
        which the query had committed nothing.
        """
        with self._lock:
            oldest = self._retained.first_id
            if any(oldest is None or id < oldest for id in self._flights):
                return None
            return self._retained.offsets(name)

    def oldest_cut(self, name: QueryName) -> BatchId | None:
        """The oldest batch that a checkpoint leads the query back to, now or later; None while not known."""
        with self._lock:
            if name not in self._vertices or any(name not in one.found for one in self._flights.values()):
                return None
            cuts = self._retained.cuts(name) + [one.found[name].batch for one in self._flights.values()]
            return min(cuts) if cuts else self._vertices[name].files.last_committed()

    def newest(self) -> Manifest | None:
        """The newest completed checkpoint of these live files."""
        with self._lock:
            return self._retained.newest()

    def query_failed(self, name: QueryName) -> None:
        """A query is down: nothing that is pending can complete."""
        with self._changed:
            for flight in list(self._flights.values()):
                self._abort(flight, AbortReason.QUERY_RESTARTED, f"query {name}")

    def replace(self, vertex: Vertex) -> None:
        """A query runs again, as a new run."""
        with self._changed:
            self._vertices[vertex.name] = vertex

    def before_batch(self, name: QueryName, batch: BatchId, over: Callable[[], bool]) -> None:
        """Hold a batch as long as Spark's purge behind it could reach what a cut still needs."""
        if self._purge >= _SMALL_PURGE:
            return
        with self._changed:
            while not over() and any(self._needs(flight, name, batch) for flight in self._flights.values()):
                self._changed.wait(_HOLD)

    def stop(self, *, wait: bool = True) -> None:
        """End the thread; what is pending is aborted. Safe to repeat.

        Files that are being copied are waited for only if asked: they are of no use any more.
        """
        with self._changed:
            self._stopping = True
            self._end_all()
            self._changed.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._workers.end(wait=wait)

    def delete_all(self) -> None:
        """The job was cancelled and keeps no checkpoints; the last id is remembered by its abort."""
        self._lease.check()
        newest = self._retained.last_id
        if newest is not None and not self._records.abort(newest, AbortReason.DELETED, ""):
            self._outside.report(m.Noted("the checkpoints stay: that they are deleted could not be written"))
            return
        try:
            self._retained.delete_all()
        except ExternalError as error:
            self._outside.report(m.Noted(f"{_LEFT_BEHIND}: {error.text}"))

    def _add(self, wish: Wish) -> None:
        with self._changed:
            if self._stopping:
                self._refuse(wish, Refusal.STOPPING)
                return
            self._wishes.append(replace(wish, asked_at=self._clock.monotonic()))
            self._changed.notify_all()

    def _end_all(self) -> None:
        for flight in list(self._flights.values()):
            self._abort(flight, AbortReason.STOPPING, "")
        for wish in self._wishes:
            self._refuse(wish, Refusal.STOPPING)
        self._wishes.clear()

    # the loop

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                self._nudged = False
                try:
                    self._step()
                except Exception as error:
                    if isinstance(error, FencedError) and self._lease.left <= 0:
                        return  # the driver is about to end itself
                    self._went_wrong(error)
                if not self._nudged or not self._flights:
                    self._changed.wait(self._pause())

    def _step(self) -> None:
        now = self._clock.monotonic()
        self._records.write_aborts()
        self._take_late_acks()
        if self._swept_at is None or now - self._swept_at > _SWEEP_EVERY:
            self._swept_at = now
            self._aside(partial(self._snapshots.sweep, self._retained.all()))
        self._look()
        self._follow_roots()
        for flight in list(self._flights.values()):
            try:
                self._advance(flight, now)
            except _DECLINED as error:
                self._abort(flight, AbortReason.DECLINED, words_of(error))
        if self._wishes:
            self._grant(self._wishes[0], now)
        elif (due := self._triggers.due(self._settings, now)) is not None:
            self._try_due(due, now)

    def _went_wrong(self, error: Exception) -> None:
        for flight in list(self._flights.values()):
            self._abort(flight, AbortReason.STORAGE, words_of(error))
        self._outside.report(m.Noted(f"the coordinator stumbled: {words_of(error)}"))
        if isinstance(error, LostSegmentError):  # nothing completes any more: the next driver goes back
            self._outside.give_up(error)

    def _pause(self) -> float:
        """Until the next look, or the next trigger if that comes before; one that is due is waited for."""
        left = self._triggers.left(self._settings, self._clock.monotonic())
        if left is not None and left <= 0:
            return _LOOK
        most = _LOOK if self._flights or self._wishes else _REST
        return most if left is None else min(most, left)

    # 1 trigger

    def _facts(self, now: float, alignment: Alignment) -> TriggerFacts:
        ending, pending = self._stopping or self._resting, self._flights.values()
        running, begun = self._outside.running(), not self._without_position()
        return trigger_facts(self._settings, now, alignment, running, ending, pending, self._ended_at, begun)

    def _without_position(self) -> list[QueryName]:
        """The queries that have begun and have committed nothing yet."""
        standing = self._outside.standing()
        return [name for name in self._order if not self._vertices[name].began(name in standing)]

    def _try_due(self, trigger: str, now: float) -> None:
        alignment = alignment_of(self._settings)
        refusal = may_trigger(self._facts(now, alignment))
        if refusal is None:
            full = not self._settings.execution_checkpointing_incremental
            self._begin(alignment, trigger, full, [], now)
        elif refusal is Refusal.NOT_BEGUN and now - self._triggers.triggered_at >= self._timeout:
            self._note_wait()

    def _note_wait(self) -> None:
        """Report, once, that no checkpoint is taken though it is due."""
        if not self._waits_noted:
            self._waits_noted = True
            names = ", ".join(self._without_position())
            self._outside.report(m.Noted(f"no checkpoint is taken: {Refusal.NOT_BEGUN.value} ({names})"))

    @property
    def _timeout(self) -> float:
        return self._settings.execution_checkpointing_timeout.total_seconds()

    def _grant(self, wish: Wish, now: float) -> None:
        alignment = Alignment.UNALIGNED if wish.final else alignment_of(self._settings)
        refusal = may_trigger(replace(self._facts(now, alignment), last_ended_at=None))
        if refusal is Refusal.TOO_MANY:
            return
        if refusal is Refusal.NOT_BEGUN and not wish.final and now - wish.asked_at < self._timeout:
            return
        self._wishes.remove(wish)
        if refusal is not None and not wish.final:
            self._refuse(wish, refusal)
        else:
            self._begin(alignment, wish.trigger, wish.full, [wish], now)

    def _refuse(self, wish: Wish, refusal: Refusal) -> None:
        reason = refusal.value
        if refusal is Refusal.NOT_RUNNING:
            reason = self._outside.down() or reason
        elif refusal is Refusal.NOT_BEGUN:
            reason = f"{reason} ({', '.join(self._without_position())})"
        self._answer(wish, None, {"reason": reason})

    def _answer(self, wish: Wish, manifest: Manifest | None, body: dict[str, Any]) -> None:
        if wish.held is None:
            self._outside.report(m.Answered(wish.request, manifest is not None, body))
            return
        wish.held(manifest, str(body.get("reason", "")))

    def _begin(self, alignment: Alignment, trigger: str, full: bool, wishes: list[Wish], now: float) -> None:
        self._lease.check()
        self._triggers.triggered(now)
        begun_at = self._clock.now().isoformat()
        begun = self._records.begin({"alignment": alignment.value, "trigger": trigger, "begun_at": begun_at})
        id = begun.id
        flight = Flight(Pending(id, alignment, now, frozenset(self._order)), trigger, full, begun_at, wishes)
        self._flights[id] = flight
        if begun.refused:
            self._abort(flight, AbortReason.STORAGE, begun.refused)
            return
        faults.point("checkpoint.begun")
        flight.phases["trigger"] = self._clock.monotonic() - now
        self._outside.report(m.CheckpointBegun(id, alignment.value, trigger, full))
        try:
            if alignment is Alignment.UNALIGNED:
                self._cut_here(flight, self._order)
            else:
                self._send_barriers(flight)
        except _DECLINED as error:
            self._abort(flight, AbortReason.DECLINED, words_of(error))

    # 2 barrier

    def _send_barriers(self, flight: Flight) -> None:
        others = [one.found for one in self._flights.values() if one is not flight]
        for vertex in self._vertices.values():
            vertex.begin(others)
        for name in self._order:
            vertex = self._vertices[name]
            if vertex.inputs:
                continue
            if vertex.writer is None:
                self._cut(flight, vertex, vertex.here())
            else:
                flight.behind[name] = vertex.files.last_planned()
        self._follow_roots()

    def _follow_roots(self) -> None:
        """Append barriers behind the batches that roots were in; when that takes long, where they stand.

        A reader that finds the barrier together with the segment ends one batch there; one that finds it
        later would need a batch for it alone. Checkpoints that come to the same place share a barrier, that
        of the newest: each with its own would need a batch too.
        """
        patience = min(_PATIENCE, self._timeout / 4)
        for name in self._order:
            waiting = [one for one in self._flights.values() if name in one.behind]
            if not waiting:
                continue
            vertex, late = self._vertices[name], self._since(waiting[0]) >= patience
            entered = vertex.entered()
            if here := [one for one in waiting if late or one.behind[name] <= entered]:
                found = vertex.barrier(here[-1].id)
                for flight in here:
                    try:
                        self._cut(flight, vertex, found)
                    except _DECLINED as error:
                        self._abort(flight, AbortReason.DECLINED, words_of(error))

    def _cut_here(self, flight: Flight, names: Sequence[QueryName]) -> None:
        """Take each query's last committed batch, downstream first: no reader is ahead of its writer.

        One that has reached the barrier meanwhile is cut at the barrier, never beyond it.
        """
        for name in reversed(names):
            vertex = self._vertices[name]
            if flight.state.alignment is Alignment.UNALIGNED:
                found = replace(vertex.here(), unaligned=True)
            elif vertex.writer is None:
                found = vertex.here_or_aligned(flight.id)
            else:
                found = replace(vertex.barrier(flight.id), unaligned=True)
            self._cut(flight, vertex, found)

    # 3 align

    def _look(self) -> None:
        """Learn where the queries stand whose cut some checkpoint waits for: once for all of them."""
        for name in self._order:
            waiting = [one for one in self._flights.values() if name not in one.found]
            if waiting:
                try:
                    self._vertices[name].look()
                except GoneError as error:  # it can't tell its cut any more
                    for flight in waiting:
                        self._abort(flight, AbortReason.DECLINED, words_of(error))

    def _advance(self, flight: Flight, now: float) -> None:
        for name in self._order:
            if name not in flight.found and name not in flight.behind:
                found = self._vertices[name].aligned(flight.id)
                if found is not None:
                    self._cut(flight, self._vertices[name], found)
        standing = self._outside.standing()
        if stands := [name for name in self._order if name not in flight.found and name in standing]:
            self._cut_here(flight, stands)
        missing = [name for name in self._order if name not in flight.found]
        patience, waited = turns_after(self._settings), now - flight.state.begun_at
        late = patience is not None and waited >= patience
        if missing and late and flight.state.alignment is Alignment.ALIGNED:
            flight.turned = True
            self._cut_here(flight, missing)
            missing = []
        if not missing and not flight.channels:
            self._keep_channels(flight)
        self._take_acks(flight)
        if flight.id not in self._flights:
            return
        kept = flight.state.complete and all(one.done() for one in flight.channels.values())
        if kept and (manifest := self._exported(flight)) is not None:
            self._complete(flight, manifest)
        elif flight.id in self._flights and waited >= self._timeout:
            lost = ", ".join(sorted(flight.state.missing))
            self._abort(flight, AbortReason.EXPIRED, f"missing: {lost}" if lost else "")

    # 4 snapshot

    def _cut(self, flight: Flight, vertex: Vertex, found: Found) -> None:
        """Raises `NoPositionError` where the cut leads a restore nowhere, `GoneError` where it is purged."""
        if not vertex.has_position(found.batch, vertex.name in self._outside.standing()):
            raise NoPositionError(vertex.name)
        flight.positions[vertex.name] = self._positions(vertex, found.batch)
        flight.found[vertex.name] = found
        flight.behind.pop(vertex.name, None)
        flight.barriers[vertex.name] = self._since(flight)
        pinned = partial(flight.pinned.add, vertex.name)
        keep = partial(self._snapshots.of_query, full=flight.full, pinned=pinned)
        flight.queries[vertex.name] = self._workers.submit(keep, flight.id, vertex, found)

    def _positions(self, vertex: Vertex, batch: BatchId) -> Mapping[QueryName, Position]:
        """Where a query stood in its channels; one that has committed nothing begins with what is left."""
        if batch == NO_BATCH:
            return {name: self._vertices[name].beginning() for name in vertex.inputs}
        return vertex.positions(batch)

    def _keep_channels(self, flight: Flight) -> None:
        for name in self._order:
            found = flight.found[name]
            if found.behind is not None:
                readers = [flight.goes_on(reader, name) for reader in self._readers[name]]
                keep = partial(self._snapshots.of_channel, full=flight.full)
                flight.channels[name] = self._workers.submit(keep, flight.id, name, found, readers)

    def _needs(self, flight: Flight, name: QueryName, batch: BatchId) -> bool:
        if name not in flight.found:
            return not self._vertices[name].caught_up(batch)
        return name not in flight.pinned and not flight.queries[name].done()

    def _aside(self, work: Callable[[], None]) -> None:
        """Let go of files beside everything else; what fails is left to the next sweep."""
        self._workers.aside(
            work, lambda error: self._outside.report(m.Noted(f"{_LEFT_BEHIND}: {words_of(error)}"))
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # 5 ack

    def _take_acks(self, flight: Flight) -> None:
        for name, future in flight.queries.items():
            if not future.done() or name in flight.state.cuts:
                continue
            if (error := future.exception()) is not None:
                self._abort(flight, AbortReason.STORAGE, f"query {name}: {words_of(error)}")
                return
            if self._take_ack(flight, name) is AckOutcome.SUCCESS:
                flight.acked[name] = flight.phases["ack"] = self._since(flight)
                faults.point("checkpoint.acked")
        for name, kept in flight.channels.items():
            if kept.done() and (error := kept.exception()) is not None:
                self._abort(flight, AbortReason.STORAGE, f"channel {name}: {words_of(error)}")
                return

    def _take_ack(self, flight: Flight, name: QueryName) -> AckOutcome:
        cut = flight.queries[name].result()
        pending = {one.id: one.state for one in self._flights.values()}
        after, outcome = take_ack(
            pending, self._outlived.ids, flight.id, Cut(name, BatchId(cut.batch), cut.unaligned)
        )
        if outcome is AckOutcome.SUCCESS:
            flight.state = after[flight.id]
        return outcome

    def _take_late_acks(self) -> None:
        """A snapshot that outlives its checkpoint acks as well: it changes nothing, and says what it took."""
        for flight, name in self._outlived.done():
            if self._take_ack(flight, name) is AckOutcome.LATE:
                late = f"the ack of query {name} for checkpoint {flight.id} came too late"
                self._outside.report(m.Noted(f"{late}, after {self._since(flight):.1f} s"))

    # 6 complete

    def _exported(self, flight: Flight) -> Manifest | None:
        """The manifest, once it is among the copies too, if there are any.

        None as well when its cuts do not belong together: then it was aborted.
        """
        if flight.manifest is None:
            self._lease.check()
            faults.point("checkpoint.completing")
            manifest = self._manifest(flight)
            if wrong := manifest.inconsistencies():
                self._abort(flight, AbortReason.INCONSISTENT, wrong[0])
                return None
            flight.manifest = manifest
            if self._snapshots.copied_to:
                flight.exported = self._workers.submit(self._snapshots.export, flight.manifest)
        return flight.manifest if flight.exported is None or flight.exported.done() else None

    def _complete(self, flight: Flight, manifest: Manifest) -> None:
        since = flight.state.begun_at + manifest.seconds
        self._lease.check()
        lost = flight.exported.exception() if flight.exported is not None else None
        if refused := words_of(lost) if lost is not None else self._records.complete(manifest):
            self._abort(flight, AbortReason.STORAGE, refused)
            return
        faults.point("checkpoint.completed")
        self._lease.check()  # who slept here must not drop what its successor may go back to
        now = self._clock.monotonic()
        flight.phases["complete"] = now - since
        del self._flights[flight.id]
        self._retained.add(manifest, held=any(wish.held is not None for wish in flight.wishes))
        self._snapshots.release(flight.id)
        self._ended_at, self._failures = now, 0
        self._notify(flight, manifest)

    def _manifest(self, flight: Flight) -> Manifest:
        cuts = flight.cuts({name: vertex.inputs for name, vertex in self._vertices.items()})
        return flight.manifest_of(self._about, cuts, self._clock.now().isoformat(), self._since(flight))

    # 7 notify

    def _notify(self, flight: Flight, manifest: Manifest) -> None:
        since = self._clock.monotonic()
        old: list[CheckpointId] = []
        try:
            old = self._subsume()
            if all(id > flight.id for id in self._flights):  # an older one may still keep what is behind this
                self._snapshots.trim(manifest, self._readers)
        except Exception as error:  # whatever it is, those who wait for this checkpoint are told
            self._outside.report(m.Noted(f"checkpoint {flight.id} is complete, but {words_of(error)}"))
        flight.phases["notify"] = self._clock.monotonic() - since
        self._outside.report(flight.completed(manifest, old))
        body = {"id": flight.id, "seconds": manifest.seconds}
        body |= {"new_bytes": manifest.new_bytes, "full_bytes": manifest.full_bytes}
        for wish in flight.wishes:
            self._answer(wish, manifest, body)
        self._outside.completed(flight.id)

    def _subsume(self) -> list[CheckpointId]:
        """Let go of what is beyond the number to be kept; what fails is tried again behind the next one."""
        self._lease.check()
        dropped = self._retained.subsume(self._settings.execution_checkpointing_num_retained)
        if dropped.left is not None:
            self._aside(dropped.left)
        return list(dropped.ids)

    # aborts and the rest

    def _abort(self, flight: Flight, reason: AbortReason, detail: str) -> None:
        """Durable, with a reason. Its pins are swept when nothing else needs them."""
        self._flights.pop(flight.id, None)
        self._snapshots.release(flight.id)
        self._ended_at = self._clock.monotonic()
        self._records.abort(flight.id, reason, detail)
        self._outside.report(flight.aborted(reason, detail, self._since(flight)))
        if reason is AbortReason.EXPIRED:
            self._outlived.add(flight)
        words = f"{reason.value}: {detail}" if detail else reason.value
        for wish in flight.wishes:
            self._answer(wish, None, {"id": flight.id, "reason": words})
        self._outside.aborted(flight.id, words)
        self._count_failure(reason, words)

    def _count_failure(self, reason: AbortReason, words: str) -> None:
        limit = self._settings.execution_checkpointing_tolerable_failed_checkpoints
        if reason not in COUNTED:
            return
        self._failures += 1
        if limit is not None and self._failures > limit:
            self._outside.give_up(CheckpointsFailedError(count=self._failures, limit=limit, reason=words))

    def _since(self, flight: Flight) -> float:
        return self._clock.monotonic() - flight.state.begun_at
