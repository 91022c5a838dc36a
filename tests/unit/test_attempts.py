"""One driver at a time: who may open the next attempt, and when."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.clock import Clock, ManualClock
from weir.errors import FencedError, JobRunningError, OutcomeUnknownError
from weir.ids import Attempt, Run, Token, job_name
from weir.storage import paths
from weir.storage.attempts import AttemptLock, AttemptRecord, Beat, KnownAttempts, Lease, gone
from weir.storage.local import LocalStore
from weir.storage.store import Created

JOB = job_name("job")


class Taker:
    """A second supervisor whose waiting moves its own clock and lets the test act."""

    def __init__(self, store: LocalStore) -> None:
        self.clock = ManualClock()
        self.lock = AttemptLock(store, JOB, self.clock)
        self.waits = 0
        self.while_waiting: Callable[[], None] = lambda: None

    def take(self, timeout: float = 50) -> Attempt:
        def waiting(holder: AttemptRecord, seconds: float) -> None:
            self.waits += 1
            self.while_waiting()
            self.clock.advance(min(1, seconds))

        return self.lock.acquire("taker", timeout, waiting)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def holder(store: LocalStore) -> AttemptLock:
    lock = AttemptLock(store, JOB, Clock())
    assert lock.acquire("holder", 50, lambda *_: None) == 1
    lock.beat()
    return lock


def test_a_holder_that_beats_is_never_taken_from(store: LocalStore, holder: AttemptLock) -> None:
    taker = Taker(store)
    taker.while_waiting = holder.beat
    with pytest.raises(JobRunningError) as caught:
        taker.take()
    assert str(os.getpid()) in caught.value.why
    assert taker.waits == 1


def test_a_silent_holder_is_taken_over_after_the_timeout_of_the_takers_clock(
    store: LocalStore, holder: AttemptLock
) -> None:
    taker = Taker(store)
    assert taker.take(timeout=50) == 2
    assert taker.waits == 50


def test_a_taker_in_a_hurry_waits_as_long_as_the_holder_may_live(
    store: LocalStore, holder: AttemptLock
) -> None:
    taker = Taker(store)
    assert taker.take(timeout=2) == 2
    assert taker.waits == 50
    taker.lock.advance("taker", 4)
    after = Taker(store)
    assert after.take(timeout=1) == 4
    assert after.waits == 4


def test_an_attempt_of_an_earlier_weir_can_be_taken_over(store: LocalStore, holder: AttemptLock) -> None:
    key = paths.attempt(JOB, Attempt(1))
    record = json.loads(store.get(key) or b"")
    del record["timeout"]
    store.put(key, json.dumps(record).encode())
    taker = Taker(store)
    assert taker.take(timeout=3) == 2
    assert taker.waits == 3


TORN = [b"", b"\0\0\0", b'{"attempt": 1, "pi', b"{}", b"12"]


@pytest.mark.parametrize("torn", TORN)
def test_a_holder_whose_record_is_torn_is_waited_out_by_its_beat(
    store: LocalStore, holder: AttemptLock, torn: bytes
) -> None:
    store.put(paths.attempt(JOB, Attempt(1)), torn)
    taker = Taker(store)
    assert taker.take(timeout=7) == 2
    assert taker.waits == 7
    with pytest.raises(FencedError):
        holder.beat()


@pytest.mark.parametrize("torn", TORN)
def test_a_holder_whose_record_is_torn_and_that_beats_is_told_as_far_as_it_is_known(
    store: LocalStore, holder: AttemptLock, torn: bytes
) -> None:
    store.put(paths.attempt(JOB, Attempt(1)), torn)
    taker = Taker(store)
    taker.while_waiting = holder.beat
    with pytest.raises(JobRunningError, match=r"unknown machine \(job/attempts/000001.json can't be read\)"):
        taker.take()
    holder.release()
    assert Taker(store).take() == 2


def test_a_torn_beat_is_one_that_has_not_come_yet(store: LocalStore, holder: AttemptLock) -> None:
    store.put(paths.beat(JOB, Attempt(1)), b'{"coun')
    taker = Taker(store)
    taker.while_waiting = holder.beat
    with pytest.raises(JobRunningError):
        taker.take()
    store.put(paths.beat(JOB, Attempt(1)), b"")
    assert Taker(store).take() == 2


def test_the_old_holder_learns_that_it_was_taken_over(store: LocalStore, holder: AttemptLock) -> None:
    Taker(store).take()
    with pytest.raises(FencedError):
        holder.beat()
    with pytest.raises(FencedError):
        holder.advance("holder", 50)


def test_a_released_job_is_taken_at_once(store: LocalStore, holder: AttemptLock) -> None:
    holder.release()
    taker = Taker(store)
    assert taker.take() == 2
    assert taker.waits == 0


def test_the_owner_restarts_its_driver_under_the_next_attempt(store: LocalStore, holder: AttemptLock) -> None:
    assert holder.advance("holder", 50) == 2
    holder.beat()
    newest = holder.newest()
    assert newest is not None and newest.attempt == 2


def test_the_owner_steps_up_above_the_attempt_of_a_point(store: LocalStore, holder: AttemptLock) -> None:
    first = holder.held
    assert holder.advance("session", 10.0, above=57) == 58 == holder.held
    assert store.exists(paths.attempt(JOB, Attempt(first + 1))), "who was overtaken looks for the next one"
    assert holder.advance("session", 10.0, above=57) == 59


def test_of_two_takers_one_wins(store: LocalStore, holder: AttemptLock) -> None:
    holder.release()
    first, second = Taker(store), Taker(store)
    assert first.take() == 2
    first.lock.beat()
    second.while_waiting = first.lock.beat
    with pytest.raises(JobRunningError):
        second.take()


def test_processes_that_are_known_to_be_dead_need_not_be_waited_for(
    store: LocalStore, holder: AttemptLock
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    record = holder.newest()
    assert record is not None
    assert not gone(record, Beat())
    dead = dataclasses.replace(record, pid=ended.pid)
    assert gone(dead, Beat())
    assert not gone(dead, Beat(group=os.getpgrp()))
    assert not gone(dataclasses.replace(dead, host="elsewhere"), Beat())
    assert not gone(dataclasses.replace(dead, boot="before"), Beat())


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has it")
def test_the_clock_counts_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = {time.CLOCK_BOOTTIME: 3600.0, time.CLOCK_MONOTONIC: 0.0}
    real = time.clock_gettime
    lease = Lease(Attempt(1), 50, Clock())
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + slept[which])
    with pytest.raises(FencedError):
        lease.check()


def test_a_lease_runs_from_the_moment_of_asking() -> None:
    clock = ManualClock()
    lease = Lease(Attempt(1), 10, clock)
    asked_at = clock.monotonic()
    clock.advance(8)
    lease.renewed(asked_at)
    assert lease.left == 2
    lease.check()
    clock.advance(2)
    with pytest.raises(FencedError):
        lease.check()


def test_an_answer_that_comes_too_late_does_not_bring_a_lease_back() -> None:
    clock = ManualClock()
    lease = Lease(Attempt(1), 10, clock)
    clock.advance(9)
    asked_at = clock.monotonic()
    clock.advance(2)
    lease.renewed(asked_at)
    with pytest.raises(FencedError):
        lease.check()


def test_a_lease_that_was_lost_to_a_newer_attempt_is_over_for_good() -> None:
    clock = ManualClock()
    lease = Lease(Attempt(1), 10, clock)
    lease.end()
    lease.renewed(clock.monotonic())
    with pytest.raises(FencedError):
        lease.check()


def test_a_lease_that_was_lost_says_to_which_attempt() -> None:
    lease = Lease(Attempt(1), 10, ManualClock())
    lease.end(FencedError(who="attempt 1", by="attempt 2"))
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        lease.check()


def numbers(store: LocalStore) -> list[int]:
    return sorted(int(key[-11:-5]) for key in store.list(paths.attempts(JOB)) if key.endswith(".json"))


def test_attempts_that_begin_above_those_of_another_directory_take_the_same_lock(
    store: LocalStore, holder: AttemptLock
) -> None:
    holder.release()
    taker = AttemptLock(store, JOB, Clock())
    assert taker.acquire("taker", 50, lambda *_: None, above=57) == 58
    assert numbers(store) == [1, 2, 58]
    for step in (holder.beat, lambda: holder.advance("holder", 50)):
        with pytest.raises(FencedError):
            step()
    taker.beat()
    assert taker.advance("taker", 50) == 59


def test_of_two_starters_one_gets_the_job_also_when_one_begins_far_above(store: LocalStore) -> None:
    other = AttemptLock(store, JOB, Clock())
    first = AttemptLock(_Between(store, lambda: other.acquire("other", 50, lambda *_: None)), JOB, Clock())

    def waiting(holder: AttemptRecord, seconds: float) -> None:
        assert holder.session == "other"
        other.beat()

    with pytest.raises(JobRunningError):
        first.acquire("first", 50, waiting, above=500)
    assert numbers(store) == [1]


class _Between:
    """A store on which something happens before the first record is created."""

    def __init__(self, inner: LocalStore, happens: Callable[[], object]) -> None:
        self._inner, self._happens = inner, happens
        self.url, self.put, self.get = inner.url, inner.put, inner.get
        self.exists, self.list, self.delete = inner.exists, inner.list, inner.delete

    def create(self, key: str, data: bytes) -> Created:
        happens, self._happens = self._happens, lambda: None
        happens()
        return self._inner.create(key, data)


def test_what_happened_while_a_holder_was_waited_out_counts(store: LocalStore, holder: AttemptLock) -> None:
    """The holder is silent; meanwhile two others come and go, and records of old attempts are deleted."""
    taker = Taker(store)

    def others() -> None:
        taker.while_waiting = lambda: None
        lock = AttemptLock(store, JOB, Clock())
        holder.release()
        lock.acquire("quick", 50, lambda *_: None)
        lock.advance("quick", 50)
        lock.release()
        for attempt in (1, 2):
            store.delete(paths.attempt(JOB, Attempt(attempt)))

    taker.while_waiting = others
    assert taker.take() == 4


def test_attempts_are_compared_as_numbers(store: LocalStore) -> None:
    lock = AttemptLock(store, JOB, Clock())
    assert lock.acquire("one", 50, lambda *_: None, above=999_998) == 999_999
    assert lock.advance("one", 50) == 1_000_000
    lock.release()
    newest = lock.newest()
    assert newest is not None and newest.attempt == 1_000_000
    assert AttemptLock(store, JOB, Clock()).acquire("two", 50, lambda *_: None) == 1_000_001


def test_what_was_over_elsewhere_is_remembered_by_every_later_attempt(store: LocalStore) -> None:
    lock = AttemptLock(store, JOB, Clock())
    lock.acquire("one", 50, lambda *_: None, above=7)
    lock.advance("one", 50)
    newest = lock.newest()
    assert newest is not None and (newest.attempt, newest.above) == (9, 7)


@pytest.mark.parametrize("answer", ["it exists", "nobody knows"])
def test_a_record_that_was_created_without_a_good_answer_is_ones_own(
    store: LocalStore, holder: AttemptLock, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    create = store.create

    def badly_answered(key: str, data: bytes) -> Created:
        create(key, data)
        if answer == "it exists":
            return Created.EXISTS
        raise OutcomeUnknownError(verb="create", path=key, reason="no answer")

    monkeypatch.setattr(store, "create", badly_answered)
    assert holder.advance("holder", 50) == 2
    holder.beat()
    stranger = AttemptLock(store, JOB, Clock())
    assert not stranger._take(AttemptRecord(Attempt(1), 0, "", "", "", "", "", ""), "stranger", 50, 0)


def test_without_a_number_of_the_boot_no_process_is_known_to_be_gone(
    holder: AttemptLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = holder.newest()
    assert record is not None
    monkeypatch.setattr("weir.storage.attempts.boot", lambda: "")
    assert not gone(dataclasses.replace(record, pid=0, boot=""), Beat())


def fence(attempt: int, session: str) -> Token:
    return Token(Attempt(attempt), Run(1), session)


def test_a_directory_knows_its_own_attempts_and_those_that_are_over_elsewhere(store: LocalStore) -> None:
    lock = AttemptLock(store, JOB, Clock())
    lock.acquire("here", 50, lambda *_: None, above=7)
    lock.advance("here", 50)
    known = KnownAttempts(store, JOB)
    assert known(fence(8, "here")) and known(fence(9, "here"))
    assert known(fence(7, "elsewhere")), "a savepoint brought it along"
    assert known(fence(8, "")), "of an earlier weir"
    assert not known(fence(8, "elsewhere")), "another directory came to the same number"
    assert not known(fence(10, "elsewhere")), "this directory has never had that one"


def test_records_that_were_deleted_are_of_attempts_that_are_known(store: LocalStore) -> None:
    lock = AttemptLock(store, JOB, Clock())
    lock.acquire("here", 50, lambda *_: None)
    for _ in range(3):
        lock.advance("here", 50)
    for attempt in (1, 2):
        store.delete(paths.attempt(JOB, Attempt(attempt)))
    known = KnownAttempts(store, JOB)
    assert known(fence(2, "before")) and known(fence(3, "here"))
    assert not known(fence(3, "elsewhere"))
    store.put(paths.attempt(JOB, Attempt(3)), b'{"att')
    assert known(fence(3, "elsewhere")), "whose it was can't be read any more"


def test_a_directory_without_any_attempt_knows_them_all(store: LocalStore) -> None:
    assert KnownAttempts(store, JOB)(fence(3, "anybody"))


def deleted_by_retention(store: LocalStore) -> None:
    """All records but the newest, in the order in which `weir.supervisor.leftovers` deletes them."""
    for number in sorted(numbers(store))[:-1]:
        store.delete(paths.beat(JOB, Attempt(number)))
        store.delete(paths.attempt(JOB, Attempt(number)))


def test_an_owner_whose_record_was_deleted_meanwhile_is_fenced(
    store: LocalStore, holder: AttemptLock
) -> None:
    holder.release()
    successor = AttemptLock(store, JOB, ManualClock())
    successor.acquire("successor", 0.0, lambda *_: None)
    for _ in range(3):
        successor.advance("successor", 0.0)
    deleted_by_retention(store)
    with pytest.raises(FencedError, match="whose record was deleted"):
        holder.beat()
    with pytest.raises(FencedError):
        holder.advance("holder", 0.0)
    assert numbers(store) == [successor.held], "no old number is opened again"
    successor.beat()


def test_who_slept_before_it_took_an_attempt_that_is_long_over_does_not_get_it(
    store: LocalStore, holder: AttemptLock
) -> None:
    successor = AttemptLock(store, JOB, ManualClock())

    def others() -> None:
        successor.acquire("successor", 50, lambda *_: None)
        successor.advance("successor", 50)
        deleted_by_retention(store)

    holder.release()
    sleeper = AttemptLock(_Between(store, others), JOB, Clock())
    with pytest.raises(JobRunningError):
        sleeper.acquire("sleeper", 50, lambda *_: successor.beat())
    assert numbers(store) == [3]
