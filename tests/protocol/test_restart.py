"""What follows each failure of a job: a strategy of its own for each query, and one for the whole driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.errors import Domain
from weir.ids import BatchId, QueryName
from weir.protocol.decide import FailedAt, GiveUp, Limits
from weir.protocol.messages import Failure
from weir.protocol.restart import FixedDelay, NoRestart, Restart, Restarts, RestartStrategy

HOUR = 3600.0


class Job:
    """Fails as a test wants it to, at a time that only goes on."""

    def __init__(self, strategy: Callable[[], RestartStrategy] = lambda: FixedDelay(2, 5.0)) -> None:
        self.restarts = Restarts(strategy)
        self.now = 0.0

    def fails(self, query: str = "", batch: int = 7, domain: Domain = Domain.EXTERNAL) -> Restart | GiveUp:
        self.now += 1
        where = FailedAt(
            QueryName(query) if query else None,
            BatchId(batch),
            Failure("it failed", domain=domain, error="E"),
        )
        limits = Limits(poison_batch=2, crash_loop=3, machine=HOUR)
        return self.restarts.after(
            where, query, limits, quiet_time=HOUR, first=False, now=self.now, chance=0.0
        )


def test_the_outage_of_one_query_uses_up_no_restart_of_another() -> None:
    job = Job()
    assert [job.fails("q") for _ in range(2)] == [Restart(5.0)] * 2
    exhausted = job.fails("q")
    assert isinstance(exhausted, GiveUp) and exhausted.repeated and not exhausted.whole
    assert job.fails("r") == job.fails() == Restart(5.0)


def test_who_wants_no_restart_wants_the_job_to_end() -> None:
    given_up = Job(NoRestart).fails("q")
    assert isinstance(given_up, GiveUp) and given_up.whole and given_up.repeated


def test_a_failure_that_is_worth_no_try_uses_up_no_restart() -> None:
    job = Job(lambda: FixedDelay(1, 5.0))
    assert job.fails("q", domain=Domain.USER) == Restart(5.0)
    poison = job.fails("q", domain=Domain.USER)
    assert isinstance(poison, GiveUp) and "at batch 7" in poison.reason


def test_a_poison_batch_is_forgotten_after_a_quiet_time() -> None:
    job = Job()
    job.fails("q", domain=Domain.USER)
    job.restarts.idle("q", job.now)
    job.now += HOUR
    assert job.fails("q", domain=Domain.USER) == Restart(5.0)


def test_a_committed_batch_ends_a_crash_loop() -> None:
    job = Job(lambda: FixedDelay(100, 5.0))
    failures = [job.fails("q", batch, Domain.INTERNAL) for batch in (1, 2)]
    job.restarts.committed("q")
    failures += [job.fails("q", batch, Domain.INTERNAL) for batch in (3, 4)]
    assert failures == [Restart(5.0)] * 4
    assert isinstance(job.fails("q", 5, Domain.INTERNAL), GiveUp)


def test_a_job_that_resumes_from_elsewhere_has_not_failed_there() -> None:
    job = Job(lambda: FixedDelay(100, 5.0))
    for batch in (1, 2):
        job.fails("q", batch, Domain.INTERNAL)
    job.restarts.clear()
    assert job.fails("q", 1, Domain.INTERNAL) == Restart(5.0)
    assert job.fails("q", 2, Domain.INTERNAL) == Restart(5.0)


def machine_fails(job: Job, query: str = "q") -> Restart | GiveUp:
    return job.fails(query, domain=Domain.MACHINE)


def test_failures_of_the_machine_use_up_no_restart_of_the_jobs_own() -> None:
    job = Job(lambda: FixedDelay(1, 5.0))
    found = [machine_fails(job) for _ in range(20)]
    assert all(isinstance(one, Restart) and one.when_able for one in found), "they wait for the machine"
    assert job.fails("q", domain=Domain.USER) == Restart(5.0), "the one restart of its own is left"
    assert isinstance(job.fails("q", 8, Domain.USER), GiveUp)
    assert isinstance(machine_fails(job), Restart)


def test_failures_of_the_machine_count_for_no_crash_loop_and_no_poison_batch() -> None:
    job = Job(lambda: FixedDelay(100, 5.0))
    for _ in range(10):
        machine_fails(job)
    assert job.fails("q", domain=Domain.USER) == Restart(5.0)
    for _ in range(10):
        machine_fails(job)
    assert [job.fails("q", batch, Domain.INTERNAL) for batch in (7, 8)] == [Restart(5.0)] * 2


def test_a_job_that_the_machine_can_not_run_for_long_ends_with_words() -> None:
    job = Job()
    for _ in range(12):
        machine_fails(job)
    job.now += HOUR
    given_up = machine_fails(job)
    assert isinstance(given_up, GiveUp) and given_up.repeated and not given_up.whole
    assert "could not run it for 1 h: 13 failures" in given_up.reason
    assert "restart-strategy.machine-failures.timeout" in given_up.reason
    assert "more cores or memory" in given_up.todo and "nothing that was committed is lost" in given_up.todo


@pytest.mark.parametrize("waits", [False, True])
def test_a_batch_or_waiting_for_input_shows_that_the_machine_can_run_the_query(waits: bool) -> None:
    job = Job()
    for _ in range(12):
        machine_fails(job)
    if waits:
        job.restarts.idle("q", job.now)
    else:
        job.restarts.committed("q")
    job.now += HOUR
    assert isinstance(machine_fails(job), Restart)


def test_who_wants_no_restart_wants_none_for_the_machine_either() -> None:
    given_up = machine_fails(Job(NoRestart))
    assert isinstance(given_up, GiveUp) and given_up.whole
    assert "more cores or memory" in given_up.todo, "nothing tries again"
