"""How strong is the machine: each of these changes for the worse must be found by it.

    python tests/protocol/mutations.py [name ...] [--examples 200] [--seeds 3]

Run by hand after a change of the machine or of what it drives. For each mutation and seed it prints
the seconds of CPU until a test failed, or MISSED when it did not within the suite's number of examples;
then how the first one failed. One that no longer fits the code that it changes is BROKEN.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol import test_checkpoint_machine as machine
from tests.protocol import test_delivery_machine as deliveries
from weir.channel import facts, log, position, writer
from weir.channel.log import Barrier, Entry, Segment
from weir.channel.position import Facts, Mode, Position, Status, joint_barrier
from weir.checkpoint import kept_files, records
from weir.checkpoint import manifest as mf
from weir.checkpoint.vertex import Vertex
from weir.errors import ExternalError
from weir.ids import BatchId, CheckpointId, Token
from weir.protocol import checkpoint as decide
from weir.protocol import checkpoint_facts as f
from weir.protocol import completion, coordination, cut
from weir.protocol.checkpoint import AckOutcome, Pending
from weir.protocol.ledger import Dense, Ledger, Staged, Standing, is_known, standing
from weir.sinks import fence as sink_fence
from weir.sinks.contract import Outcome
from weir.sinks.staging import StagedFiles
from weir.spark.closure import GoneError
from weir.storage import attempts, folded_log, paths

Patch = tuple[object, str, object]
MUTATIONS: dict[str, Callable[[], Iterable[Patch]]] = {}
DELIVERY: set[str] = set()
"""Those of what delivers; the others are of checkpoints and channels."""


def mutation(make: Callable[[], Iterable[Patch]]) -> Callable[[], Iterable[Patch]]:
    MUTATIONS[make.__name__] = make
    return make


def nothing_from(learn: Callable[..., object]) -> Callable[..., list[CheckpointId]]:
    """What learns, and says that nothing is to be aborted."""

    def mutated(*given: object) -> list[CheckpointId]:
        learn(*given)
        return []

    return mutated


def without(fact: type[f.Fact]) -> object:
    """The steps of a reducer to which one kind of fact says nothing."""
    return {**coordination._STEPS, fact: lambda turn, fact: None}


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
    yield completion, "slowest", lambda places: max(place[0] for place in places)


@mutation
def trim_does_not_wait_for_an_older_checkpoint() -> Iterable[Patch]:
    yield completion, "may_trim", lambda state, id: True


@mutation
def unaligned_takes_upstream_first() -> Iterable[Patch]:
    yield cut, "downstream_first", lambda order: order


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
            stored, folded = log.encode(make()), self._log().log
            folded._log.append(stored, lambda _: True)
            folded._take(stored)
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

    def mutated(pending: Any, finished: Any, id: CheckpointId, ack: decide.Ack) -> Any:
        if id in finished:
            one = Pending(id, decide.Alignment.ALIGNED, 0.0, frozenset({ack.query}), {ack.query: ack})
            return {**pending, id: one}, AckOutcome.SUCCESS
        return true(pending, (), id, ack)

    yield completion, "take_ack", mutated


@mutation
def one_ack_is_enough() -> Iterable[Patch]:
    yield completion, "is_ready", lambda one: bool(one.state.acks)


@mutation
def a_turned_query_is_cut_where_it_is() -> Iterable[Patch]:
    yield Vertex, "here_or_aligned", lambda self, id: replace(self.here(), unaligned=True)


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
            with suppress(GoneError):
                seen[BatchId(number)] = barrier(BatchId(number))
        return decide.Track(newest, seen)

    yield decide.Track, "follow", mutated


@mutation
def what_was_begun_is_learnt_before_the_fences() -> Iterable[Patch]:
    """Found when the records are made, which the model does before a start has fenced anything.

    That the shipped start makes and asks them later: `tests/unit/test_engine.py`.
    """
    true, learn = records.Records.__init__, records.Records.learn
    early: dict[records.Records, list[CheckpointId]] = {}

    def made(self: records.Records, *given: Any) -> None:
        true(self, *given)
        early[self] = learn(self)

    def mutated(self: records.Records, *given: Any) -> list[CheckpointId]:
        learn(self, *given)
        return early[self]

    yield records.Records, "__init__", made
    yield records.Records, "learn", mutated


@mutation
def what_was_begun_is_not_aborted_at_a_start() -> Iterable[Patch]:
    yield records.Records, "learn", nothing_from(records.Records.learn)


@mutation
def an_id_is_used_twice() -> Iterable[Patch]:
    def mutated(self: records.Records, said: Any) -> records.Begun:
        self._last = id = CheckpointId(self._last + 1)
        try:
            self._store.create(paths.begun(self._job, id), json.dumps({"attempt": self._attempt}).encode())
        except ExternalError as error:
            return records.Begun(id, error.text)
        return records.Begun(id)

    yield records.Records, "begin", mutated


@mutation
def ids_begin_anew_at_a_start() -> Iterable[Patch]:
    yield records, "last_id", lambda recorded, restored, barriers: CheckpointId(0)


@mutation
def ids_begin_below_the_barriers_of_the_live_files() -> Iterable[Patch]:
    true = decide.last_id
    yield records, "last_id", lambda recorded, restored, barriers: true(recorded, restored, ())


@mutation
def and_nobody_looks_whether_the_cut_is_consistent() -> Iterable[Patch]:
    yield from ids_begin_below_the_barriers_of_the_live_files()
    yield mf, "inconsistencies", lambda readings, channels: []


@mutation
def any_higher_barrier_is_the_cut_and_nobody_looks_whether_it_is_consistent() -> Iterable[Patch]:
    yield from any_higher_barrier_is_taken_for_the_cut()
    yield mf, "inconsistencies", lambda readings, channels: []


@mutation
def what_a_sleeper_begins_is_not_aborted() -> Iterable[Patch]:
    yield records, "is_abandoned", lambda begun_by, own: False


@mutation
def what_a_successor_has_begun_is_aborted_by_a_sleeper() -> Iterable[Patch]:
    yield records, "is_successors", lambda begun_by, own: False


@mutation
def a_manifest_without_an_answer_is_aborted() -> Iterable[Patch]:
    yield records.Records, "_is_there", lambda self, key, data: False


@mutation
def a_beginning_without_an_answer_is_not_aborted() -> Iterable[Patch]:
    yield coordination, "_STEPS", without(f.BegunRefused)


@mutation
def an_abort_without_an_answer_is_forgotten() -> Iterable[Patch]:
    def mutated(self: records.Records) -> None:
        for id, body in list(self._unwritten.items()):
            del self._unwritten[id]
            with suppress(ExternalError):
                self._store.create(paths.aborted(self._job, id), body)

    yield records.Records, "write_aborts", mutated


@mutation
def what_is_pending_outlives_a_query_that_failed() -> Iterable[Patch]:
    yield coordination, "_STEPS", without(f.QueryDown)


@mutation
def a_snapshot_that_failed_is_passed_over() -> Iterable[Patch]:
    yield coordination, "_STEPS", without(f.KeepFailed)


@mutation
def a_batch_that_is_lost_declines_nothing() -> Iterable[Patch]:
    yield coordination, "_STEPS", without(f.Lost)


@mutation
def a_manifest_wins_over_an_abort() -> Iterable[Patch]:
    yield mf, "completed", lambda store, job: sorted(mf.ids(store, job)["chk"])


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
    yield kept_files, "reset_readers", lambda text, to: text


@mutation
def the_entry_in_front_of_the_slowest_is_not_kept() -> Iterable[Patch]:
    yield log, "first_kept", lambda positions, behind: min([*positions, behind])


@mutation
def rows_of_a_channel_are_not_kept() -> Iterable[Patch]:
    true = log.cut_files

    def mutated(store: Any, first: int, behind: int) -> list[str]:
        return [one for one in true(store, first, behind) if not one.startswith("data")]

    yield log, "cut_files", mutated


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
    yield folded_log.BoundedLog, "_is_cut_off", lambda self: False


def _without_newer(fence: Token, token: Token, *, known: bool = True) -> Standing:
    found = standing(fence, token, known=known)
    return Standing.OLDER if found is Standing.NEWER else found


@dataclass(frozen=True)
class Found:
    """How a test failed, and after how many seconds of CPU."""

    seconds: float
    error: Exception

    def __str__(self) -> str:
        broken = isinstance(self.error, (TypeError, AttributeError, NameError))
        return "BROKEN" if broken else f"{self.seconds:.1f} s"

    @property
    def how(self) -> str:
        return f"{type(self.error).__name__}: {self.error}".partition("\n")[0][:120]


def look_for(name: str, number: int, examples: int) -> Found | None:
    """Run the machine with one mutation; None when nothing was noticed."""
    began = time.process_time()
    with ExitStack() as stack:
        for where, what, mutated in MUTATIONS[name]():
            stack.enter_context(patch.object(where, what, mutated))
        try:
            _deliver(number) if name in DELIVERY else _take_checkpoints(number, examples)
        except Exception as error:
            return Found(time.process_time() - began, error)
    return None


def _settings(of: settings, examples: int) -> settings:
    return settings(
        of,
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )


def _take_checkpoints(number: int, examples: int) -> None:
    for count in range(2):
        machine.test_a_driver_that_is_replaced_while_it_waits_for_an_answer_does_not_end_a_checkpoint_again(
            count
        )
    machine.test_nobody_waits_for_a_checkpoint_whose_beginning_had_no_answer("two roots")
    for happens in (False, True):
        machine.test_an_abort_without_an_answer_is_written_until_there_is_one(happens)
    machine.test_what_is_pending_is_aborted_when_a_query_fails("L")
    machine.test_a_driver_that_sleeps_in_its_start_does_not_abort_what_its_successor_has_begun("alone")
    for graph, slow in product(("twice", "chain"), (False, True)):
        machine.test_a_newer_checkpoint_that_completes_first_leaves_the_older_one_what_it_needs(graph, slow)
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
    for steps, fenced in product(range(1, 4), (0, 1)):
        machine.test_what_a_sleeper_begins_before_it_is_fenced_is_aborted(steps, fenced)
    for mode, kept in ((Mode.ALIGNED, 2), (Mode.AT_LEAST_ONCE, 6)):
        machine.test_a_reader_whose_other_channel_is_slow_is_cut_and_restored_at_the_barrier("L", mode, kept)
    for graph, mode in product(("chain", "two roots"), (Mode.ALIGNED, Mode.AT_LEAST_ONCE)):
        machine.test_a_query_that_ends_right_after_it_was_looked_at_is_cut_at_the_barrier(graph, mode)
    for graph in ("diamond", "deep"):
        machine.test_an_unaligned_checkpoint_is_a_cut_while_everybody_works(graph)
    for happens in (False, True):
        machine.test_a_barrier_that_was_not_written_behind_its_segment_is_written_after_it(happens)
    for reader in ("L", "R"):
        machine.test_a_channel_is_trimmed_to_where_its_slowest_reader_stands(reader)
    for name in ("S", "M"):
        machine.test_a_batch_that_a_sleeper_decides_while_its_successor_starts_comes_through_once(name)
    machine.test_what_a_sleeper_enters_where_the_head_of_its_channel_was_changes_nothing()
    machine.test_a_manifest_that_a_sleeper_writes_after_its_successor_has_looked_counts_for_nothing()
    for stopped in range(1, 15):
        machine.test_a_driver_that_sleeps_in_any_step_of_a_checkpoint_changes_nothing(stopped)
    # Those that take long.
    wanted = _settings(machine.TestCheckpoints.settings, examples)
    run_state_machine_as_test(seed(number)(machine.Checkpoints), settings=wanted)
    for one in machine.USUAL:
        machine.test_one_disturbance_in_any_step_of_two_checkpoints_changes_nothing(*one)
    for written in range(3):
        machine.test_a_sleeper_that_was_not_told_of_a_record_does_not_end_a_checkpoint_again(written)


def _deliver(number: int) -> None:
    deliveries.test_files_that_go_before_they_are_recorded_are_no_batch()
    deliveries.test_a_copy_that_is_far_behind_fences_nobody()
    for when in ("between batches", "staged", "recorded"):
        deliveries.test_a_run_whose_sink_went_back_delivers_nothing_more(when)
    for one in (deliveries.Delivery, deliveries.StatelessDelivery):
        wanted = _settings(deliveries.TestDelivery.settings, deliveries.TestDelivery.settings.max_examples)
        run_state_machine_as_test(seed(number)(one), settings=wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MUTATIONS))
    parser.add_argument("--examples", type=int, default=machine.TestCheckpoints.settings.max_examples)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    missed = 0
    for name in args.names:
        found = [look_for(name, number, args.examples) for number in range(args.seeds)]
        shown = ["MISSED" if one is None else str(one) for one in found]
        missed += shown.count("MISSED") + shown.count("BROKEN")
        how = next((one.how for one in found if one is not None), "")
        print(f"{name:75} {'  '.join(shown)}  {how}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
