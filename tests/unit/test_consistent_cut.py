"""A completed checkpoint is a consistent cut, and leads every query back to where it was."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import KeptJob, write
from tests.played_graph import JOB, Graph, Query, finish, waited_for
from weir.checkpoint import manifest as mf
from weir.checkpoint import records
from weir.checkpoint.manifest import ChannelCut, Manifest, QueryCut
from weir.clock import ManualClock
from weir.errors import InconsistentCheckpointError, OutcomeUnknownError
from weir.ids import NO_BATCH, Attempt, CheckpointId, Generation, QueryName
from weir.protocol import messages as m
from weir.protocol.checkpoint import AbortReason, TriggerRefusal, last_id, subsumed
from weir.restore.point import resolve, verify
from weir.storage import generation as generations
from weir.storage import open_store, paths
from weir.storage.generation import create_origin, mark_live, read_origin


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    made = Graph(tmp_path / "here", max_concurrent_checkpoints=2)
    yield made
    made.coordinator.stop()


def elsewhere(graph: Graph, folder: Path) -> Graph:
    """The same live files in a directory that has never seen a checkpoint."""
    graph.coordinator.stop()
    shutil.copytree(graph.disk.url, folder, ignore=shutil.ignore_patterns("checkpoints"))
    other = Graph(folder, max_concurrent_checkpoints=2)
    for query, before in ((other.all, graph.all), (other.fast, graph.fast), (other.slow, graph.slow)):
        query.batch = before.batch
    return other


def share_a_barrier(graph: Graph) -> None:
    """Checkpoints 1 and 2 wait for the same batch; barrier 2 is that of both."""
    graph.all.run()
    graph.all.plan()
    graph.ask("one")
    graph.ask("two")
    graph.all.run()
    graph.step()
    graph.all_read(2)
    finish(graph)
    assert mf.completed(graph.disk, JOB) == [1, 2]


def rows_and_a_checkpoint(graph: Graph) -> None:
    """The readers read on with the barrier that they have, then a checkpoint is asked for and read."""
    graph.all.run()
    graph.all_read(2)
    graph.ask("next")
    graph.all_read(graph.begun()[-1].id)
    finish(graph)


def test_ids_begin_above_the_barriers_of_live_files_that_come_from_elsewhere(
    graph: Graph, tmp_path: Path
) -> None:
    share_a_barrier(graph)
    other = elsewhere(graph, tmp_path / "there")
    rows_and_a_checkpoint(other)
    assert mf.completed(other.disk, JOB) == [3]
    manifest = mf.read(other.disk, JOB, CheckpointId(3))
    assert manifest is not None
    ends = {name: cut.positions["all"][0] for name, cut in manifest.queries.items() if cut.positions}
    assert ends == {"fast": manifest.channels["all"].behind, "slow": manifest.channels["all"].behind}
    other.coordinator.stop()


def test_a_barrier_that_only_a_reader_knows_counts_too(graph: Graph) -> None:
    graph.all.run()
    graph.fast.run(all=(graph.entry(), 7))
    assert graph.fast.vertex.barriers() == [7]


def test_a_checkpoint_whose_reader_is_past_its_writers_cut_is_aborted_in_words(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "last_id", lambda known, restored, _: last_id(known, CheckpointId(1), ()))
    share_a_barrier(graph)
    other = elsewhere(graph, tmp_path / "there")
    cut = other.entry() - 1  # in front of the fence of this start
    rows_and_a_checkpoint(other)
    (end,) = [one for one in other.said if isinstance(one, m.CheckpointAborted)]
    assert (end.id, end.reason) == (2, AbortReason.INCONSISTENT.value)
    assert f"of channel all, which is cut at entry {cut}" in end.detail and "query fast" in end.detail
    assert mf.completed(other.disk, JOB) == [], "nothing that can't be restored is there"
    other.coordinator.stop()


def inconsistent(job: KeptJob, id: int) -> Manifest:
    reader = QueryCut(batch=4, positions={"all": (9, 13)})
    channel = ChannelCut(first=3, behind=4, batch=1)
    return job.complete(job.manifest(id, {"fast": reader}, {"all": channel}))


def test_one_that_an_earlier_weir_has_completed_is_refused_and_passed_over(tmp_path: Path) -> None:
    job = KeptJob(tmp_path)
    job.take(12, job.pins(), job.batch(0), 0)
    wrong = inconsistent(job, 13)
    says = "is not a consistent cut: query fast resumes at entry 9 of channel all, which is cut at entry 4"
    assert verify(job.store, wrong) == [f"chk-13.json {says}"]
    with pytest.raises(InconsistentCheckpointError) as refused:
        resolve(job.store, job.job, "chk-13")
    assert refused.value.what == f"checkpoint 13 of job '{job.job}' {says}"
    passed: list[tuple[str, str]] = []
    found = resolve(job.store, job.job, "latest", lambda point, why: passed.append((point, why)))
    assert found.name == "chk-12" and passed == [("chk-13", f"chk-13.json {says}")]


def test_a_reader_that_was_set_back_is_not_past_the_cut(tmp_path: Path) -> None:
    job = KeptJob(tmp_path)
    reader = QueryCut(batch=4, positions={"all": (9, 13)}, set_back={"all": (4, 13)})
    manifest = job.manifest(13, {"fast": reader}, {"all": ChannelCut(first=3, behind=4, batch=1)})
    assert manifest.inconsistencies() == []


def test_a_reader_whose_entry_was_not_kept_is_found_too(tmp_path: Path) -> None:
    job = KeptJob(tmp_path)
    reader = QueryCut(batch=4, positions={"all": (3, 13)})
    manifest = job.manifest(13, {"fast": reader}, {"all": ChannelCut(first=3, behind=4, batch=1)})
    assert manifest.inconsistencies() == [
        "query fast resumes at entry 3 of channel all, of which entry 3 is the first that was kept"
    ]


# before the first batch


def test_a_checkpoint_waits_for_the_first_batch_of_a_query_that_has_begun(graph: Graph) -> None:
    graph.all.vertex._fixed = False
    graph.all.plan()
    graph.ask()
    graph.step(60)
    assert not graph.begun() and not graph.answers()
    graph.all.run()
    graph.step()
    graph.all_read(1)
    finish(graph)
    assert graph.cut(1)["all"] == 0


def test_one_that_waits_too_long_for_a_first_batch_is_refused_in_words(graph: Graph) -> None:
    graph.all.vertex._fixed = False
    graph.ask()
    graph.step(600)
    assert graph.answers()["one"].body["reason"] == f"{TriggerRefusal.NOT_BEGUN.value} (all)"
    assert not graph.begun()


def test_that_none_is_taken_by_interval_is_reported_once(tmp_path: Path) -> None:
    graph = Graph(tmp_path, interval="10 s")
    graph.all.vertex._fixed = False
    for _ in range(70):
        graph.step(10)
    assert not graph.begun()
    assert [one.text for one in graph.said if isinstance(one, m.Noted)] == [
        f"no checkpoint is taken: {TriggerRefusal.NOT_BEGUN.value} (all)"
    ]
    graph.all.run()
    graph.step()
    assert [one.id for one in graph.begun()] == [1]
    graph.coordinator.stop()


def test_a_last_checkpoint_of_a_query_that_was_ended_in_its_first_batch_is_declined(graph: Graph) -> None:
    graph.all.vertex._fixed = False
    graph.all.plan()
    graph.standing = {"all", "fast", "slow"}
    reasons: list[str] = []
    graph.coordinator.final_cut(lambda manifest, reason: reasons.append(reason))
    graph.step()
    assert len(reasons) == 1 and "query all has not committed its first batch yet" in reasons[0]


def test_a_query_that_waits_for_its_streams_is_cut_before_its_first_batch(graph: Graph) -> None:
    """And as long as that one is retained, nothing that its sources hold may go."""
    graph.slow.vertex._fixed = False
    graph.standing = {"slow"}
    graph.all.run()
    graph.ask()
    graph.fast.run(all=(graph.entry(), 1))
    finish(graph)
    assert graph.cut(1) == {"all": 0, "fast": 0, "slow": NO_BATCH}
    assert graph.coordinator.offsets(QueryName("slow")) is None
    assert graph.coordinator.offsets(QueryName("fast")) is not None


def test_what_an_older_pending_checkpoint_may_need_of_a_source_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be held, and end after a newer one that is retained."""
    graph = Graph(tmp_path, num_retained=1, max_concurrent_checkpoints=2)
    go_on, of_query = threading.Event(), graph.coordinator._actions.snapshots.of_query

    def slow(id: CheckpointId, *args: Any, **options: Any) -> QueryCut:
        assert id != 2 or go_on.wait(30)
        return of_query(id, *args, **options)

    monkeypatch.setattr(graph.coordinator._actions.snapshots, "of_query", slow)
    graph.take(1)
    for id in (2, 3):
        graph.all.run()
        graph.coordinator.wish(str(id), False)
        graph.coordinator._step()
        graph.all_read(id)
    assert graph.coordinator.offsets(QueryName("fast")) is not None, "1 is retained, and is older"

    def three_is_there() -> bool:
        graph.coordinator._step()
        return mf.completed(graph.disk, JOB) == [3]

    waited_for(three_is_there)
    assert graph.coordinator.offsets(QueryName("fast")) is None
    go_on.set()
    graph.coordinator.stop()


def test_a_reader_without_a_position_needs_only_what_is_left_of_its_channel(graph: Graph) -> None:
    """Its channel was trimmed before it came into the job."""
    for id in (1, 2, 3):
        graph.take(id)
    shutil.rmtree(graph.slow.root)
    graph.slow = Query(graph.live, "slow", ("all",), False)
    graph.coordinator.replace(graph.slow.vertex)
    graph.standing = {"slow"}
    graph.all.run()
    graph.ask("late")
    graph.fast.run(all=(graph.entry(), 4))
    finish(graph)
    assert graph.cut(4) == {"all": 3, "fast": 3, "slow": NO_BATCH}
    manifest = mf.read(graph.disk, JOB, CheckpointId(4))
    assert manifest is not None
    beginning = graph.all.vertex.beginning().entry
    assert manifest.channels["all"].first == beginning - 1 > 0
    assert verify(graph.disk, manifest) == []


# numbers that a replaced driver has taken


def test_what_a_replaced_driver_begins_later_is_aborted_when_its_number_comes(tmp_path: Path) -> None:
    graph = Graph(tmp_path, attempt=2)
    graph.all.run()
    write(tmp_path / paths.begun(JOB, CheckpointId(1)), '{"id": 1, "attempt": 1}')
    graph.ask()
    assert mf.ids(graph.disk, JOB)["aborted"] == {1}
    assert [one.id for one in graph.begun()] == [2]
    graph.coordinator.stop()


@pytest.mark.parametrize("successor", [True, False])
def test_a_beginning_without_an_answer_is_aborted_unless_it_is_a_successors(
    tmp_path: Path, successor: bool
) -> None:
    """Readers may wait for it; but the number may be another driver's by now."""
    graph = Graph(tmp_path, attempt=1)
    graph.all.run()

    def no_answer(key: str) -> None:
        graph.disk.on_create = lambda key: None
        if successor:
            write(tmp_path / paths.begun(JOB, CheckpointId(1)), '{"id": 1, "attempt": 2}')
        raise OutcomeUnknownError(verb="create", path=key, reason="no answer", root=graph.disk.url)

    graph.disk.on_create = no_answer
    graph.ask()
    there = mf.ids(graph.disk, JOB)
    assert (there["begun"], there["aborted"]) == ({1}, set() if successor else {1})
    assert not graph.coordinator._actions.records._unwritten
    graph.coordinator.stop()


@pytest.mark.parametrize("body", ['{"id": 1, "attempt": 3}', '{"id": 1}', "{}", ""])
def test_what_a_later_driver_has_begun_or_nobody_says_who_is_left_alone(tmp_path: Path, body: str) -> None:
    graph = Graph(tmp_path, attempt=2)
    graph.all.run()
    write(tmp_path / paths.begun(JOB, CheckpointId(1)), body)
    graph.ask()
    assert mf.ids(graph.disk, JOB)["aborted"] == set()
    assert [one.id for one in graph.begun()] == [2]
    graph.coordinator.stop()


def test_a_driver_that_slept_in_its_start_aborts_nothing_of_its_successors(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for id, body in ((1, '{"id": 1}'), (2, '{"attempt": 1}'), (3, '{"attempt": 2}'), (4, '{"attempt": 3}')):
        store.create(paths.begun(JOB, CheckpointId(id)), body.encode())
    assert records.Records(store, JOB, Attempt(2), ManualClock()).learn() == [1, 2, 3]


# what is retained


def test_retained_are_the_newest_that_can_be_restored() -> None:
    one, two, three, four = map(CheckpointId, range(1, 5))
    assert subsumed([one, two, three, four], 3) == [one]
    assert subsumed([one, two, three, four], 3, {two, three}) == [two, three]
    assert subsumed([one, two, three, four], 1, {two, three}) == [one, two, three]
    assert subsumed([one, two, three], 2, {one, two, three}) == [one], "until there is a better one"


def test_what_the_job_was_rolled_back_past_goes_first(tmp_path: Path) -> None:
    before = Graph(tmp_path, num_retained=3)
    for id in (1, 2, 3):
        before.take(id)
    before.coordinator.stop()
    live = read_origin(before.disk, JOB, generations.FIRST)
    assert live is not None
    shutil.copytree(before.live.root, str(before.live.root).replace("0001", "0002"))
    (Path(str(before.live.root).replace("0001", "0002")) / "origin.json").unlink()
    number = Generation(2)
    rolled_back = replace(live, restored_from="chk-1", parent=1)
    assert create_origin(before.disk, JOB, number, rolled_back)
    mark_live(before.disk, JOB, number)
    after = Graph(tmp_path, num_retained=3, generation=2)
    for query, old in ((after.all, before.all), (after.fast, before.fast), (after.slow, before.slow)):
        query.batch = old.batch
    after.take(4)
    assert mf.completed(after.disk, JOB) == [1, 4], "2 and 3 can never be restored"
    after.coordinator.stop()
