"""The coordinator over files as Spark leaves them: where it cuts, what it aborts, whom it tells.

It is stepped by hand; only the snapshots are taken in threads of their own.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import tree, write
from tests.played_graph import JOB, KEY, Far, Graph, finish, waited_for
from weir.checkpoint import manifest as mf
from weir.checkpoint.snapshots import Snapshots
from weir.errors import CheckpointsFailedError, FencedError, LostSegmentError, StorageError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason, TriggerRefusal
from weir.restore.point import verify


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    made = Graph(tmp_path, max_concurrent_checkpoints=2)
    yield made
    made.coordinator.stop()


def test_a_checkpoint_is_the_batch_of_each_query_that_ended_at_its_barrier(graph: Graph) -> None:
    graph.all.run()
    graph.ask()
    at = graph.entry()
    graph.all.run()
    graph.fast.run(all=(at, 1))
    graph.fast.run(all=(graph.entry(), 1))
    graph.step()
    assert not graph.answers()
    graph.slow.run(all=(at - 1, 0))
    graph.slow.run(all=(at, 1))
    finish(graph)
    assert graph.answers()["one"].body["id"] == 1
    assert graph.cut(1) == {"all": 0, "fast": 0, "slow": 1}


def test_a_barrier_comes_behind_the_batch_that_a_root_is_in(graph: Graph) -> None:
    graph.all.run()
    graph.all.plan()
    graph.ask()
    before = graph.entry()
    graph.step(0.5)
    assert graph.entry() == before, "it would be read by itself"
    graph.all.run()
    graph.step()
    assert graph.entry() == before + 2, "the segment, and the barrier with it"
    graph.all_read(1)
    finish(graph)
    assert graph.cut(1) == {"all": 1, "fast": 0, "slow": 0}


def test_a_barrier_does_not_wait_long_for_a_root(graph: Graph) -> None:
    graph.all.run()
    graph.all.plan()
    graph.ask()
    graph.step(5)
    graph.all_read(1)
    finish(graph)
    assert graph.cut(1) == {"all": 0, "fast": 0, "slow": 0}


def test_a_barrier_leaves_its_checkpoint_time_to_complete(graph: Graph) -> None:
    graph.coordinator.configure({f"{KEY}.timeout": "4 s"})
    graph.all.run()
    graph.all.plan()
    graph.ask()
    before = graph.entry()
    graph.step(0.9)
    assert graph.entry() == before
    graph.step(0.1)
    assert graph.entry() == before + 1, "it does not wait for the batch until the checkpoint expires"


def test_checkpoints_that_wait_for_the_same_batch_of_a_root_share_a_barrier(graph: Graph) -> None:
    graph.all.run()
    graph.all.plan()
    graph.ask("one")
    graph.ask("two")
    before = graph.entry()
    graph.all.run()
    finish(graph)
    assert graph.entry() == before + 2, "the segment, and one barrier"
    graph.all_read(2)
    finish(graph)
    assert graph.cut(1) == graph.cut(2) == {"all": 1, "fast": 0, "slow": 0}


def test_checkpoints_that_wait_for_different_batches_of_a_root_have_a_barrier_each(graph: Graph) -> None:
    graph.all.run()
    graph.all.plan()
    graph.ask("one")
    before = graph.entry()
    graph.all.run()
    graph.all.plan()
    graph.ask("two")
    assert graph.entry() == before + 2, "the segment, and the barrier of one"
    graph.all_read(1)
    graph.all.run()
    graph.step()
    graph.all_read(2)
    finish(graph)
    assert graph.cut(1) == {"all": 1, "fast": 0, "slow": 0}
    assert graph.cut(2) == {"all": 2, "fast": 1, "slow": 1}


def test_what_is_committed_while_another_one_begins_is_still_the_cut_of_the_first(graph: Graph) -> None:
    graph.all.run()
    graph.ask("one")
    at = graph.entry()
    graph.all.run()
    graph.fast.run(all=(at, 1))

    def slow_is_quick(key: str) -> None:
        if key.endswith("begun-2.json"):
            graph.slow.run(all=(at, 1))
            graph.slow.run(all=(graph.entry(), 1))

    graph.disk.on_create = slow_is_quick
    graph.ask("two")
    at = graph.entry()
    graph.fast.run(all=(at, 2))
    graph.slow.run(all=(at, 2))
    finish(graph)
    assert graph.cut(1) == {"all": 0, "fast": 0, "slow": 0}
    assert graph.cut(2) == {"all": 1, "fast": 1, "slow": 2}


def test_what_spark_has_purged_since_is_not_needed_any_more(graph: Graph) -> None:
    graph.all.run()
    graph.ask()
    at = graph.entry()
    graph.fast.run(all=(at, 1))
    graph.step()
    graph.all.run()
    graph.fast.run(all=(graph.entry(), 1))
    graph.fast.purge(0)
    graph.slow.run(all=(at, 1))
    finish(graph)
    assert graph.cut(1) == {"all": 0, "fast": 0, "slow": 0}


def test_a_query_that_every_pending_checkpoint_has_cut_holds_up_no_later_one(graph: Graph) -> None:
    """However many of its batches Spark has purged while another query was slow."""
    ends = []
    for id in (1, 2):
        graph.all.run()
        graph.ask(str(id))
        ends.append(graph.entry())
        graph.fast.run(all=(ends[-1], id))
        graph.step()
    for _ in range(5):
        graph.all.run()
        graph.fast.run(all=(graph.entry(), 2))
    for batch in range(5):
        graph.fast.purge(batch)
    graph.slow.run(all=(ends[0], 1))
    finish(graph)
    graph.ask("3")  # while 2 is pending
    at = graph.entry()
    graph.fast.run(all=(at, 3))
    graph.slow.run(all=(ends[1], 2))
    graph.slow.run(all=(at, 3))
    finish(graph)
    assert graph.cut(3) == {"all": 6, "fast": 7, "slow": 2}
    assert not graph.aborted()


def test_a_query_whose_cut_spark_may_have_purged_declines(graph: Graph) -> None:
    """And the next checkpoint completes."""
    graph.all.run()
    graph.fast.run(all=(graph.entry(), 0))
    graph.ask("one")
    at = graph.entry()
    graph.all.run()
    graph.fast.run(all=(at, 1))
    graph.fast.run(all=(graph.entry(), 1))
    for batch in range(2):
        graph.fast.purge(batch)
    graph.step()
    (end,) = [one for one in graph.said if isinstance(one, m.CheckpointAborted)]
    assert end.reason == AbortReason.DECLINED.value
    assert "offsets/1 of query fast is gone" in end.detail
    graph.ask("two")
    for query in (graph.fast, graph.slow):
        query.run(all=(graph.entry(), 2))
    finish(graph)
    assert graph.cut(2) == {"all": 1, "fast": 3, "slow": 0}


def test_an_ack_that_comes_too_late_changes_nothing_and_is_told(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    take = Snapshots.of_query

    def slow(*args: Any, **options: Any) -> Any:
        assert go_on.wait(30)
        return take(*args, **options)

    monkeypatch.setattr(Snapshots, "of_query", slow)
    graph.all.run()
    graph.coordinator.wish("one", False)
    graph.coordinator._step()
    (snapshot,) = graph.snapshots()
    graph.clock.advance(600)
    graph.coordinator._step()
    assert graph.aborted() == [(1, AbortReason.EXPIRED.value)]
    go_on.set()
    snapshot.result(30)
    graph.step()
    assert [one.text for one in graph.said if isinstance(one, m.Noted)] == [
        "the ack of query all for checkpoint 1 came too late, after 600.0 s"
    ]
    assert mf.completed(graph.disk, JOB) == []


def test_nobody_waits_for_the_answer_of_a_checkpoint_that_could_not_begin(graph: Graph) -> None:
    def full(key: str) -> None:
        if "/checkpoints/" in key:
            raise StorageError(verb="write", path=key, reason="the disk is full", root="")

    graph.all.run()
    graph.disk.on_create = full
    graph.ask()
    assert not graph.answers()["one"].done
    assert "the disk is full" in graph.answers()["one"].body["reason"]
    assert graph.aborted() == [(1, AbortReason.STORAGE.value)]
    assert mf.ids(graph.disk, JOB)["aborted"] == set()
    graph.disk.on_create = lambda key: None
    graph.step()
    assert mf.ids(graph.disk, JOB)["aborted"] == {1}, "an abort is written as soon as there is room"


def test_a_manifest_that_can_not_be_written_is_an_abort(graph: Graph) -> None:
    def full(key: str) -> None:
        if key.endswith("chk-1.json"):
            raise StorageError(verb="write", path=key, reason="the disk is full", root="")

    graph.all.run()
    graph.disk.on_create = full
    graph.ask()
    for query in (graph.fast, graph.slow):
        query.run(all=(graph.entry(), 1))
    finish(graph)
    assert graph.aborted() == [(1, AbortReason.STORAGE.value)]
    assert mf.completed(graph.disk, JOB) == []


# a record that was written, and nobody was told


def test_a_beginning_without_an_answer_is_an_abort_and_its_number_is_gone(graph: Graph) -> None:
    graph.disk.silent = {"begun-1.json"}
    graph.all.run()
    graph.ask()
    assert not graph.disk.silent and not graph.answers()["one"].done
    assert not graph.begun() and graph.aborted() == [(1, AbortReason.STORAGE.value)]
    assert mf.ids(graph.disk, JOB) == {"begun": {1}, "chk": set(), "aborted": {1}}, "no reader waits for it"
    graph.take(2)
    assert mf.completed(graph.disk, JOB) == [2]


def test_a_manifest_without_an_answer_is_looked_for(tmp_path: Path) -> None:
    graph = Graph(tmp_path)
    graph.disk.silent = {"chk-1.json"}
    graph.take(1)
    assert not graph.disk.silent and graph.answers()["1"].done, "others may have seen it"
    assert mf.completed(graph.disk, JOB) == [1] and not graph.aborted()
    graph.coordinator.stop()


def test_a_driver_that_slept_while_it_wrote_a_manifest_drops_nothing(tmp_path: Path) -> None:
    graph = Graph(tmp_path, num_retained=1)
    graph.take(1)

    def sleeps(key: str) -> None:
        if key.endswith("chk-2.json"):
            graph.lease.end()

    graph.disk.on_create = sleeps
    with pytest.raises(FencedError):
        graph.take(2)
    assert mf.completed(graph.disk, JOB) == [1, 2], "whichever its successor counts, one is whole"
    assert graph.completed == [1]
    graph.coordinator.stop()


def test_who_slept_while_its_checkpoints_were_to_be_deleted_deletes_none(graph: Graph) -> None:
    graph.take(1)
    graph.disk.on_create = lambda key: graph.lease.end()
    with pytest.raises(FencedError):
        graph.coordinator.delete_all()
    assert mf.ids(graph.disk, JOB)["chk"] == {1}, "its files may be shared by those of a successor"


def test_checkpoints_are_deleted_only_when_their_numbers_are_remembered(graph: Graph) -> None:
    graph.take(1)

    def full(key: str) -> None:
        if "aborted" in key:
            raise StorageError(verb="create", path=key, reason="the disk is full", root=graph.disk.url)

    graph.disk.on_create = full
    graph.coordinator.delete_all()
    assert mf.completed(graph.disk, JOB) == [1]
    graph.disk.on_create = lambda key: None
    graph.coordinator.delete_all()
    assert mf.ids(graph.disk, JOB)["chk"] == set() and mf.ids(graph.disk, JOB)["aborted"] == {1}


def test_an_abort_without_an_answer_is_told_once_and_written_until_there_is_one(tmp_path: Path) -> None:
    graph = Graph(tmp_path)
    graph.disk.silent = {"aborted-1.json"}
    graph.all.run()
    graph.ask()
    graph.step(600)
    assert graph.aborted() == [(1, AbortReason.EXPIRED.value)]
    assert not graph.disk.silent and graph.coordinator._actions.records._unwritten.keys() == {1}, (
        "it may not be there"
    )
    graph.step()
    assert not graph.coordinator._actions.records._unwritten
    assert mf.ids(graph.disk, JOB) == {"begun": {1}, "chk": set(), "aborted": {1}}
    assert graph.aborted() == [(1, AbortReason.EXPIRED.value)]
    graph.coordinator.stop()
    again = Graph(tmp_path)
    assert not again.aborted()
    again.coordinator.stop()


def test_a_checkpoint_that_takes_too_long_is_aborted_and_names_who_is_missing(graph: Graph) -> None:
    graph.all.run()
    graph.ask()
    graph.fast.run(all=(graph.entry(), 1))
    graph.step(599)
    assert not graph.aborted()
    graph.step(1)
    (end,) = [one for one in graph.said if isinstance(one, m.CheckpointAborted)]
    assert (end.reason, end.detail) == (AbortReason.EXPIRED.value, "missing: slow")
    assert end.phases.keys() == {"trigger", "barrier", "ack"}, "so far it came"
    graph.slow.run(all=(graph.entry(), 1))
    finish(graph)
    assert mf.completed(graph.disk, JOB) == [], "what comes late changes nothing"


def test_past_the_aligned_timeout_a_query_is_cut_where_it_is(tmp_path: Path) -> None:
    turning: dict[str, Any] = {"aligned_checkpoint_timeout": "5 s", "unaligned.enabled": "true"}
    graph = Graph(tmp_path, **turning)
    graph.all.run()
    graph.slow.run(all=(graph.entry(), 0))
    graph.all.run()
    graph.ask()
    graph.fast.run(all=(graph.entry(), 1))
    graph.step(5)
    finish(graph)
    manifest = mf.read(graph.disk, JOB, CheckpointId(1))
    assert manifest is not None and manifest.alignment.value == "unaligned"
    assert graph.cut(1) == {"all": 1, "fast": 0, "slow": 0}
    assert {name for name, cut in manifest.queries.items() if cut.unaligned} == {"slow"}
    graph.coordinator.stop()


def test_who_has_acked_a_pending_checkpoint_is_reported_once_a_look(graph: Graph) -> None:
    graph.all.run()
    graph.ask()
    graph.fast.run(all=(graph.entry(), 1))
    finish(graph)
    assert graph.begun()[0].queries == ["all", "fast", "slow"]
    reports = [one for one in graph.said if isinstance(one, m.CheckpointsAcked)]
    assert reports[-1].acked[1].keys() == {"all", "fast"} and len(reports) <= 2
    graph.step()
    assert [one for one in graph.said if isinstance(one, m.CheckpointsAcked)] == reports, "nothing is new"
    graph.step(600)
    (end,) = [one for one in graph.said if isinstance(one, m.CheckpointAborted)]
    assert end.acked is not None and end.acked.keys() == {"all", "fast"}


def test_without_unaligned_checkpoints_none_turns_into_one(tmp_path: Path) -> None:
    graph = Graph(tmp_path, aligned_checkpoint_timeout="5 s")
    graph.all.run()
    graph.ask()
    graph.fast.run(all=(graph.entry(), 1))
    graph.step(60)
    assert not graph.answers() and not graph.aborted(), "slow is waited for"
    graph.slow.run(all=(graph.entry(), 1))
    finish(graph)
    manifest = mf.read(graph.disk, JOB, CheckpointId(1))
    assert manifest is not None and manifest.alignment.value == "aligned"
    graph.coordinator.stop()


def test_a_query_that_fails_aborts_what_is_pending(graph: Graph) -> None:
    graph.all.run()
    graph.ask()
    graph.running = False
    graph.coordinator.query_failed(QueryName("slow"))
    assert graph.aborted() == [(1, AbortReason.QUERY_RESTARTED.value)]
    graph.ask("two")
    assert graph.answers()["two"].body["reason"] == TriggerRefusal.NOT_RUNNING.value


def test_what_is_pending_when_the_job_ends_is_aborted_and_answered(graph: Graph) -> None:
    graph.all.run()
    graph.ask("one")
    graph.coordinator.wish("two", False)
    graph.coordinator.stop()
    assert graph.aborted() == [(1, AbortReason.STOPPING.value)]
    assert {name: answer.done for name, answer in graph.answers().items()} == {"one": False, "two": False}


def test_more_failures_in_a_row_than_are_tolerable_are_a_failure_of_the_job(tmp_path: Path) -> None:
    graph = Graph(tmp_path, tolerable_failed_checkpoints=1, timeout="10 s")
    graph.all.run()
    for number in range(2):
        assert not graph.failures
        graph.ask(str(number))
        graph.step(10)
    (failure,) = graph.failures
    assert isinstance(failure, CheckpointsFailedError)
    graph.coordinator.stop()


def test_a_start_aborts_what_was_begun_and_never_takes_a_number_again(tmp_path: Path) -> None:
    first = Graph(tmp_path)
    first.all.run()
    first.ask()
    first.coordinator._state = replace(first.coordinator._state, pending={})  # as a kill leaves it
    first.coordinator.stop()
    again = Graph(tmp_path)
    assert again.aborted() == [(1, AbortReason.RESTARTED.value)]
    again.ask()
    assert mf.ids(again.disk, JOB)["begun"] == {1, 2}
    again.coordinator.stop()


def test_channels_are_trimmed_only_behind_what_every_reader_has_passed(graph: Graph) -> None:
    assert graph.all.writer is not None
    log = graph.all.root.parents[1] / "channels/all/log"
    for id in (1, 2, 3):
        graph.all.run()
        graph.ask(str(id))
        at = graph.entry()
        for query in (graph.fast, graph.slow):
            query.run(all=(at, id))
        finish(graph)
        assert sorted(int(file.stem) for file in log.glob("*.json"))[0] == at - 1
    assert mf.completed(graph.disk, JOB) == [1, 2, 3]


def test_the_oldest_cut_is_that_of_any_checkpoint_that_is_retained_or_pending(graph: Graph) -> None:
    slow, oldest = QueryName("slow"), graph.coordinator.oldest_cut
    assert oldest(slow) == -1
    graph.all.run()
    first = graph.entry()
    graph.slow.run(all=(first, 0))
    assert oldest(slow) == 0, "a checkpoint that begins now can't lead behind it"
    assert graph.coordinator.newest() is None
    graph.ask("one")
    at = graph.entry()
    assert oldest(slow) is None, "its cut is not found yet"
    graph.fast.run(all=(at, 1))
    graph.slow.run(all=(at, 1))
    finish(graph)
    assert oldest(slow) == graph.cut(1)["slow"] == 1
    graph.all.run()
    graph.slow.run(all=(graph.entry(), 1))
    assert oldest(slow) == 1, "it is still retained"
    newest = graph.coordinator.newest()
    assert newest is not None and newest.id == 1


# copies elsewhere, which may be slow


def test_nobody_waits_while_a_manifest_is_written_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, "put_manifest")
    graph = Graph(tmp_path / "weir", copy_dir=str(tmp_path / "far"))
    graph.all.run()
    graph.ask()
    graph.all_read(1)
    for _ in range(3):
        graph.coordinator._step()
        waited_for(lambda: all(one.done() for one in list(graph.snapshots())) or far.asked)
    assert far.asked == ["put_manifest"] and not graph.answers()
    assert mf.completed(graph.disk, JOB) == []
    far.answers.set()
    finish(graph)
    assert graph.answers()["one"].done
    assert (tmp_path / "far/job/checkpoints/chk-1.json").exists()
    graph.coordinator.stop()


def test_a_checkpoint_whose_manifest_never_arrives_far_away_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, "put_manifest")
    graph = Graph(tmp_path / "weir", copy_dir=str(tmp_path / "far"))
    graph.all.run()
    graph.ask()
    graph.all_read(1)
    for _ in range(3):
        graph.coordinator._step()
        waited_for(lambda: all(one.done() for one in list(graph.snapshots())) or far.asked)
    graph.clock.advance(600)
    graph.coordinator._step()
    assert graph.aborted() == [(1, AbortReason.EXPIRED.value)]
    far.answers.set()
    graph.coordinator.stop()


def test_nobody_waits_while_old_copies_are_deleted_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, "remove_manifest", "remove")
    graph = Graph(tmp_path / "weir", copy_dir=str(tmp_path / "far"), num_retained=1)
    graph.take(1)
    graph.take(2)
    assert graph.answers()["2"].done
    assert mf.completed(graph.disk, JOB) == [2]
    manifests = tmp_path / "far/job/checkpoints"
    waited_for(lambda: far.asked)
    assert (manifests / "chk-1.json").exists()
    far.answers.set()
    waited_for(lambda: not (manifests / "chk-1.json").exists())
    copies, pins = (top / "job/generations/0001/pins" for top in (tmp_path / "far", tmp_path / "weir"))
    waited_for(lambda: tree(copies) == tree(pins))
    graph.coordinator.stop()


def test_an_end_does_not_wait_for_files_that_are_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, "put")
    graph = Graph(tmp_path / "weir", copy_dir=str(tmp_path / "far"), data_inline_threshold=0)
    graph.all.run()
    graph.coordinator.wish("one", False)
    graph.coordinator._step()
    waited_for(lambda: far.asked)
    graph.coordinator.stop(wait=False)
    assert graph.aborted() == [(1, AbortReason.STOPPING.value)]
    far.answers.set()
    graph.coordinator.stop()


@pytest.mark.parametrize("full", [False, True])
def test_a_checkpoint_is_copied_whole_and_a_full_one_shares_nothing(tmp_path: Path, full: bool) -> None:
    graph = Graph(tmp_path / "weir", copy_dir=str(tmp_path / "far"), data_inline_threshold=0)
    graph.take(1)
    graph.take(2, full)
    manifest = mf.read(graph.disk, JOB, CheckpointId(2))
    assert manifest is not None and manifest.full == full
    kept = list(manifest.kept())
    assert all(name.startswith("full-2/") for name in kept) == full
    assert (manifest.new_bytes == manifest.full_bytes) == full, "what is new is less, unless it is all"
    shutil.rmtree(tmp_path / "weir/job/generations/0001/pins")
    assert verify(graph.disk, manifest) == [], "the copies alone are enough"
    graph.coordinator.stop()


# when one is due, and what goes


def test_leftovers_are_swept_also_while_checkpoints_never_pause(graph: Graph) -> None:
    pins = graph.all.root.parents[1] / "pins/queries/all"
    old = write(pins / "old", "by the driver before")
    graph.step()
    waited_for(lambda: not old.exists())
    left = write(pins / "left", "by a checkpoint that was aborted")
    graph.all.run()
    graph.ask()
    assert left.exists()
    graph.coordinator.wish("two", False)
    graph.step(601)
    waited_for(lambda: not left.exists())
    assert graph.coordinator._state.pending, "one is pending all the time"


def test_a_checkpoint_is_due_after_so_many_records_from_outside(tmp_path: Path) -> None:
    graph = Graph(tmp_path, interval_records=100)
    for query, rows in (("all", 60), ("fast", 1000), ("all", 39)):
        graph.coordinator.batch(committed(query, rows))
        graph.step()
        assert not graph.begun()
    graph.coordinator.batch(committed("all", 1))
    graph.step()
    assert [one.trigger for one in graph.begun()] == ["records"]
    graph.step()
    assert len(graph.begun()) == 1, "it counts anew"
    graph.coordinator.stop()


def test_after_one_has_ended_the_next_waits_for_the_pause_unless_it_is_asked_for(tmp_path: Path) -> None:
    graph = Graph(tmp_path, min_pause="10 s")
    graph.coordinator.configure({f"{KEY}.interval": "1 s"})
    graph.all.run()
    graph.step(1)
    graph.all_read(1)
    finish(graph)
    assert mf.completed(graph.disk, JOB) == [1]
    graph.step(9)
    assert len(graph.begun()) == 1
    graph.step(1)
    assert len(graph.begun()) == 2
    graph.all_read(2)
    finish(graph)
    graph.ask()
    assert [one.trigger for one in graph.begun()] == ["interval", "interval", "request"]
    graph.coordinator.stop()


def test_a_cancelled_job_may_leave_nothing_but_the_number(tmp_path: Path) -> None:
    graph = Graph(tmp_path / "weir", copy_dir=str(tmp_path / "far"))
    graph.take(1)
    graph.take(2)
    graph.coordinator.stop()
    graph.coordinator.delete_all()
    assert mf.ids(graph.disk, JOB) == {"begun": set(), "chk": set(), "aborted": {2}}
    assert not tree(graph.all.root.parents[1] / "pins")
    assert not [name for name in tree(tmp_path / "far") if "owner" not in name]


def test_with_few_batches_kept_by_spark_a_batch_waits_for_the_snapshot_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    take = Snapshots.of_query

    def slow(*args: Any, **options: Any) -> Any:
        assert go_on.wait(30)
        return take(*args, **options)

    monkeypatch.setattr(Snapshots, "of_query", slow)
    graph = Graph(tmp_path, purge=2)
    graph.all.run()
    graph.coordinator.wish("one", False)
    graph.coordinator._step()
    name, asked = QueryName("all"), threading.Event()
    graph.coordinator.before_batch(name, BatchId(1), lambda: True)  # its query is being ended
    began = threading.Event()

    def over() -> bool:
        asked.set()
        return False

    def next_batch() -> None:
        graph.coordinator.before_batch(name, BatchId(1), over)
        began.set()

    batch = threading.Thread(target=next_batch)
    batch.start()
    assert asked.wait(30) and not began.is_set()
    go_on.set()
    batch.join(30)
    assert began.is_set()
    graph.coordinator.stop()


def committed(query: str, rows: int) -> m.BatchCommitted:
    return m.BatchCommitted(query, 1, 0, rows, 0.1)


def test_a_query_that_stands_is_cut_there_and_the_others_align(graph: Graph) -> None:
    """A bounded one that has ended, or waits for its streams to end, will reach no barrier."""
    graph.all.run()
    graph.slow.run(all=(graph.entry(), 0))
    graph.all.run()
    graph.ask()
    graph.step()
    assert mf.read(graph.disk, JOB, CheckpointId(1)) is None, "fast and slow have not reached it"
    graph.standing = {"slow"}
    graph.step()
    graph.fast.run(all=(graph.entry(), 1))
    finish(graph)
    manifest = mf.read(graph.disk, JOB, CheckpointId(1))
    assert manifest is not None and manifest.alignment.value == "aligned"
    assert graph.cut(1) == {"all": 1, "fast": 0, "slow": 0}
    assert {name for name, cut in manifest.queries.items() if cut.unaligned} == {"slow"}
    assert manifest.channels["all"].first < manifest.channels["all"].behind, "what slow has still before it"


def test_a_query_that_reached_the_barrier_and_ended_is_cut_at_the_barrier(graph: Graph) -> None:
    graph.all.run()
    graph.ask()
    graph.slow.run(all=(graph.entry(), 1))
    graph.all.run()
    graph.slow.run(all=(graph.entry(), 1))
    graph.standing = {"slow"}
    graph.fast.run(all=(graph.entry() - 1, 1))
    finish(graph)
    assert graph.cut(1) == {"all": 0, "fast": 0, "slow": 0}


def test_a_channel_that_has_lost_its_end_asks_for_another_driver_and_not_only_for_another_checkpoint(
    graph: Graph,
) -> None:
    graph.take(1)
    graph.all.run()
    channel = Path(graph.live.channel(QueryName("all")).removeprefix("file://"))
    (channel / f"log/{graph.entry() - 1:09d}.json").unlink()
    graph.coordinator.wish("two", False)
    graph.coordinator.start()
    waited_for(lambda: graph.failures)
    graph.coordinator.stop()
    assert isinstance(graph.failures[0], LostSegmentError)
    assert not graph.answers()["two"].done


def test_a_trigger_that_has_to_wait_for_the_pause_is_looked_after_until_it_may_begin(tmp_path: Path) -> None:
    graph = Graph(tmp_path, interval="1 s", min_pause="10 s")
    assert graph.coordinator._pause() == 0.5
    graph.clock.advance(0.7)
    assert graph.coordinator._pause() == pytest.approx(0.3), "the trigger is not late"
    graph.take(1)
    graph.clock.advance(5)
    assert len(graph.begun()) == 1 and graph.coordinator._pause() == 0.2
    graph.coordinator.stop()
