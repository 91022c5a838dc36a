"""Listeners of checkpoints are called in order, beside the coordinator, and can't stop anything."""

from __future__ import annotations

import threading

import pytest

from weir.ids import CheckpointId
from weir.job.job import Job
from weir.job.listeners import Listeners

SOON = 10.0


class Heard:
    """What the listeners of a job were told, and what was reported of them."""

    def __init__(self) -> None:
        self.job = Job("heard")
        self.told: list[object] = []
        self.failed: list[tuple[str, str]] = []

    def listeners(self) -> Listeners:
        return Listeners(self.job, lambda name, error: self.failed.append((name, str(error))))


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_every_listener_hears_every_event_in_order(heard: Heard) -> None:
    @heard.job.on_checkpoint_complete
    def first(id: int) -> None:
        heard.told.append(("first", id))

    @heard.job.on_checkpoint_complete
    def second(id: int) -> None:
        heard.told.append(("second", id))

    @heard.job.on_checkpoint_aborted
    def gone(id: int, reason: str) -> None:
        heard.told.append((id, reason))

    listeners = heard.listeners()
    listeners.completed(CheckpointId(1))
    listeners.aborted(CheckpointId(2), "the disk is full")
    listeners.completed(CheckpointId(3))
    assert listeners.stop(SOON)
    assert heard.told == [
        *(("first", 1), ("second", 1)),
        (2, "the disk is full"),
        *(("first", 3), ("second", 3)),
    ]
    assert heard.failed == []


@pytest.mark.parametrize("raised", [ValueError("no such table"), SystemExit("no such table")])
def test_one_that_raises_is_reported_and_stops_nothing(heard: Heard, raised: BaseException) -> None:
    @heard.job.on_checkpoint_complete
    def broken(id: int) -> None:
        raise raised

    heard.job.on_checkpoint_complete(heard.told.append)
    listeners = heard.listeners()
    for id in (1, 2):
        listeners.completed(CheckpointId(id))
    assert listeners.stop(SOON)
    assert heard.told == [1, 2]
    assert heard.failed == [("broken", "no such table")] * 2


def test_one_that_hangs_holds_up_neither_the_coordinator_nor_the_end(heard: Heard) -> None:
    entered, let_go = threading.Event(), threading.Event()

    @heard.job.on_checkpoint_complete
    def hangs(id: int) -> None:
        entered.set()
        let_go.wait(SOON)
        heard.told.append(id)

    listeners = heard.listeners()
    for id in (1, 2):
        listeners.completed(CheckpointId(id))
    assert entered.wait(SOON)
    assert not listeners.stop(0.01), "it is left behind"
    assert heard.told == []
    let_go.set()
    assert listeners.stop(SOON)
    assert heard.told == [1, 2]


def test_they_are_called_in_a_thread_of_their_own(heard: Heard) -> None:
    heard.job.on_checkpoint_complete(lambda id: heard.told.append(threading.current_thread().name))
    listeners = heard.listeners()
    listeners.completed(CheckpointId(1))
    listeners.stop(SOON)
    assert heard.told == ["weir-listeners"]
