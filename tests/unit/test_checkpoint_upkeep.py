"""The coordinator beside its checkpoints: who is told, what is let go, what may not hold anybody up."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import write
from tests.played_graph import JOB, Far, Graph, finish, waited_for
from weir.checkpoint import manifest as mf
from weir.checkpoint import snapshots
from weir.checkpoint.copies import Copies
from weir.checkpoint.manifest import ChannelCut, Manifest
from weir.errors import StorageError
from weir.ids import BatchId, CheckpointId, QueryName
from weir.protocol import messages as m
from weir.restore.point import verify
from weir.storage import paths


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    made = Graph(tmp_path, num_retained=1)
    yield made
    made.coordinator.stop()


def notes(graph: Graph) -> list[str]:
    return [one.text for one in graph.said if isinstance(one, m.Noted)]


def refused(*_args: Any, **_options: Any) -> Any:
    raise StorageError(verb="use", path="far", reason="it does not answer", root="far")


def test_who_waits_for_a_checkpoint_is_told_whatever_goes_wrong_behind_it(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: object) -> None:
        raise ValueError("a torn entry")

    monkeypatch.setattr(snapshots, "trim", torn)
    held: list[Manifest | None] = []
    graph.all.run()
    graph.coordinator.hold(lambda manifest, _reason: held.append(manifest))
    graph.step()
    graph.all_read(1)
    finish(graph)
    assert [one.id for one in held if one is not None] == [1]
    assert graph.completed == [1] and not graph.aborted()
    assert notes(graph) == ["checkpoint 1 is complete, but ValueError: a torn entry"]


def test_what_could_not_be_let_go_is_retained_and_let_go_behind_the_next(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.take(1)
    with monkeypatch.context() as broken:
        broken.setattr(graph.disk, "delete", refused)
        graph.take(2)
    assert mf.completed(graph.disk, JOB) == [1, 2]
    cut = graph.coordinator.oldest_cut(QueryName("fast"))
    assert cut == graph.cut(1)["fast"], "sinks must be able to go back to it"
    graph.take(3)
    assert mf.completed(graph.disk, JOB) == [3]
    assert graph.completed == [1, 2, 3]


def test_a_held_checkpoint_that_ends_behind_a_newer_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(tmp_path, num_retained=1, max_concurrent_checkpoints=2)
    kept, of_channel = threading.Event(), graph.coordinator._actions.snapshots.of_channel

    def slow(id: CheckpointId, *args: Any, **options: Any) -> ChannelCut:
        assert id != 1 or kept.wait(30)
        return of_channel(id, *args, **options)

    def completed(*ids: int) -> bool:
        graph.coordinator._step()
        return mf.completed(graph.disk, JOB) == list(ids)

    monkeypatch.setattr(graph.coordinator._actions.snapshots, "of_channel", slow)
    held: list[Manifest | None] = []
    graph.all.run()
    graph.coordinator.hold(lambda manifest, _reason: held.append(manifest))
    graph.coordinator._step()
    graph.all_read(1)
    graph.all.run()
    graph.coordinator.wish("two", False)
    graph.coordinator._step()
    graph.all_read(2)
    waited_for(lambda: completed(2))
    kept.set()
    waited_for(lambda: completed(1, 2))
    assert [one.id for one in held if one] == [1]
    graph.coordinator.release(CheckpointId(1))
    graph.take(3)
    assert mf.completed(graph.disk, JOB) == [3]
    graph.coordinator.stop()


def test_an_id_that_somebody_else_has_begun_is_not_used(graph: Graph) -> None:
    key = paths.begun(JOB, CheckpointId(1))
    graph.disk.create(key, b"by a driver that has lost its lease")
    graph.all.run()
    graph.ask()
    graph.all_read(2)
    finish(graph)
    assert graph.answers()["one"].body["id"] == 2
    assert graph.disk.get(key) == b"by a driver that has lost its lease"


def test_a_place_for_copies_that_does_not_answer_keeps_no_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = str(tmp_path / "far")
    first = Graph(tmp_path / "weir", copy_dir=far)
    first.take(1)
    first.coordinator.stop()
    monkeypatch.setattr(Copies, "belong_to", refused)
    again = Graph(tmp_path / "weir", copy_dir=far)
    again.step()
    waited_for(lambda: notes(again))
    assert notes(again)[0].startswith(
        "files of old checkpoints could not be deleted: the storage could not use far"
    )
    again.coordinator.stop()


def test_a_batch_waits_until_the_files_are_pinned_and_not_until_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, "put")
    graph = Graph(tmp_path / "weir", purge=2, copy_dir=str(tmp_path / "far"), data_inline_threshold=0)
    graph.all.run()
    graph.coordinator.wish("one", False)
    graph.coordinator._step()
    waited_for(lambda: far.asked)
    graph.coordinator.before_batch(QueryName("all"), BatchId(1), lambda: False)
    assert not graph.coordinator._actions.work[CheckpointId(1)].queries[QueryName("all")].done()
    far.answers.set()
    graph.coordinator.stop()


def test_what_was_let_go_is_not_remembered_for_ever(graph: Graph) -> None:
    for id in range(1, 6):
        graph.take(id)
    assert not graph.coordinator._actions.snapshots._void


def test_a_driver_that_has_lost_its_lease_sweeps_nothing(graph: Graph) -> None:
    left = write(graph.all.root.parents[1] / "pins/queries/all/left", "the next driver may need it")
    graph.lease.end()
    graph.coordinator._step()
    waited_for(lambda: notes(graph))
    assert left.exists() and "lease" in notes(graph)[0]


def test_checkpoints_go_on_while_a_slow_copy_dir_is_swept_and_keep_what_they_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(tmp_path / "weir", num_retained=1, copy_dir=str(tmp_path / "far"), data_inline_threshold=0)
    graph.take(1)
    far = Far(monkeypatch, "kept")
    sweep = threading.Thread(
        target=graph.coordinator._actions.snapshots.sweep, args=[graph.coordinator._actions.retained.all()]
    )
    sweep.start()
    waited_for(lambda: far.asked)
    graph.take(2)
    assert graph.completed == [1, 2], "nobody waits for the listing"
    far.answers.set()
    sweep.join(30)
    manifest = mf.read(graph.disk, JOB, CheckpointId(2))
    assert manifest is not None
    shutil.rmtree(graph.all.root.parents[1] / "pins")
    assert verify(graph.disk, manifest) == [], "the copies alone are enough"
    graph.coordinator.stop()
