"""What follows each failure of a job: a strategy of its own for each query, and one for the whole driver."""

from __future__ import annotations

from collections.abc import Callable

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
        limits = Limits(poison_batch=2, crash_loop=3)
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
