"""How strong is the machine: each of these changes for the worse must be found by it.

    python tests/protocol/mutations.py [name ...] [--examples 200] [--seeds 3]

Run by hand after a change of the machine or of what it drives. For each mutation and seed it prints
the seconds of CPU until a test failed, or MISSED when it did not within the suite's number of examples.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol import test_checkpoint_machine as machine
from tests.protocol import test_delivery_machine as deliveries
from tests.protocol.model import coordinator, driver, spark, world
from weir.channel import facts, log, position, writer
from weir.channel.log import Barrier, Entry, Segment
from weir.channel.position import Facts, Mode, Position, Status, joint_barrier
from weir.errors import OutcomeUnknownError
from weir.ids import BatchId, CheckpointId, Token
from weir.job.sinks import fence as sink_fence
from weir.job.sinks.contract import Outcome
from weir.job.sinks.staging import StagedFiles
from weir.protocol import checkpoints as decide
from weir.protocol.checkpoints import AckOutcome, Pending
from weir.protocol.ledger import Dense, Ledger, Staged, Standing, is_known, standing
from weir.storage import Created, attempts, bounded

Patch = tuple[object, str, object]
MUTATIONS: dict[str, Callable[[], Iterable[Patch]]] = {}
DELIVERY: set[str] = set()
"""Those of what delivers; the others are of checkpoints and channels."""


def mutation(make: Callable[[], Iterable[Patch]]) -> Callable[[], Iterable[Patch]]:
    MUTATIONS[make.__name__] = make
    return make


@mutation
def nobody_is_held_back() -> Iterable[Patch]:
    yield position, "held_back", lambda _: False


@mutation
def a_reader_is_held_only_by_the_newest_of_a_shared_barrier() -> Iterable[Patch]:
    def mutated(given: Facts) -> bool:
        if given.mode is not Mode.ALIGNED or given.joint is None or given.joint >= given.start.barrier:
            return False
        return given.status(given.start.barrier) is Status.PENDING

    yield position, "held_back", mutated


@mutation
def a_batch_ends_only_for_the_newest_of_a_shared_barrier() -> Iterable[Patch]:
    yield position, "waited_for", lambda status, above, upto: upto > above and status(upto) is Status.PENDING


@mutation
def the_shared_barrier_is_the_cut_of_the_newest_only() -> Iterable[Patch]:
    yield writer.ChannelWriter, "cut", lambda self, checkpoint: self._cuts.get(checkpoint)


@mutation
def any_higher_barrier_is_taken_for_the_cut() -> Iterable[Patch]:
    def mutated(self: writer.ChannelWriter, checkpoint: CheckpointId) -> writer.Cut | None:
        newest = max(self._cuts, default=CheckpointId(0))
        return self._cuts[newest] if newest >= checkpoint else None

    yield writer.ChannelWriter, "cut", mutated


@mutation
def batches_read_across_barriers() -> Iterable[Patch]:
    true = position.next_position
    yield facts, "next_position", lambda given: true(replace(given, mode=Mode.UNALIGNED))


@mutation
def at_least_once_reads_across_barriers() -> Iterable[Patch]:
    true = position.next_position

    def mutated(given: Facts) -> Position:
        mode = Mode.UNALIGNED if given.mode is Mode.AT_LEAST_ONCE else given.mode
        return true(replace(given, mode=mode))

    yield facts, "next_position", mutated


@mutation
def aborted_barriers_hold() -> Iterable[Patch]:
    true = facts.Checkpoints._look

    def mutated(self: facts.Checkpoints, store: Any, id: CheckpointId) -> Status:
        found = true(self, store, id)
        return Status.PENDING if found is Status.ABORTED else found

    yield facts.Checkpoints, "_look", mutated


@mutation
def the_joint_position_is_lost_when_spark_purges() -> Iterable[Patch]:
    def mutated(self: facts.JointPosition) -> CheckpointId | None:
        if self._newest is None:
            names = [int(key.rsplit("/", 1)[1]) for key in self._store.list("offsets")]
            self._newest = max(names, default=None)
        if self._newest is None:
            return None
        while self._store.exists(f"offsets/{self._newest + 1}"):
            self._newest += 1
        data = self._store.get(f"offsets/{self._newest}")
        return joint_barrier(data.decode()) if data else None

    yield facts.JointPosition, "barrier", mutated


@mutation
def trim_goes_one_too_far() -> Iterable[Patch]:
    true = log.trim
    yield log, "trim", lambda store, low: true(store, low + 1)


@mutation
def trim_follows_the_fastest_reader() -> Iterable[Patch]:
    yield coordinator, "min", max


@mutation
def trim_does_not_wait_for_an_older_checkpoint() -> Iterable[Patch]:
    true = coordinator.Coordinator._trim

    def mutated(self: coordinator.Coordinator, manifest: world.Manifest) -> spark.Steps:
        flights, self.flights = self.flights, {}
        try:
            yield from true(self, manifest)
        finally:
            self.flights = flights

    yield coordinator.Coordinator, "_trim", mutated


@mutation
def unaligned_takes_upstream_first() -> Iterable[Patch]:
    yield coordinator, "downstream_first", lambda graph: graph.order


@mutation
def barriers_are_appended_twice() -> Iterable[Patch]:
    def reached(self: writer.ChannelWriter, batch: int) -> None:
        joint = self._joint(batch)  # type: ignore[arg-type]
        if joint:
            self._enter_barrier(joint)

    def barrier(self: writer.ChannelWriter, id: CheckpointId) -> Barrier:
        return Barrier(id, self._tail.last, self._fence.token)

    def append(self: writer.ChannelWriter, make: Callable[[], Entry]) -> bool:
        with self._lock:
            assert self._log is not None
            stored = log.encode(make())
            self._log.append(stored, lambda _: True)
            self._take(stored)
            return True

    def enter(self: writer.ChannelWriter, id: CheckpointId) -> None:
        append(self, lambda: barrier(self, id))

    yield writer.ChannelWriter, "_enter_reached_barrier", reached
    yield writer.ChannelWriter, "_enter_barrier", enter


@mutation
def the_barrier_is_not_completed_after_a_failure() -> Iterable[Patch]:
    true = writer.ChannelWriter._enter_segment

    def mutated(self: writer.ChannelWriter, staged: Staged) -> Outcome:
        outcome = true(self, staged)
        if outcome is Outcome.ALREADY_DONE:
            self._joints[staged.batch] = None
        return outcome

    yield writer.ChannelWriter, "_enter_segment", mutated


@mutation
def the_barrier_comes_a_batch_late() -> Iterable[Patch]:
    true = writer.ChannelWriter._joint
    yield writer.ChannelWriter, "_joint", lambda self, batch: true(self, batch - 1)


@mutation
def late_acks_are_taken() -> Iterable[Patch]:
    true = decide.take_ack

    def mutated(pending: Any, finished: Any, id: CheckpointId, cut: decide.Cut) -> Any:
        if id in finished:
            one = Pending(id, decide.Alignment.ALIGNED, 0.0, frozenset({cut.query}), {cut.query: cut})
            return {**pending, id: one}, AckOutcome.SUCCESS
        return true(pending, (), id, cut)

    yield decide, "take_ack", mutated


@mutation
def one_ack_is_enough() -> Iterable[Patch]:
    yield Pending, "complete", property(lambda self: bool(self.cuts))
    yield coordinator, "len", lambda many: 0 if isinstance(many, dict) else len(many)


@mutation
def a_turned_query_is_cut_where_it_is() -> Iterable[Patch]:
    true = coordinator.Coordinator._cut_here

    def mutated(self: coordinator.Coordinator, flight: coordinator.Flight) -> spark.Steps:
        with patch.object(self, "_reached", lambda *_: None):
            yield from true(self, flight)

    yield coordinator.Coordinator, "_cut_here", mutated


@mutation
def batches_are_skipped_at_each_begin() -> Iterable[Patch]:
    yield decide.Track, "skip", lambda self, query, newest, found: replace(self, examined=newest)


@mutation
def a_lost_batch_is_passed_over() -> Iterable[Patch]:
    def mutated(
        self: decide.Track, newest: BatchId, barrier: Callable[[BatchId], CheckpointId]
    ) -> decide.Track:
        seen = dict(self.joint)
        for number in range(self.examined + 1, newest + 1):
            with suppress(world.GoneError):
                seen[BatchId(number)] = barrier(BatchId(number))
        return decide.Track(newest, seen)

    yield decide.Track, "follow", mutated


@mutation
def what_was_begun_is_aborted_before_the_fences() -> Iterable[Patch]:
    def mutated(self: driver.Driver) -> spark.Steps:
        yield from self.coordinator.prepare()
        for name in self.world.graph.order:
            self.runs[name] = spark.QueryRun(self.world, self, name, 1)
            yield from self.runs[name].recover()
        for run in self.runs.values():
            run.start()
            yield
        self.running = True

    yield driver.Driver, "_start", mutated


@mutation
def what_was_begun_is_not_aborted_at_a_start() -> Iterable[Patch]:
    true = coordinator.Coordinator.prepare

    def mutated(self: coordinator.Coordinator) -> spark.Steps:
        with patch.object(self.world.checkpoints, "create", lambda *_: Created.NOW):
            yield from true(self)

    yield coordinator.Coordinator, "prepare", mutated


@mutation
def an_id_is_used_twice() -> Iterable[Patch]:
    true = world.World.__init__

    def mutated(self: world.World, *given: Any) -> None:
        true(self, *given)
        create = self.checkpoints.create

        def begun(key: str, data: bytes) -> Created:
            made = create(key, data)
            return Created.NOW if key.startswith("begun") else made

        self.checkpoints.create = begun  # type: ignore[method-assign]

    yield world.World, "__init__", mutated


@mutation
def ids_begin_anew_at_a_start() -> Iterable[Patch]:
    true = coordinator.Coordinator.prepare

    def mutated(self: coordinator.Coordinator) -> spark.Steps:
        yield from true(self)
        self.last_id = CheckpointId(0)

    yield coordinator.Coordinator, "prepare", mutated


@mutation
def ids_begin_below_the_barriers_of_the_live_files() -> Iterable[Patch]:
    true = decide.last_id
    yield decide, "last_id", lambda recorded, restored, barriers: true(recorded, restored, ())


@mutation
def and_nobody_looks_whether_the_cut_is_consistent() -> Iterable[Patch]:
    yield from ids_begin_below_the_barriers_of_the_live_files()
    yield world.World, "barriers", lambda self: [CheckpointId(0)]
    yield decide, "inconsistencies", lambda readings, channels: []


@mutation
def what_a_sleeper_begins_is_not_aborted() -> Iterable[Patch]:
    yield decide, "is_abandoned", lambda begun_by, own: False


@mutation
def a_manifest_without_an_answer_is_aborted() -> Iterable[Patch]:
    def mutated(self: coordinator.Coordinator, manifest: world.Manifest) -> Any:
        try:
            return self.records.create(f"chk-{manifest.id}.json", manifest.dump()) is Created.NOW
        except OutcomeUnknownError:
            yield
            return False

    yield coordinator.Coordinator, "_record", mutated


@mutation
def a_beginning_without_an_answer_is_not_aborted() -> Iterable[Patch]:
    true = coordinator.Coordinator._mark

    def mutated(self: coordinator.Coordinator, id: CheckpointId) -> spark.Steps:
        if id != self.last_id or self.flights or self.world.ids("chk") & {id}:
            yield from true(self, id)

    yield coordinator.Coordinator, "_mark", mutated


@mutation
def an_abort_without_an_answer_is_forgotten() -> Iterable[Patch]:
    def mutated(self: coordinator.Coordinator, id: CheckpointId) -> spark.Steps:
        with suppress(OutcomeUnknownError):
            self.records.create(f"aborted-{id}.json", b"{}")
        yield from ()

    yield coordinator.Coordinator, "_mark", mutated


@mutation
def a_manifest_wins_over_an_abort() -> Iterable[Patch]:
    yield world.World, "completed", lambda self: sorted(self.ids("chk"))


@mutation
def no_fence_is_written() -> Iterable[Patch]:
    def mutated(self: writer.ChannelWriter, owner: str, lineage: str, token: Token, *_: object) -> Ledger:
        self._fence.token = token
        self._catch_up()
        return Ledger(owner, lineage, self._tail.fence, self._tail.last)

    yield writer.ChannelWriter, "open", mutated


@mutation
def a_sleeper_writes_where_the_head_was() -> Iterable[Patch]:
    yield log.ChannelLog, "_overtaken", lambda self: False
    yield log, "first_number", lambda store: min(log._numbers(store), default=0)


@mutation
def a_gap_is_written_over() -> Iterable[Patch]:
    def mutated(self: writer.ChannelWriter, staged: Staged) -> Outcome:
        if self._tail.last >= staged.batch:
            return Outcome.ALREADY_DONE
        segment = self._segment(staged)

        def make() -> Segment | None:
            return replace(segment, barrier=self._tail.barrier) if self._tail.last < segment.batch else None

        return Outcome.DONE_NOW if self._append(make) else Outcome.ALREADY_DONE

    yield writer.ChannelWriter, "_enter_segment", mutated


@mutation
def readers_are_not_set_back() -> Iterable[Patch]:
    yield world, "set_back", lambda text, to: text


@mutation
def the_entry_in_front_of_the_slowest_is_not_kept() -> Iterable[Patch]:
    yield coordinator, "first_kept", lambda positions, behind: min([*positions, behind])


@mutation
def rows_of_a_channel_are_not_kept() -> Iterable[Patch]:
    true = log.cut_files
    yield (
        coordinator,
        "cut_files",
        lambda store, first, behind: [
            one for one in true(store, first, behind) if not one.startswith("data")
        ],
    )


@mutation
def pins_that_others_share_are_deleted() -> Iterable[Patch]:
    yield decide, "unreferenced", lambda kept, needed: sorted(set(kept))


def of_delivery(make: Callable[[], Iterable[Patch]]) -> Callable[[], Iterable[Patch]]:
    """One that the machine of deliveries must find."""
    DELIVERY.add(make.__name__)
    return mutation(make)


@of_delivery
def a_batch_that_a_zombie_decided_after_the_recovery_is_skipped() -> Iterable[Patch]:
    yield Dense, "missing", lambda self, batch: None


@of_delivery
def files_that_are_gone_before_their_record_are_not_missed() -> Iterable[Patch]:
    yield StagedFiles, "completed", lambda self, batch, token: None


@of_delivery
def tokens_are_only_numbers() -> Iterable[Patch]:
    yield Token, "is_same", lambda self, other: self.numbers == other.numbers
    yield attempts, "is_known", lambda *_: True


@of_delivery
def only_the_numbers_of_a_fence_count() -> Iterable[Patch]:
    yield attempts, "is_known", lambda *_: True


@of_delivery
def an_attempt_without_a_record_here_is_known() -> Iterable[Patch]:

    def mutated(fence: Token, session: str | None, oldest: int, above: int) -> bool:
        return session is None or is_known(fence, session, oldest, above)

    yield attempts, "is_known", mutated
    yield sink_fence, "standing", _without_newer


@of_delivery
def a_run_commits_after_any_fence_that_is_not_higher() -> Iterable[Patch]:
    def mutated(self: sink_fence.SinkFence, ledger: Ledger) -> None:
        self.check_fence(ledger.fence)

    yield sink_fence.SinkFence, "check", mutated


@of_delivery
def a_ledger_that_went_back_is_not_read_again() -> Iterable[Patch]:
    yield bounded.BoundedLog, "_is_cut_off", lambda self: False


def _without_newer(fence: Token, token: Token, *, known: bool = True) -> Standing:
    found = standing(fence, token, known=known)
    return Standing.OLDER if found is Standing.NEWER else found


def seconds_until_found(name: str, number: int, examples: int) -> float | None:
    """Run the machine with one mutation; None when nothing was noticed."""
    if name in DELIVERY:
        return _in_deliveries(name, number)
    wanted = settings(
        machine.TestCheckpoints.settings,
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    began = time.process_time()
    with ExitStack() as stack:
        for where, what, mutated in MUTATIONS[name]():
            stack.enter_context(patch.object(where, what, mutated, create=True))
        try:
            run_state_machine_as_test(seed(number)(machine.Checkpoints), settings=wanted)
            for one in machine.USUAL:
                machine.test_one_disturbance_in_any_step_of_two_checkpoints_changes_nothing(*one)
            for stopped in range(1, 15):
                machine.test_a_driver_that_sleeps_in_any_step_of_a_checkpoint_changes_nothing(stopped)
            for records in range(3):
                machine.test_a_sleeper_that_was_not_told_of_a_record_does_not_end_a_checkpoint_again(records)
            for happens in (False, True):
                machine.test_an_abort_without_an_answer_is_written_until_there_is_one(happens)
            for graph in ("twice", "chain"):
                machine.test_a_newer_checkpoint_that_completes_first_leaves_the_older_one_what_it_needs(graph)
            for graph, aborted in product(("chain", "two roots", "deep"), ("", "expire newest")):
                machine.test_a_barrier_that_two_checkpoints_share_holds_for_each_of_them(graph, aborted)
            for graph in ("chain", "two roots"):
                machine.test_the_number_of_a_shared_barrier_is_not_given_out_again_where_nobody_knows_it(
                    graph, Mode.ALIGNED
                )
            for steps in range(1, 4):
                machine.test_nobody_waits_for_a_checkpoint_that_a_sleeper_begins_behind_its_successor(
                    "two roots", steps
                )
            for mode, kept in ((Mode.ALIGNED, 2), (Mode.AT_LEAST_ONCE, 6)):
                machine.test_a_reader_whose_other_channel_is_slow_is_cut_and_restored_at_the_barrier(
                    "L", mode, kept
                )
            for name in ("S", "M"):
                machine.test_a_batch_that_a_sleeper_decides_while_its_successor_starts_comes_through_once(
                    name
                )
            machine.test_what_a_sleeper_enters_where_the_head_of_its_channel_was_changes_nothing()
        except Exception:
            return time.process_time() - began
    return None


def _in_deliveries(name: str, number: int) -> float | None:
    began = time.process_time()
    with ExitStack() as stack:
        for where, what, mutated in MUTATIONS[name]():
            stack.enter_context(patch.object(where, what, mutated))
        try:
            for one in (deliveries.Delivery, deliveries.StatelessDelivery):
                wanted = settings(
                    deliveries.TestDelivery.settings,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                    report_multiple_bugs=False,
                    print_blob=False,
                )
                run_state_machine_as_test(seed(number)(one), settings=wanted)
        except Exception:
            return time.process_time() - began
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MUTATIONS))
    parser.add_argument("--examples", type=int, default=machine.TestCheckpoints.settings.max_examples)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    missed = 0
    for name in args.names:
        found = [seconds_until_found(name, number, args.examples) for number in range(args.seeds)]
        missed += found.count(None)
        told = "  ".join("MISSED" if one is None else f"{one:.1f} s" for one in found)
        print(f"{name:55} {told}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
